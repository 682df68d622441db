//! The launcher: makes what a sandbox needs of the kernel, becomes its keeper, and leaves.
//!
//! ```text
//!   server ─ LaunchConfig ─► launch ─┬─ control groups, directories, image     (host, root)
//!                                    ├─ fork into O, write down whom (state/keeper.pid), "go on"
//!                                    │               ├─ W: the workload's user namespace
//!                                    │               ├─ fork into P ─► exec sbx-init: root
//!                                    │               └─ the keeper (PID 1 of O)
//!                                    ◄── "ready" ────── keeper, once its supervisor serves
//!   server ◄─ LaunchOutcome ─────────┘
//! ```
//!
//! **O** holds user, pid, mount, ipc, uts and network namespaces of the agent. **W** is a user
//! namespace inside O's; **P** is a set of pid, mount, ipc and uts namespaces that *O* owns. So
//! root of the workload (0 in W, 1 in O) has no power over anything of O: not over the agent's
//! processes, not over the mounts and the network it lives in.
//!
//! A launcher that is killed leaves nothing that nobody knows of: who was not told to go on ends,
//! and who was is written down, and ends as a keeper that sees its launcher gone before it is ready.
//!
//! One thread, no signals handled: everything here may fork.

mod cgroups;
mod disk;
mod image;
mod kernel;
mod limits;
mod names;
mod namespaces;
mod nested;
mod network;
mod plain;
pub(crate) mod quota;
mod root;
mod shares;
mod start;
pub(crate) mod step;
mod told;
mod two_uid;

pub(crate) use cgroups::{Hierarchy, discover, would_limit};
pub use cgroups::{settle, tidy as tidy_groups};
pub(crate) use namespaces::user_namespace;
pub(crate) use nested::{ONE_ID, rehearse};
pub use network::hold;
pub(crate) use network::probe as probe_bridge;
pub use quota::drop_disks;
pub(crate) use root::enter as enter_root;
pub(crate) use two_uid::probe as probe_two_uid;

use std::{
    ffi::CString,
    io::{Read, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use outlive_api::launch::{
    CopiedSessions, Isolation, LaunchConfig, LaunchFailure, LaunchOutcome, Launched, RuntimeKind,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open, openat},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};

use self::{
    start::end,
    step::{Fail, Step},
};
use crate::{
    keeper::{
        self, ExitRecord, Handover, Label, Place, Supervisor, allow_open_files, sealed_copy,
        sealed_memory,
    },
    limits::{AGENT_LOG_BYTES_MAX, LAUNCH_READY_MAX},
    sys,
};

/// Reads a [`LaunchConfig`], launches, writes a [`LaunchOutcome`]. With the argument
/// `--reset-copied-sessions` the sessions of another sandbox are removed first.
pub fn main() -> anyhow::Result<()> {
    let mut config = told::read::<LaunchConfig>()?;
    for argument in std::env::args().skip(2) {
        anyhow::ensure!(
            argument == "--reset-copied-sessions",
            "launch takes --reset-copied-sessions only, not {argument}"
        );
        config.copied_sessions = CopiedSessions::Clear;
    }
    launch_and_answer(&config)
}

/// The same, for a server that tells it later, over a socket; nothing once the server went without a word.
pub fn main_that_waits() -> anyhow::Result<()> {
    match told::wait()? {
        Some(config) => launch_and_answer(&config),
        None => Ok(()), // The server went without a word.
    }
}

fn launch_and_answer(config: &LaunchConfig) -> anyhow::Result<()> {
    // Those that the server's starter forgot to keep to itself.
    sys::keep_fds_to_ourselves()?;
    let outcome = match launch(config) {
        Ok(launched) => LaunchOutcome::Started(launched),
        Err(failure) => LaunchOutcome::Failed(failure),
    };
    let bytes = minicbor::to_vec(&outcome)?;
    std::io::stdout().write_all(&bytes)?;
    Ok(())
}

/// Reads a [`LaunchConfig`] and removes what is left of that sandbox in the kernel: processes,
/// control groups and its network. Its files stay.
pub fn sweep() -> anyhow::Result<()> {
    let config = told::read::<LaunchConfig>()?;
    sweep_all(&config)?;
    Ok(())
}

/// Reads a [`LaunchConfig`] and has the running sandbox reach what it says.
pub fn egress() -> anyhow::Result<()> {
    let config = told::read::<LaunchConfig>()?;
    network::change(&config)?;
    Ok(())
}

/// Reads a [`LaunchConfig`], has the running sandbox be limited as it says, and writes a
/// [`Limited`](outlive_api::launch::Limited).
pub fn limit() -> anyhow::Result<()> {
    let limited = limits::change(&told::read::<LaunchConfig>()?)?;
    std::io::stdout().write_all(&minicbor::to_vec(&limited)?)?;
    Ok(())
}

/// Processes first: what they hold can't go before them.
fn sweep_all(config: &LaunchConfig) -> Step<()> {
    cgroups::sweep(config)?;
    network::sweep(config)
}

/// What both runtimes start a keeper from.
struct Ground<'c> {
    config: &'c LaunchConfig,
    /// The state directory.
    state: OwnedFd,
    /// Executable of everything.
    exe: OwnedFd,
    /// The file of exit records.
    exits: OwnedFd,
    /// What it says of the runtime before.
    past_exits: Vec<ExitRecord>,
    /// Where standard error goes.
    log: OwnedFd,
    /// Where standard input and output go.
    null: OwnedFd,
    cgroups: cgroups::Cgroups,
    /// Write end of the pipe on which the launcher waits.
    report: OwnedFd,
    /// Its other end.
    reports: &'c OwnedFd,
    /// When the launcher gives up.
    ready_until: Duration,
}

/// Name of the file of exit records in the state directory.
const EXITS_NAME: &str = "exits";

/// Ends that the keeper of the runtime before saw, and that no supervisor took from it.
fn past_exits(state: BorrowedFd<'_>) -> Step<Vec<ExitRecord>> {
    let step = "reading the exits of the runtime before";
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match openat(state, EXITS_NAME, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Vec::new()), // The first runtime.
        Err(error) => return Err(error).step(step),
    };
    let mut bytes = Vec::new();
    std::fs::File::from(file)
        .read_to_end(&mut bytes)
        .step(step)?;
    Ok(keeper::decode_exits(&bytes))
}

fn launch(config: &LaunchConfig) -> Step<Launched> {
    sweep_all(config)?;
    let dirs = disk::prepare(config)?;
    let (reports, report) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
    let past_exits = past_exits(dirs.state.as_fd())?;
    let afresh = if past_exits.is_empty() {
        OFlags::TRUNC
    } else {
        OFlags::empty()
    };
    let ground = Ground {
        config,
        exe: executable()?,
        exits: disk::open_file(dirs.state.as_fd(), EXITS_NAME, OFlags::APPEND | afresh)?,
        past_exits,
        log: open_log(dirs.state.as_fd())?,
        null: open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .step("opening /dev/null")?,
        cgroups: cgroups::Cgroups::make(config)?,
        state: dirs.state,
        report,
        reports: &reports,
        ready_until: sys::boot_clock() + LAUNCH_READY_MAX,
    };
    let ready_until = ground.ready_until;
    let started = match config.runtime {
        RuntimeKind::Namespace => nested::start(&ground, &dirs.sandbox, &dirs.disk),
        RuntimeKind::Process => plain::start(&ground),
        RuntimeKind::TwoUid => two_uid::start(&ground),
    };
    let started = match started {
        Ok(started) => started,
        Err(failure) => {
            sweep_all(config)?;
            return Err(failure);
        }
    };
    // Our copy of the write end: only the keeper's must be left.
    drop(ground);
    match wait_until_ready(&reports, ready_until) {
        Ok(()) => {}
        Err(failure) => {
            end(&started.pidfd);
            sweep_all(config)?;
            return Err(failure);
        }
    }
    Ok(Launched {
        keeper_pid: started.pid,
        keeper_start_ticks: started.start_ticks,
        isolation: started.isolation,
    })
}

/// This program, by a descriptor that the sandbox's agent may execute.
fn executable() -> Step<OwnedFd> {
    let exe = open(
        "/proc/self/exe",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("opening our executable")?;
    let mode = rustix::fs::fstat(&exe)
        .step("looking at our executable")?
        .st_mode;
    if mode & 0o005 == 0o005 {
        Ok(exe)
    } else {
        sealed_copy(exe.as_fd()).step("copying our executable")
    }
}

fn open_log(state: BorrowedFd<'_>) -> Step<OwnedFd> {
    let log = disk::open_file(state, "agent.log", OFlags::APPEND)?;
    let length = rustix::fs::fstat(&log).step("looking at the log")?.st_size;
    if u64::try_from(length).unwrap_or(0) > AGENT_LOG_BYTES_MAX {
        rustix::fs::ftruncate(&log, 0).step("emptying the log")?;
    }
    Ok(log)
}

/// Waits for `R` (ready), or `F` and a failure.
fn wait_until_ready(reports: &OwnedFd, until: Duration) -> Step<()> {
    let mut bytes = Vec::new();
    loop {
        await_readable(reports, until)?;
        if read_report(reports, &mut bytes)? == 0 {
            break;
        }
        if bytes.first() == Some(&b'R') {
            return Ok(());
        }
    }
    Err(reported(&bytes).unwrap_or_else(|| {
        step::failure(
            "starting the agent",
            "it ended before it was ready; see agent.log",
        )
    }))
}

fn read_report(reports: &OwnedFd, bytes: &mut Vec<u8>) -> Step<usize> {
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::read(reports, &mut buffer) {
            Ok(n) => {
                bytes.extend_from_slice(buffer.get(..n).unwrap_or_default());
                return Ok(n);
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e).step("waiting for the agent"),
        }
    }
}

/// The failure in a report.
fn reported(bytes: &[u8]) -> Option<LaunchFailure> {
    let (b'F', rest) = bytes.split_first()? else {
        return None;
    };
    Some(
        minicbor::decode::<LaunchFailure>(rest).unwrap_or_else(|_| {
            step::failure("starting the agent", "failed, and its report was cut")
        }),
    )
}

/// Waits until something can be read, or what is at its other end is gone.
fn await_readable(fd: &OwnedFd, until: Duration) -> Step<()> {
    loop {
        let left = until.saturating_sub(sys::boot_clock());
        if left.is_zero() {
            return Err(step::failure("starting the agent", "not ready in time"));
        }
        if wait_readable(fd, left)? {
            return Ok(());
        }
    }
}

fn wait_readable(fd: &OwnedFd, span: Duration) -> Step<bool> {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let timeout = Timespec::try_from(span).ok();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(n) => Ok(n > 0),
        Err(Errno::INTR) => Ok(false),
        Err(e) => Err(e).step("waiting for the agent"),
    }
}

/// In a forked child: tells the launcher what failed, and ends.
fn report_failure(report: BorrowedFd<'_>, failure: &LaunchFailure) -> ! {
    let mut bytes = vec![b'F'];
    match minicbor::encode(failure, &mut bytes) {
        Ok(()) | Err(_) => {} // A report that can't be read says as much.
    }
    match rustix::io::write(report, &bytes) {
        Ok(_) | Err(_) => {} // The launcher is gone; so are we.
    }
    sys::exit_now(1);
}

impl Ground<'_> {
    /// Why the launcher failed: what the agent has reported by now, which may be the reason.
    fn reason(&self, failure: LaunchFailure) -> LaunchFailure {
        let mut bytes = Vec::new();
        match wait_readable(self.reports, Duration::ZERO) {
            Ok(true) => {}
            Ok(false) | Err(_) => return failure,
        }
        // A report is written as one.
        match read_report(self.reports, &mut bytes) {
            Ok(_) => reported(&bytes).unwrap_or(failure),
            Err(_) => failure,
        }
    }

    /// Turns this process's streams and directory into a keeper's.
    fn settle(&self) -> Step<()> {
        rustix::process::setsid().step("leaving the session")?;
        rustix::stdio::dup2_stdin(&self.null).step("leaving the terminal")?;
        rustix::stdio::dup2_stdout(&self.null).step("leaving the terminal")?;
        rustix::stdio::dup2_stderr(&self.log).step("leaving the terminal")?;
        rustix::process::umask(Mode::from_raw_mode(0o077));
        Ok(())
    }

    /// A keeper's first state: it knows what the keeper before could not tell.
    fn handover(&self, place: Place) -> Handover {
        let sandbox = self.config.sandbox.to_string();
        let mut handover = Handover::new(sandbox, place, &self.exe, &self.exits);
        handover.exits.clone_from(&self.past_exits);
        handover
    }

    /// Starts the keeper's first supervisor: it becomes its program while we become ours.
    fn begin_supervisor(&self) -> Step<Supervisor> {
        let step = "starting the supervisor";
        allow_open_files().step(step)?;
        let sandbox = self.config.sandbox.to_string();
        Supervisor::begin(self.exe.as_fd(), &sandbox).step(step)
    }

    /// Completes a keeper's first state with what both runtimes put into its store, and becomes
    /// the keeper.
    fn become_keeper(
        &self,
        mut handover: Handover,
        supervisor: &Supervisor,
        isolation: &Isolation,
        kept: &[(&str, BorrowedFd<'_>)],
    ) -> LaunchFailure {
        let memory = |name: &str, bytes: Vec<u8>| sealed_memory(name, &bytes);
        let config = minicbor::to_vec(self.config)
            .map_err(std::io::Error::other)
            .and_then(|bytes| memory("outlive-config", bytes));
        let isolation = minicbor::to_vec(isolation)
            .map_err(std::io::Error::other)
            .and_then(|bytes| memory("outlive-isolation", bytes));
        let (config, isolation) = match (config, isolation) {
            (Ok(config), Ok(isolation)) => (config, isolation),
            (Err(e), _) | (_, Err(e)) => {
                return step::failure("writing down the configuration", &e.to_string());
            }
        };
        let mut keep = |name: &str, fd: BorrowedFd<'_>| {
            handover.kept.push((
                Label {
                    name: name.to_owned(),
                    pid: 0,
                    note: 0,
                },
                fd.as_raw_fd(),
            ));
        };
        keep(crate::inherit::CONFIG, config.as_fd());
        keep(crate::inherit::ISOLATION, isolation.as_fd());
        for (name, fd) in self.cgroups.kept().into_iter().chain(kept.iter().copied()) {
            keep(name, fd);
        }
        handover.ready = Some(self.report.as_raw_fd());
        handover.supervisor = Some(supervisor.handover());
        handover.starts = 1;
        keeper::begin(handover)
    }
}

/// Text as the system takes it.
pub(crate) fn c_string(text: &str) -> Step<CString> {
    CString::new(text).map_err(|e| step::failure("making an argument", &e.to_string()))
}
