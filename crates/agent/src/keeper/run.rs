//! The keeper's loop: one thread, four things to wait for: signals, the supervisor, the time for the
//! next one, and, until it is ready, its launcher's end.

mod asks;

use std::{
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    handover::{Handover, Place, VERSION},
    log,
    store::{Exits, Store},
    supervisor::{Supervisor, allow_open_files},
    wire::{Answer, ExitRecord, send},
};
use crate::{
    limits::{
        AGENT_LOG_BYTES_MAX, KEEPER_MESSAGE_BYTES_MAX, SUPERVISOR_BACKOFF_INITIAL,
        SUPERVISOR_BACKOFF_MAX, SUPERVISOR_BACKOFF_SERVED_MAX, SUPERVISOR_LIFE_SHORT,
        UPGRADE_CRASHES_MAX,
    },
    sys::{self, Ended, Reap, WaitFor, wait_ended},
};

/// Runs the keeper until the runtime ends.
pub fn main() -> anyhow::Result<()> {
    run(Handover::take()?)
}

/// The same, from a state that isn't handed over by another program.
pub(super) fn run(handover: Handover) -> anyhow::Result<()> {
    sys::set_comm(c"outlive-keeper")?;
    sys::hide_memory()?;
    if handover.place == Place::Subreaper {
        // Any pid turns it on.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    allow_open_files()?;
    let mut keeper = Keeper::resume(handover)?;
    keeper.run()?;
    Ok(())
}

#[derive(Debug)]
struct Keeper {
    sandbox: String,
    place: Place,
    exe: OwnedFd,
    previous_exe: Option<OwnedFd>,
    ready: Option<OwnedFd>,
    store: Store,
    exits: Exits,
    supervisor: Option<Supervisor>,
    crashes: u32,
    starts: u64,
    reexecs: u32,
    /// This program is older than `exe`.
    outdated: bool,
    leaving: bool,
    init_pid: Option<u32>,
    signals: OwnedFd,
    start_at: Duration,
    /// When the supervisor was started, or this keeper began to watch it.
    started_at: Duration,
    /// Supervisors in a row that served and ended within a second.
    short_lives: u32,
    buffer: Vec<u8>,
    over: bool,
}

/// What a wait ended with.
#[derive(Debug)]
struct Woken {
    /// A signal came.
    signalled: bool,
    /// The supervisor asks, or is gone.
    asked: bool,
    /// The launcher is gone, before we were ready.
    abandoned: bool,
}

impl Keeper {
    fn resume(from: Handover) -> io::Result<Self> {
        let mut store = Store::default();
        for (label, raw) in from.kept {
            let fd = sys::inherit_fd(raw)?;
            store.put(vec![label], vec![fd]).map_err(io::Error::other)?;
        }
        let take = |raw: Option<RawFd>| raw.map(sys::inherit_fd).transpose();
        let supervisor = from
            .supervisor
            .as_ref()
            .map(Supervisor::resume)
            .transpose()?;
        let keeper = Self {
            sandbox: from.sandbox,
            place: from.place,
            exe: sys::inherit_fd(from.exe)?,
            previous_exe: take(from.previous_exe)?,
            ready: take(from.ready)?,
            store,
            exits: Exits::new(from.exits, sys::inherit_fd(from.exits_file)?),
            supervisor,
            crashes: from.crashes,
            starts: from.starts,
            reexecs: from.reexecs,
            outdated: false,
            leaving: from.leaving,
            init_pid: from.init_pid,
            signals: sys::block_signals_into_fd()?,
            start_at: sys::boot_clock(),
            started_at: sys::boot_clock(),
            short_lives: 0,
            buffer: vec![0; KEEPER_MESSAGE_BYTES_MAX],
            over: false,
        };
        // The supervisor that asked for the replacement waits for this answer.
        if keeper.reexecs > 0
            && let Some(socket) = keeper.supervisor.as_ref().and_then(|s| s.socket.as_ref())
        {
            send(socket, &Answer::Done, &[])?;
        }
        Ok(keeper)
    }

    fn handover(&self) -> Handover {
        Handover {
            ready: self.ready.as_ref().map(AsRawFd::as_raw_fd),
            previous_exe: self.previous_exe.as_ref().map(AsRawFd::as_raw_fd),
            exits_file: self.exits.file().as_raw_fd(),
            kept: self
                .store
                .iter()
                .map(|(label, fd)| (label.clone(), fd.as_raw_fd()))
                .collect(),
            exits: self.exits.records().to_vec(),
            supervisor: self.supervisor.as_ref().map(Supervisor::handover),
            crashes: self.crashes,
            starts: self.starts,
            reexecs: self.reexecs + 1,
            leaving: self.leaving,
            init_pid: self.init_pid,
            exe: self.exe.as_raw_fd(),
            sandbox: self.sandbox.clone(),
            place: self.place,
            version: VERSION,
        }
    }

    fn run(&mut self) -> io::Result<()> {
        // Signals that came while nobody read them (before or during an exec).
        self.reap()?;
        while !self.over {
            if self.supervisor.is_none() && sys::boot_clock() >= self.start_at {
                self.start_supervisor();
            }
            let woken = self.wait()?;
            if woken.abandoned {
                self.end_unready();
                return Ok(());
            }
            if woken.signalled {
                let mut infos = [0_u8; 128 * 16];
                match rustix::io::read(&self.signals, &mut infos) {
                    Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
                self.reap()?;
            }
            if woken.asked {
                self.answer();
            }
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<Woken> {
        let socket = self.supervisor.as_ref().and_then(|s| s.socket.as_ref());
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(socket.map(|s| PollFd::new(s, PollFlags::IN)));
        let readers = fds.len();
        // That nobody reads it any more is reported whatever is asked for.
        fds.extend(
            self.ready
                .as_ref()
                .map(|r| PollFd::new(r, PollFlags::empty())),
        );
        let timeout = match self.supervisor {
            Some(_) => None,
            None => Timespec::try_from(self.start_at.saturating_sub(sys::boot_clock())).ok(),
        };
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let some = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        Ok(Woken {
            signalled: some(0),
            asked: socket.is_some() && some(1),
            abandoned: some(readers),
        })
    }

    /// Whoever launched this runtime is gone and was not told that it is ready: it is nobody's, and
    /// would be in the way of the next one.
    fn end_unready(&mut self) {
        log("the launcher is gone, and the runtime is not ready; it ends");
        self.kill_workload();
        self.over = true;
    }

    /// Writes down and reaps every child that ended.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            match wait_ended(WaitFor::Any, Reap::No) {
                Ok(Some(ended)) => self.child_ended(&ended)?,
                Ok(None) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    fn child_ended(&mut self, ended: &Ended) -> io::Result<()> {
        let kept = self.store.processes(ended.pid).find(|(_, pidfd)| {
            // An older process may have had the same id: only the zombie's own pidfd answers.
            matches!(wait_ended(WaitFor::Pidfd(*pidfd), Reap::No), Ok(Some(_)))
        });
        if let Some((label, _)) = kept {
            let record = ExitRecord {
                name: label.name.clone(),
                pid: ended.pid,
                start_ticks: sys::start_ticks(ended.pid).unwrap_or(0),
                status: ended.status,
                rusage: ended.rusage,
                at_ns: sys::wall_clock_ns(),
            };
            if let Err(e) = self.exits.push(record) {
                // The record is in memory only. Reaping must go on, or the sandbox fills with
                // zombies.
                log(&format!("exit record: {e}"));
            }
        }
        wait_ended(WaitFor::Pid(ended.pid), Reap::Yes)?;
        if self.init_pid == Some(ended.pid) {
            // The inner pid namespace is finished, every attempt in it reaped: nothing is left
            // to keep, and nothing can be started any more.
            log("sbx-init ended; the runtime is lost");
            self.over = true;
        }
        if self.supervisor.as_ref().map(|s| s.pid) == Some(ended.pid) {
            self.supervisor_ended(ended);
        }
        Ok(())
    }

    fn supervisor_ended(&mut self, ended: &Ended) {
        let ready = self.supervisor.take().is_some_and(|s| s.ready);
        bound_log();
        if self.leaving {
            self.kill_workload();
            self.over = true;
            return;
        }
        if ready {
            self.crashes = 0;
            self.start_at = sys::boot_clock() + self.short_life_delay();
            return;
        }
        self.crashes = self.crashes.saturating_add(1);
        log(&format!(
            "supervisor ended before it was ready: {:?}, {} in a row",
            ended.status, self.crashes
        ));
        if self.crashes >= UPGRADE_CRASHES_MAX
            && let Some(previous) = self.previous_exe.take()
        {
            log("going back to the executable before the upgrade");
            self.exe = previous;
            // The keeper replaces itself only once the new one proved itself.
            self.outdated = false;
            self.crashes = 0;
            self.start_at = sys::boot_clock();
            return;
        }
        let delay = SUPERVISOR_BACKOFF_INITIAL
            .saturating_mul(1 << (self.crashes - 1).min(16))
            .min(SUPERVISOR_BACKOFF_MAX);
        self.start_at = sys::boot_clock() + delay;
    }

    /// A supervisor that serves and falls at once, again and again, must not eat a processor.
    fn short_life_delay(&mut self) -> Duration {
        if sys::boot_clock().saturating_sub(self.started_at) >= SUPERVISOR_LIFE_SHORT {
            self.short_lives = 0;
            return Duration::ZERO;
        }
        self.short_lives = self.short_lives.saturating_add(1);
        SUPERVISOR_BACKOFF_INITIAL
            .saturating_mul(self.short_lives - 1)
            .min(SUPERVISOR_BACKOFF_SERVED_MAX)
    }

    /// In the `process` runtime nothing dies with the keeper by itself.
    fn kill_workload(&self) {
        if self.place != Place::Subreaper {
            return;
        }
        if let Some((_, cgroup)) = self.store.find(crate::process::cgroup::WORKLOAD_UNIFIED)
            && let Err(e) = crate::process::cgroup::kill_dir(cgroup)
        {
            log(&format!("killing what is left of the workload: {e}"));
        }
    }

    fn start_supervisor(&mut self) {
        self.starts += 1;
        self.started_at = sys::boot_clock();
        match Supervisor::begin(self.exe.as_fd(), &self.sandbox) {
            Ok(supervisor) => self.supervisor = Some(supervisor),
            Err(e) => {
                log(&format!("starting a supervisor: {e}"));
                self.start_at = sys::boot_clock() + SUPERVISOR_BACKOFF_MAX;
            }
        }
    }
}

/// Empties `agent.log` when supervisors that end again and again have filled it.
fn bound_log() {
    let log = rustix::stdio::stderr();
    let full = rustix::fs::fstat(log).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
            && u64::try_from(stat.st_size).unwrap_or(0) > AGENT_LOG_BYTES_MAX
    });
    if full {
        match rustix::fs::ftruncate(log, 0) {
            Ok(()) | Err(_) => {} // Then it grows; there is no other place to say so.
        }
    }
}
