//! Removes the groups of sandboxes that nobody sweeps any more: once, when a server starts.
//!
//! A data folder that was removed by hand leaves them behind, and so does a server that never
//! came back. Whose a group is can't be seen, and an empty one may belong to a sandbox of another
//! server that has nothing to do right now. So whoever makes a group locks it, and the lock goes
//! with the descriptor: to the keeper, which has it for as long as it lives.
//!
//! ```text
//!   launch  shared lock of outlive/ ─► mkdir, shared lock of the group ─► kept by the keeper
//!   tidy    sole lock of outlive/ ───► sole lock of the group ─► nobody is in it ─► rmdir
//! ```

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use outlive_core::id::SandboxId;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
};

use super::{FOLDER, Hierarchy, WORK, discover};
use crate::{
    launch::step::{Fail, Step},
    process::cgroup::{children, open_dir, pids_below, remove_below, remove_dir},
};

/// Keeps a group, or what is about to be made in it, from being tidied up for as long as the
/// descriptor is open anywhere.
pub(super) fn hold(group: &OwnedFd) -> io::Result<()> {
    Ok(flock(group, FlockOperation::LockShared)?)
}

/// Removes what is left in every hierarchy that we use.
pub fn main() -> anyhow::Result<()> {
    tidy(discover())?;
    Ok(())
}

fn tidy(mut hierarchies: Vec<Hierarchy>) -> Step<()> {
    // The keeper is in its group on cgroup2: who lives there has its groups of version 1, too.
    hierarchies.sort_by_key(|hierarchy| !hierarchy.controller.is_empty());
    let mut living = BTreeSet::new();
    let mut failed = None;
    for hierarchy in &hierarchies {
        if let Err(error) = tidy_in(hierarchy, &mut living) {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(()), |error| {
        Err(error).step("removing control groups that sandboxes left")
    })
}

fn tidy_in(hierarchy: &Hierarchy, living: &mut BTreeSet<String>) -> io::Result<()> {
    let path = format!("{}/{FOLDER}", hierarchy.base);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = match open(path.as_str(), flags, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()), // No sandbox was ever here.
        Err(error) => return Err(error.into()),
    };
    flock(&folder, FlockOperation::LockExclusive)?;
    let mut failed = None;
    for name in children(folder.as_fd())? {
        if SandboxId::parse(&name).is_err() || living.contains(&name) {
            continue;
        }
        match forget(folder.as_fd(), &name) {
            Ok(Was::Left) => {}
            Ok(Was::Alive) => {
                living.insert(name);
            }
            Err(error) => failed = Some(error), // The others go all the same.
        }
    }
    failed.map_or(Ok(()), Err)
}

/// What a group turned out to be.
enum Was {
    /// It is gone.
    Left,
    Alive,
}

fn forget(folder: BorrowedFd<'_>, name: &str) -> io::Result<Was> {
    let removed = (|| {
        let group = open_dir(folder, name)?;
        // The keeper has the part below on cgroup2.
        let parts = match open_dir(group.as_fd(), WORK) {
            Ok(work) => vec![group, work],
            Err(error) if error.kind() == io::ErrorKind::NotFound => vec![group],
            Err(error) => return Err(error),
        };
        for part in &parts {
            if is_held(part)? || !pids_below(part.as_fd())?.is_empty() {
                return Ok(Was::Alive);
            }
        }
        if let Some(group) = parts.first() {
            remove_below(group.as_fd())?;
        }
        remove_dir(folder, name)?;
        Ok(Was::Left)
    })();
    match removed {
        // Its own server was faster, or somebody came into it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Was::Left),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(Was::Alive),
        // Another user's.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Was::Alive),
        removed => removed,
    }
}

fn is_held(group: &OwnedFd) -> io::Result<bool> {
    match flock(group, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
