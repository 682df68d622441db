//! All processes of the workload at once: frozen, thawed, killed.

use std::{io, os::fd::AsFd, sync::Arc};

use outlive_core::limits::KILL_WAIT;
use tokio::{
    io::Interest,
    time::{sleep, timeout},
};

use crate::{
    limits::{FREEZE_LOOK_PAUSE, FREEZE_LOOKS, FREEZE_WAIT, STOP_WALK_PAUSE},
    process::{
        Crowd,
        cgroup::{self, AttemptCgroup, Frozen, WorkloadCgroups},
    },
    sys,
};

/// The workload: in control groups, or in a crowd where there are none.
#[derive(Debug)]
pub(super) struct Workload {
    cgroups: WorkloadCgroups,
    crowd: Crowd,
}

impl Workload {
    pub(super) fn of(cgroups: WorkloadCgroups, crowd: Crowd) -> Self {
        Self { cgroups, crowd }
    }

    /// Whether a supervisor before us froze the workload and nobody thawed it.
    pub(super) fn is_frozen(&self) -> io::Result<bool> {
        self.cgroups.is_set_frozen()
    }

    /// Whether no control group freezes the workload as a whole.
    pub(super) fn freezes_by_signal(&self) -> bool {
        self.cgroups.unified().is_none()
    }

    /// Has all stand still, and waits until they do.
    pub(super) async fn freeze(&self) -> io::Result<()> {
        self.cgroups.set_frozen(Frozen::Yes)?;
        timeout(FREEZE_WAIT, self.until_it_stands_still())
            .await
            .unwrap_or_else(|_| {
                let message = format!("some still run after {} s", FREEZE_WAIT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            })
    }

    async fn until_it_stands_still(&self) -> io::Result<()> {
        let Some(events) = self.cgroups.events()? else {
            while !self.crowd.stop_running()? {
                sleep(STOP_WALK_PAUSE).await;
            }
            return Ok(());
        };
        for _ in 0..FREEZE_LOOKS {
            if cgroup::stands_still(events.as_fd())? {
                return Ok(());
            }
            // Whoever is about to stand still may wait for this very core.
            rustix::thread::sched_yield();
            tokio::task::yield_now().await;
        }
        let events = sys::watch(Arc::new(events), Interest::PRIORITY)?;
        // A change after a look is reported, but the kernel may keep the report for 10 ms.
        while !cgroup::stands_still(events.get_ref().as_fd())? {
            if let Ok(reported) = timeout(FREEZE_LOOK_PAUSE, events.ready(Interest::PRIORITY)).await
            {
                reported?.clear_ready();
            }
        }
        Ok(())
    }

    /// Has them go on.
    pub(super) fn thaw(&self) -> io::Result<()> {
        if self.cgroups.set_frozen(Frozen::No)? {
            return Ok(());
        }
        self.crowd.go_on()
    }

    /// Kills what sessions left behind and no control group holds: nothing else ends it, where it is
    /// not in a namespace that ends with the keeper.
    pub(super) async fn kill_rest(&self) -> io::Result<()> {
        if !self.freezes_by_signal() {
            return Ok(());
        }
        let all_gone = async {
            while !self.crowd.kill()? {
                sleep(STOP_WALK_PAUSE).await;
            }
            Ok(())
        };
        timeout(KILL_WAIT, all_gone)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Removes an attempt's groups, once they are empty.
    pub(super) fn remove(&self, cgroup: &AttemptCgroup) -> io::Result<()> {
        self.cgroups.remove(cgroup)
    }
}
