//! Following a session's events over broken connections: each event once, in order.
//!
//! ```text
//!            open after cursor            event: cursor moves
//!   waiting ───────────────────► open ◄───────────────┐
//!      ▲                          │ └──────────────────┘
//!      └── delay, doubled ────────┘ end, error, silence for 45 s
//! ```
//! The cursor is the last event that was handed out. What the server sends again is dropped by
//! its number; a hole that no `journal.gap` explains is asked for again and then reported, never
//! passed over.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};

use crate::{
    client::{Client, wait_before_retry},
    clock::Stopwatch,
    error::{Failure, Result, Retry},
    event::Event,
    limits::{CONNECTION_STOOD, RECONNECT_DELAY_INITIAL, RECONNECT_DELAY_MAX, STREAM_SILENCE_MAX},
    output::note,
    sse::{Item, Parser},
};

/// A session's event stream that reopens itself.
pub struct Follow<'a> {
    client: &'a Client,
    path: String,
    cursor: Option<u64>,
    patience: Option<Duration>,
    open: Option<Open>,
    lost: Option<Lost>,
    delay: Duration,
    hole_at: Option<u64>,
    seen_any: bool,
}

impl std::fmt::Debug for Follow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow")
            .field("path", &self.path)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

struct Open {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    parser: Parser,
    since: Stopwatch,
}

/// A connection that is being looked for.
struct Lost {
    since: Stopwatch,
    told: Told,
}

#[derive(PartialEq, Eq)]
enum Told {
    No,
    Yes,
}

/// What following brought.
#[derive(Debug)]
pub enum Step {
    /// The next event, and the JSON it came as.
    Event(Box<Event>, String),
    /// The session was deleted after events of it had been seen.
    Deleted,
}

impl<'a> Follow<'a> {
    /// Follows what comes after `after`, or everything that is kept.
    ///
    /// `patience` is how long to look for a lost server; `None` is for ever.
    pub fn new(
        client: &'a Client,
        session_path: &str,
        after: Option<u64>,
        patience: Option<Duration>,
    ) -> Self {
        Self {
            client,
            path: format!("{session_path}/events/stream"),
            cursor: after,
            patience,
            open: None,
            lost: None,
            delay: RECONNECT_DELAY_INITIAL,
            hole_at: None,
            seen_any: false,
        }
    }

    /// The last event that was handed out.
    pub fn cursor(&self) -> Option<u64> {
        self.cursor
    }

    /// Waits for the next event. May be dropped while it waits without losing anything.
    pub async fn next(&mut self) -> Result<Step> {
        loop {
            let outcome = match self.open.as_mut() {
                None => self.connect().await.map(|()| None),
                Some(open) => open.next().await,
            };
            match outcome {
                // How long a stream stood is seen when it ends.
                Ok(None | Some(Item::Heartbeat)) => {}
                Ok(Some(Item::Data(text))) => {
                    self.recovered();
                    if let Some(step) = self.take(text)? {
                        return Ok(step);
                    }
                }
                Err(failure) if failure.is_missing() && self.seen_any => return Ok(Step::Deleted),
                Err(failure) => self.wait(failure).await?,
            }
        }
    }

    /// An event came: whatever was wrong is over.
    fn recovered(&mut self) {
        self.delay = RECONNECT_DELAY_INITIAL;
        if let Some(Lost {
            told: Told::Yes, ..
        }) = self.lost.take()
        {
            note("connected again");
        }
    }

    async fn connect(&mut self) -> Result<()> {
        let response = self.client.open_stream(&self.path, self.cursor).await?;
        let bytes = response.bytes_stream().boxed();
        self.open = Some(Open {
            bytes,
            parser: Parser::default(),
            since: Stopwatch::start(),
        });
        Ok(())
    }

    /// Hands an event out, unless it was before.
    fn take(&mut self, text: String) -> Result<Option<Step>> {
        let event = Event::parse(&text).map_err(|failure| self.with_cursor(failure))?;
        if let Some(cursor) = self.cursor {
            if event.seq <= cursor {
                return Ok(None);
            }
            let explained = event.seq == cursor + 1 || event.kind == "journal.gap";
            if !explained && self.hole_at == Some(cursor) {
                let failure = Failure::new(
                    "events_missing",
                    format!(
                        "the server skips events {} to {}",
                        cursor + 1,
                        event.seq - 1
                    ),
                );
                return Err(self.with_cursor(failure));
            }
            if !explained {
                self.hole_at = Some(cursor);
                self.open = None;
                return Ok(None);
            }
        }
        self.cursor = Some(event.seq);
        self.seen_any = true;
        Ok(Some(Step::Event(Box::new(event), text)))
    }

    /// Waits before the next try, or gives up.
    async fn wait(&mut self, failure: Failure) -> Result<()> {
        // A connection that stood for a while is progress, also on a session that says nothing;
        // one that is accepted and cut again and again is not.
        if self
            .open
            .take()
            .is_some_and(|open| open.since.elapsed() >= CONNECTION_STOOD)
        {
            self.lost = None;
            self.delay = RECONNECT_DELAY_INITIAL;
        }
        if failure.retry() == Retry::Useless {
            return Err(self.with_cursor(failure));
        }
        let lost = self.lost.get_or_insert_with(|| Lost {
            since: Stopwatch::start(),
            told: Told::No,
        });
        if self
            .patience
            .is_some_and(|patience| lost.since.elapsed() >= patience)
        {
            return Err(self.with_cursor(failure));
        }
        // The first try is quick and silent: a server that restarts is no news.
        if lost.told == Told::No && self.delay > RECONNECT_DELAY_INITIAL {
            lost.told = Told::Yes;
            note(&format!(
                "connection lost ({}); trying again",
                failure.message
            ));
        }
        let delay = wait_before_retry(&failure, self.delay);
        self.delay = (self.delay * 2).min(RECONNECT_DELAY_MAX);
        tokio::time::sleep(delay).await;
        Ok(())
    }

    /// A failure of the stream always says where it stood.
    fn with_cursor(&self, mut failure: Failure) -> Failure {
        if let Some(cursor) = self.cursor {
            failure.message = format!("{} (last event: {cursor})", failure.message);
        }
        failure
    }
}

impl Open {
    async fn next(&mut self) -> Result<Option<Item>> {
        if let Some(item) = self.parser.item()? {
            return Ok(Some(item));
        }
        match tokio::time::timeout(STREAM_SILENCE_MAX, self.bytes.next()).await {
            Err(_) => Err(Failure::new("transport", "the event stream fell silent")),
            Ok(None) => Err(Failure::new("transport", "the event stream ended")),
            Ok(Some(Err(error))) => Err(Failure::transport("read the event stream", &error)),
            Ok(Some(Ok(bytes))) => self.parser.push(&bytes).map(|()| None),
        }
    }
}
