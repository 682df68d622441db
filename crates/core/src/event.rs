//! The facts and intents of a session, in the order in which they are journalled.
//!
//! On disk an event is a frame: its number, time, kind, stream and attempt number stand in the
//! frame's header, [`Body`] without output bytes is CBOR in the payload, and the payload of an
//! output frame is the raw bytes. A session and a generation are the same for a whole segment,
//! so no event repeats them.

use minicbor::{Decode, Encode};

use crate::{
    spec::{DesiredState, SessionSpec},
    time::Timestamp,
};

/// One record of a session's journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its number: 1 for the first, never repeated, never lower than one before.
    pub seq: u64,
    /// When it was recorded.
    pub at: Timestamp,
    /// Number of the newest attempt when it was recorded; 0 before the first.
    pub attempt: u32,
    /// What happened.
    pub body: Body,
}

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum Stream {
    /// Standard output of a pipe session.
    #[n(0)]
    Stdout,
    /// Standard error of a pipe session.
    #[n(1)]
    Stderr,
    /// The terminal of a PTY session.
    #[n(2)]
    Pty,
}

/// Why an attempt was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum StartReason {
    /// The session was created.
    #[n(0)]
    Created,
    /// The restart policy asked for it.
    #[n(1)]
    RestartPolicy,
    /// The desired state became running.
    #[n(2)]
    DesiredStateRunning,
    /// An attempt was asked for.
    #[n(3)]
    AttemptCreated,
    /// The specification changed.
    #[n(4)]
    SpecUpdated,
    /// The runtime was replaced.
    #[n(5)]
    RuntimeRecovered,
}

/// Why an attempt is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum StopReason {
    /// The desired state became stopped.
    #[n(0)]
    DesiredStateStopped,
    /// Another attempt takes its place.
    #[n(1)]
    AttemptReplaced,
    /// A new specification takes its place.
    #[n(2)]
    SpecReplaced,
    /// The session is being deleted.
    #[n(3)]
    SessionDeleted,
    /// Its idle timeout or lifetime passed.
    #[n(4)]
    SessionExpired,
    /// It did not become ready in time.
    #[n(5)]
    ReadinessTimeout,
}

/// How a process ended, as the kernel told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub enum ExitStatus {
    /// It exited with this code, 0 to 255.
    #[n(0)]
    Code(#[n(0)] u8),
    /// This signal ended it.
    #[n(1)]
    Signal {
        /// The signal's number.
        #[n(0)]
        signal: u8,
        /// A core was dumped.
        #[n(1)]
        core: bool,
    },
    /// Nobody can tell any more. Never a number.
    #[n(2)]
    Unknown,
}

/// Whether the kernel's out-of-memory killer ended an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Oom {
    /// It did not.
    #[n(0)]
    No,
    /// It did.
    #[n(1)]
    Yes,
    /// There is no memory cgroup of the attempt's own to tell.
    #[n(2)]
    Unknown,
}

/// What an attempt used, as far as the kernel told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Rusage {
    /// User CPU, microseconds.
    #[n(0)]
    pub user_us: u64,
    /// System CPU, microseconds.
    #[n(1)]
    pub system_us: u64,
    /// Largest resident set, KiB.
    #[n(2)]
    pub rss_kib_max: u64,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum AttemptEnd {
    /// The process ran and is gone.
    #[n(0)]
    Exited {
        /// Its status.
        #[n(0)]
        status: ExitStatus,
        /// The stop it answers to, if there was one.
        #[n(1)]
        stop: Option<StopReason>,
        /// Out of memory or not.
        #[n(2)]
        oom: Oom,
        /// What it used, when known.
        #[n(3)]
        rusage: Option<Rusage>,
    },
    /// It never ran: no such program, no such directory, no permission, no resources.
    #[n(1)]
    StartFailed {
        /// What failed, in words for the user.
        #[n(0)]
        message: String,
    },
    /// The runtime went away with it; no status exists.
    #[n(2)]
    RuntimeReplaced,
}

/// Why a session failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum FailReason {
    /// As many restarts as allowed lie in the window.
    #[n(0)]
    RestartLimitExceeded,
    /// It did not become ready in time and is not restarted.
    #[n(1)]
    ReadinessTimeout,
    /// It could not be started and is not restarted.
    #[n(2)]
    StartFailed,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Body {
    /// The session exists. Always seq 1.
    #[n(0)]
    SessionCreated(#[n(0)] Box<Created>),
    /// The specification was replaced.
    #[n(1)]
    SessionUpdated(#[n(0)] Box<SessionSpec>),
    /// The desired state was set.
    #[n(2)]
    DesiredState(#[n(0)] DesiredState),
    /// An attempt is about to be started. The event's own attempt number is the new one.
    #[n(3)]
    AttemptStarting(#[n(0)] StartReason),
    /// Its process runs.
    #[n(4)]
    AttemptStarted {
        /// Process id as seen inside the sandbox, for people; never used to signal.
        #[n(0)]
        pid: u32,
    },
    /// The attempt is ready.
    #[n(5)]
    SessionReady,
    /// The process wrote. The bytes themselves are the frame's payload.
    #[n(6)]
    Output {
        /// Where.
        #[n(0)]
        stream: Stream,
        /// How many bytes.
        #[n(1)]
        len: u32,
    },
    /// Input was taken.
    #[n(7)]
    InputAccepted {
        /// The caller's id for it.
        #[n(0)]
        input_id: String,
        /// Digest over attempt, bytes and EOF, to tell a retry from a conflict.
        #[n(1)]
        digest: u64,
        /// Bytes accepted.
        #[n(2)]
        bytes: u32,
        /// EOF follows the bytes.
        #[n(3)]
        eof: bool,
    },
    /// A signal was delivered.
    #[n(8)]
    SignalSent {
        /// Its number, 1 to 64.
        #[n(0)]
        signal: u8,
    },
    /// The terminal has a new size.
    #[n(9)]
    TerminalResized {
        /// Lines.
        #[n(0)]
        rows: u16,
        /// Columns.
        #[n(1)]
        cols: u16,
    },
    /// The attempt is being ended.
    #[n(10)]
    AttemptStopping(#[n(0)] StopReason),
    /// The attempt is over. Its last event.
    #[n(11)]
    AttemptExited(#[n(0)] AttemptEnd),
    /// A restart is scheduled.
    #[n(12)]
    Backoff {
        /// The delay, milliseconds.
        #[n(0)]
        delay_ms: u32,
    },
    /// The session gave up.
    #[n(13)]
    SessionFailed(#[n(0)] FailReason),
    /// The idle timeout or lifetime passed.
    #[n(14)]
    SessionExpired,
    /// The recovery policy keeps the session stopped.
    #[n(15)]
    SessionStopped,
    /// The attempt's processes stand still.
    #[n(16)]
    SessionPaused,
    /// They go on.
    #[n(17)]
    SessionResumed,
    /// The session is deleted. Its last event; the files follow.
    #[n(18)]
    SessionDeleted,
}

/// The facts of a creation.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Created {
    /// The specification.
    #[n(0)]
    pub spec: SessionSpec,
    /// The caller's key for this creation, at most 255 characters.
    #[n(1)]
    pub idempotency_key: Option<String>,
    /// Unique name in the sandbox, for sessions of the named dialect.
    #[n(2)]
    pub handle: Option<String>,
}
