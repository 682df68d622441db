//! What runs a sandbox: the backends behind one trait.
//!
//! A backend starts generations of a runtime, tidies up after them and removes a sandbox's disk.
//! It never ends a runtime that answers: that is the supervisor's own work (`Release`), because
//! only the supervisor can journal it.

#[cfg(test)]
pub(crate) mod fake;
mod host;
mod launcher;
mod open_files;
mod place;
mod progress;
mod quota;
mod tier;
mod usage;

use std::{fmt, path::PathBuf};

use futures_util::future::BoxFuture;
use outlive_api::{
    launch::{Copied, IsolationTier, Limits},
    network::NetworkMode,
};
use outlive_core::id::{Generation, SandboxId, SnapshotId};
use tokio_util::sync::CancellationToken;

pub use self::launcher::RuntimeChoice;
pub(crate) use self::{
    launcher::LauncherRuntime,
    place::{Place, Places},
    progress::{Copying, Progress},
    tier::backend_of,
    usage::Usage,
};
use crate::{agents::keeper::Keeper, images::LayerError, sandboxes::config::SandboxConfig};

/// A backend could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RuntimeError {
    /// The launcher said no.
    #[error("the runtime could not be started: {0}")]
    Launch(#[from] outlive_api::launch::LaunchFailure),
    /// A layer of its root can't be made.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The launcher itself failed.
    #[error("the launcher failed: {message}")]
    Launcher {
        /// How.
        message: String,
    },
    /// A file of the sandbox could not be made, read or removed.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A disk could not be copied.
    #[error("the disk could not be copied: {0}")]
    Copy(outlive_api::launch::LaunchFailure),
    /// Its sandbox is to be deleted.
    #[error("the copy was given up")]
    GivenUp,
    /// A disk is such that it is never copied.
    #[error("the files can't be copied: {message}; remove what lies that deep, or move it up")]
    TooDeep {
        /// Where.
        message: String,
    },
    /// Its processes would be kept apart less than before.
    #[error(
        "the sandbox was made with isolation {made}, and this server can't give it as much: {why}; \
         its files and sessions are untouched: start the server where that isolation can be had \
         (`outlive doctor` tells), or delete the sandbox"
    )]
    Weaker {
        /// What it had.
        made: &'static str,
        /// Why it can't be had.
        why: String,
    },
    /// A limit can't be had while the sandbox runs; all are what they were.
    #[error(
        "this can't be changed while the sandbox runs: {0}; pause the sandbox, change it then, and \
         resume it. Nothing was changed"
    )]
    NotNow(outlive_api::launch::LaunchFailure),
    /// A limit that can't be enforced here is refused, not ignored.
    #[error("{0}")]
    Limits(String),
}

/// What a backend can do, for `/healthz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// Its name.
    pub(crate) runtime: &'static str,
    /// The isolation tier.
    pub(crate) isolation: &'static str,
    /// Whether the workload's root is kept from the journal.
    pub(crate) journal_protected: bool,
    /// How a limit of the disk is enforced; not at all where none is given.
    pub(crate) disk_limit: Option<&'static str>,
    /// What is off, one sentence each.
    pub(crate) off: Vec<String>,
}

/// One start of a runtime.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    /// Whose.
    pub(crate) sandbox: &'a SandboxId,
    /// Which.
    pub(crate) generation: Generation,
    /// What it was asked to be.
    pub(crate) config: &'a SandboxConfig,
    /// Its range of host ids.
    pub(crate) slot: u16,
    /// How far its processes were kept apart before; never less from now on.
    pub(crate) made: Option<IsolationTier>,
}

/// What a start came to.
#[derive(Debug)]
pub(crate) struct Started {
    /// Its keeper.
    pub(crate) keeper: Keeper,
    /// How far its processes are kept apart.
    pub(crate) tier: IsolationTier,
}

/// What has a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose<'a> {
    /// A sandbox.
    Sandbox(&'a SandboxId),
    /// A snapshot, which has nothing else.
    Snapshot(&'a SnapshotId),
}

/// A disk and the range of host ids it belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Disk<'a> {
    /// Whose.
    pub(crate) whose: Whose<'a>,
    /// Its range.
    pub(crate) slot: u16,
}

/// A disk that is put back. Both know their range of host ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Restore<'a> {
    /// To what.
    pub(crate) snapshot: (&'a SnapshotId, u16),
    /// Whose.
    pub(crate) sandbox: (&'a SandboxId, u16),
}

/// A disk was not put back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// It is what it was.
    #[error(transparent)]
    Untouched(RuntimeError),
    /// It may be in pieces; the same once more puts it together.
    #[error("the disk is not whole yet: {0}")]
    Unsure(RuntimeError),
}

/// The answer of a backend.
pub(crate) type RuntimeFuture<'a, T> = BoxFuture<'a, Result<T, RuntimeError>>;

/// A backend. Every operation may be repeated after a crash of the server. What changes a sandbox
/// is asked by its task alone, so one thing at a time.
pub(crate) trait Runtime: fmt::Debug + Send + Sync {
    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Removes from the host what sandboxes left that nobody sweeps any more, and has what they
    /// share be there.
    fn tidy(&self) -> RuntimeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Removes from the host what is there for sandboxes to come, as none does from here.
    fn leave(&self) -> RuntimeFuture<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Prepares what the next start would wait for: nobody waits for anything now.
    fn get_ready(&self) {}

    /// Refuses what this host can't give. A backend that gives everything refuses nothing.
    fn admit(&self, _config: &SandboxConfig) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// The network that a sandbox with this configuration and this history has when it starts.
    fn network(&self, _config: &SandboxConfig, _made: Option<IsolationTier>) -> NetworkMode {
        NetworkMode::None
    }

    /// How the newest runtime is connected; nothing where that is what its configuration says.
    fn connected(&self, _sandbox: &SandboxId) -> Result<Option<NetworkMode>, RuntimeError> {
        Ok(None)
    }

    /// Has a runtime that runs be limited as its configuration says now; all of it, or nothing.
    fn limit<'a>(
        &'a self,
        _sandbox: &'a SandboxId,
        _config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The limits of the newest runtime; nothing where they are what its configuration says.
    fn limits(&self, _sandbox: &SandboxId) -> Result<Option<Limits>, RuntimeError> {
        Ok(None)
    }

    /// Has a runtime that runs be what its configuration says now, where an earlier server was
    /// killed over a change of it.
    fn catch_up<'a>(
        &'a self,
        _sandbox: &'a SandboxId,
        _config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Has a runtime that runs reach what its configuration says now, where it has a link: what is
    /// taken away is gone at once.
    fn reach<'a>(
        &'a self,
        _sandbox: &'a SandboxId,
        _config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Makes the place of a disk, if it isn't there.
    fn provision<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()>;

    /// How far the newest start of this sandbox was meant to keep its processes apart; nothing
    /// when there was none.
    fn told(&self, sandbox: &SandboxId) -> Result<Option<IsolationTier>, RuntimeError>;

    /// Starts a generation; returns once its supervisor's socket accepts.
    fn start<'a>(&'a self, start: Start<'a>) -> RuntimeFuture<'a, Started>;

    /// The keeper that runs for this sandbox, if one does. Waits for a start that an earlier
    /// server began and that is still going on.
    fn running<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, Option<Keeper>>;

    /// Tidies up after a runtime whose keeper is gone; the disk stays.
    fn release<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, ()>;

    /// Copies a disk that nobody writes to, to a place that was provisioned and never had one.
    /// What a copy that failed left behind goes with `delete`. Once it is asked to give up it comes
    /// to its end soon.
    fn copy<'a>(
        &'a self,
        from: Disk<'a>,
        to: Disk<'a>,
        progress: &'a Progress,
        give_up: &'a CancellationToken,
    ) -> RuntimeFuture<'a, Copied>;

    /// Whether its file system keeps a sandbox from writing more than it may; else that is measured.
    /// So many bytes are in force where it runs.
    fn has_quota(&self, _sandbox: &SandboxId, _in_force: Option<u64>) -> bool {
        false
    }

    /// How much a sandbox has on its disk, where its file system tells; nothing where it has to be
    /// counted.
    fn counted(&self, _sandbox: &SandboxId) -> Option<u64> {
        None
    }

    /// Counts what a sandbox has on its disk, up to so many files.
    fn usage<'a>(&'a self, sandbox: &'a SandboxId, entries_max: u64) -> RuntimeFuture<'a, Usage>;

    /// Puts the disk of a sandbox that was released back to what the snapshot holds, and leaves
    /// everything else of it alone. Once it is asked to give up it comes to its end soon.
    fn restore<'a>(
        &'a self,
        restore: Restore<'a>,
        progress: &'a Progress,
        give_up: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Copied, RestoreError>>;

    /// Removes the disk of a snapshot, or of a sandbox that was released.
    fn delete<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()>;
}
