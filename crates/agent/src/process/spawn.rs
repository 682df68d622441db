//! Starting attempts: one thread that is the parent of all of them.
//!
//! In the namespace runtime the thread joins the workload's pid namespace once, so that its
//! children are born there; no other thread may. A child stops at a gate until one byte comes.
//! Before that byte every descriptor of the attempt is in the keeper, and the driver has
//! journalled what it must. End of file on the gate is not go: the supervisor died, and the
//! child leaves with 126, which the exec-status pipe tells from a program's own 126:
//!
//! ```text
//!   exec-status pipe, at end of file
//!     (nothing)            never released
//!     R                    the program was reached
//!     R F stage errno      released, but chdir or exec failed
//!     F stage errno        could not even be prepared
//! ```

use std::{
    ffi::CString,
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, mpsc},
};

use outlive_core::{event::Stream, spec::Io};
use rustix::{
    io::fcntl_dupfd_cloexec,
    pipe::{PipeFlags, pipe_with, tee},
};
use tokio::sync::oneshot;

use super::{
    attempt::{Attempt, AttemptKey, Source},
    cgroup::{self, WorkloadCgroups},
    child::{self, ChildPlan, FAILED, RELEASED},
    manner::Manner,
    pipes::{self, Owner},
    pty,
};
use crate::{
    account::Credentials,
    keeper::{KeeperClient, KeeperError, Kept},
    limits::SPAWN_QUEUE_MAX,
    sys::{self, Forked},
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

fn step(step: &'static str) -> impl FnOnce(io::Error) -> SpawnError {
    move |error| SpawnError::System { step, error }
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

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStage {
    /// Before the gate: namespaces, user, streams.
    Setup,
    /// Changing to the working directory.
    WorkingDirectory,
    /// Executing the program.
    Exec,
}

/// What became of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecOutcome {
    /// The gate is shut, or exec is under way.
    Pending,
    /// The child ended before it was let go: it never ran.
    NeverReleased,
    /// The program was reached.
    Running,
    /// It was not.
    Failed {
        /// Where.
        stage: StartStage,
        /// The system's error number.
        errno: i32,
    },
}

impl ExecOutcome {
    /// The message for the user, when the start failed.
    pub fn message(&self, program: &str, cwd: &str) -> Option<String> {
        let Self::Failed { stage, errno } = self else {
            return None;
        };
        let what = match stage {
            StartStage::Setup => "preparing the process",
            StartStage::WorkingDirectory => cwd,
            StartStage::Exec => program,
        };
        let text = errno_text(*errno);
        Some(match stage {
            StartStage::WorkingDirectory => format!("working directory: {text}: {what}"),
            StartStage::Setup | StartStage::Exec => format!("{text}: {what}"),
        })
    }
}

/// The system's words, in lower case and without the number.
fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    let text = text
        .rsplit_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words);
    text.to_lowercase()
}

/// The read end of an exec-status pipe. Looking at it takes nothing out.
#[derive(Debug)]
pub struct ExecStatus(OwnedFd);

impl AsFd for ExecStatus {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ExecStatus {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl ExecStatus {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Looks how the start went. Anything but `Pending` is final.
    ///
    /// To wait, poll the pidfd or this descriptor for *hangup*: it becomes readable already when
    /// the gate opens. [`ExecStatus::wait`] does it on the spot.
    pub fn look(&self) -> io::Result<ExecOutcome> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};

        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut fds, Some(&now))?;
        if !fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP)) {
            return Ok(ExecOutcome::Pending);
        }
        self.read()
    }

    /// Waits until exec succeeded or failed: below a millisecond once the gate is open.
    pub fn wait(&self) -> io::Result<ExecOutcome> {
        use rustix::event::{PollFd, PollFlags, poll};

        loop {
            // No event is asked for: only hangup ends the wait.
            let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
            match poll(&mut fds, None) {
                Ok(_) => return self.read(),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn read(&self) -> io::Result<ExecOutcome> {
        if rustix::io::ioctl_fionread(&self.0)? == 0 {
            return Ok(ExecOutcome::NeverReleased);
        }
        let (copy_read, copy_write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        tee(
            &self.0,
            &copy_write,
            16,
            rustix::pipe::SpliceFlags::NONBLOCK,
        )?;
        // Up to two writes may sit in two buffers; one read of the copy takes both.
        let mut bytes = [0; 16];
        let length = rustix::io::read(&copy_read, &mut bytes)?;
        let bytes = bytes.get(..length).unwrap_or_default();
        let report = bytes.strip_prefix(&[RELEASED]).unwrap_or(bytes);
        Ok(match report {
            [FAILED, stage, a, b, c, d] => ExecOutcome::Failed {
                stage: match *stage {
                    child::stage::CWD => StartStage::WorkingDirectory,
                    child::stage::EXEC => StartStage::Exec,
                    _ => StartStage::Setup,
                },
                errno: i32::from_le_bytes([*a, *b, *c, *d]),
            },
            _ => ExecOutcome::Running,
        })
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

struct Worker {
    inner: Option<Inner>,
    manner: Manner,
    cgroups: WorkloadCgroups,
    keeper: KeeperClient,
    filter: Vec<libc::sock_filter>,
    nofile_hard: Option<u64>,
}

/// The two sides of an attempt's streams.
struct Streams {
    stdin: Option<OwnedFd>,
    terminal: Option<Arc<OwnedFd>>,
    sources: Vec<Source>,
    theirs: [OwnedFd; 3],
}

impl Worker {
    fn spawn(&self, request: &SpawnRequest) -> Result<Spawned, SpawnError> {
        let argv = c_strings(request.argv.iter().map(String::as_str), "an argument")?;
        let env: Vec<String> = request
            .env
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let envp = c_strings(env.iter().map(String::as_str), "the environment")?;
        let streams = self.streams(request).map_err(step("making the streams"))?;
        let (gate_read, gate) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(io::Error::from)
            .map_err(step("making the gate"))?;
        let (status, status_write) = pipe_with(PipeFlags::CLOEXEC)
            .map_err(io::Error::from)
            .map_err(step("making the exec-status pipe"))?;
        let cgroup = self
            .cgroups
            .attempt(&request.key)
            .map_err(step("making the control group"))?;
        let (unified, memory) = cgroup.dirs();
        let joins = memory
            .map(cgroup::open_procs)
            .transpose()
            .map_err(step("opening the control group"))?;
        let plan = ChildPlan {
            joins: joins.into_iter().collect(),
            inner: self.inner.as_ref().map(|i| i.init.as_raw_fd()),
            user_namespace: self.inner.as_ref().map(|i| i.user.as_raw_fd()),
            fence: self.manner.fence.as_ref().map(AsRawFd::as_raw_fd),
            ids: request.user.clone(),
            groups: self.manner.groups,
            powers: self.manner.powers,
            stdio: streams.theirs.each_ref().map(AsRawFd::as_raw_fd),
            terminal: streams.terminal.is_some(),
            gate: gate_read.as_raw_fd(),
            status: status_write.as_raw_fd(),
            nofile_soft: self.nofile(),
            filter: self.filter.clone(),
            cwd: c_string(&request.cwd, "the working directory")?,
            candidates: candidates(request)?,
            argv: sys::pointers(&argv),
            envp: sys::pointers(&envp),
        };
        let (outer_pid, pidfd) = fork_child(&plan, unified).map_err(step("starting a process"))?;
        let mut attempt = Attempt {
            key: request.key.clone(),
            pid: 0,
            outer_pid,
            pidfd: Arc::new(pidfd),
            stdin: streams.stdin,
            terminal: streams.terminal,
            sources: streams.sources,
            exec_status: ExecStatus::new(status),
            cgroup,
        };
        let kept = inner_pid(outer_pid)
            .map_err(step("reading the process id"))
            .and_then(|pid| {
                attempt.pid = pid;
                Ok(attempt.keep(&self.keeper)?)
            });
        if let Err(error) = kept {
            attempt.abandon();
            return Err(error);
        }
        Ok(Spawned {
            attempt,
            gate: Gate(gate),
        })
    }

    /// The usual soft limit; the supervisor raised its own.
    fn nofile(&self) -> libc::rlimit {
        let hard = self.nofile_hard.unwrap_or(libc::RLIM_INFINITY);
        libc::rlimit {
            rlim_cur: hard.min(1024),
            rlim_max: hard,
        }
    }

    /// The child's user as this process counts.
    fn owner(&self, request: &SpawnRequest) -> Owner {
        let ids = request.user.as_ref()?;
        let root = self.manner.root;
        Some((ids.uid + root, ids.gid + root))
    }

    fn streams(&self, request: &SpawnRequest) -> io::Result<Streams> {
        let owner = self.owner(request);
        match &request.io {
            Io::Pipes => {
                let stdin = pipes::to_child(owner)?;
                let stdout = pipes::from_child(owner)?;
                let stderr = pipes::from_child(owner)?;
                Ok(Streams {
                    stdin: Some(stdin.ours),
                    terminal: None,
                    sources: vec![
                        Source::Pipe {
                            stream: Stream::Stdout,
                            pipe: stdout.ours,
                        },
                        Source::Pipe {
                            stream: Stream::Stderr,
                            pipe: stderr.ours,
                        },
                    ],
                    theirs: [
                        above_stdio(stdin.theirs)?,
                        above_stdio(stdout.theirs)?,
                        above_stdio(stderr.theirs)?,
                    ],
                })
            }
            Io::Pty(terminal) => {
                let root = self.inner.as_ref().map(|inner| inner.root.as_fd());
                let pty = pty::open(root, terminal.rows, terminal.cols, owner)?;
                let master = Arc::new(pty.master);
                let slave = above_stdio(pty.slave)?;
                Ok(Streams {
                    stdin: None,
                    terminal: Some(Arc::clone(&master)),
                    sources: vec![Source::Terminal {
                        master,
                        spill_read: pty.spill_read,
                        spill_write: pty.spill_write,
                    }],
                    theirs: [slave.try_clone()?, slave.try_clone()?, slave],
                })
            }
        }
    }
}

/// A descriptor that a `dup` onto 0, 1 or 2 can't overwrite.
fn above_stdio(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 {
        return Ok(fd);
    }
    Ok(fcntl_dupfd_cloexec(&fd, 3)?)
}

#[expect(unsafe_code, reason = "fork in a program with threads")]
fn fork_child(plan: &ChildPlan, cgroup: Option<BorrowedFd<'_>>) -> io::Result<(u32, OwnedFd)> {
    // SAFETY: the child calls `child::run`, which makes system calls only and never returns.
    match unsafe { sys::fork(0, cgroup) }? {
        Forked::Child => child::run(plan),
        Forked::Parent { pid, pidfd } => Ok((pid, pidfd)),
    }
}

/// The id in the innermost pid namespace: the last one of `NSpid`.
fn inner_pid(outer: u32) -> io::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{outer}/status"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|ids| ids.split_whitespace().last())
        .and_then(|id| id.parse().ok())
        .ok_or_else(|| io::Error::other("no NSpid in /proc/PID/status"))
}

fn c_string(text: &str, what: &'static str) -> Result<CString, SpawnError> {
    CString::new(text).map_err(|_| SpawnError::Nul(what))
}

fn c_strings<'s>(
    texts: impl Iterator<Item = &'s str>,
    what: &'static str,
) -> Result<Vec<CString>, SpawnError> {
    texts.map(|text| c_string(text, what)).collect()
}

/// Where the program may be: itself when it has a slash, else under each part of `PATH`.
fn candidates(request: &SpawnRequest) -> Result<Vec<CString>, SpawnError> {
    let program = request.argv.first().map_or("", String::as_str);
    if program.is_empty() {
        return Ok(Vec::new());
    }
    if program.contains('/') {
        return Ok(vec![c_string(program, "the program")?]);
    }
    let path = request
        .env
        .iter()
        .rev()
        .find(|(key, _)| key == "PATH")
        .map_or(PATH_DEFAULT, |(_, value)| value.as_str());
    path.split(':')
        .map(|dir| match dir {
            "" => c_string(program, "the program"),
            _ => c_string(&format!("{dir}/{program}"), "PATH"),
        })
        .collect()
}
