//! The output side of one attempt: from its sources by way of the pump to the session's journal.
//!
//! ```text
//!   attach ─► moved as it comes ─► drained at their end, or idle ─► what is left is thrown away
//! ```

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use outlive_core::{event::Stream, hash::StableHasher};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::Processes;
use crate::{
    journal::SessionJournal,
    limits::{DRAIN_IDLE, DRAIN_MAX},
    log,
    process::{AttemptKey, OutputSink, SinkError, Source, SourceEnd, SourceId, pump::Fill},
};

/// What one attempt writes.
#[derive(Debug)]
pub(super) struct AttemptOutput {
    around: Rc<Processes>,
    key: AttemptKey,
    sink: Arc<Sink>,
    sources: RefCell<Vec<SourceId>>,
    is_drained: Cell<bool>,
}

impl AttemptOutput {
    /// The output of an attempt with so many sources.
    pub(super) fn of(
        around: &Rc<Processes>,
        key: AttemptKey,
        sources: usize,
        journal: &SessionJournal,
    ) -> Self {
        let sink = Sink {
            journal: journal.clone(),
            number: key.number,
            open: AtomicUsize::new(sources),
            moved: AtomicU64::new(0),
            moved_by_all: Arc::clone(&around.output_bytes),
            changed: Notify::new(),
        };
        Self {
            around: Rc::clone(around),
            key,
            sink: Arc::new(sink),
            sources: RefCell::default(),
            is_drained: Cell::new(false),
        }
    }

    /// Has the pump move what comes into the journal.
    pub(super) fn attach(&self, sources: Vec<Source>) -> io::Result<()> {
        for source in sources {
            let (lane, sink) = (self.lane(), self.sink());
            let id = self.around.pump.attach(lane, source, sink)?;
            self.sources.borrow_mut().push(id);
        }
        Ok(())
    }

    /// Has the pump throw away what comes.
    pub(super) fn attach_discarding(&self, sources: Vec<Source>) -> io::Result<()> {
        for source in sources {
            let (lane, sink) = (self.lane(), self.sink());
            let id = self.around.pump.attach_discarding(lane, source, sink)?;
            self.sources.borrow_mut().push(id);
        }
        self.is_drained.set(true);
        self.close_at_its_end();
        Ok(())
    }

    /// Which of the pump's threads: one session's output is moved by one.
    fn lane(&self) -> u64 {
        StableHasher::new()
            .piece(self.key.session.as_str().as_bytes())
            .finish64()
    }

    fn sink(&self) -> Arc<dyn OutputSink> {
        Arc::clone(&self.sink) as _
    }

    /// Whether somebody may still write.
    pub(super) fn is_open(&self) -> bool {
        self.sink.open() > 0
    }

    /// There may be space on the disk again.
    pub(super) fn resume(&self) {
        for source in self.sources.borrow().iter() {
            if let Err(error) = self.around.pump.resume(*source) {
                log::warn(format_args!("{}: output can't go on: {error}", self.key));
            }
        }
    }

    /// Something was typed: its echo comes soon.
    pub(super) fn expect_echo(&self) {
        for source in self.sources.borrow().iter() {
            if let Err(error) = self.around.pump.typed(*source) {
                log::debug(format_args!("{}: the pump was not told: {error}", self.key));
            }
        }
    }

    /// Resolves when the sources are at their end, or idle. `until_it_may_run` waits as long as the
    /// attempt stands still.
    pub(super) async fn drained(&self, until_it_may_run: impl AsyncFn()) {
        if self.is_drained.get() {
            return;
        }
        if let Err(error) = self.drain(until_it_may_run).await {
            log::warn(format_args!("{}: not drained: {error}", self.key));
        }
        self.is_drained.set(true);
    }

    async fn drain(&self, until_it_may_run: impl AsyncFn()) -> io::Result<()> {
        let mut cap = Instant::now() + DRAIN_MAX;
        while self.is_open() {
            // Who stands still is no more silent than who was not asked.
            until_it_may_run().await;
            let turns = self.around.standstill.turns();
            let moved = self.sink.moved();
            // What is there goes first: idle counts from an empty pipe.
            // A pump that is busy for so long is no reason to wait longer.
            if let Ok(drained) = timeout_at(cap, self.drain_sources()).await {
                drained?;
            }
            if self.around.standstill.turns() != turns || self.sink.journal.is_stalled() {
                cap = Instant::now() + DRAIN_MAX; // A full disk is not the child's silence.
            } else if Instant::now() >= cap {
                break;
            }
            let until = cap.min(Instant::now() + DRAIN_IDLE);
            let is_silent = timeout_at(until, self.sink.changed_since(moved))
                .await
                .is_err()
                && self.around.standstill.turns() == turns;
            if is_silent && self.sink.moved() == moved && !self.sink.journal.is_stalled() {
                break;
            }
        }
        self.discard_sources().await?;
        if self.is_open() {
            self.close_at_its_end();
            return Ok(());
        }
        let closed = self.key.close_output(&self.around.keeper);
        closed.map_err(io::Error::other)
    }

    async fn drain_sources(&self) -> io::Result<()> {
        let sources = self.sources.borrow().clone();
        for source in sources {
            self.around.pump.drain(source).await?;
        }
        Ok(())
    }

    /// Has what the sources hold moved, each once there is room for it, and throws away what is
    /// written to them after that: whoever was left behind must not die of writing.
    async fn discard_sources(&self) -> io::Result<()> {
        let sources = self.sources.borrow().clone();
        for source in sources {
            self.around.pump.discard(source).await?;
        }
        Ok(())
    }

    /// Lets the sources go, each once what it holds is in the journal: on a full disk that is when
    /// there is space again, and until then they can be resumed.
    pub(super) async fn detach(&self) {
        if let Err(error) = self.detach_sources().await {
            log::warn(format_args!("{}: output was lost: {error}", self.key));
        }
        self.sink.close();
    }

    async fn detach_sources(&self) -> io::Result<()> {
        let sources = self.sources.borrow().clone();
        for source in sources {
            let detached = self.around.pump.detach(source).await;
            self.sources.borrow_mut().retain(|other| *other != source);
            detached?;
        }
        Ok(())
    }

    /// The keeper's copies go with the last writer, or with the attempt.
    fn close_at_its_end(&self) {
        let (key, sink) = (self.key.clone(), Arc::clone(&self.sink));
        let keeper = self.around.keeper.clone();
        self.around.tasks.spawn_local(async move {
            sink.all_ended().await;
            if let Err(error) = key.close_output(&keeper) {
                log::warn(format_args!("{key}: its output stays open: {error}"));
            }
        });
    }

    /// Gives up what is left of the sources.
    pub(super) fn close(&self) -> io::Result<()> {
        for source in self.sources.take() {
            self.around.pump.close(source)?;
        }
        self.sink.close();
        Ok(())
    }
}

/// Where one attempt's output goes.
#[derive(Debug)]
struct Sink {
    journal: SessionJournal,
    number: u32,
    /// Sources that are not at their end.
    open: AtomicUsize,
    moved: AtomicU64,
    moved_by_all: Arc<AtomicU64>,
    changed: Notify,
}

impl Sink {
    fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.open.store(0, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Resolves when all sources ended, or were closed.
    async fn all_ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.open() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Resolves when more moved than `moved`, or all sources ended.
    async fn changed_since(&self, moved: u64) {
        loop {
            let changed = self.changed.notified();
            if self.open() == 0 || self.moved() != moved {
                return;
            }
            changed.await;
        }
    }
}

impl OutputSink for Sink {
    fn append(&self, stream: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError> {
        self.journal.append_output(self.number, stream, fill)
    }

    fn progress(&self, _stream: Stream, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::AcqRel);
        self.moved_by_all.fetch_add(bytes as u64, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    fn ended(&self, stream: Stream, end: SourceEnd) {
        match end {
            SourceEnd::Eof => {}
            SourceEnd::Failed(error) => {
                log::warn(format_args!(
                    "{stream:?} of an attempt can't be read: {error}"
                ));
            }
            SourceEnd::SinkBroken(error) => {
                log::warn(format_args!(
                    "{stream:?} of an attempt can't be written: {error}"
                ));
            }
        }
        let was = self
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                Some(open.saturating_sub(1))
            });
        if was.is_ok() {
            self.changed.notify_waiters();
        }
    }
}
