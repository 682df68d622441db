//! The `process` runtime: no isolation. The keeper is a subreaper among the host's processes, and
//! Landlock, where the kernel has it, keeps programs from tracing the agent or signalling it.

use outlive_api::launch::{Isolation, IsolationTier};

use super::{Ground, start::StartedKeeper, step::Step};
use crate::process::fence::{Fence, Keeps};

/// What stands between a program and the agent, as the end of a sentence.
fn fence() -> String {
    match Fence::make().map(|fence| fence.keeps()) {
        Ok(Keeps::TracingAndSignals) => {
            "Landlock keeps them from tracing it or sending it signals".to_owned()
        }
        Ok(Keeps::Tracing) => {
            "Landlock keeps them from tracing it, signals take Linux 6.12".to_owned()
        }
        Err(error) => format!("they can trace it and send it signals: no Landlock: {error}"),
    }
}

pub(super) fn start(ground: &Ground<'_>) -> Step<StartedKeeper> {
    let mut off = vec![
        format!(
            "isolation: processes run as the server's own user, beside the agent; {}",
            fence()
        ),
        "journal protection: a process of the same user can read and change it".to_owned(),
    ];
    off.extend(ground.cgroups.off().iter().cloned());
    ground.cgroups.divide()?;
    let isolation = Isolation {
        tier: IsolationTier::None,
        journal_protected: false,
        off,
    };
    ground.fork_keeper(isolation, || Ok(()))
}
