//! From a fork to a keeper: who is about to become one is written down, and told to go on.
//!
//! ```text
//!   launcher   fork ──► state/keeper.pid ──► "go on" ──► waits until it is ready
//!   child        waits for a word ─────────────┘
//!                end of file: the launcher is gone, and so is the child
//! ```

use std::os::fd::{AsFd, OwnedFd};

use outlive_api::launch::Isolation;
use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{WaitId, WaitIdOptions, waitid},
};

use super::{
    Ground, disk, report_failure,
    step::{Fail, Step, failure},
};
use crate::{
    keeper::Place,
    sys::{self, Forked},
};

/// A keeper that was started.
pub(super) struct StartedKeeper {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    pub(super) pidfd: OwnedFd,
    pub(super) isolation: Isolation,
}

/// The launcher's word to go on.
pub(super) const GO: u8 = b'g';

/// Tells a forked child what it waits for.
pub(super) fn say(go: &OwnedFd, word: &[u8]) -> Step<()> {
    // So few bytes go into the pipe as one.
    rustix::io::write(go, word)
        .map(drop)
        .step("letting the agent go on")
}

/// Waits for what the launcher says, which it writes as one.
pub(super) fn wait_for_launcher(go: &OwnedFd, word: &mut [u8]) -> Step<()> {
    match rustix::io::read(go, &mut *word).step("waiting for the launcher")? {
        length if length == word.len() => Ok(()),
        _ => Err(failure("starting the agent", "the launcher is gone")),
    }
}

/// Has a child of ours be gone.
pub(super) fn end(pidfd: &OwnedFd) {
    match sys::pidfd_signal(pidfd.as_fd(), 9) {
        Ok(()) | Err(_) => {} // It is gone already, which is what we want.
    }
    match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
        Ok(_) | Err(_) => {} // Whoever can't be waited for is written down.
    }
}

impl Ground<'_> {
    /// Writes down who is about to become the keeper, before it may: whoever cleans up after us
    /// finds it then, however we end. Its start time.
    pub(super) fn write_down(&self, pid: u32) -> Step<u64> {
        let start_ticks = sys::start_ticks(pid).step("reading the keeper's start time")?;
        let text = format!("{pid} {start_ticks}\n");
        disk::write_small(self.state.as_fd(), "keeper.pid", &text)?;
        Ok(start_ticks)
    }

    /// Forks a keeper among the host's processes, which becomes whom `become_agent` makes of it.
    pub(super) fn fork_keeper(
        &self,
        isolation: Isolation,
        become_agent: impl FnOnce() -> Step<()>,
    ) -> Step<StartedKeeper> {
        let (go_read, go) = pipe_with(PipeFlags::CLOEXEC).step("making a pipe")?;
        match sys::fork_into(0, self.cgroups.agent()).step("starting the keeper")? {
            Forked::Parent { pid, pidfd } => {
                let told = self.write_down(pid).and_then(|start_ticks| {
                    say(&go, &[GO])?;
                    Ok(start_ticks)
                });
                self.started(pid, pidfd, isolation, told)
            }
            Forked::Child => {
                drop(go);
                let settled = wait_for_launcher(&go_read, &mut [0])
                    .and_then(|()| self.enter_state())
                    .and_then(|()| self.settle())
                    .and_then(|()| become_agent());
                let failure = match settled.and_then(|()| self.begin_supervisor()) {
                    Ok(supervisor) => {
                        let handover = self.handover(Place::Subreaper);
                        self.become_keeper(handover, &supervisor, &isolation, &[])
                    }
                    Err(failure) => failure,
                };
                report_failure(self.report.as_fd(), &failure)
            }
        }
    }

    fn enter_state(&self) -> Step<()> {
        rustix::process::fchdir(&self.state).step("entering the state directory")
    }

    /// A keeper that was told to go on, at this start time; else it is ended.
    pub(super) fn started(
        &self,
        pid: u32,
        pidfd: OwnedFd,
        isolation: Isolation,
        told: Step<u64>,
    ) -> Step<StartedKeeper> {
        match told {
            Ok(start_ticks) => Ok(StartedKeeper {
                pid,
                start_ticks,
                pidfd,
                isolation,
            }),
            Err(failure) => {
                let failure = self.reason(failure);
                end(&pidfd);
                Err(failure)
            }
        }
    }
}
