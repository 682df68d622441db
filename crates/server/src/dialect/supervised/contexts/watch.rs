//! A context's journal as it grows: records from a cursor on, up to the published tail.

use std::sync::Arc;

use bytes::Bytes;
use outlive_api::{
    error::{Action, ApiError, ErrorCode},
    record::{KIND_OUTPUT, body, stream_of},
};
use outlive_core::event::{Body, Stream};
use outlive_journal::{KIND_GAP, ReadError, Reader, Record};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    super::feed::Attachment,
    call::{InContext, context_error},
};
use crate::{
    limits::REPLAY_CHUNK_BYTES,
    sessions::{Awake, CallError, Life, SandboxHandle, Tail},
};

/// Records taken at once.
const RECORDS_MAX: usize = 2048;

/// What a record says, as far as contexts care.
#[derive(Debug)]
pub(super) enum Said {
    /// Its process wrote.
    Output(Stream, Bytes),
    /// Events are missing before this one.
    Lost,
    /// Anything else.
    Event(Body),
}

/// A record.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) seq: u64,
    pub(super) attempt: u32,
    pub(super) said: Said,
}

/// Why nothing more comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// The context was deleted.
    Deleted,
    /// The server is going.
    Stopped,
    /// The caller's key was revoked.
    Revoked,
    /// The sandbox stands still because its disk is full.
    NoRoom(CallError),
    /// Its journal can't be read.
    Failed(String),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    attachment: Attachment,
    tail: watch::Receiver<Tail>,
    cursor: u64,
    reader: Option<Reader>,
    stop: CancellationToken,
    revoked: CancellationToken,
    /// Whoever watches keeps the sandbox from falling asleep.
    awake: Awake,
    /// Asked for room when it stands still; not set for whoever waits however long that takes.
    needs_room: Option<Arc<dyn SandboxHandle>>,
    /// Whether it stood still at the cursor.
    stands_still: bool,
}

impl Watch {
    /// Watches from `cursor` on; left out, from what is published now.
    pub(super) async fn start(
        at: &InContext,
        action: Action,
        cursor: Option<u64>,
    ) -> Result<Self, ApiError> {
        let feeds = &at.state.feeds;
        let attachment = feeds
            .attach(action, &*at.sandbox, &at.session, &at.state.metrics)
            .await?;
        let tail = attachment.tail();
        let cursor = cursor.unwrap_or(tail.borrow().latest);
        Ok(Self {
            attachment,
            tail,
            cursor,
            reader: None,
            stop: at.state.stop.clone(),
            revoked: at.caller.revoked.clone(),
            awake: at.sandbox.attach(&at.session),
            needs_room: None,
            stands_still: false,
        })
    }

    /// Ends when the sandbox stands still because its disk is full: nothing comes until somebody
    /// does something about it.
    pub(super) fn while_there_is_room(mut self, at: &InContext) -> Self {
        self.needs_room = Some(Arc::clone(&at.sandbox));
        self
    }

    /// Does not keep the sandbox from falling asleep.
    pub(super) fn let_sleep(&mut self) {
        self.awake = Awake::default();
    }

    /// The last event that was told.
    pub(super) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The last event that is published now.
    pub(super) fn latest(&self) -> u64 {
        self.tail.borrow().latest
    }

    /// The next records, at least one, when they come. May be dropped before; nothing is lost.
    pub(super) async fn next(&mut self) -> Result<Vec<Told>, Ended> {
        loop {
            let tail = *self.tail.borrow_and_update();
            if tail.latest > self.cursor {
                let told = self.read(tail.latest).await;
                match told {
                    Ok(told) if told.is_empty() => {}
                    Ok(told) => return Ok(told),
                    // The files of a deleted session are gone before its last events were read.
                    Err(_) if self.tail.borrow().life == Life::Deleted => {
                        return Err(Ended::Deleted);
                    }
                    Err(ended) => return Err(ended),
                }
            }
            if tail.life == Life::Deleted {
                return Err(Ended::Deleted);
            }
            if self.stands_still
                && let Some(sandbox) = &self.needs_room
            {
                sandbox.room().map_err(Ended::NoRoom)?;
            }
            tokio::select! {
                () = self.stop.cancelled() => return Err(Ended::Stopped),
                () = self.revoked.cancelled() => return Err(Ended::Revoked),
                changed = self.tail.changed() => {
                    if changed.is_err() {
                        return Err(Ended::Deleted);
                    }
                }
            }
        }
    }

    async fn read(&mut self, latest: u64) -> Result<Vec<Told>, Ended> {
        let failed = |error: &dyn std::fmt::Display| Ended::Failed(error.to_string());
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.attachment.reader().map_err(|error| failed(&error))?,
        };
        let cursor = self.cursor;
        let read = tokio::task::spawn_blocking(move || {
            let records = reader.read_after(cursor, latest, REPLAY_CHUNK_BYTES, RECORDS_MAX);
            (reader, records)
        });
        let (reader, records) = read.await.map_err(|error| failed(&error))?;
        self.reader = Some(reader);
        match records {
            Ok(records) => {
                self.cursor = records.last().map_or(latest, |record| record.seq);
                let told: Vec<Told> = records.into_iter().map(told).collect();
                for told in &told {
                    match told.said {
                        Said::Event(Body::SessionPaused) => self.stands_still = true,
                        Said::Event(Body::SessionResumed) => self.stands_still = false,
                        Said::Output(..) | Said::Lost | Said::Event(_) => {}
                    }
                }
                Ok(told)
            }
            Err(ReadError::Expired { earliest }) => {
                self.cursor = earliest.saturating_sub(1);
                Ok(vec![Told {
                    seq: self.cursor,
                    attempt: 0,
                    said: Said::Lost,
                }])
            }
            Err(error @ (ReadError::Ahead { .. } | ReadError::Empty | ReadError::Io(_))) => {
                Err(failed(&error))
            }
        }
    }
}

fn told(record: Record) -> Told {
    let said = match record.kind {
        KIND_GAP => Said::Lost,
        KIND_OUTPUT => match stream_of(record.stream) {
            Some(stream) => Said::Output(stream, record.payload),
            None => Said::Lost,
        },
        // What a newer build wrote is no output and no end that this one knows.
        _ => body(&record.payload).map_or(Said::Lost, Said::Event),
    };
    Told {
        seq: record.seq,
        attempt: record.attempt,
        said,
    }
}

impl Ended {
    /// As the answer of a call that waited.
    pub(super) fn into_error(self, action: Action) -> ApiError {
        match self {
            Self::Deleted => ApiError::new(
                ErrorCode::ContextNotFound,
                "the context was deleted meanwhile",
            ),
            Self::Stopped => ApiError::new(
                ErrorCode::Unavailable,
                "the server is going away; the context goes on",
            )
            .with_retry_after(1),
            Self::NoRoom(error) => context_error(action, error),
            Self::Revoked => ApiError::new(ErrorCode::Unauthorized, "the key was revoked"),
            Self::Failed(message) => ApiError::new(action.failed(), message),
        }
    }
}
