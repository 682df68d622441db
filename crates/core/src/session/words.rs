//! What goes into the machine and what comes out: inputs, decisions, effects, refusals.

use minicbor::{Decode, Encode};

use super::state::Phase;
use crate::{
    event::{AttemptEnd, Body},
    id::{AttemptId, Generation},
    spec::{DesiredState, Retention, SessionSpec},
};

/// Whether `new attempt` may end the one that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum ReplaceCurrent {
    /// Refuse while one runs.
    #[n(0)]
    No,
    /// End it first.
    #[n(1)]
    Yes,
}

/// What to do about end of input on a terminal in raw mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum EofMode {
    /// Send the EOF character; refuse in raw mode.
    #[n(0)]
    Character,
    /// Hang the terminal up.
    #[n(1)]
    Hangup,
}

impl EofMode {
    /// Whether nothing can be written after it: a terminal's EOF character ends no input.
    pub(super) fn closes(self, terminal: bool) -> bool {
        match self {
            Self::Character => !terminal,
            Self::Hangup => true,
        }
    }
}

/// What reaches the machine: commands of users, and facts of the outside.
///
/// Identifiers named `expected` come from callers who want to be refused when the attempt
/// changed under them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A user replaces the whole specification.
    Update(Box<SessionSpec>),
    /// A user sets the desired state.
    SetDesiredState(DesiredState),
    /// A user asks for a new attempt.
    NewAttempt(ReplaceCurrent),
    /// A user writes to the attempt. Receipts were looked up before: this id is new.
    Write {
        /// The attempt the caller means.
        expected: Option<AttemptId>,
        /// The caller's id, 1 to 128 characters.
        input_id: String,
        /// Digest over attempt, bytes and EOF.
        digest: u64,
        /// How many bytes.
        bytes: u32,
        /// End of input after them, and how.
        eof: Option<EofMode>,
        /// The terminal will drop the end of a line.
        truncated_line: bool,
    },
    /// A user signals the attempt.
    Signal {
        /// The attempt the caller means.
        expected: Option<AttemptId>,
        /// 1 to 64.
        signal: u8,
    },
    /// A user resizes the terminal.
    Resize {
        /// The attempt the caller means.
        expected: Option<AttemptId>,
        /// Lines, 1 or more.
        rows: u16,
        /// Columns, 1 or more.
        cols: u16,
    },
    /// A user deletes the session.
    Delete,
    /// The process of the current attempt runs. Comes before `OutputMatched` and `Exited`.
    Started {
        /// Process id inside the sandbox.
        pid: u32,
    },
    /// The process of the current attempt could not be started.
    StartFailed {
        /// Why, in words for the user.
        message: String,
    },
    /// The readiness bytes were seen in the current attempt's output.
    OutputMatched,
    /// The current attempt's process ended and its output is drained. While the session is being
    /// [stopped](super::Session::stopping) the driver gives it only when the *whole tree* is gone,
    /// so that the grace and the kill reach descendants too.
    Exited {
        /// Its end; `stop` and readiness are filled in by the machine.
        end: AttemptEnd,
    },
    /// `next_deadline` passed.
    DeadlinePassed,
    /// All processes of the attempt stand still.
    Frozen,
    /// They go on.
    Thawed,
    /// The runtime is about to be released: the tree of the attempt is gone. `Frozen` comes
    /// before the tree is killed.
    Released,
    /// A new runtime took over; the attempt of the old one, if any, is gone. To be given to every
    /// session when a supervisor starts, before
    /// [`enter_generation`](super::Session::enter_generation); it means nothing to a session that
    /// already belongs to this runtime.
    RuntimeStarted(Generation),
}

/// What the driver does after the decision's events are journalled and applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start the process of attempt `number` with the current specification.
    Spawn {
        /// The attempt.
        number: u32,
    },
    /// Send the stop signal (TERM) to the attempt's processes; `Kill` follows by deadline. Without
    /// a process yet it does nothing: the effect comes again with `Started`.
    Terminate,
    /// Kill every process of the session's attempts, leftovers of ended ones included.
    Kill,
    /// Put the accepted bytes, then the end of input, into the attempt's input queue.
    Write,
    /// Signal the attempt's processes.
    Signal {
        /// 1 to 64.
        signal: u8,
    },
    /// Set the terminal's size.
    Resize {
        /// Lines.
        rows: u16,
        /// Columns.
        cols: u16,
    },
    /// Apply new retention limits to the journal.
    SetRetention(Retention),
    /// Remove the session's files.
    Remove,
}

/// Events to journal and what to do then.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// In order; one batch, one sync. Seq and time are given by the appender.
    pub events: Vec<Body>,
    /// In order, after the events are applied.
    pub effects: Vec<Effect>,
    /// The journal enters a new generation; only in answer to [`Input::RuntimeStarted`].
    pub roll: Option<Roll>,
}

/// Where in a decision's events a new generation begins.
///
/// The driver appends the events before `from` to the segment of the old runtime, rolls to a
/// segment of `generation`, calls [`Session::enter_generation`](super::Session::enter_generation)
/// and goes on. Without events the roll may wait until the next append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roll {
    /// The new generation.
    pub generation: Generation,
    /// Index of the first event that belongs to it.
    pub from: usize,
}

impl Decision {
    /// Nothing to journal, nothing to do.
    pub fn none() -> Self {
        Self::default()
    }

    pub(super) fn event(event: Body) -> Self {
        Self::of([event])
    }

    pub(super) fn of<const N: usize>(events: [Body; N]) -> Self {
        Self {
            events: events.into(),
            ..Self::default()
        }
    }

    pub(super) fn then(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }

    /// Whether there is nothing to journal and nothing to do.
    pub fn is_none(&self) -> bool {
        self.events.is_empty() && self.effects.is_empty()
    }
}

/// A request that makes no sense now. Nothing was journalled.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub enum Rejection {
    /// The caller means another attempt.
    #[n(0)]
    #[error("session attempt mismatch")]
    AttemptMismatch {
        /// The one named.
        #[n(0)]
        expected: AttemptId,
        /// The current one, if any.
        #[n(1)]
        current: Option<AttemptId>,
    },
    /// No attempt runs.
    #[n(1)]
    #[error("session is not running")]
    NotRunning {
        /// The phase it is in.
        #[n(0)]
        phase: Phase,
    },
    /// An attempt runs and may not be replaced.
    #[n(2)]
    #[error("session already has a running attempt")]
    AlreadyRunning,
    /// Input after EOF.
    #[n(3)]
    #[error("session input is closed")]
    InputClosed,
    /// A terminal call on a pipe session.
    #[n(4)]
    #[error("session has no terminal")]
    NoTerminal,
    /// A start after the lifetime passed.
    #[n(5)]
    #[error("session lifetime has passed")]
    LifetimePassed,
    /// The session is being deleted.
    #[n(6)]
    #[error("session is being deleted")]
    Deleting,
    /// The id was used for other content.
    #[n(7)]
    #[error("input id was already used with different content")]
    InputConflict,
    /// The attempt's input queue is full.
    #[n(8)]
    #[error("input buffer full")]
    InputBufferFull,
    /// EOF on a terminal in raw mode.
    #[n(9)]
    #[error("terminal is in raw mode and has no end of file; use eof_mode \"hangup\"")]
    RawTerminal,
    /// The idempotency key belongs to another creation.
    #[n(10)]
    #[error("idempotency key was already used with a different specification")]
    IdempotencyConflict,
    /// No such session.
    #[n(11)]
    #[error("session not found")]
    NotFound,
    /// As many sessions as a sandbox may have.
    #[n(12)]
    #[error("sandbox has {limit} sessions, the most it may have")]
    TooManySessions {
        /// The limit.
        #[n(0)]
        limit: u32,
    },
    /// The name of a named session can't change.
    #[n(13)]
    #[error("the name of a named session can't be changed")]
    NameImmutable,
    /// The sandbox is being released.
    #[n(14)]
    #[error("sandbox is pausing")]
    Releasing,
    /// The sandbox stands still: thaw it and ask again.
    #[n(15)]
    #[error("sandbox is suspended")]
    Frozen,
}
