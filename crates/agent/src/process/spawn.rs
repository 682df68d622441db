//! Starting attempts: one thread that is the parent of all of them.
//!
//! In the namespace runtime the thread joins the workload's pid namespace once, so that its
//! children are born there; no other thread may. A child stops at a gate until one byte comes.
//! Before that byte every descriptor of the attempt is in the keeper, and the driver has
//! journalled what it must. End of file on the gate is not go: the supervisor died, and the
//! child leaves with 126, which the exec-status pipe tells from a program's own 126.

mod status;
mod worker;

use std::{fmt, io, os::fd::OwnedFd, sync::mpsc};

use outlive_core::spec::Io;
use tokio::sync::oneshot;

pub use self::status::{ExecOutcome, ExecStatus, StartStage};
use self::worker::Worker;
use super::{
    attempt::{Attempt, AttemptKey},
    cgroup::WorkloadCgroups,
    manner::Manner,
};
use crate::{
    account::Credentials,
    keeper::{KeeperClient, KeeperError, Kept},
    limits::SPAWN_QUEUE_MAX,
    sys::{self},
};

/// Name in the keeper of the pidfd of `sbx-init`.
pub const INNER_INIT: &str = "ns/init";
/// Name in the keeper of the workload's user namespace.
pub const INNER_USER: &str = "ns/user";
/// Name in the keeper of the workload's root directory.
pub const INNER_ROOT: &str = "ns/root";
/// Where programs are looked for when the environment has no `PATH`.
pub const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What to start.
#[derive(Debug, Clone)]
pub struct SpawnRequest {
    /// For which attempt.
    pub key: AttemptKey,
    /// Program and arguments; the first isn't empty.
    pub argv: Vec<String>,
    /// The complete environment, in order.
    pub env: Vec<(String, String)>,
    /// Working directory, absolute.
    pub cwd: String,
    /// The streams.
    pub io: Io,
    /// Ids inside; `None` stays who the supervisor is (`process` runtime).
    pub user: Option<Credentials>,
}

/// A process that waits at its gate.
#[derive(Debug)]
pub struct Spawned {
    /// Its descriptors; the keeper has them too.
    pub attempt: Attempt,
    /// Opens the way to exec. Dropped unopened, the child leaves.
    pub gate: Gate,
}

/// Why there is no process.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// An argument, variable or path holds a NUL.
    #[error("NUL byte in {0}")]
    Nul(&'static str),
    /// The system refused.
    #[error("{step}: {error}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// The keeper refused.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The spawner thread ended.
    #[error("the spawner thread is gone")]
    Gone,
}

/// The write end of a gate. In no other process, so that it closes with the supervisor.
#[derive(Debug)]
pub struct Gate(OwnedFd);

impl Gate {
    /// Lets the child go on to exec.
    pub fn open(self) -> io::Result<()> {
        match rustix::io::write(&self.0, b"g") {
            // A broken pipe: the child was killed already; its exit will be seen.
            Ok(_) | Err(rustix::io::Errno::PIPE) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Where the workload lives, when it isn't where we are.
#[derive(Debug)]
struct Inner {
    init: OwnedFd,
    user: OwnedFd,
    root: OwnedFd,
}

/// Starts attempts. Clones share one thread.
#[derive(Debug, Clone)]
pub struct Spawner {
    queue: mpsc::SyncSender<Job>,
}

struct Job {
    request: SpawnRequest,
    answer: oneshot::Sender<Result<Spawned, SpawnError>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}

impl Spawner {
    /// Starts the thread. What the keeper kept says where the workload lives.
    pub(crate) fn start(keeper: KeeperClient, kept: &[Kept], manner: Manner) -> io::Result<Self> {
        let find = |name: &str| {
            kept.iter()
                .find(|k| k.label.name == name)
                .map(|k| k.fd.try_clone())
                .transpose()
        };
        let inner = match (find(INNER_INIT)?, find(INNER_USER)?, find(INNER_ROOT)?) {
            (Some(init), Some(user), Some(root)) => Some(Inner { init, user, root }),
            _ => None,
        };
        let cgroups = WorkloadCgroups::from_kept(kept)?;
        let nofile = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let (queue, jobs) = mpsc::sync_channel::<Job>(SPAWN_QUEUE_MAX);
        let (ready, is_ready) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("spawner".to_owned())
            .spawn(move || {
                let entered = cgroups.enter_thread().and_then(|()| match &inner {
                    Some(inner) => sys::setns(&inner.init, libc::CLONE_NEWPID),
                    None => Ok(()),
                });
                let failed = entered.is_err();
                if ready.send(entered).is_err() || failed {
                    return;
                }
                let worker = Worker {
                    filter: super::filter::denied_calls(),
                    inner,
                    manner,
                    cgroups,
                    keeper,
                    nofile_hard: nofile.maximum,
                };
                for job in jobs {
                    let spawned = worker.spawn(&job.request);
                    // A caller that no longer waits owns nothing.
                    if let Err(Ok(spawned)) = job.answer.send(spawned) {
                        spawned.attempt.abandon();
                    }
                }
            })?;
        is_ready.recv().map_err(io::Error::other)??;
        Ok(Self { queue })
    }

    /// Makes the process of an attempt, up to its gate.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, SpawnError> {
        let (answer, answered) = oneshot::channel();
        let job = Job { request, answer };
        match self.queue.try_send(job) {
            Ok(()) => {}
            Err(mpsc::TrySendError::Full(_)) => {
                return Err(SpawnError::System {
                    step: "starting a process",
                    error: io::Error::from_raw_os_error(libc::EAGAIN),
                });
            }
            Err(mpsc::TrySendError::Disconnected(_)) => return Err(SpawnError::Gone),
        }
        answered.await.map_err(|_| SpawnError::Gone)?
    }

    /// The same, for callers without an executor.
    pub fn spawn_blocking(&self, request: SpawnRequest) -> Result<Spawned, SpawnError> {
        let (answer, answered) = oneshot::channel();
        self.queue
            .send(Job { request, answer })
            .map_err(|_| SpawnError::Gone)?;
        answered.blocking_recv().map_err(|_| SpawnError::Gone)?
    }
}
