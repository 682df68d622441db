//! The `process` runtime: no isolation. The keeper is a subreaper among the host's processes.

use std::os::fd::AsFd;

use outlive_api::launch::{Isolation, IsolationTier};

use super::{
    Ground, StartedKeeper, report_failure,
    step::{Fail, Step},
};
use crate::{
    keeper::{Handover, Place},
    sys::{self, Forked},
};

pub(super) fn start(ground: &Ground<'_>) -> Step<StartedKeeper> {
    let mut off = vec![
        "isolation: processes run as the server's own user, beside the agent".to_owned(),
        "journal protection: a process of the same user can read and change it".to_owned(),
    ];
    off.extend(ground.cgroups.off().iter().cloned());
    let isolation = Isolation {
        tier: IsolationTier::None,
        journal_protected: false,
        off,
    };
    match sys::fork_into(0, ground.cgroups.agent()).step("starting the keeper")? {
        Forked::Parent { pid, pidfd } => Ok(StartedKeeper {
            pid,
            pidfd,
            isolation,
        }),
        Forked::Child => {
            let entered =
                rustix::process::fchdir(&ground.state).step("entering the state directory");
            let failure = match entered.and_then(|()| ground.settle()) {
                Ok(()) => {
                    let sandbox = ground.config.sandbox.to_string();
                    let handover =
                        Handover::new(sandbox, Place::Subreaper, &ground.exe, &ground.exits);
                    ground.become_keeper(handover, &isolation, &[])
                }
                Err(failure) => failure,
            };
            report_failure(ground.report.as_fd(), &failure)
        }
    }
}
