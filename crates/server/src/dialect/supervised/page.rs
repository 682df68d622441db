//! A page of events.
//!
//! A small page is one body. A large one is read and sent in chunks: ten thousand events of 64 KiB
//! each never stand in memory together. When retention overtakes a page that is under way, the
//! page ends early with what was read; the client goes on after its last event and is told then.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderValue, header},
    response::Response,
};
use futures_util::stream;
use outlive_api::{
    encode::number,
    error::{Action, ApiError, ErrorEnvelope, Success},
    event::EventPage,
    limits::{PAGE_EVENTS_DEFAULT, PAGE_EVENTS_MAX, PAGE_WAIT_MS_MAX},
};
use outlive_journal::ReadError;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    Supervised,
    call::InSession,
    cursor,
    feed::Attachment,
    filter::Filter,
    source::{Bounds, Chunk, Format, Source},
};
use crate::{
    http::{extract::Query, reply::Failure},
    limits::{HEAD_MOVES_MAX, REPLAY_CHUNK_BYTES},
    sessions::{Life, Tail},
};

const ACTION: Action = Action::ListSessionEvents;

/// A page of events after a cursor, or the newest ones. Never wakes the sandbox.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/events",
    operation_id = "listSessionEvents",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
        ("after" = Option<u64>, Query, description = "Events after this one; left out, from the earliest that is kept"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 10000, description = "Most events of the page; default 1000"),
        ("tail" = Option<u64>, Query, minimum = 1, maximum = 10000, description = "Instead of `after`: only the newest events"),
        ("types" = Option<String>, Query, description = "Only these types, with commas between them"),
        ("stream" = Option<String>, Query, description = "Only output of `stdout`, `stderr` or `pty`"),
        ("attempt_id" = Option<String>, Query, description = "Only events of this attempt"),
        ("wait_ms" = Option<u64>, Query, minimum = 0, maximum = 30000, description = "Wait this long for a first event"),
    ),
    responses(
        (status = 200, body = Success<EventPage>),
        (status = 410, description = "Events after the cursor are no longer kept; `details.earliest` says from where on they are", body = ErrorEnvelope),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn list_events(
    State(state): State<Arc<Supervised>>,
    at: InSession,
    query: Query,
) -> Result<Response, Failure> {
    let asked = Asked::parse(&query, &at)?;
    let attachment = state
        .feeds
        .attach(ACTION, &*at.sandbox, &at.session, &state.metrics)
        .await?;
    let mut tail = attachment.tail();
    let now = *tail.borrow_and_update();
    let mut page = Page {
        source: Some(attachment.source().map_err(|error| failed(&error.into()))?),
        cursor: cursor::resolve(asked.after, &now)?,
        upto: now.latest,
        left: asked.limit,
        filter: asked.filter,
        head_moves_left: if asked.after.is_none() {
            HEAD_MOVES_MAX
        } else {
            0
        },
        attachment,
    };
    if let Some(count) = asked.newest {
        page.skip_to_newest(count).await?;
    }
    let ended = async {
        tokio::select! {
            () = state.stop.cancelled() => {}
            () = at.caller.revoked.cancelled() => {}
        }
    };
    let first = page.first(&mut tail, asked.wait_until, ended).await?;
    let window = *tail.borrow();
    Ok(answer(page, &first, &window))
}

/// What the query asks for.
struct Asked {
    after: Option<u64>,
    newest: Option<usize>,
    limit: usize,
    filter: Filter,
    wait_until: Option<Instant>,
}

impl Asked {
    fn parse(query: &Query, at: &InSession) -> Result<Self, ApiError> {
        let count = |value: Option<u64>| value.and_then(|value| usize::try_from(value).ok());
        let after = query.number("after", 0, u64::MAX)?;
        let newest = count(query.number("tail", 1, PAGE_EVENTS_MAX)?);
        if after.is_some() && newest.is_some() {
            return Err(ApiError::invalid("after and tail exclude each other"));
        }
        let limit = count(query.number("limit", 1, PAGE_EVENTS_MAX)?)
            .or(newest)
            .or_else(|| count(Some(PAGE_EVENTS_DEFAULT)));
        let wait = query.number("wait_ms", 0, PAGE_WAIT_MS_MAX)?;
        Ok(Self {
            after,
            newest,
            limit: limit.unwrap_or(1),
            filter: Filter::parse(query, &at.session)?,
            wait_until: wait
                .filter(|ms| *ms > 0)
                .map(|ms| Instant::now() + Duration::from_millis(ms)),
        })
    }
}

/// A page on its way.
struct Page {
    /// `None` only while a blocking thread has it.
    source: Option<Source>,
    cursor: u64,
    upto: u64,
    left: usize,
    filter: Filter,
    /// How often the page may begin later because retention was faster. None once an event was
    /// read, and none at all where the caller chose the cursor: then it must be told.
    head_moves_left: u32,
    attachment: Attachment,
}

impl Page {
    async fn skip_to_newest(&mut self, count: usize) -> Result<(), ApiError> {
        if self.filter.is_open() {
            let skipped = self.upto.saturating_sub(count as u64);
            self.cursor = self.cursor.max(skipped);
            return Ok(());
        }
        let (after, upto) = (self.cursor, self.upto);
        let mut filter = self.filter.clone();
        let before = self
            .blocking(move |source| source.before_newest(after, upto, count, &mut filter))
            .await;
        self.cursor = before.map_err(|error| failed(&error))?;
        Ok(())
    }

    /// The first events, waiting for them where the caller wants that.
    async fn first(
        &mut self,
        tail: &mut watch::Receiver<Tail>,
        wait_until: Option<Instant>,
        ended: impl Future<Output = ()>,
    ) -> Result<Chunk, ApiError> {
        let mut ended = pin!(ended);
        loop {
            let chunk = self.more().await.map_err(|error| failed(&error))?;
            let life = tail.borrow().life;
            let (Some(deadline), true) = (wait_until, chunk.marks.is_empty()) else {
                return Ok(chunk);
            };
            if life == Life::Deleted {
                return Ok(chunk);
            }
            let moved = tokio::select! {
                moved = timeout_at(deadline, tail.changed()) => matches!(moved, Ok(Ok(()))),
                () = &mut ended => false,
            };
            if !moved {
                return Ok(chunk);
            }
            self.upto = tail.borrow_and_update().latest;
        }
    }

    /// Reads on until at least one event passes the filter, or there is nothing more.
    async fn more(&mut self) -> Result<Chunk, ReadError> {
        loop {
            let (after, left) = (self.cursor, self.left);
            let bounds = Bounds {
                upto: self.upto,
                bytes_max: REPLAY_CHUNK_BYTES,
                events_max: left,
            };
            let mut filter = self.filter.clone();
            let chunk = match self
                .blocking(move |source| source.chunk(Format::Page, after, &bounds, &mut filter))
                .await
            {
                Err(ReadError::Expired { earliest }) if self.head_moves_left > 0 => {
                    self.head_moves_left -= 1;
                    self.cursor = earliest.saturating_sub(1);
                    // The files may be trimmed beyond what we were told of so far.
                    let told = self.attachment.tail().borrow().latest;
                    self.upto = self.upto.max(told).max(self.cursor);
                    continue;
                }
                read => read?,
            };
            self.head_moves_left = 0;
            self.cursor = chunk.last;
            self.left -= chunk.marks.len().min(left);
            if !chunk.marks.is_empty() || chunk.last == after {
                return Ok(chunk);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.cursor >= self.upto
    }

    async fn blocking<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(&mut Source) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let mut source = match self.source.take() {
            Some(source) => source,
            None => self.attachment.source()?,
        };
        let done = tokio::task::spawn_blocking(move || {
            let result = read(&mut source);
            (source, result)
        });
        let (source, result) = done.await.map_err(std::io::Error::other)?;
        self.source = Some(source);
        result
    }
}

fn failed(error: &ReadError) -> ApiError {
    match error {
        ReadError::Expired { earliest } => ApiError::cursor_expired(*earliest),
        ReadError::Ahead { latest } => ApiError::cursor_ahead(*latest),
        ReadError::Empty | ReadError::Io(_) => ApiError::new(ACTION.failed(), error.to_string()),
    }
}

fn answer(page: Page, first: &Chunk, window: &Tail) -> Response {
    let mut head = b"{\"success\":true,\"data\":{\"cursor\":{\"earliest\":".to_vec();
    number(window.earliest, &mut head);
    head.extend_from_slice(b",\"latest\":");
    number(window.latest, &mut head);
    head.extend_from_slice(b"},\"events\":[");
    // The first event's comma has nothing before it.
    head.extend_from_slice(first.bytes.get(1..).unwrap_or_default());
    let body = if page.is_over() || first.marks.is_empty() {
        head.extend_from_slice(b"]}}");
        Body::from(head)
    } else {
        Body::from_stream(rest(page, Bytes::from(head)))
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

enum Part {
    Head(Page, Bytes),
    Events(Page),
    Done,
}

fn rest(page: Page, head: Bytes) -> impl stream::Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Part::Head(page, head), |part| async move {
        let mut page = match part {
            Part::Head(page, head) => return Some((Ok(head), Part::Events(page))),
            Part::Events(page) => page,
            Part::Done => return None,
        };
        let chunk = if page.is_over() {
            None
        } else {
            match page.more().await {
                Ok(chunk) => (!chunk.marks.is_empty()).then_some(chunk),
                Err(error) => {
                    tracing::debug!(%error, cursor = page.cursor, "a page ends early");
                    None
                }
            }
        };
        Some(match chunk {
            Some(chunk) => (Ok(chunk.bytes), Part::Events(page)),
            None => (Ok(Bytes::from_static(b"]}}")), Part::Done),
        })
    })
}
