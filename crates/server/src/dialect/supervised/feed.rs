//! What all followers of one session share: its tail, and the newest events, encoded once.
//!
//! ```text
//!              after ◄──────────── ring ────────────► last        tail.latest
//!   journal ─────┼───────chunk───────┼──────chunk──────┼ ─ ─ ─ ─ ─ ─ ─ ┤
//!        ▲                ▲                            ▲
//!   far behind:      in the ring:               at the ring's end: reads and encodes
//!   reads by itself  a slice, no copy           once, for everybody
//! ```
//! The lock of a ring is held while at most one chunk is read from the page cache, never while
//! anything is sent.

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use outlive_api::error::{Action, ApiError, ErrorCode};
use outlive_core::id::{SandboxId, SessionId};
use outlive_journal::{ReadError, Reader};
use tokio::sync::watch;

use super::{
    filter::Filter,
    source::{Bounds, Chunk, Format, Source},
};
use crate::{
    http::reply::session_error,
    limits::{ATTACHMENTS_MAX, FEED_BEHIND_EVENTS_MAX, FEED_CHUNK_BYTES, FEED_RING_BYTES_MAX},
    metrics::Metrics,
    sessions::{Life, SandboxHandle, Tail},
};

type Key = (SandboxId, SessionId);

/// The feeds of all sessions that are followed now.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    feeds: Mutex<HashMap<Key, Weak<Feed>>>,
}

/// What the followers of one session share.
#[derive(Debug)]
pub(super) struct Feed {
    session: SessionId,
    journal: PathBuf,
    tail: watch::Receiver<Tail>,
    attachments: AtomicUsize,
    sse: Mutex<Ring>,
    websocket: Mutex<Ring>,
}

/// The newest events in one format.
#[derive(Debug, Default)]
struct Ring {
    source: Option<Source>,
    chunks: VecDeque<Arc<Chunk>>,
    bytes: usize,
}

/// One reader among those of a session. Dropping it detaches.
#[derive(Debug)]
pub(super) struct Attachment {
    feed: Arc<Feed>,
    metrics: Arc<Metrics>,
}

/// A part of a chunk, shared with others.
#[derive(Debug, Clone)]
pub(super) struct Slice {
    chunk: Arc<Chunk>,
    /// The first mark that belongs to it.
    first: usize,
}

/// Where a follower finds its next events.
#[derive(Debug)]
pub(super) enum Near {
    /// Here.
    Slice(Slice),
    /// In the journal; it is too far behind to share.
    Far,
    /// Nowhere: it has seen everything.
    Nothing,
}

impl Feeds {
    /// Attaches one more reader to a session.
    pub(super) async fn attach(
        &self,
        action: Action,
        sandbox: &dyn SandboxHandle,
        session: &SessionId,
        metrics: &Arc<Metrics>,
    ) -> Result<Attachment, ApiError> {
        let failed = |error| session_error(action, error);
        let tail = sandbox.tail(session).await.map_err(failed)?;
        let journal = sandbox.journal(session).await.map_err(failed)?;
        let feed = self.feed(sandbox.id(), session, tail, journal);
        let before = feed.attachments.fetch_add(1, Ordering::Relaxed);
        metrics.attachments.inc();
        let attachment = Attachment {
            feed,
            metrics: Arc::clone(metrics),
        };
        if before >= ATTACHMENTS_MAX {
            let message = format!("the session has {ATTACHMENTS_MAX} attachments, the most it may");
            return Err(ApiError::new(ErrorCode::QuotaExceeded, message));
        }
        Ok(attachment)
    }

    /// The session was deleted: a later one under the same key gets a feed of its own.
    pub(super) fn forget(&self, sandbox: &SandboxId, session: &SessionId) {
        lock(&self.feeds).remove(&(sandbox.clone(), session.clone()));
    }

    fn feed(
        &self,
        sandbox: &SandboxId,
        session: &SessionId,
        tail: watch::Receiver<Tail>,
        journal: PathBuf,
    ) -> Arc<Feed> {
        let key = (sandbox.clone(), session.clone());
        let mut feeds = lock(&self.feeds);
        // Every hundredth or so new feed sweeps up those that nobody follows any more.
        if feeds.len() >= 64 && feeds.len().is_power_of_two() {
            feeds.retain(|_, feed| feed.strong_count() > 0);
        }
        if let Some(feed) = feeds.get(&key).and_then(Weak::upgrade)
            && feed.tail.borrow().life == Life::Present
            && feed.journal == journal
        {
            return feed;
        }
        let feed = Arc::new(Feed {
            session: session.clone(),
            journal,
            tail,
            attachments: AtomicUsize::new(0),
            sse: Mutex::default(),
            websocket: Mutex::default(),
        });
        feeds.insert(key, Arc::downgrade(&feed));
        feed
    }
}

impl Attachment {
    /// The session's tail, as it moves.
    pub(super) fn tail(&self) -> watch::Receiver<Tail> {
        self.feed.tail.clone()
    }

    /// A reader of its own.
    pub(super) fn source(&self) -> std::io::Result<Source> {
        Source::open(&self.feed.journal, self.feed.session.clone())
    }

    /// A reader of the bare records.
    pub(super) fn reader(&self) -> std::io::Result<Reader> {
        Reader::open(&self.feed.journal)
    }

    /// What is shared of the events after `cursor`.
    pub(super) fn near(&self, format: Format, cursor: u64, latest: u64) -> Result<Near, ReadError> {
        let ring = match format {
            Format::Sse => &self.feed.sse,
            Format::WebSocket => &self.feed.websocket,
            Format::Page => return Ok(Near::Far),
        };
        if cursor >= latest {
            return Ok(Near::Nothing);
        }
        let mut ring = lock(ring);
        if let Some(slice) = ring.slice(cursor) {
            return Ok(Near::Slice(slice));
        }
        let end = ring.chunks.back().map(|chunk| chunk.last);
        let too_far = latest - cursor > FEED_BEHIND_EVENTS_MAX;
        if too_far || end.is_some_and(|end| cursor < end) {
            return Ok(Near::Far);
        }
        ring.extend(format, cursor, latest, &self.feed)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.feed.attachments.fetch_sub(1, Ordering::Relaxed);
        self.metrics.attachments.dec();
    }
}

impl Ring {
    fn slice(&self, cursor: u64) -> Option<Slice> {
        let chunk = self
            .chunks
            .iter()
            .rev()
            .find(|chunk| chunk.after <= cursor && cursor < chunk.last)?;
        Some(Slice::after(Arc::clone(chunk), cursor))
    }

    /// Reads on from `cursor`, which is where the ring ends or beyond it.
    fn extend(
        &mut self,
        format: Format,
        cursor: u64,
        latest: u64,
        feed: &Feed,
    ) -> Result<Near, ReadError> {
        if self.chunks.back().is_some_and(|chunk| chunk.last != cursor) {
            // Nobody followed for a while; what is here is of no use to whoever comes now.
            self.chunks.clear();
            self.bytes = 0;
        }
        let source = match &mut self.source {
            Some(source) => source,
            empty @ None => empty.insert(Source::open(&feed.journal, feed.session.clone())?),
        };
        let bounds = Bounds {
            upto: latest,
            bytes_max: FEED_CHUNK_BYTES,
            events_max: usize::MAX,
        };
        let chunk = source.chunk(format, cursor, &bounds, &mut Filter::default())?;
        if chunk.last == cursor {
            return Ok(Near::Nothing);
        }
        let chunk = Arc::new(chunk);
        self.bytes += chunk.bytes.len();
        self.chunks.push_back(Arc::clone(&chunk));
        while self.bytes > FEED_RING_BYTES_MAX && self.chunks.len() > 1 {
            if let Some(oldest) = self.chunks.pop_front() {
                self.bytes -= oldest.bytes.len();
            }
        }
        Ok(Near::Slice(Slice { chunk, first: 0 }))
    }
}

impl Slice {
    /// The events of `chunk` after `cursor`.
    pub(super) fn after(chunk: Arc<Chunk>, cursor: u64) -> Self {
        let first = chunk.marks.partition_point(|mark| mark.seq <= cursor);
        Self { chunk, first }
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> Bytes {
        self.chunk.bytes.slice(self.begin()..)
    }

    /// The event before the first.
    pub(super) fn before(&self) -> u64 {
        let before = self.first.checked_sub(1);
        before
            .and_then(|at| self.chunk.marks.get(at))
            .map_or(self.chunk.after, |mark| mark.seq)
    }

    /// The last event.
    pub(super) fn last(&self) -> u64 {
        self.chunk.last
    }

    /// Whether the newest attempt is over after these events; `None` if they don't tell.
    pub(super) fn over(&self, cursor: u64) -> Option<bool> {
        let exited = self.chunk.exited.filter(|seq| *seq > cursor);
        let started = self.chunk.started.filter(|seq| *seq > cursor);
        (exited.is_some() || started.is_some()).then(|| exited > started)
    }

    /// The event that byte `at` of [`bytes`](Self::bytes) belongs to: its number and its end.
    /// At the border of two it is the one before.
    pub(super) fn event_at(&self, at: usize) -> Option<(u64, usize)> {
        let begin = self.begin();
        let marks = self.chunk.marks.get(self.first..)?;
        let mark = marks.get(marks.partition_point(|mark| mark.end < begin + at))?;
        (at > 0).then_some((mark.seq, mark.end - begin))
    }

    fn begin(&self) -> usize {
        match self.first.checked_sub(1) {
            Some(before) => self.chunk.marks.get(before).map_or(0, |mark| mark.end),
            None => 0,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves chunks that are whole or not there at all.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
