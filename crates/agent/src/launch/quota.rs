//! The part of a sandbox's directory that its file system counts.
//!
//! ```text
//!   DIRECTORY/disk/           a subvolume, where the file system counts
//!     upper/{root,usr} work/  else they lie in DIRECTORY itself
//! ```
//! Only the workload's changes lie in there: a workload that fills it hurts nobody, and nothing
//! that the agent writes (journals, exits) is counted. btrfs alone can do this so far. A file
//! system with quotas of projects would mark `disk/` with a number here, and limit that.

use std::{
    io::Read as _,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use outlive_api::launch::{DropConfig, LaunchConfig, Quota};
use rustix::{
    fs::{Mode, OFlags, fchmod, openat, statat},
    io::Errno,
};

use super::step::{Fail, Step, failure};
use crate::sys::{create_subvolume, is_subvolume, limit_subvolume, remove_subvolume};

/// The name of that part.
const DISK: &str = "disk";
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Whether a disk that is made is made so that its file system can count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    Yes,
    No,
}

/// The directory that `upper/` and `work/` of a sandbox lie in. One that has a disk keeps it where
/// it is.
pub(crate) fn disk_of(directory: BorrowedFd<'_>, counted: Counted) -> Step<OwnedFd> {
    if let Some(disk) = open_disk(directory)? {
        return Ok(disk);
    }
    let has_upper = match statat(directory, "upper", rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => true,
        Err(Errno::NOENT) => false,
        Err(e) => return Err(e).step("looking for the disk"),
    };
    if has_upper || counted == Counted::No {
        return directory
            .try_clone_to_owned()
            .step("keeping the sandbox's directory");
    }
    // Never a reason for another tier of isolation, whatever the error.
    create_subvolume(directory, DISK)
        .map_err(|e| failure("making a subvolume for the disk", &e.to_string()))?;
    let disk = open_disk(directory)?
        .ok_or_else(|| failure("opening the disk", "it is gone as soon as it was made"))?;
    fchmod(&disk, Mode::RWXU).step("closing the disk to others")?;
    Ok(disk)
}

/// Where that is, once it was prepared.
pub(super) fn path_of_disk(config: &LaunchConfig) -> PathBuf {
    let directory = Path::new(&config.directory);
    let disk = directory.join(DISK);
    if disk.is_dir() {
        disk
    } else {
        directory.to_owned()
    }
}

/// Whether this disk has a limit, which is lifted and set again when a runtime starts.
pub(super) fn is_limited(config: &LaunchConfig, disk: BorrowedFd<'_>) -> Step<bool> {
    let is_counted = is_subvolume(disk).step("looking at the disk")?;
    Ok(is_counted && config.quota.is_some_and(|quota| quota.bytes_max.is_some()))
}

/// Until the root of a runtime stands nothing is limited: an overlay has to make directories of its own
/// on the disk, and can only be read where there is no room for them; nor may a disk be given away
/// whose limit is less by now than what lies on it. Nothing of the workload's runs that long.
pub(super) fn loosen(
    config: &LaunchConfig,
    directory: BorrowedFd<'_>,
    disk: BorrowedFd<'_>,
) -> Step<()> {
    let nothing = Quota { bytes_max: None };
    limit(config.quota.map(|_| nothing), directory, disk)
}

/// Has the disk hold no more than the configuration says, where its file system counts it.
pub(super) fn tighten(
    config: &LaunchConfig,
    directory: BorrowedFd<'_>,
    disk: BorrowedFd<'_>,
) -> Step<()> {
    limit(config.quota, directory, disk)
}

/// The same for a sandbox that runs.
pub(super) fn change(config: &LaunchConfig) -> Step<()> {
    let directory = openat(
        rustix::fs::CWD,
        config.directory.as_str(),
        DIRECTORY,
        Mode::empty(),
    )
    .step("opening the sandbox's directory")?;
    match open_disk(directory.as_fd())? {
        Some(disk) => tighten(config, directory.as_fd(), disk.as_fd()),
        None => Ok(()),
    }
}

/// Reads a [`DropConfig`] and removes those disks.
pub fn drop_disks() -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    std::io::stdin().take(1 << 20).read_to_end(&mut bytes)?;
    let config: DropConfig = minicbor::decode(&bytes)?;
    for directory in &config.directories {
        drop_disk(directory)?;
    }
    Ok(())
}

fn drop_disk(directory: &str) -> Step<()> {
    let step = "opening a directory whose disk goes";
    let directory = match openat(rustix::fs::CWD, directory, DIRECTORY, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(e).step(step),
    };
    match open_disk(directory.as_fd())? {
        Some(disk) if is_subvolume(disk.as_fd()).step("looking at the disk")? => {
            remove_subvolume(directory.as_fd(), DISK).step("removing the disk")
        }
        Some(_) | None => Ok(()),
    }
}

fn limit(quota: Option<Quota>, directory: BorrowedFd<'_>, disk: BorrowedFd<'_>) -> Step<()> {
    // A folder of that name that was copied here from elsewhere is a plain one.
    let counts = is_subvolume(disk).step("looking at the disk")?;
    let (Some(quota), true) = (quota, counts) else {
        return Ok(());
    };
    limit_subvolume(directory, disk, quota.bytes_max).map_err(|e| {
        let message = match e.raw_os_error() {
            Some(libc::ENOTCONN) => "the quotas of its file system were turned off".to_owned(),
            _ => e.to_string(),
        };
        failure("limiting the disk", &message)
    })
}

fn open_disk(directory: BorrowedFd<'_>) -> Step<Option<OwnedFd>> {
    match openat(directory, DISK, DIRECTORY, Mode::empty()) {
        Ok(disk) => Ok(Some(disk)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e).step("opening the disk"),
    }
}
