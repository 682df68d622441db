//! One source: what a turn moves from it.

#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use outlive_core::event::Stream;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, ioctl_fionread},
    pipe::{SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, splice},
};

use tokio::sync::oneshot;

use super::{super::attempt::Source, Fate, OutputSink, SinkError, SourceEnd, Then};
use crate::limits::{
    DISCARD_BYTES, OUTPUT_FRAME_BYTES_MAX, PIPE_BYTES_FLOODED, PTY_SPLICE_BYTES_MAX,
    PUMP_TURN_BYTES_MAX,
};

/// How bytes get to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mover {
    Splice,
    Copy,
}

/// What came of a turn.
#[derive(Debug)]
pub(super) enum Turn {
    /// So many bytes were moved, and there may be more.
    Moved(usize),
    /// So many bytes were moved, and there was nothing left.
    Dry(usize),
    /// The sink has no room.
    Full,
    /// It is over.
    Ended(SourceEnd),
}

/// A source with its sink and its pace.
pub(super) struct Flow {
    kind: Kind,
    pub(super) sink: Arc<dyn OutputSink>,
    pub(super) stream: Stream,
    pub(super) mover: Mover,
    pub(super) blocked: bool,
    pub(super) fate: Fate,
    /// Told once its last bytes are moved: it was to be let go when the sink had no room.
    pub(super) leaving: Option<(Then, oneshot::Sender<()>)>,
    /// When the last frame was committed.
    pub(super) moved_at: Duration,
    /// When somebody typed last.
    pub(super) typed_at: Option<Duration>,
    grown: bool,
    /// Bytes that a copy took from the source and the file did not take: they go first.
    held: Vec<u8>,
}

enum Kind {
    Pipe(OwnedFd),
    Terminal {
        master: Arc<OwnedFd>,
        spill_read: OwnedFd,
        spill_write: OwnedFd,
        over: bool,
    },
}

impl Flow {
    pub(super) fn new(source: Source, sink: Arc<dyn OutputSink>, fate: Fate) -> Self {
        let (kind, stream) = match source {
            Source::Pipe { stream, pipe } => (Kind::Pipe(pipe), stream),
            Source::Terminal {
                master,
                spill_read,
                spill_write,
            } => (
                Kind::Terminal {
                    master,
                    spill_read,
                    spill_write,
                    over: false,
                },
                Stream::Pty,
            ),
        };
        Self {
            kind,
            sink,
            stream,
            mover: Mover::Splice,
            blocked: false,
            fate,
            leaving: None,
            moved_at: Duration::ZERO,
            typed_at: None,
            grown: false,
            held: Vec::new(),
        }
    }

    /// What epoll watches.
    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Pipe(pipe) => pipe.as_fd(),
            Kind::Terminal { master, .. } => master.as_fd(),
        }
    }

    /// Bytes that wait to be moved, as far as the kernel says.
    pub(super) fn waiting(&self) -> usize {
        let count = match &self.kind {
            Kind::Pipe(pipe) => ioctl_fionread(pipe).unwrap_or(0),
            Kind::Terminal {
                master, spill_read, ..
            } => ioctl_fionread(master).unwrap_or(0) + ioctl_fionread(spill_read).unwrap_or(0),
        };
        usize::try_from(count)
            .unwrap_or(usize::MAX)
            .saturating_add(self.held.len())
    }

    /// Whether bytes are on their way between source and sink, of which epoll tells nothing.
    pub(super) fn holds_some(&self) -> bool {
        let spilled = match &self.kind {
            Kind::Pipe(_) => 0,
            Kind::Terminal { spill_read, .. } => ioctl_fionread(spill_read).unwrap_or(0),
        };
        spilled > 0 || !self.held.is_empty()
    }

    /// Whether there may be bytes of which epoll tells nothing: those of a source that is not
    /// watched, and those that the kernel still hands on to a terminal's master.
    pub(super) fn may_hide_some(&self) -> bool {
        self.blocked || matches!(self.kind, Kind::Terminal { .. })
    }

    /// Moves what is there, up to a turn's share.
    pub(super) fn turn(&mut self) -> Turn {
        match (self.fate, &self.kind) {
            (Fate::Discarded, _) => self.discard_turn(),
            (Fate::Kept, Kind::Pipe(_)) => self.pipe_turn(),
            (Fate::Kept, Kind::Terminal { .. }) => self.terminal_turn(),
        }
    }

    /// Reads what is there, up to a turn's share, and forgets it.
    fn discard_turn(&mut self) -> Turn {
        self.held = Vec::new();
        let mut total = 0;
        while total < PUMP_TURN_BYTES_MAX {
            let read = match &self.kind {
                Kind::Pipe(pipe) => throw_away(pipe.as_fd()),
                Kind::Terminal {
                    master, spill_read, ..
                } => throw_away(spill_read.as_fd()).and_then(|spilled| match spilled {
                    Some(0) | None => throw_away(master.as_fd()),
                    some => Ok(some),
                }),
            };
            match read {
                // A terminal says by this error that nobody has it open.
                Ok(Some(0)) | Err(Errno::IO) => return Turn::Ended(SourceEnd::Eof),
                Ok(Some(read)) => total += read,
                Ok(None) => return Turn::Dry(total),
                Err(error) => return Turn::Ended(SourceEnd::Failed(error.into())),
            }
        }
        Turn::Moved(total)
    }

    fn pipe_turn(&mut self) -> Turn {
        let mut total = 0;
        while total < PUMP_TURN_BYTES_MAX {
            let Kind::Pipe(pipe) = &self.kind else {
                return Turn::Dry(total);
            };
            // An empty pipe isn't worth a frame, and the end of one mustn't open any.
            if self.held.is_empty() && ioctl_fionread(pipe).is_ok_and(|n| n == 0) {
                return match hung_up(pipe.as_fd()) {
                    Ok(true) if ioctl_fionread(pipe).is_ok_and(|n| n == 0) => {
                        Turn::Ended(SourceEnd::Eof)
                    }
                    Ok(_) => Turn::Dry(total),
                    Err(e) => Turn::Ended(SourceEnd::Failed(e)),
                };
            }
            let moving = Moving {
                mover: &mut self.mover,
                held: &mut self.held,
            };
            match append(pipe.as_fd(), &*self.sink, self.stream, moving) {
                Ok(0) => return Turn::Dry(total),
                Ok(moved) => total += moved,
                Err(end) => return end,
            }
            self.grow_when_flooded(total);
        }
        Turn::Moved(total)
    }

    /// A pipe that was full gets more room, once. Where the user has no more, it stays.
    fn grow_when_flooded(&mut self, moved: usize) {
        let Kind::Pipe(pipe) = &self.kind else { return };
        if self.grown {
            return;
        }
        let Ok(size) = fcntl_getpipe_size(pipe) else {
            return;
        };
        if moved >= size / 2 {
            self.grown = true;
            match fcntl_setpipe_size(pipe, PIPE_BYTES_FLOODED) {
                Ok(_) | Err(_) => {} // EPERM past the user's share of pipe pages is normal.
            }
        }
    }

    fn terminal_turn(&mut self) -> Turn {
        let mut total = 0;
        while total < PUMP_TURN_BYTES_MAX {
            let gathered = match self.gather_terminal() {
                Ok(gathered) => gathered,
                Err(e) => return Turn::Ended(SourceEnd::Failed(e)),
            };
            let Kind::Terminal {
                spill_read, over, ..
            } = &self.kind
            else {
                return Turn::Dry(total);
            };
            let spilled = match ioctl_fionread(spill_read) {
                Ok(spilled) => spilled,
                Err(e) => return Turn::Ended(SourceEnd::Failed(e.into())),
            };
            if spilled == 0 && self.held.is_empty() {
                return match (over, gathered) {
                    (true, _) => Turn::Ended(SourceEnd::Eof),
                    (false, _) => Turn::Dry(total),
                };
            }
            let moving = Moving {
                mover: &mut self.mover,
                held: &mut self.held,
            };
            match append(spill_read.as_fd(), &*self.sink, self.stream, moving) {
                Ok(moved) => total += moved,
                Err(end) => return end,
            }
        }
        Turn::Moved(total)
    }

    /// Fills the spill pipe from the terminal until either has no more to give or to take.
    ///
    /// The master is non-blocking (`SPLICE_F_NONBLOCK` alone would block), and takes 4 KiB at
    /// most a call, the line discipline's buffer.
    fn gather_terminal(&mut self) -> io::Result<usize> {
        let Kind::Terminal {
            master,
            spill_write,
            over,
            ..
        } = &mut self.kind
        else {
            return Ok(0);
        };
        let mut total = 0;
        while !*over && total < PUMP_TURN_BYTES_MAX {
            let moved = match self.mover {
                Mover::Splice => splice(
                    &**master,
                    None,
                    &*spill_write,
                    None,
                    PTY_SPLICE_BYTES_MAX,
                    SpliceFlags::NONBLOCK | SpliceFlags::MOVE,
                ),
                Mover::Copy => copy_terminal(master.as_fd(), spill_write.as_fd()),
            };
            match moved {
                Ok(0) | Err(Errno::IO) => *over = true,
                Ok(moved) => total += moved,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) if self.mover == Mover::Splice => self.mover = Mover::Copy,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(total)
    }
}

/// Reads bytes that nobody wants: how many, 0 at the end, `None` when there are none yet.
fn throw_away(source: BorrowedFd<'_>) -> rustix::io::Result<Option<usize>> {
    let mut fds = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // A pipe is not always non-blocking.
    if poll(&mut fds, Some(&now))? == 0 {
        return Ok(None);
    }
    let mut buffer = [0; DISCARD_BYTES];
    match rustix::io::read(source, &mut buffer) {
        Ok(read) => Ok(Some(read)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads no more than the spill pipe certainly takes, so that nothing stays in memory.
fn copy_terminal(master: BorrowedFd<'_>, spill: BorrowedFd<'_>) -> rustix::io::Result<usize> {
    let mut fds = [PollFd::from_borrowed_fd(spill, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now))?;
    // A pipe is writable when it has a free page, which takes this much at once.
    if !fds.iter().any(|fd| fd.revents().contains(PollFlags::OUT)) {
        return Err(Errno::AGAIN);
    }
    let mut buffer = [0; PTY_SPLICE_BYTES_MAX];
    let length = rustix::io::read(master, &mut buffer)?;
    let bytes = buffer.get(..length).unwrap_or_default();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        at += rustix::io::write(spill, rest)?;
    }
    Ok(length)
}

/// Whether nobody can write to this pipe any more.
fn hung_up(pipe: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now))?;
    Ok(fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP)))
}

/// How a flow moves, and what is on its way.
struct Moving<'f> {
    mover: &'f mut Mover,
    held: &'f mut Vec<u8>,
}

/// One frame from a pipe into the sink.
fn append(
    pipe: BorrowedFd<'_>,
    sink: &dyn OutputSink,
    stream: Stream,
    moving: Moving<'_>,
) -> Result<usize, Turn> {
    let Moving { mover, held } = moving;
    let result = sink.append(stream, &mut |file, offset, max| {
        if *mover == Mover::Splice {
            match splice_at(pipe, file, offset, max) {
                Err(Errno::INVAL) => *mover = Mover::Copy,
                other => return none_when_again(other),
            }
        }
        none_when_again(copy_at(pipe, held, file, offset, max))
    });
    match result {
        Ok(moved) => {
            if moved > 0 {
                sink.progress(stream, moved);
            }
            Ok(moved)
        }
        Err(SinkError::Full) => Err(Turn::Full),
        Err(SinkError::Source(e)) if is_no_space(&e) => Err(Turn::Full),
        Err(SinkError::Source(e)) => Err(Turn::Ended(SourceEnd::Failed(e))),
        Err(SinkError::Broken(e)) => Err(Turn::Ended(SourceEnd::SinkBroken(e))),
    }
}

/// A full disk is backpressure: nothing is lost, the workload waits.
fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
    )
}

fn none_when_again(result: rustix::io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => Ok(other?),
    }
}

fn splice_at(
    pipe: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    max: usize,
) -> rustix::io::Result<usize> {
    let mut offset = offset;
    splice(
        pipe,
        None,
        file,
        Some(&mut offset),
        max,
        SpliceFlags::NONBLOCK | SpliceFlags::MOVE,
    )
}

/// Copies through memory. A kill between the two calls loses what was read; a file that takes
/// nothing doesn't: the bytes are held, and go first the next time.
fn copy_at(
    pipe: BorrowedFd<'_>,
    held: &mut Vec<u8>,
    file: BorrowedFd<'_>,
    offset: u64,
    max: usize,
) -> rustix::io::Result<usize> {
    if held.is_empty() {
        held.resize(max.min(OUTPUT_FRAME_BYTES_MAX), 0);
        match rustix::io::read(pipe, &mut *held) {
            Ok(length) => held.truncate(length),
            Err(error) => {
                held.clear();
                return Err(error);
            }
        }
    }
    let mut at = 0;
    while let Some(rest) = held
        .get(at..max.min(held.len()))
        .filter(|rest| !rest.is_empty())
    {
        match rustix::io::pwrite(file, rest, offset + at as u64) {
            Ok(written) => at += written,
            Err(Errno::INTR) => {}
            Err(error) if at == 0 => return Err(error),
            Err(_) => break, // What it took is a frame; the next one meets the error again.
        }
    }
    held.drain(..at);
    if held.is_empty() {
        held.shrink_to_fit(); // An idle session holds no buffer.
    }
    Ok(at)
}
