//! How an attempt ended.

use minicbor::{Decode, Encode};

use super::StopReason;

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

impl AttemptEnd {
    /// Why it ended, as clients see it: the reason of the stop it answers to, else what the
    /// status says by itself.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::StartFailed { .. } => "start_failed",
            Self::RuntimeReplaced => "runtime_replaced",
            Self::Exited {
                stop: Some(reason), ..
            } => reason.as_str(),
            Self::Exited {
                stop: None, status, ..
            } => match status {
                ExitStatus::Code(0) => "stopped",
                // 128 + SIGKILL: how a shell reports that its child was killed.
                ExitStatus::Signal { .. } | ExitStatus::Code(137) => "killed",
                ExitStatus::Code(_) => "crashed",
                ExitStatus::Unknown => "unknown",
            },
        }
    }

    /// Whether a restart policy of `on_failure` follows it up. What can't be shown to be a
    /// success counts as a failure.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::StartFailed { .. }
            | Self::Exited {
                stop: Some(StopReason::ReadinessTimeout),
                ..
            } => true,
            Self::Exited { status, .. } => *status != ExitStatus::Code(0),
            Self::RuntimeReplaced => false,
        }
    }
}
