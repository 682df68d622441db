//! The border between the dialects, which speak HTTP, and the sandboxes, which hold sessions.
//!
//! ```text
//!  handler ──find(caller, id)──► Sandboxes ──► SandboxHandle ──call──► supervisor (may wake it)
//!                                                  │  list, view, tail, journal: never wake
//!  SSE, WebSocket, page ◄── journal files, bounded by the tail ◄──────┘
//! ```
//! A dialect knows nothing of runtimes, links or stores; a sandbox knows nothing of JSON or HTTP.
//! Output bytes do not pass this border: whoever reads events opens the journal's files and
//! reads no further than the tail says.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use outlive_api::{
    agent::{Health, Outcome, Request, SessionView},
    keys::Role,
};
use outlive_core::{
    id::{SandboxId, SessionId},
    session::Rejection,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::sandboxes::activity::Open;

/// What a call of this border gives back, later.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, CallError>>;

/// Who makes a request. The authentication layer puts it into the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The tenant whose sandboxes it sees.
    pub owner: Arc<str>,
    /// What it may do.
    pub role: Role,
    /// The key it came with, for logs and limits; not the secret.
    pub key_id: Arc<str>,
    /// Cancelled when the key is revoked or expires: open streams end within seconds.
    pub revoked: CancellationToken,
}

/// All sandboxes of this server.
pub trait Sandboxes: Send + Sync + 'static {
    /// The sandbox, if the caller may see it: another tenant's is [`CallError::NoSandbox`].
    /// Never wakes it.
    fn find<'a>(
        &'a self,
        caller: &'a Caller,
        sandbox: &'a SandboxId,
    ) -> Answer<'a, Arc<dyn SandboxHandle>>;

    /// Counts everything. Never wakes.
    fn census(&self) -> Answer<'_, Census>;
}

/// What there is, counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Census {
    /// Sandboxes by state.
    pub sandboxes: BTreeMap<&'static str, u64>,
    /// Sessions of running sandboxes by phase.
    pub sessions: BTreeMap<&'static str, u64>,
    /// The figures of their supervisors, added up.
    pub health: Health,
}

impl Census {
    /// Adds another count.
    pub fn join(&mut self, other: &Self) {
        for (state, count) in &other.sandboxes {
            *self.sandboxes.entry(state).or_default() += count;
        }
        for (phase, count) in &other.sessions {
            *self.sessions.entry(phase).or_default() += count;
        }
        self.add(&other.health);
    }

    /// Adds a supervisor's figures.
    pub fn add(&mut self, health: &Health) {
        let sum = &mut self.health;
        sum.attempts += health.attempts;
        sum.restarts += health.restarts;
        sum.journal_bytes += health.journal_bytes;
        sum.syncs += health.syncs;
        sum.sync_us += health.sync_us;
        sum.damaged += health.damaged;
        sum.supervisor_starts += health.supervisor_starts;
        sum.keeper_reexecs += health.keeper_reexecs;
    }
}

/// One sandbox, awake or not.
pub trait SandboxHandle: Send + Sync + 'static {
    /// Which.
    fn id(&self) -> &SandboxId;

    /// Asks the supervisor; wakes, thaws or replaces the runtime first where that is needed and
    /// allowed. Waits while a supervisor restarts. `Rejected` and `Failed` outcomes come back as
    /// [`CallError`]s, so that an `Ok` is always a success.
    fn call(&self, request: Request) -> Answer<'_, Outcome>;

    /// A client follows the session, for as long as what is given back is kept: the idle rule
    /// counts it.
    fn attach(&self, session: &SessionId) -> Awake;

    /// Wakes the sandbox as `call` does, and asks nothing.
    fn wake(&self) -> Answer<'_, ()>;

    /// Whether its disk leaves it room to run; else [`CallError::DiskFull`]. Never wakes.
    fn room(&self) -> Result<(), CallError>;

    /// All sessions, ordered by creation, then id. Never wakes.
    fn list(&self) -> Answer<'_, Vec<SessionView>>;

    /// One session. Never wakes.
    fn view<'a>(&'a self, session: &'a SessionId) -> Answer<'a, SessionView>;

    /// Where the session's journal stands, as it moves. The receiver stays valid while the
    /// runtime is frozen, released and replaced. Never wakes.
    fn tail<'a>(&'a self, session: &'a SessionId) -> Answer<'a, watch::Receiver<Tail>>;

    /// The session's journal directory on this host. Never wakes.
    fn journal<'a>(&'a self, session: &'a SessionId) -> Answer<'a, PathBuf>;
}

/// The idle rule counts something for as long as this is kept.
#[derive(Debug, Default)]
pub struct Awake {
    _open: Option<Open>,
}

impl Awake {
    pub(crate) fn while_open(open: Open) -> Self {
        Self { _open: Some(open) }
    }
}

/// The published window of a journal: events `earliest..=latest` may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// First retained; `latest + 1` when none is.
    pub earliest: u64,
    /// Last published; 0 when none was.
    pub latest: u64,
    /// Whether the session still exists.
    pub life: Life,
}

/// Whether a session exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It does.
    Present,
    /// It was deleted; its streams end.
    Deleted,
}

/// Why a call gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No such sandbox, or another tenant's.
    #[error("sandbox not found")]
    NoSandbox,
    /// The session machine refuses: nothing happened.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The sandbox can't take calls now: paused without auto-resume, waking, pausing, or its
    /// supervisor is away for longer than a call waits.
    #[error("{message}")]
    Unavailable {
        /// Why, for the user.
        message: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// The sandbox could not be woken.
    #[error("{message}")]
    ResumeFailed {
        /// Why, for the user.
        message: String,
    },
    /// Someone holds the sandbox exclusively.
    #[error("sandbox is reserved by {holder}")]
    Reserved {
        /// Who.
        holder: String,
    },
    /// No such hold, or it ended.
    #[error("hold not found")]
    NoHold,
    /// No such snapshot, or another tenant's.
    #[error("snapshot not found")]
    NoSnapshot,
    /// Something else stands in the way: nothing happened.
    #[error("{message}")]
    Conflict {
        /// A word for programs.
        reason: &'static str,
        /// What, and what to do.
        message: String,
    },
    /// The tenant has as much as it may have.
    #[error("{message}")]
    QuotaExceeded {
        /// Of what.
        message: String,
    },
    /// The sandbox stands still because its disk is full, or the server's disk has no room.
    #[error("{message}")]
    DiskFull {
        /// What to do.
        message: String,
    },
    /// This host can't give what was asked for: nothing happened.
    #[error("{message}")]
    Unsupported {
        /// What, and what to do.
        message: String,
    },
    /// Our own fault or the machine's.
    #[error("{message}")]
    Failed {
        /// What failed.
        message: String,
    },
}

impl fmt::Debug for dyn Sandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sandboxes")
    }
}

impl fmt::Debug for dyn SandboxHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SandboxHandle").field(self.id()).finish()
    }
}
