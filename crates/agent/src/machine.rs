//! What a driver needs of the machine: processes that start, take input, end and leave trees.
//!
//! Two implementations: [`crate::process`]'s real one, and a fake for tests in virtual time. One
//! suite of stories runs over both.

#[cfg(test)]
pub(crate) mod fake;

use std::{future::Future, io, os::fd::OwnedFd, rc::Rc};

use outlive_core::{
    event::{AttemptEnd, ExitStatus, Oom, Rusage},
    id::SessionId,
    session::TerminalSize,
    spec::SessionSpec,
};

use tokio_util::sync::CancellationToken;

use crate::{input::Kind, journal::SessionJournal, process::pty::LineEnds};

/// Starts processes, and finds those that a supervisor before this one started.
pub(crate) trait Machine: 'static {
    /// One attempt's processes.
    type Attempt: Attempt;

    /// Starts an attempt; resolves once its program runs, with its output already pumped.
    fn spawn(
        self: Rc<Self>,
        order: SpawnOrder,
    ) -> impl Future<Output = Result<Self::Attempt, StartFailure>>;

    /// Finds what became of an attempt that an earlier supervisor was about to start or started.
    fn adopt(self: Rc<Self>, order: AdoptOrder) -> impl Future<Output = Adopted<Self::Attempt>>;

    /// Trees of a session's ended attempts that an earlier supervisor left. What they write is
    /// thrown away.
    fn leftovers(
        self: &Rc<Self>,
        journal: &SessionJournal,
        session: &SessionId,
    ) -> Vec<Self::Attempt>;

    /// How an attempt of an earlier runtime ended, if its keeper saw that and no supervisor did.
    fn past_end(&self, session: &SessionId, number: u32) -> Option<Ended>;

    /// Every session has its attempts' ends in its journal: those of earlier runtimes are not
    /// needed any more.
    fn forget_past(&self);

    /// Ends what an earlier supervisor left of a session that nobody can drive.
    fn abandon(self: &Rc<Self>, session: &SessionId);

    /// Has all processes of the sandbox stand still, and waits until they do.
    fn freeze(&self) -> impl Future<Output = io::Result<()>>;

    /// How many bytes of output went into journals so far.
    fn output_bytes(&self) -> u64;

    /// Resolves when all that processes wrote, which stand still, is in the journals, as far as
    /// these have room.
    fn move_output(&self) -> impl Future<Output = io::Result<()>>;

    /// Has them go on, also after a freeze that failed half-way.
    fn thaw(&self) -> io::Result<()>;
}

/// What to start.
#[derive(Debug)]
pub(crate) struct SpawnOrder {
    pub(crate) session: SessionId,
    pub(crate) number: u32,
    pub(crate) spec: SessionSpec,
    pub(crate) size: Option<TerminalSize>,
    pub(crate) journal: SessionJournal,
    /// Cancelled when the start is not wanted any more: it fails then, and leaves no process.
    pub(crate) stop: CancellationToken,
}

/// What to find.
#[derive(Debug)]
pub(crate) struct AdoptOrder {
    pub(crate) session: SessionId,
    pub(crate) number: u32,
    pub(crate) journal: SessionJournal,
}

/// What became of an attempt while no supervisor watched.
#[derive(Debug)]
pub(crate) enum Adopted<A> {
    /// Its program ran; it may have ended since.
    Ran(A),
    /// Its program was never released.
    NeverRan,
    /// Its program could not be started.
    Failed(StartFailure),
    /// It ran, and nobody can tell how it ended.
    Lost,
}

/// Why a program could not be started, in words for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StartFailure(pub(crate) String);

/// The processes of one attempt. All calls take `&self`: waits go on while others act.
pub(crate) trait Attempt: std::fmt::Debug + 'static {
    /// Process id inside the sandbox, for people.
    fn pid(&self) -> u32;

    /// Has its output moved to the journal from now on.
    fn start_output(&self) -> io::Result<()>;
    /// There is room in the journal again.
    fn resume_output(&self);
    /// Somebody types: what comes now is an echo and must not wait for more.
    fn expect_echo(&self);

    /// The end that takes input: ours alone from now on. `None` when it is closed.
    fn take_input(&self) -> io::Result<Option<(OwnedFd, Kind)>>;
    /// What an earlier supervisor spooled for it.
    fn take_spool(&self) -> Option<OwnedFd>;
    /// Has a new spool outlive this supervisor.
    fn keep_spool(&self, spool: std::os::fd::BorrowedFd<'_>) -> io::Result<()>;
    /// Closes every other copy of the input's end; the caller has dropped its own.
    fn close_input(&self) -> io::Result<()>;
    /// The character that ends a terminal's input; `None` in raw mode.
    fn eof_character(&self) -> io::Result<Option<u8>>;
    /// The characters that end a line of a terminal that works line by line; `None` in raw mode
    /// and without a terminal.
    fn line_ends(&self) -> io::Result<Option<LineEnds>>;
    /// Hangs the terminal up; the caller has dropped its own copy of it.
    fn hang_up(self: Rc<Self>);

    /// Asks the processes to end: TERM.
    fn terminate(&self) -> io::Result<()>;
    /// Kills the whole tree.
    fn kill(&self) -> io::Result<()>;
    /// Stops the whole tree where it stands, on its way to being released.
    fn halt(&self) -> io::Result<()>;
    /// Sends a signal as a user means it: a terminal's INT, QUIT and WINCH go to the foreground.
    fn signal(&self, signal: u8) -> io::Result<()>;
    /// Sets the terminal's size.
    fn resize(&self, size: TerminalSize) -> io::Result<()>;

    /// Resolves when the first process is gone.
    fn leader_gone(&self) -> impl Future<Output = ()>;
    /// Resolves when all output is in the journal: end of file, or the rule for descendants. What
    /// they write from then on is read and thrown away.
    fn drained(&self) -> impl Future<Output = ()>;
    /// Resolves when no process of the tree is left.
    fn tree_gone(&self) -> impl Future<Output = ()>;
    /// Whether no process of the tree is left.
    fn is_tree_gone(&self) -> bool;
    /// Whether anything of it is left: processes, or somebody who is not seen and holds its output.
    /// Only after it was drained.
    fn is_left(&self) -> bool;
    /// How the first process ended. Only after it is gone.
    fn status(&self) -> Ended;
    /// Lets go of everything but the tree. Only after the end is in the journal.
    fn release(&self);
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) oom: Oom,
    pub(crate) rusage: Option<Rusage>,
}

impl From<Ended> for AttemptEnd {
    fn from(ended: Ended) -> Self {
        let Ended {
            status,
            oom,
            rusage,
        } = ended;
        Self::Exited {
            status,
            stop: None,
            oom,
            rusage,
        }
    }
}
