//! The session machine's vocabulary: phases, inputs, decisions, refusals.

use std::time::Duration;

use minicbor::{Decode, Encode};

use crate::{
    event::{AttemptEnd, Body, StartReason},
    id::{AttemptId, Generation},
    spec::{DesiredState, Retention, SessionSpec},
    time::Timestamp,
};

/// What the supervisor observes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Phase {
    /// Created; nothing was started.
    #[n(0)]
    Pending,
    /// An attempt is being started or is not ready yet.
    #[n(1)]
    Starting,
    /// The attempt is ready.
    #[n(2)]
    Running,
    /// A restart is scheduled.
    #[n(3)]
    Backoff,
    /// The attempt is being ended.
    #[n(4)]
    Stopping,
    /// No attempt runs, by request.
    #[n(5)]
    Stopped,
    /// The attempt ended and is not restarted.
    #[n(6)]
    Exited,
    /// Start, readiness or the restart limit failed.
    #[n(7)]
    Failed,
    /// The processes stand still.
    #[n(8)]
    Paused,
    /// The attempt ended with its runtime; recovery decides.
    #[n(9)]
    Suspended,
}

/// One attempt: what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Attempt {
    /// 1 for the first.
    #[n(0)]
    pub number: u32,
    /// The runtime it runs or ran in.
    #[n(1)]
    pub generation: Generation,
    /// Why it was started.
    #[n(2)]
    pub reason: StartReason,
    /// When its start was journalled.
    #[n(3)]
    pub starting_at: Timestamp,
    /// Process id inside the sandbox; none before the start.
    #[n(4)]
    pub pid: Option<u32>,
    /// When its process ran.
    #[n(5)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[n(6)]
    pub finished_at: Option<Timestamp>,
    /// How it ended.
    #[n(7)]
    pub end: Option<AttemptEnd>,
}

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
        /// EOF after them.
        eof: bool,
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
    /// The process of the current attempt runs.
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
    /// The current attempt's process ended and its output is drained.
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
    /// The runtime is about to be released: the tree of the attempt is gone.
    Released,
    /// A new runtime took over; the attempt of the old one, if any, is gone.
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
    /// Send the stop signal (TERM) to the attempt's processes; `Kill` follows by deadline.
    Terminate,
    /// Kill the attempt's whole tree.
    Kill,
    /// Put the accepted bytes into the attempt's input queue.
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
}

/// Longest wait for a tree to be gone after the kill.
pub const KILL_WAIT: Duration = Duration::from_secs(5);
