//! What a session should run and how: the specification, parsed once and trusted afterwards.
//!
//! [`RawSpec`] is what a caller asked for, with every field optional. [`RawSpec::validate`] fills
//! the defaults of the contract and refuses what makes no sense; the result is a
//! [`SessionSpec`], the only form that the rest of this crate accepts.

use std::{collections::BTreeMap, time::Duration};

use minicbor::{Decode, Encode};

use crate::{
    hash::{Digest128, StableHasher},
    session::TerminalSize,
};
pub use raw::{
    IoMode, RawIo, RawLifecycle, RawReadiness, RawRestart, RawRetention, RawSpec, RawTerminal,
    ReadinessKind, SpecError, SpecProblem, check_idempotency_key,
};
pub use user::{User, Who};

mod raw;
mod user;

/// How a session's standard streams are connected.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Io {
    /// Three pipes: stdin, stdout, stderr.
    #[n(0)]
    Pipes,
    /// One pseudo terminal.
    #[n(1)]
    Pty(#[n(0)] Terminal),
}

/// The terminal that a PTY session starts with.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Terminal {
    /// Lines, 1 or more.
    #[n(0)]
    pub rows: u16,
    /// Columns, 1 or more.
    #[n(1)]
    pub cols: u16,
    /// Value of `TERM`.
    #[n(2)]
    pub term: String,
}

/// The state that the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum DesiredState {
    /// An attempt should run.
    #[n(0)]
    Running,
    /// No attempt should run.
    #[n(1)]
    Stopped,
}

/// When an attempt that ended is followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum RestartPolicy {
    /// Never.
    #[n(0)]
    Never,
    /// After a non-zero exit, a death by signal, a failed start or a readiness timeout.
    #[n(1)]
    OnFailure,
    /// After any exit.
    #[n(2)]
    Always,
}

/// The restart policy with its window and backoff.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Restart {
    /// When to restart.
    #[n(0)]
    pub policy: RestartPolicy,
    /// Restarts allowed inside `window`; `None` is unlimited (`-1` on the wire).
    #[n(1)]
    pub restarts_max: Option<u32>,
    /// The window in which restarts are counted, seconds.
    #[n(2)]
    pub window_seconds: u32,
    /// Delay before the first restart, milliseconds.
    #[n(3)]
    pub backoff_ms_initial: u32,
    /// Longest delay, milliseconds; not below the initial one.
    #[n(4)]
    pub backoff_ms_max: u32,
}

/// What to do with a session that was active when its runtime was replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum RuntimeRecovery {
    /// Start a new attempt.
    #[n(0)]
    Restart,
    /// Keep the session and its journal, and set its desired state to stopped.
    #[n(1)]
    Stop,
}

/// What happens to processes that outlive the attempt's leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Descendants {
    /// They go on until stop, delete or replace.
    #[n(0)]
    Leave,
    /// They are killed once the leader's output is drained.
    #[n(1)]
    Kill,
}

/// When and how a session starts, restarts and ends.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Lifecycle {
    /// The state asked for.
    #[n(0)]
    pub desired_state: DesiredState,
    /// The restart policy.
    #[n(1)]
    pub restart: Restart,
    /// The rule for a replaced runtime.
    #[n(2)]
    pub runtime_recovery: RuntimeRecovery,
    /// Stop after this many seconds without activity while an attempt is live; 0 is never.
    #[n(3)]
    pub idle_timeout_seconds: u64,
    /// Stop this many seconds after creation; 0 is never.
    #[n(4)]
    pub max_lifetime_seconds: u64,
    /// Seconds between the stop signal and the kill.
    #[n(5)]
    pub stop_grace_seconds: u32,
    /// The rule for descendants.
    #[n(6)]
    pub descendants: Descendants,
}

/// When an attempt counts as ready.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Readiness {
    /// As soon as the process runs.
    #[n(0)]
    Process {
        /// Kept only to be shown again, milliseconds.
        #[n(0)]
        timeout_ms: u32,
        /// Kept only to be shown again, milliseconds.
        #[n(1)]
        delay_ms: u32,
    },
    /// When the process has lived this long.
    #[n(1)]
    Delay {
        /// How long, milliseconds.
        #[n(0)]
        delay_ms: u32,
        /// Give up after this many milliseconds.
        #[n(1)]
        timeout_ms: u32,
    },
    /// When these bytes appeared on any stream of the attempt.
    #[n(2)]
    Output {
        /// What to look for, 1 byte to 64 KiB.
        #[cbor(n(0), with = "minicbor::bytes")]
        needle: Vec<u8>,
        /// Give up after this many milliseconds.
        #[n(1)]
        timeout_ms: u32,
        /// Kept only to be shown again, milliseconds.
        #[n(2)]
        delay_ms: u32,
    },
}

/// How much of a session's journal is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Retention {
    /// Bytes, counted as the length of the events in JSON.
    #[n(0)]
    pub bytes_max: u64,
    /// Age in seconds.
    #[n(1)]
    pub age_seconds_max: u64,
}

/// A complete, normalised specification.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct SessionSpec {
    /// A label, not unique, at most 128 characters; may be empty.
    #[n(0)]
    pub name: String,
    /// Program and arguments, as given; the first is not blank.
    #[n(1)]
    pub command: Vec<String>,
    /// Working directory; empty is the sandbox's default.
    #[n(2)]
    pub cwd: String,
    /// Variables on top of the sandbox's own.
    #[n(3)]
    pub env: BTreeMap<String, String>,
    /// The streams.
    #[n(4)]
    pub io: Io,
    /// Start, restart and end.
    #[n(5)]
    pub lifecycle: Lifecycle,
    /// Readiness.
    #[n(6)]
    pub readiness: Readiness,
    /// Retention.
    #[n(7)]
    pub retention: Retention,
    /// Whom it runs as; none is the sandbox's user.
    #[n(8)]
    pub user: Option<User>,
}

impl Io {
    /// The size that a new attempt's terminal has; none with pipes.
    pub fn terminal_size(&self) -> Option<TerminalSize> {
        match self {
            Self::Pipes => None,
            Self::Pty(terminal) => Some(TerminalSize {
                rows: terminal.rows,
                cols: terminal.cols,
            }),
        }
    }
}

impl SessionSpec {
    /// A digest of the whole specification, stable over machines and versions.
    pub fn digest(&self) -> Digest128 {
        let bytes = minicbor::to_vec(self).expect("encoding to memory can't fail");
        StableHasher::new().piece(&bytes).finish128()
    }

    /// Whether a process started by `self` has to be replaced to honour `other`.
    pub fn same_process(&self, other: &Self) -> bool {
        self.command == other.command
            && self.cwd == other.cwd
            && self.env == other.env
            && self.io == other.io
            && self.user == other.user
            && self.readiness == other.readiness
    }
}

impl Restart {
    /// The longest delay.
    pub fn backoff_max(&self) -> Duration {
        Duration::from_millis(u64::from(self.backoff_ms_max))
    }
}

impl Lifecycle {
    /// The grace between the stop signal and the kill.
    pub fn stop_grace(&self) -> Duration {
        Duration::from_secs(u64::from(self.stop_grace_seconds))
    }

    /// How long without activity; none is for ever.
    pub fn idle_timeout(&self) -> Option<Duration> {
        (self.idle_timeout_seconds > 0).then(|| Duration::from_secs(self.idle_timeout_seconds))
    }

    /// How long after the creation; none is for ever.
    pub fn max_lifetime(&self) -> Option<Duration> {
        (self.max_lifetime_seconds > 0).then(|| Duration::from_secs(self.max_lifetime_seconds))
    }
}
