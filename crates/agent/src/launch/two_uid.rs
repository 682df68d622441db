//! The tier `two-uid`: no namespaces, but the agent under a user id of its own. For places that
//! let root change ids and no more, as a pod does by default.
//!
//! ```text
//!   server               root
//!   keeper, supervisor   FIRST      CHOWN, KILL, SETGID, SETUID; not dumpable
//!   programs             FIRST + 1  nothing, and nothing to gain by an exec
//! ```

use std::os::fd::AsFd;

use caps::{CapSet, Capability, CapsHashSet};
use outlive_api::launch::{Isolation, IsolationTier};
use rustix::{
    fs::{Gid, Uid},
    process::{WaitId, WaitIdOptions, waitid},
};

use super::{
    Ground,
    start::StartedKeeper,
    step::{Fail, Step, failure},
};
use crate::{
    rootless::Standing,
    sys::{self, Forked},
};

/// What the agent needs: to become the workload, to end it, and to give it its streams.
const POWERS: [Capability; 4] = [
    Capability::CAP_CHOWN,
    Capability::CAP_KILL,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
];

/// Whether we have what it takes.
pub(crate) fn probe() -> std::io::Result<()> {
    if Standing::here()? != Standing::Root {
        return Err(std::io::Error::other("needs root of the machine"));
    }
    for power in POWERS {
        if !caps::has_cap(None, CapSet::Permitted, power).map_err(std::io::Error::other)? {
            return Err(std::io::Error::other(format!("needs root with {power}")));
        }
    }
    Ok(())
}

pub(super) fn start(ground: &Ground<'_>) -> Step<StartedKeeper> {
    let ids = ground
        .config
        .ids
        .ok_or_else(|| failure("starting the agent", "no range of ids was given"))?;
    probe().step("looking for the powers that the agent needs")?;
    let mut off: Vec<String> = IsolationTier::TwoUid
        .weaker()
        .iter()
        .map(|sentence| (*sentence).to_owned())
        .collect();
    off.extend(ground.cgroups.off().iter().cloned());
    ground.cgroups.divide()?;
    let isolation = Isolation {
        tier: IsolationTier::TwoUid,
        journal_protected: true,
        off,
    };
    let files = format!("{}/files", ground.config.directory);
    try_to_reach(&files, ids.workload())?;
    ground.fork_keeper(isolation, || become_agent(ids.first))
}

/// Takes the agent's id and keeps the powers, over an exec too.
fn become_agent(id: u32) -> Step<()> {
    let step = "becoming the agent's user";
    let powers: CapsHashSet = POWERS.into_iter().collect();
    let set = |kind| caps::set(None, kind, &powers).map_err(std::io::Error::other);
    caps::securebits::set_keepcaps(true)
        .map_err(std::io::Error::other)
        .step(step)?;
    become_user(id).step(step)?;
    set(CapSet::Permitted).step(step)?;
    set(CapSet::Effective).step(step)?;
    set(CapSet::Inheritable).step(step)?;
    set(CapSet::Ambient).step(step)
}

fn become_user(id: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}

/// Whether the workload can get to its files: they lie below the server's data folder, and that
/// may be closed.
fn try_to_reach(files: &str, id: u32) -> Step<()> {
    let step = "trying the way to the sandbox's files";
    match sys::fork_into(0, None).step(step)? {
        Forked::Child => {
            let reached = become_user(id).and_then(|()| rustix::process::chdir(files));
            sys::exit_now(i32::from(reached.is_err()));
        }
        Forked::Parent { pidfd, .. } => {
            let ended = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED).step(step)?;
            match ended.and_then(|ended| ended.exit_status()) {
                Some(0) => Ok(()),
                Some(_) | None => Err(failure(
                    step,
                    &format!(
                        "another user can't get to {files}: have the server keep its data in a \
                         folder that others may pass through, all the way (chmod o+x)"
                    ),
                )),
            }
        }
    }
}
