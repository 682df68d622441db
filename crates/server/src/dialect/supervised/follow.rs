//! One follower: its cursor, and the next events after it, whenever they come.

use std::sync::Arc;

use outlive_core::session::Session;
use outlive_journal::ReadError;
use tokio::sync::watch;

use super::{
    feed::{Attachment, Near, Slice},
    filter::Filter,
    source::{Bounds, Format, Source},
};
use crate::{
    limits::{DELETION_NEWS_MAX, REPLAY_CHUNK_BYTES},
    sessions::{Life, Tail},
};

/// When a stream ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// When the session is deleted.
    Deleted,
    /// When everything was sent and the newest attempt is over.
    Exit,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Next {
    /// These events; the cursor is behind them.
    Events(Slice),
    /// Nothing more.
    End(End),
}

/// Why nothing more comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The session was deleted.
    Deleted,
    /// The attempt is over and the caller wanted no more.
    Exited,
    /// The follower was slower than the retention.
    Expired {
        /// First event that is still kept.
        earliest: u64,
    },
    /// The journal can't be read.
    Failed(String),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Follower {
    attachment: Attachment,
    tail: watch::Receiver<Tail>,
    format: Format,
    until: Until,
    cursor: u64,
    /// The newest attempt is over, as far as the events before the cursor tell.
    over: bool,
    /// For what is too far behind to share. Lost when a read is given up half way.
    own: Option<Source>,
}

impl Follower {
    /// Follows from `cursor` on. `session` is the state when it was attached.
    pub(super) fn new(
        attachment: Attachment,
        format: Format,
        until: Until,
        cursor: u64,
        session: Option<&Session>,
    ) -> Self {
        let over = session
            .and_then(Session::attempt)
            .is_some_and(|attempt| attempt.end.is_some());
        Self {
            tail: attachment.tail(),
            attachment,
            format,
            until,
            cursor,
            over,
            own: None,
        }
    }

    /// The last event that was given out.
    pub(super) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// What comes next, when it comes. May be dropped before it is ready; nothing is lost.
    pub(super) async fn next(&mut self) -> Next {
        loop {
            let tail = *self.tail.borrow_and_update();
            match self.read(&tail).await {
                Ok(Some(slice)) => return Next::Events(slice),
                Ok(None) => {}
                // The files of a deleted session are gone before its last events were read.
                Err(_) if tail.life == Life::Deleted => return Next::End(End::Deleted),
                Err(end) => return Next::End(self.reason(end).await),
            }
            if tail.life == Life::Deleted {
                return Next::End(End::Deleted);
            }
            if self.until == Until::Exit && self.over {
                return Next::End(End::Exited);
            }
            if self.tail.changed().await.is_err() {
                return Next::End(End::Deleted);
            }
        }
    }

    /// Files of a deleted session go a moment before its tail says so: then that is the reason.
    async fn reason(&mut self, end: End) -> End {
        if !matches!(end, End::Failed(_)) {
            return end;
        }
        let deleted = self.tail.wait_for(|tail| tail.life == Life::Deleted);
        match tokio::time::timeout(DELETION_NEWS_MAX, deleted).await {
            Ok(_) => End::Deleted,
            Err(_) => end, // Elapsed: the session is there, and its journal can't be read.
        }
    }

    /// What is there already and shared; never waits.
    pub(super) fn ready(&mut self) -> Option<Slice> {
        let latest = self.tail.borrow().latest;
        match self.attachment.near(self.format, self.cursor, latest) {
            Ok(Near::Slice(slice)) => {
                self.pass(&slice);
                Some(slice)
            }
            // `next` meets the same error and tells of it.
            Ok(Near::Far | Near::Nothing) | Err(_) => None,
        }
    }

    async fn read(&mut self, tail: &Tail) -> Result<Option<Slice>, End> {
        let near = self.attachment.near(self.format, self.cursor, tail.latest);
        let slice = match near.map_err(End::from)? {
            Near::Nothing => return Ok(None),
            Near::Slice(slice) => slice,
            Near::Far => match self.read_far(tail.latest).await? {
                Some(slice) => slice,
                None => return Ok(None),
            },
        };
        self.pass(&slice);
        Ok(Some(slice))
    }

    async fn read_far(&mut self, latest: u64) -> Result<Option<Slice>, End> {
        let mut source = match self.own.take() {
            Some(source) => source,
            None => self
                .attachment
                .source()
                .map_err(|error| End::Failed(error.to_string()))?,
        };
        let (format, cursor) = (self.format, self.cursor);
        let bounds = Bounds {
            upto: latest,
            bytes_max: REPLAY_CHUNK_BYTES,
            events_max: usize::MAX,
        };
        let read = tokio::task::spawn_blocking(move || {
            let chunk = source.chunk(format, cursor, &bounds, &mut Filter::default());
            (source, chunk)
        });
        let (source, chunk) = read.await.map_err(|error| End::Failed(error.to_string()))?;
        let chunk = chunk.map_err(End::from)?;
        // At the tail it is of no use any more, and its buffer is as large as a chunk.
        self.own = (chunk.last < latest).then_some(source);
        let found = chunk.last > cursor;
        Ok(found.then(|| Slice::after(Arc::new(chunk), cursor)))
    }

    fn pass(&mut self, slice: &Slice) {
        self.over = slice.over(self.cursor).unwrap_or(self.over);
        self.cursor = slice.last();
    }
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Expired { earliest } => Self::Expired { earliest },
            error @ (ReadError::Ahead { .. } | ReadError::Empty | ReadError::Io(_)) => {
                Self::Failed(error.to_string())
            }
        }
    }
}
