//! One attempt's processes, as its driver has them.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

use outlive_core::{
    event::{ExitStatus, Oom},
    limits::KILL_WAIT,
    session::TerminalSize,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    time::{sleep, timeout},
};

use super::{Processes, output::AttemptOutput};
use crate::{
    input::Kind,
    journal::SessionJournal,
    keeper::Label,
    limits::{EXEC_WAIT, TREE_WALK_PAUSE},
    log,
    machine::{Attempt, Ended},
    process::{
        self, AttemptKey, ExecOutcome, exit,
        pty::{self, LineEnds},
    },
    sys,
};

const SIGINT: u8 = 2;
const SIGQUIT: u8 = 3;
const SIGTERM: u8 = 15;
const SIGSTOP: u8 = 19;
const SIGWINCH: u8 = 28;

/// One attempt's processes.
#[derive(Debug)]
pub(crate) struct Process {
    around: Rc<Processes>,
    attempt: RefCell<process::Attempt>,
    key: AttemptKey,
    pid: u32,
    outer_pid: u32,
    pidfd: AsyncFd<Arc<OwnedFd>>,
    output: AttemptOutput,
    spool: RefCell<Option<OwnedFd>>,
    has_spool: Cell<bool>,
    is_killed: Cell<bool>,
    killed: Notify,
    is_reaped: Cell<bool>,
}

impl Process {
    pub(super) fn of(
        around: &Rc<Processes>,
        attempt: process::Attempt,
        journal: &SessionJournal,
    ) -> io::Result<Self> {
        let pidfd = match sys::watch(Arc::clone(&attempt.pidfd), Interest::READABLE) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                attempt.abandon(); // Nobody would see its end.
                return Err(error);
            }
        };
        let key = attempt.key.clone();
        let spool = around.spools.borrow_mut().remove(&spool_name(&key));
        let output = AttemptOutput::of(around, key.clone(), attempt.sources.len(), journal);
        Ok(Self {
            around: Rc::clone(around),
            pid: attempt.pid,
            outer_pid: attempt.outer_pid,
            pidfd,
            output,
            has_spool: Cell::new(spool.is_some()),
            spool: RefCell::new(spool),
            is_killed: Cell::new(false),
            killed: Notify::new(),
            is_reaped: Cell::new(false),
            attempt: RefCell::new(attempt),
            key,
        })
    }

    /// Throws away what is written from now on: its end is in the journal.
    pub(super) fn discarding(self) -> io::Result<Self> {
        let sources = std::mem::take(&mut self.attempt.borrow_mut().sources);
        self.output.attach_discarding(sources)?;
        Ok(self)
    }

    /// Lets go of a process that never became the program it was meant to be.
    pub(super) async fn discard(self) {
        if let Err(error) = self.kill() {
            log::warn(format_args!("{}: it is not killed: {error}", self.key));
        }
        if timeout(KILL_WAIT, self.leader_gone()).await.is_err() {
            log::warn(format_args!("{}: it hangs in the kernel", self.key));
        }
        self.release();
    }

    /// Waits until exec succeeded or failed; `Pending` when neither comes within [`EXEC_WAIT`].
    pub(super) async fn exec_outcome(&self) -> io::Result<ExecOutcome> {
        timeout(EXEC_WAIT, self.exec_finished())
            .await
            .unwrap_or(Ok(ExecOutcome::Pending))
    }

    async fn exec_finished(&self) -> io::Result<ExecOutcome> {
        let attempt = &self.attempt;
        let status = attempt.borrow().exec_status.as_fd().try_clone_to_owned()?;
        let status = sys::watch(Arc::new(status), Interest::READABLE)?;
        loop {
            let mut guard = status.readable().await?;
            match attempt.borrow().exec_status.look()? {
                // Readable because the gate opened; its end is another event.
                ExecOutcome::Pending => guard.clear_ready(),
                outcome => return Ok(outcome),
            }
        }
    }

    fn terminal(&self) -> Option<Arc<OwnedFd>> {
        self.attempt.borrow().terminal.clone()
    }

    fn signal_all(&self, signal: u8) -> io::Result<()> {
        if self.is_reaped.get() && !self.has_group() {
            return Ok(()); // Its number may be somebody else's by now.
        }
        self.attempt
            .borrow()
            .cgroup
            .signal_all(self.outer_pid, signal)
            .map(|_| ())
    }

    fn has_group(&self) -> bool {
        self.attempt.borrow().cgroup.is_group()
    }

    fn try_release(&self) -> io::Result<()> {
        let is_gone = !self.is_left();
        // Without a group the leader's number is what its descendants are found by: as long as
        // some are left it stays unreaped, so that nobody else gets the number.
        if is_gone || self.has_group() {
            exit::reap(&self.attempt.borrow())?;
            self.is_reaped.set(true);
        }
        if is_gone {
            self.output.close()?;
            self.around.workload.remove(&self.attempt.borrow().cgroup)?;
            self.attempt
                .borrow()
                .forget(&self.around.keeper)
                .map_err(io::Error::other)?;
        }
        if self.has_spool.get() {
            let names = [spool_name(&self.key)];
            self.around.keeper.del(&names).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Waits as long as it stands still, unless it was killed.
    async fn until_it_may_run(&self) {
        while !self.is_killed.get() && self.around.standstill.is_shut() {
            tokio::select! {
                () = self.around.standstill.opened() => {}
                () = self.killed.notified() => {}
            }
        }
    }

    async fn wait_for_tree(&self) -> io::Result<()> {
        let events = self.attempt.borrow().cgroup.events()?;
        let Some(events) = events else {
            // There is no group that tells: look again until the walk finds nobody.
            while !self.is_tree_gone() {
                sleep(TREE_WALK_PAUSE).await;
                self.until_it_may_run().await;
            }
            return Ok(());
        };
        let events = sys::watch(Arc::new(events), Interest::PRIORITY)?;
        while !self.is_tree_gone() {
            events.ready(Interest::PRIORITY).await?.clear_ready();
        }
        Ok(())
    }
}

impl Attempt for Process {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn start_output(&self) -> io::Result<()> {
        let sources = std::mem::take(&mut self.attempt.borrow_mut().sources);
        self.output.attach(sources)
    }

    fn resume_output(&self) {
        self.output.resume();
    }

    fn expect_echo(&self) {
        self.output.expect_echo();
    }

    fn take_input(&self) -> io::Result<Option<(OwnedFd, Kind)>> {
        let mut attempt = self.attempt.borrow_mut();
        match (attempt.stdin.take(), &attempt.terminal) {
            (Some(pipe), _) => Ok(Some((pipe, Kind::Pipe))),
            (None, Some(master)) => {
                Ok(Some((master.as_fd().try_clone_to_owned()?, Kind::Terminal)))
            }
            (None, None) => Ok(None),
        }
    }

    fn take_spool(&self) -> Option<OwnedFd> {
        self.spool.take()
    }

    fn keep_spool(&self, spool: BorrowedFd<'_>) -> io::Result<()> {
        let label = Label {
            name: spool_name(&self.key),
            pid: 0,
            note: 0,
        };
        self.has_spool.set(true);
        self.around
            .keeper
            .put(&[(label, spool)])
            .map_err(io::Error::other)
    }

    fn close_input(&self) -> io::Result<()> {
        let mut attempt = self.attempt.borrow_mut();
        attempt
            .close_input(&self.around.keeper)
            .map_err(io::Error::other)
    }

    fn eof_character(&self) -> io::Result<Option<u8>> {
        let Some(master) = self.terminal() else {
            return Ok(None);
        };
        Ok(match pty::eof_character(&*master)? {
            pty::EofCharacter::Byte(byte) => Some(byte),
            pty::EofCharacter::None => None,
        })
    }

    fn line_ends(&self) -> io::Result<Option<LineEnds>> {
        match self.terminal() {
            Some(master) => pty::line_ends(&*master),
            None => Ok(None),
        }
    }

    fn hang_up(self: Rc<Self>) {
        let tasks = self.around.tasks.clone();
        tasks.spawn_local(async move {
            self.output.detach().await;
            let closed = self
                .attempt
                .borrow_mut()
                .close_terminal(&self.around.keeper);
            if let Err(error) = closed {
                log::warn(format_args!("{}: not hung up: {error}", self.key));
            }
        });
    }

    fn terminate(&self) -> io::Result<()> {
        self.signal_all(SIGTERM)
    }

    fn kill(&self) -> io::Result<()> {
        self.is_killed.set(true);
        self.killed.notify_waiters();
        if self.is_reaped.get() && !self.has_group() {
            return Ok(()); // Its number may be somebody else's by now.
        }
        self.attempt
            .borrow()
            .cgroup
            .kill_tree(self.outer_pid)
            .map(|_| ())
    }

    fn halt(&self) -> io::Result<()> {
        self.signal_all(SIGSTOP)
    }

    fn signal(&self, signal: u8) -> io::Result<()> {
        match (signal, self.terminal()) {
            (SIGINT | SIGQUIT, Some(master)) => sys::pty_signal(master.as_fd(), signal),
            (SIGWINCH, Some(master)) => {
                match sys::pty_foreground(master.as_fd())? {
                    group if group > 1 => sys::kill_group(group, signal),
                    _ => Ok(()), // Nobody is in the foreground.
                }
            }
            _ => self.signal_all(signal),
        }
    }

    fn resize(&self, size: TerminalSize) -> io::Result<()> {
        match self.terminal() {
            Some(master) => pty::resize(&*master, size.rows, size.cols),
            None => Ok(()),
        }
    }

    async fn leader_gone(&self) {
        match self.pidfd.readable().await {
            // It stays readable for ever: nothing to clear.
            Ok(guard) => drop(guard),
            Err(_) => std::future::pending().await, // The runtime ends, and we with it.
        }
    }

    async fn drained(&self) {
        let until_it_may_run = async || {
            if !self.is_tree_gone() {
                self.until_it_may_run().await;
            }
        };
        self.output.drained(until_it_may_run).await;
    }

    async fn tree_gone(&self) {
        if let Err(error) = self.wait_for_tree().await {
            log::warn(format_args!(
                "{}: its tree can't be watched: {error}",
                self.key
            ));
        }
    }

    fn is_tree_gone(&self) -> bool {
        if self.is_reaped.get() && !self.has_group() {
            return true;
        }
        match self.attempt.borrow().cgroup.populated(self.outer_pid) {
            Ok(populated) => !populated,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true, // It was removed.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => true,
            Err(error) => {
                log::warn(format_args!(
                    "{}: its tree can't be seen: {error}",
                    self.key
                ));
                true
            }
        }
    }

    fn is_left(&self) -> bool {
        // Without a group a daemon may not be found; that it holds the output tells of it.
        let is_held = || !self.has_group() && !self.is_killed.get() && self.output.is_open();
        !self.is_tree_gone() || is_held()
    }

    fn status(&self) -> Ended {
        let attempt = self.attempt.borrow();
        let oom = attempt.cgroup.oom().unwrap_or_else(|error| {
            log::warn(format_args!("{}: {error}", self.key));
            Oom::Unknown
        });
        match exit::look(&attempt, &self.around.keeper) {
            Ok(exit::Life::Ended(end)) => Ended {
                status: end.status,
                oom,
                rusage: end.rusage,
            },
            // Never a made-up number.
            Ok(exit::Life::Running) => Ended {
                status: ExitStatus::Unknown,
                oom,
                rusage: None,
            },
            Err(error) => {
                log::warn(format_args!("{}: its status is lost: {error}", self.key));
                Ended {
                    status: ExitStatus::Unknown,
                    oom,
                    rusage: None,
                }
            }
        }
    }

    fn release(&self) {
        if let Err(error) = self.try_release() {
            log::warn(format_args!("{}: not released cleanly: {error}", self.key));
        }
    }
}

/// How the keeper calls an input spool: by its attempt's name and this.
pub(super) const SPOOL_SUFFIX: &str = "/input-spool";

fn spool_name(key: &AttemptKey) -> String {
    format!("{key}{SPOOL_SUFFIX}")
}
