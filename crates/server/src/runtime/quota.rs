//! Whether the file system of the data folder counts what sandboxes write, and holds them to it.
//!
//! The agent found out once on which file system that is; whether its quotas are on is looked up
//! every time where that can be seen (btrfs), since they can be turned off under a server that runs,
//! and whether a limit is in force everywhere. A disk that was made while they were off stays one
//! that is measured.

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{
    AtFlags, CWD, IFlags, Mode, OFlags, StatxFlags, ioctl_getflags, open, statvfs, statx,
};

use super::{Place, host::Host};

/// The inode of a subvolume's root, on btrfs; directories of other file systems have it by chance.
const SUBVOLUME_ROOT: u64 = 256;
/// `STATX_SUBVOL` of Linux 6.10: the number of a subvolume.
const STATX_SUBVOLUME: u32 = 0x8000;
/// `BTRFS_QGROUP_LIMIT_MAX_RFER`.
const MAX_REFERENCED: u64 = 1;

/// See the module.
#[derive(Debug, Default)]
pub(super) enum Quotas {
    /// The file system has none.
    #[default]
    None,
    /// Of subvolumes; the file says whether they are on.
    Subvolumes(PathBuf),
    /// Of projects, whose directories are shown by `statfs` as file systems of the size of their limit.
    Projects,
}

impl Quotas {
    /// As the agent found them.
    pub(super) fn of(host: &Host) -> Self {
        let Some(found) = host.quotas() else {
            return Self::None;
        };
        match found.strip_prefix("btrfs ") {
            Some(id) => {
                Self::Subvolumes(Path::new("/sys/fs/btrfs").join(id).join("qgroups/enabled"))
            }
            None => Self::Projects,
        }
    }

    /// Whether new disks are counted.
    pub(super) fn are_on(&self) -> bool {
        match self {
            Self::None => false,
            Self::Subvolumes(switch) => says(switch, "1"),
            Self::Projects => true, // Who makes one looks.
        }
    }

    /// Whether what is counted is right, too: after some changes btrfs counts no more until
    /// somebody has it count everything anew.
    pub(super) fn are_right(&self) -> bool {
        let is_right = match self {
            Self::None => false,
            Self::Subvolumes(switch) => says(&switch.with_file_name("inconsistent"), "0"),
            Self::Projects => true,
        };
        is_right && self.are_on()
    }

    /// Whether the disk of this place is counted, or will be once it is made. Where a limit is in
    /// force it is looked up, too: limits go when quotas are turned off, and don't come back with
    /// them.
    pub(super) fn hold(&self, place: &Place, in_force: Option<u64>) -> bool {
        if !self.are_right() {
            return false;
        }
        if !is_counted(place.dir()) {
            // What is there already is measured.
            return !place.disk().exists() && !place.counted().exists();
        }
        in_force.is_none_or(|bytes| self.are_in_force(place, bytes))
    }

    /// Whether a disk that is counted is held to so many bytes.
    pub(super) fn are_in_force(&self, place: &Place, bytes: u64) -> bool {
        match self.limit_on(&place.counted()) {
            Limit::Unknown => true,
            Limit::None => false,
            Limit::Bytes(found) => found <= bytes,
        }
    }

    /// How much lies on a disk that is counted, as of half a minute ago at most; nothing where
    /// that can't be told without counting it.
    pub(super) fn counted(&self, place: &Place) -> Option<u64> {
        let told = match self {
            Self::None => None,
            Self::Subvolumes(switch) => {
                number_in(&account(switch, &place.counted())?, "referenced")
            }
            Self::Projects => written(place),
        };
        told.filter(|_| self.hold(place, None))
    }

    /// What the kernel says that it holds a disk to.
    fn limit_on(&self, disk: &Path) -> Limit {
        let account = match self {
            Self::None => None,
            Self::Subvolumes(switch) => account(switch, disk),
            // One without a limit is as large as all of the file system.
            Self::Projects => {
                return match statvfs(disk) {
                    Ok(shown) => Limit::Bytes(shown.f_blocks.saturating_mul(shown.f_frsize)),
                    Err(_) => Limit::None,
                };
            }
        };
        let Some(account) = account else {
            return Limit::Unknown;
        };
        match (
            number_in(&account, "limit_flags"),
            number_in(&account, "max_referenced"),
        ) {
            (Some(flags), Some(bytes)) if flags & MAX_REFERENCED != 0 => Limit::Bytes(bytes),
            (Some(_) | None, _) => Limit::None, // Nothing is promised of what can't be seen.
        }
    }
}

fn says(switch: &Path, wanted: &str) -> bool {
    match fs::read_to_string(switch) {
        Ok(text) => text.trim() == wanted,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false, // They were turned off.
        Err(error) => {
            tracing::warn!(%error, "whether quotas are on is unknown; they are taken to be off");
            false
        }
    }
}

/// Where the kernel tells of a subvolume; nothing where it has no number, as before Linux 6.10.
fn account(switch: &Path, disk: &Path) -> Option<PathBuf> {
    let subvolume = StatxFlags::from_bits_retain(STATX_SUBVOLUME);
    let told = statx(CWD, disk, AtFlags::SYMLINK_NOFOLLOW, subvolume).ok()?;
    let has_number = told.stx_mask & STATX_SUBVOLUME != 0;
    let name = has_number.then(|| format!("0_{}", told.stx_subvol))?;
    Some(switch.with_file_name(name))
}

/// How much a project has written, where it has a limit and room: one that is full may hold any
/// amount.
fn written(place: &Place) -> Option<u64> {
    let (disk, around) = (
        statvfs(place.counted().as_path()).ok()?,
        statvfs(place.dir()).ok()?,
    );
    let is_told = disk.f_blocks < around.f_blocks && disk.f_bfree > 0;
    let blocks = disk.f_blocks.saturating_sub(disk.f_bfree);
    is_told.then(|| blocks.saturating_mul(disk.f_frsize))
}

fn number_in(account: &Path, file: &str) -> Option<u64> {
    let text = fs::read_to_string(account.join(file)).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// What is known of a subvolume's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Unknown,
    None,
    Bytes(u64),
}

/// Whether the disk in this directory is one that its file system can count: a subvolume, which is
/// a device of its own, or a project.
pub(super) fn is_counted(directory: &Path) -> bool {
    let path = directory.join("disk");
    match (fs::symlink_metadata(&path), fs::symlink_metadata(directory)) {
        (Ok(disk), Ok(around)) if disk.is_dir() => {
            (disk.ino() == SUBVOLUME_ROOT && disk.dev() != around.dev()) || is_project(&path)
        }
        (Ok(_) | Err(_), _) => false, // There is none.
    }
}

fn is_project(disk: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(disk, flags, Mode::empty());
    opened
        .and_then(ioctl_getflags)
        .is_ok_and(|flags| flags.contains(IFlags::PROJECT_INHERIT))
}

#[cfg(test)]
mod tests {
    use outlive_core::id::SandboxId;

    use super::{super::Places, *};

    #[test]
    fn quotas_that_were_turned_off_hold_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let place = Places::new(dir.path()).of(&SandboxId::from_bits(1));
        fs::create_dir_all(place.dir()).unwrap();
        let switch = dir.path().join("enabled");
        let quotas = Quotas::Subvolumes(switch.clone());
        assert!(!quotas.hold(&place, Some(1)));
        fs::write(&switch, "0\n").unwrap();
        assert!(!quotas.hold(&place, Some(1)));
        fs::write(&switch, "1\n").unwrap();
        let inconsistent = switch.with_file_name("inconsistent");
        fs::write(&inconsistent, "1\n").unwrap();
        assert!(quotas.are_on() && !quotas.hold(&place, Some(1)));
        fs::write(&inconsistent, "0\n").unwrap();
        assert!(quotas.hold(&place, Some(1)), "its disk is still to be made");
        // Made before they were on, or copied here from elsewhere.
        fs::create_dir(place.disk()).unwrap();
        assert!(!quotas.hold(&place, Some(1)));
        fs::remove_dir(place.disk()).unwrap();
        fs::create_dir(place.counted()).unwrap();
        assert!(!quotas.hold(&place, Some(1)));
        assert!(!Quotas::default().hold(&place, None));
    }

    #[test]
    fn only_a_disk_that_is_shown_with_its_limit_is_held_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let place = Places::new(dir.path()).of(&SandboxId::from_bits(1));
        fs::create_dir_all(place.dir()).unwrap();
        let quotas = Quotas::Projects;
        assert!(quotas.hold(&place, Some(1)), "its disk is still to be made");
        // One without a limit is as large as all around it.
        fs::create_dir(place.counted()).unwrap();
        assert!(!quotas.are_in_force(&place, 1 << 20));
        assert_eq!(quotas.counted(&place), None);
        assert!(!quotas.hold(&place, None), "copied here from elsewhere");
    }
}
