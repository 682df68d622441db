//! The part of a sandbox's directory that its file system counts.
//!
//! ```text
//!   DIRECTORY/disk/           a subvolume of btrfs, or a project of ext4 or XFS, where those count
//!     upper/{root,usr} work/  else they lie in DIRECTORY itself
//! ```
//! Only the workload's changes lie in there: a workload that fills it hurts nobody, and nothing
//! that the agent writes (journals, exits) is counted.
//!
//! The number of a project is any that nobody has on that file system, of a range that is ours
//! ([`PROJECT_FIRST`] and as many as [`PROJECT_MASK`] says); it stays with the disk.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use outlive_api::launch::{DropConfig, LaunchConfig, Quota};
use rustix::{
    fs::{Mode, OFlags, fchmod, fstat, mkdirat, openat, statat},
    io::Errno,
};

use super::{
    step::{Fail, Step, failure},
    told,
};
use crate::sys::{
    Projects, btrfs_id, create_subvolume, is_subvolume, limit_project, limit_subvolume,
    project_account, project_of, projects, remove_subvolume, set_project,
};

/// The name of that part.
const DISK: &str = "disk";
/// The first number of our projects: far from those that people and other programs give.
const PROJECT_FIRST: u32 = 0x4f00_0000;
const PROJECT_MASK: u32 = 0x00ff_ffff;
/// From a number that is taken to the next one to be tried: whoever began beside us goes elsewhere.
const PROJECT_STEP: u32 = 0x009e_3779;
/// So many are tried.
const PROJECT_TRIES_MAX: u32 = 1000;
/// A disk may hold one file for so many bytes of its limit, as a file system of that size would…
const BYTES_PER_ENTRY: u64 = 4096;
/// …and so many in any case.
const ENTRIES_MIN: u64 = 65_536;
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
    let has_upper = |around: BorrowedFd<'_>| match statat(
        around,
        "upper",
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    ) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e).step("looking for the disk"),
    };
    let disk = match open_disk(directory)? {
        Some(disk) if counted == Counted::No || has_upper(disk.as_fd())? => return Ok(disk),
        Some(disk) => disk, // It may be one that was about to be counted.
        None if counted == Counted::No || has_upper(directory)? || !counts(directory)? => {
            return directory
                .try_clone_to_owned()
                .step("keeping the sandbox's directory");
        }
        None => make_disk(directory)?,
    };
    let step = "looking at the disk";
    // Never a reason for another tier of isolation, whatever the error.
    if !is_subvolume(disk.as_fd()).step(step)?
        && projects(disk.as_fd()).step(step)? == Projects::Limited
    {
        give_project(disk.as_fd())
            .map_err(|e| failure("giving the disk a project", &in_words(&e)))?;
    }
    fchmod(&disk, Mode::RWXU).step("closing the disk to others")?;
    Ok(disk)
}

/// Whether a disk that is made in here would be held to its limit. That of btrfs is asked about
/// where it is made.
fn counts(directory: BorrowedFd<'_>) -> Step<bool> {
    let step = "looking at the file system";
    let is_btrfs = btrfs_id(directory).step(step)?.is_some();
    Ok(is_btrfs || projects(directory).step(step)? == Projects::Limited)
}

fn make_disk(directory: BorrowedFd<'_>) -> Step<OwnedFd> {
    let is_btrfs = btrfs_id(directory).step("looking at the file system")?;
    if is_btrfs.is_some() {
        create_subvolume(directory, DISK)
            .map_err(|e| failure("making a subvolume for the disk", &e.to_string()))?;
    } else {
        mkdirat(directory, DISK, Mode::RWXU).step("making a directory for the disk")?;
    }
    open_disk(directory)?
        .ok_or_else(|| failure("opening the disk", "it is gone as soon as it was made"))
}

/// Gives an empty directory a number that nobody else has.
fn give_project(disk: BorrowedFd<'_>) -> io::Result<()> {
    if own_project(disk)?.is_some() {
        return Ok(());
    }
    let inode = fstat(disk)?.st_ino & u64::from(PROJECT_MASK);
    let mut number = u32::try_from(inode).map_err(io::Error::other)?;
    for _ in 0..PROJECT_TRIES_MAX {
        let project = PROJECT_FIRST | (number & PROJECT_MASK);
        let account = project_account(disk, project)?;
        if account.entries == 0 && !account.is_limited {
            set_project(disk, project)?;
            // Another launcher may have found it free, too; then both look on.
            if project_account(disk, project)?.entries == 1 {
                return Ok(());
            }
        }
        number = number.wrapping_add(PROJECT_STEP);
    }
    Err(io::Error::other("no number is free"))
}

/// The number of a disk that is counted so.
fn own_project(disk: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    Ok(project_of(disk)?.filter(|number| number & !PROJECT_MASK == PROJECT_FIRST))
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
    let step = "looking at the disk";
    let is_counted = is_subvolume(disk).step(step)? || own_project(disk).step(step)?.is_some();
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
    let config: DropConfig = told::read()?;
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
    let Some(disk) = open_disk(directory.as_fd())? else {
        return Ok(());
    };
    if is_subvolume(disk.as_fd()).step("looking at the disk")? {
        return remove_subvolume(directory.as_fd(), DISK).step("removing the disk");
    }
    // Its number is free once nothing has it any more.
    let nothing = Quota { bytes_max: None };
    limit(Some(nothing), directory.as_fd(), disk.as_fd())
}

fn limit(quota: Option<Quota>, directory: BorrowedFd<'_>, disk: BorrowedFd<'_>) -> Step<()> {
    let Some(quota) = quota else {
        return Ok(());
    };
    let step = "looking at the disk";
    let limited = if is_subvolume(disk).step(step)? {
        limit_subvolume(directory, disk, quota.bytes_max)
    } else if let Some(number) = own_project(disk).step(step)? {
        limit_to(disk, number, quota.bytes_max)
    } else {
        return Ok(()); // A folder of that name that was copied here from elsewhere is a plain one.
    };
    limited.map_err(|e| failure("limiting the disk", &in_words(&e)))
}

/// Where quotas were turned off, what can't be limited is checked by the server.
fn limit_to(disk: BorrowedFd<'_>, number: u32, bytes_max: Option<u64>) -> io::Result<()> {
    if projects(disk)? == Projects::Unknown {
        return Ok(());
    }
    let most = bytes_max.map(|bytes| (bytes, (bytes / BYTES_PER_ENTRY).max(ENTRIES_MIN)));
    limit_project(disk, number, most)
}

fn in_words(error: &io::Error) -> String {
    match error.raw_os_error() {
        // btrfs says so, and so do we.
        Some(libc::ENOTCONN | libc::ESRCH) => {
            "the quotas of its file system were turned off".to_owned()
        }
        _ => error.to_string(),
    }
}

fn open_disk(directory: BorrowedFd<'_>) -> Step<Option<OwnedFd>> {
    match openat(directory, DISK, DIRECTORY, Mode::empty()) {
        Ok(disk) => Ok(Some(disk)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e).step("opening the disk"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    // Its launcher was killed before it was counted, and then quotas were turned off.
    #[test]
    fn a_disk_that_was_about_to_be_counted_is_a_plain_one_where_nothing_counts() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let around = fs::File::open(dir.path()).unwrap();
        fs::create_dir(dir.path().join(DISK)).unwrap();
        let disk = disk_of(around.as_fd(), Counted::Yes).unwrap();
        assert_eq!(own_project(disk.as_fd()).unwrap(), None);
        limit_to(disk.as_fd(), PROJECT_FIRST, Some(1)).unwrap();
    }
}
