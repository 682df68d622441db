//! What the spawner's thread does for one attempt: its streams, its group, its process at the gate.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use outlive_core::{event::Stream, spec::Io};
use rustix::{
    io::fcntl_dupfd_cloexec,
    pipe::{PipeFlags, pipe_with},
};

use super::{ExecStatus, Gate, Inner, PATH_DEFAULT, SpawnError, SpawnRequest, Spawned};
use crate::{
    keeper::KeeperClient,
    process::{
        attempt::{Attempt, Source},
        cgroup::{self, WorkloadCgroups},
        child::{self, ChildPlan},
        manner::Manner,
        pipes::{self, Owner},
        pty,
    },
    sys::{self, Forked},
};

/// Starts attempts, in the one thread that is the parent of all.
pub(super) struct Worker {
    pub(super) inner: Option<Inner>,
    pub(super) manner: Manner,
    pub(super) cgroups: WorkloadCgroups,
    pub(super) keeper: KeeperClient,
    pub(super) filter: Vec<libc::sock_filter>,
    pub(super) nofile_hard: Option<u64>,
}

/// The two sides of an attempt's streams.
struct Streams {
    stdin: Option<OwnedFd>,
    terminal: Option<Arc<OwnedFd>>,
    sources: Vec<Source>,
    theirs: [OwnedFd; 3],
}

impl Worker {
    /// Makes the process, up to its gate.
    pub(super) fn spawn(&self, request: &SpawnRequest) -> Result<Spawned, SpawnError> {
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

fn step(step: &'static str) -> impl FnOnce(io::Error) -> SpawnError {
    move |error| SpawnError::System { step, error }
}
