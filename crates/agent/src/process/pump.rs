//! Moving output from processes into files, inside the kernel.
//!
//! `splice` hands bytes from a pipe to a file without passing through our memory: killed at any
//! instruction, every byte is in the pipe or in the file. A terminal's master can't be spliced to
//! a file, so its bytes go through a spill pipe, which the keeper holds too.
//!
//! ```text
//!   pipe ───────────────splice──────────────► open frame of the sink's file
//!   master ──splice──► spill pipe ──splice──► open frame of the sink's file
//! ```
//!
//! Where the kernel can't, bytes are copied through memory, and [`Pump::mode`] says so.
//!
//! Whoever writes to a pipe that nobody reads is killed. So a source whose bytes nobody wants any
//! more is not closed while others hold its other end: [`Pump::discard`] reads on, and throws away.
//!
//! A few threads of its own, each with one level-triggered epoll. Nothing polls: an idle pump
//! sleeps. Under a flood of small writes it waits some 200 µs after a short read, so that a frame
//! holds more than one write; a single small write, or the echo of a keystroke, never waits.
//!
//! It knows nothing of journals: an [`OutputSink`] opens a frame, has it filled, and commits it.

mod source;
#[cfg(test)]
mod tests;
mod worker;

use std::{
    collections::VecDeque,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use outlive_api::agent::PumpMode;
use outlive_core::event::Stream;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use tokio::sync::oneshot;

use super::attempt::Source;
use crate::limits::{PUMP_COMMANDS_MAX, PUMP_THREADS_MAX};

/// Moves up to `max` bytes to `file` at `offset`, and says how many: 0 when none were there.
pub type Fill<'f> = dyn FnMut(BorrowedFd<'_>, u64, usize) -> io::Result<usize> + 'f;

/// Where output goes. One for each session; called from pump threads, so it must not wait.
pub trait OutputSink: Send + Sync + 'static {
    /// Opens a frame, calls `fill` once with the file, the offset of the payload and the most
    /// bytes it takes, then commits as many as `fill` moved; with 0 or an error it takes the
    /// frame back. The file must not be in append mode. Returns what `fill` moved.
    fn append(&self, stream: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError>;

    /// So many bytes of this stream were just committed.
    fn progress(&self, stream: Stream, bytes: usize);

    /// This source won't be read any more.
    fn ended(&self, stream: Stream, end: SourceEnd);
}

/// Why a sink took nothing.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// No room. The source is left alone until [`Pump::resume`].
    #[error("no room for output")]
    Full,
    /// `fill` failed; its error.
    #[error("moving output: {0}")]
    Source(io::Error),
    /// The sink failed for good.
    #[error("writing output: {0}")]
    Broken(io::Error),
}

/// Why a source is at its end.
#[derive(Debug)]
pub enum SourceEnd {
    /// Everybody who could write is gone, and everything was moved.
    Eof,
    /// Reading it failed.
    Failed(io::Error),
    /// The sink broke.
    SinkBroken(io::Error),
}

/// A source in a pump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId {
    thread: usize,
    number: u64,
}

/// The pump threads; they end when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Pump {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    threads: Vec<Arc<Mailbox>>,
    numbers: AtomicU64,
    copying: Arc<AtomicBool>,
}

/// Commands for one thread, what wakes it, and whether it has anything to do.
#[derive(Debug)]
struct Mailbox {
    commands: Mutex<VecDeque<Command>>,
    wake: OwnedFd,
    /// All that the thread waits for.
    epoll: OwnedFd,
    /// It waits, and what its sources hold would wake it.
    rests: AtomicBool,
}

/// What a thread is told.
#[derive(Debug)]
enum Command {
    Attach {
        number: u64,
        source: Source,
        sink: SinkRef,
        fate: Fate,
    },
    Resume(u64),
    Drop(u64),
    Typed(u64),
    Drain {
        number: u64,
        then: Then,
        done: oneshot::Sender<()>,
    },
    DrainAll(oneshot::Sender<()>),
    Stop,
}

/// What follows a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Keep,
    Discard,
    Detach,
}

/// What becomes of a source's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Discarded,
}

/// A sink without a name in debug output.
struct SinkRef(Arc<dyn OutputSink>);

impl std::fmt::Debug for SinkRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OutputSink")
    }
}

impl Mailbox {
    fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(worker::MAILBOX);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN)?;
        Ok(Self {
            commands: Mutex::new(VecDeque::new()),
            wake,
            epoll,
            rests: AtomicBool::new(false),
        })
    }

    /// Whether everything that was written so far is in the sinks; `false` may be wrong.
    fn has_nothing_to_do(&self) -> bool {
        let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
        let is_silent = matches!(poll(&mut epoll, Some(&worker::AT_ONCE)), Ok(0));
        // In this order: it says that it is up before it takes what made epoll ready.
        is_silent && self.rests.load(Ordering::SeqCst)
    }

    /// Never refuses what output depends on: each source has few such commands under way. A
    /// keystroke only tells how to pace, and isn't worth a place in a long queue.
    fn push(&self, command: Command) -> io::Result<()> {
        {
            let mut commands = self.lock();
            if commands.len() >= PUMP_COMMANDS_MAX && matches!(command, Command::Typed(_)) {
                return Ok(());
            }
            commands.push_back(command);
        }
        match rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            // AGAIN: the counter is at its top, so the thread is awake.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Command>> {
        // A queue is whole at every point where a holder could have panicked.
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for thread in &self.threads {
            thread.lock().push_back(Command::Stop);
            match rustix::io::write(&thread.wake, &1_u64.to_ne_bytes()) {
                Ok(_) | Err(_) => {} // The counter is full: the thread is awake anyway.
            }
        }
    }
}

impl Pump {
    /// Starts `min(2, cores)` threads; they sleep until there is something to move.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let copying = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for index in 0..cores.min(PUMP_THREADS_MAX) {
            let mailbox = Arc::new(Mailbox::new()?);
            let worker = worker::Worker::new(Arc::clone(&mailbox), Arc::clone(&copying));
            std::thread::Builder::new()
                .name(format!("pump-{index}"))
                .spawn(move || worker.run())?;
            threads.push(mailbox);
        }
        Ok(Self {
            shared: Arc::new(Shared {
                threads,
                numbers: AtomicU64::new(1),
                copying,
            }),
        })
    }

    /// Moves a source's bytes to the sink from now on. Sources with the same `lane` share a
    /// thread: give all of one session the same.
    pub fn attach(
        &self,
        lane: u64,
        source: Source,
        sink: Arc<dyn OutputSink>,
    ) -> io::Result<SourceId> {
        self.take(lane, source, sink, Fate::Kept)
    }

    /// Throws a source's bytes away from now on; the sink hears of its end only.
    pub fn attach_discarding(
        &self,
        lane: u64,
        source: Source,
        sink: Arc<dyn OutputSink>,
    ) -> io::Result<SourceId> {
        self.take(lane, source, sink, Fate::Discarded)
    }

    fn take(
        &self,
        lane: u64,
        source: Source,
        sink: Arc<dyn OutputSink>,
        fate: Fate,
    ) -> io::Result<SourceId> {
        let count = self.shared.threads.len().max(1) as u64;
        let id = SourceId {
            thread: usize::try_from(lane % count).unwrap_or(0),
            number: self.shared.numbers.fetch_add(1, Ordering::Relaxed),
        };
        self.tell(
            id,
            Command::Attach {
                number: id.number,
                source,
                sink: SinkRef(sink),
                fate,
            },
        )?;
        Ok(id)
    }

    /// There is room again after [`SinkError::Full`].
    pub fn resume(&self, id: SourceId) -> io::Result<()> {
        self.tell(id, Command::Resume(id.number))
    }

    /// Somebody typed: what comes now is an echo, don't gather.
    pub fn typed(&self, id: SourceId) -> io::Result<()> {
        self.tell(id, Command::Typed(id.number))
    }

    /// Moves what is there now, not what is written meanwhile. Returns at once for a source that ended.
    pub async fn drain(&self, id: SourceId) -> io::Result<()> {
        self.finish(id, Then::Keep).await
    }

    /// The same for every source that is kept. A thread that sleeps over silent pipes is not woken.
    pub async fn drain_all(&self) -> io::Result<()> {
        let mut answers = Vec::new();
        let busy = |thread: &&Arc<Mailbox>| !thread.has_nothing_to_do();
        for thread in self.shared.threads.iter().filter(busy) {
            let (done, is_done) = oneshot::channel();
            thread.push(Command::DrainAll(done))?;
            answers.push(is_done);
        }
        for is_done in answers {
            is_done.await.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Moves what is there now, then gives the source up: it is out of epoll, and our
    /// descriptors of it are closed.
    pub async fn detach(&self, id: SourceId) -> io::Result<()> {
        self.finish(id, Then::Detach).await
    }

    /// Moves what is there now, and throws away what is written from then on, until the source's end.
    pub async fn discard(&self, id: SourceId) -> io::Result<()> {
        self.finish(id, Then::Discard).await
    }

    /// Gives the source up with what it holds: whoever still writes to it gets an error.
    pub fn close(&self, id: SourceId) -> io::Result<()> {
        self.tell(id, Command::Drop(id.number))
    }

    /// How output reaches files: `Copy` as soon as one source had to be copied.
    pub fn mode(&self) -> PumpMode {
        if self.shared.copying.load(Ordering::Relaxed) {
            PumpMode::Copy
        } else {
            PumpMode::Splice
        }
    }

    async fn finish(&self, id: SourceId, then: Then) -> io::Result<()> {
        let (done, is_done) = oneshot::channel();
        self.tell(
            id,
            Command::Drain {
                number: id.number,
                then,
                done,
            },
        )?;
        is_done.await.map_err(io::Error::other)
    }

    fn tell(&self, id: SourceId, command: Command) -> io::Result<()> {
        match self.shared.threads.get(id.thread) {
            Some(mailbox) => mailbox.push(command),
            None => Err(io::Error::other("no such pump thread")),
        }
    }
}
