//! The facts and intents of a session, in the order in which they are journalled.
//!
//! On disk an event is a frame: its number, time, kind, stream and attempt number stand in the
//! frame's header, [`Body`] without output bytes is CBOR in the payload, and the payload of an
//! output frame is the raw bytes. A session and a generation are the same for a whole segment,
//! so no event repeats them.

mod end;

use minicbor::{Decode, Encode};

use crate::{
    session::{CallId, EofMode},
    spec::{DesiredState, SessionSpec},
    time::Timestamp,
};

pub use self::end::{AttemptEnd, ExitStatus, Oom, Rusage};

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
    /// The call whose decision begins with this event. Clients are not told.
    pub call: Option<CallId>,
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

impl StartReason {
    /// As clients see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::RestartPolicy => "restart_policy",
            Self::DesiredStateRunning => "desired_state_running",
            Self::AttemptCreated => "attempt_created",
            Self::SpecUpdated => "spec_updated",
            Self::RuntimeRecovered => "runtime_recovered",
        }
    }
}

impl StopReason {
    /// As clients see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DesiredStateStopped => "desired_state_stopped",
            Self::AttemptReplaced => "attempt_replaced",
            Self::SpecReplaced => "spec_replaced",
            Self::SessionDeleted => "session_deleted",
            Self::SessionExpired => "session_expired",
            Self::ReadinessTimeout => "readiness_timeout",
        }
    }
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

impl FailReason {
    /// As clients see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RestartLimitExceeded => "restart_limit_exceeded",
            Self::ReadinessTimeout => "readiness_timeout",
            Self::StartFailed => "start_failed",
        }
    }
}

/// Which limit of a session passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Expiry {
    /// Too long without activity.
    #[n(0)]
    IdleTimeout,
    /// Too long since the creation.
    #[n(1)]
    MaxLifetime,
}

impl Expiry {
    /// As clients see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IdleTimeout => "idle_timeout",
            Self::MaxLifetime => "max_lifetime",
        }
    }
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
        /// End of input follows the bytes, and how.
        #[n(3)]
        eof: Option<EofMode>,
        /// A line is longer than a terminal that works line by line takes: it drops the rest.
        #[n(4)]
        #[cbor(default)]
        truncated_line: bool,
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
    /// The idle timeout or lifetime passed. The desired state is stopped from here on.
    #[n(14)]
    SessionExpired(#[n(0)] Expiry),
    /// The recovery policy keeps the session stopped. Its desired state is stopped from here on.
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
    /// The grace passed and the attempt's tree is still there: it is killed. Shown to clients as
    /// `signal.sent` with `SIGKILL`.
    #[n(19)]
    StopEscalated,
}

impl Body {
    /// Whether the event counts as activity, which is what the idle timeout watches: output,
    /// accepted input, signal, resize, start and exit of an attempt.
    pub fn is_activity(&self) -> bool {
        match self {
            Self::Output { .. }
            | Self::InputAccepted { .. }
            | Self::SignalSent { .. }
            | Self::TerminalResized { .. }
            | Self::AttemptStarting(_)
            | Self::AttemptStarted { .. }
            | Self::AttemptExited(_) => true,
            Self::SessionCreated(_)
            | Self::SessionUpdated(_)
            | Self::DesiredState(_)
            | Self::SessionReady
            | Self::AttemptStopping(_)
            | Self::Backoff { .. }
            | Self::SessionFailed(_)
            | Self::SessionExpired(_)
            | Self::SessionStopped
            | Self::SessionPaused
            | Self::SessionResumed
            | Self::SessionDeleted
            | Self::StopEscalated => false,
        }
    }

    /// Whether a sync is worth its while for this alone. What tells only how a living process
    /// fares goes to the disk with the next event: a power cut ends the process anyway.
    pub fn is_worth_a_sync(&self) -> bool {
        !matches!(
            self,
            Self::AttemptStarted { .. }
                | Self::SessionReady
                | Self::SessionPaused
                | Self::SessionResumed
        )
    }

    /// Whether it must be on disk before anybody hears of it: creation, update, deletion and
    /// desired state of the session, start and end of an attempt, and what decides about the
    /// next one.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::SessionCreated(_)
            | Self::SessionUpdated(_)
            | Self::DesiredState(_)
            | Self::AttemptStarting(_)
            | Self::AttemptExited(_)
            | Self::SessionExpired(_)
            | Self::SessionStopped
            | Self::SessionDeleted => true,
            Self::AttemptStarted { .. }
            | Self::SessionReady
            | Self::Output { .. }
            | Self::InputAccepted { .. }
            | Self::SignalSent { .. }
            | Self::TerminalResized { .. }
            | Self::AttemptStopping(_)
            | Self::Backoff { .. }
            | Self::SessionFailed(_)
            | Self::SessionPaused
            | Self::SessionResumed
            | Self::StopEscalated => false,
        }
    }
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
    /// What it was made for; none is a supervised session, as before there were kinds.
    #[n(3)]
    pub kind: Option<Kind>,
}

/// What a session was made for, beyond being supervised.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Kind {
    /// A context that runs one command.
    #[n(0)]
    Command,
    /// A context that keeps an interpreter, and gives it chunks of code.
    #[n(1)]
    Interpreter {
        /// Its name, as in `python`.
        #[n(0)]
        alias: String,
        /// What it writes when it waits for the next line, empty when nobody can tell; none when
        /// it says by itself where a chunk ends.
        #[n(1)]
        prompt: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::RawSpec;

    /// A creation as it was written before there were kinds.
    #[derive(Encode)]
    struct CreatedBefore {
        #[n(0)]
        spec: SessionSpec,
        #[n(1)]
        idempotency_key: Option<String>,
        #[n(2)]
        handle: Option<String>,
    }

    #[test]
    fn a_creation_without_a_kind_is_a_supervised_session() {
        let raw = RawSpec {
            command: Some(vec!["true".to_owned()]),
            ..RawSpec::default()
        };
        let spec = raw.validate().unwrap();
        let before = CreatedBefore {
            spec: spec.clone(),
            idempotency_key: Some("k".to_owned()),
            handle: None,
        };
        let now: Created = minicbor::decode(&minicbor::to_vec(&before).unwrap()).unwrap();
        let expected = Created {
            spec,
            idempotency_key: Some("k".to_owned()),
            handle: None,
            kind: None,
        };
        assert_eq!(now, expected);
    }
}
