//! Events as a server-sent stream.
//!
//! What is wrong with a request is said before the stream begins, with its own status. A stream
//! just ends: when the session is deleted, when the server goes, when the caller's key is
//! revoked, when its cursor expired under it. The client comes again with `Last-Event-ID` and is
//! told.

use std::{convert::Infallible, pin::Pin, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use futures_util::{Stream, stream};
use outlive_api::error::{Action, ApiError, ErrorEnvelope};
use outlive_core::session::Session;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{
    Supervised,
    call::InSession,
    cursor,
    follow::{Follower, Next, Until},
    source::Format,
};
use crate::{
    http::{extract::Query, reply::Failure},
    limits::HEARTBEAT,
    sessions::Awake,
};

/// Follows the session: replays what is kept after the cursor, then sends events as they happen.
/// Never wakes the sandbox.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/events/stream",
    operation_id = "streamSessionEvents",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
        ("after" = Option<u64>, Query, description = "Send events after this one; left out, from the earliest that is kept"),
        ("until" = Option<String>, Query, description = "`exit`: end once the attempt is over"),
        ("hold" = Option<bool>, Query, description = "`false`: don't keep the sandbox from falling asleep"),
        ("Last-Event-ID" = Option<String>, Header, description = "Wins over `after`"),
    ),
    responses(
        (status = 200, description = "`id`, `event` and `data` (an Event) of each event", body = String, content_type = "text/event-stream"),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn stream_events(
    State(state): State<Arc<Supervised>>,
    at: InSession,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let action = Action::StreamSessionEvents;
    let given = cursor::given(&query, &headers)?;
    let until = until(&query)?;
    let session = state_for(&at, action, until).await?;
    let attachment = state
        .feeds
        .attach(action, &*at.sandbox, &at.session, &state.metrics)
        .await?;
    let cursor = cursor::resolve(given, &attachment.tail().borrow())?;
    let awake = awake(&at, &query)?;
    let stream = SseStream {
        follower: Follower::new(attachment, Format::Sse, until, cursor, session.as_ref()),
        stop: Box::pin(state.stop.child_token().cancelled_owned()),
        revoked: Box::pin(at.caller.revoked.cancelled_owned()),
        heartbeat: Box::pin(sleep(HEARTBEAT)),
        sent_at: Instant::now(),
        _awake: awake,
    };
    let mut response = Response::new(Body::from_stream(stream.into_stream()));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// `?until=exit`.
pub(super) fn until(query: &Query) -> Result<Until, ApiError> {
    match query.get("until") {
        None => Ok(Until::Deleted),
        Some("exit") => Ok(Until::Exit),
        Some(_) => Err(ApiError::invalid("until must be exit")),
    }
}

/// An attachment keeps the sandbox from falling asleep, unless `?hold=false`.
pub(super) fn awake(at: &InSession, query: &Query) -> Result<Awake, ApiError> {
    match query.get("hold") {
        None | Some("true") => Ok(at.sandbox.attach(&at.session)),
        Some("false") => Ok(Awake::default()),
        Some(_) => Err(ApiError::invalid("hold must be true or false")),
    }
}

/// The state of the session where `until` needs it. Asked for before the tail is looked at: an
/// exit that happens in between is seen among the events.
pub(super) async fn state_for(
    at: &InSession,
    action: Action,
    until: Until,
) -> Result<Option<Session>, ApiError> {
    match until {
        Until::Deleted => Ok(None),
        Until::Exit => {
            let view = at.view(action).await?;
            Session::restore(&view.checkpoint)
                .map(Some)
                .map_err(|error| ApiError::new(action.failed(), error.to_string()))
        }
    }
}

/// What ends it and what keeps it alive are waited for once, not anew for every event: that would
/// take locks that all streams share.
struct SseStream {
    follower: Follower,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Looks in when a heartbeat may be due.
    heartbeat: Pin<Box<Sleep>>,
    /// When the newest bytes were given out.
    sent_at: Instant,
    _awake: Awake,
}

impl SseStream {
    fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        stream::unfold(self, |mut this| async move {
            let bytes = this.next().await?;
            this.sent_at = Instant::now();
            Some((Ok(bytes), this))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            tokio::select! {
                biased;
                () = self.stop.as_mut() => return None,
                () = self.revoked.as_mut() => return None,
                next = self.follower.next() => match next {
                    Next::Events(slice) => return Some(slice.bytes()),
                    Next::End(end) => {
                        tracing::debug!(?end, cursor = self.follower.cursor(), "a stream ends");
                        return None;
                    }
                },
                () = self.heartbeat.as_mut() => {
                    let (now, due) = (Instant::now(), self.sent_at + HEARTBEAT);
                    if due <= now {
                        self.heartbeat.as_mut().reset(now + HEARTBEAT);
                        return Some(Bytes::from_static(b": heartbeat\n\n"));
                    }
                    self.heartbeat.as_mut().reset(due);
                }
            }
        }
    }
}
