//! btrfs: subvolumes, and how much may lie in one.
//!
//! A subvolume is a directory with an account of its own, its *qgroup*. Where the file system
//! counts (`btrfs quota enable`), the kernel makes the account with the subvolume and takes it
//! away after it; whoever writes beyond its limit is told `EDQUOT`, and nobody else notices.
//!
//! In a subvolume that is full nothing can be renamed either, nor can it be limited by a
//! descriptor of its own: it is changed and removed from around it.
//!
//! Numbers and shapes are those of `linux/btrfs.h`.

use std::{io, os::fd::BorrowedFd};

use rustix::{
    fs::{StatFs, fstat, fstatfs},
    ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode},
};

/// What `statfs` calls a btrfs.
const MAGIC: u64 = 0x9123_683e;
/// The inode of every subvolume's root, and of nothing else: `BTRFS_FIRST_FREE_OBJECTID`.
const ROOT_INODE: u64 = 256;
/// `BTRFS_QGROUP_LIMIT_MAX_RFER`: what is limited is all that a subvolume refers to.
const MAX_REFERRED: u64 = 1;
/// Takes a limit away.
const NO_LIMIT: u64 = u64::MAX;

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct NameArgs {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_qgroup_limit_args`.
#[repr(C)]
struct LimitArgs {
    /// The subvolume's number.
    qgroup: u64,
    flags: u64,
    max_referred: u64,
    max_exclusive: u64,
    reserved_referred: u64,
    reserved_exclusive: u64,
}

/// `struct btrfs_ioctl_ino_lookup_args`.
#[repr(C)]
struct LookupArgs {
    /// 0: asks for the subvolume that the descriptor lies in.
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// `struct btrfs_ioctl_fs_info_args`.
#[repr(C)]
struct InfoArgs {
    max_id: u64,
    num_devices: u64,
    fsid: [u8; 16],
    rest: [u8; 992],
}

const _: () = assert!(size_of::<NameArgs>() == 4096);
const _: () = assert!(size_of::<LookupArgs>() == 4096);
const _: () = assert!(size_of::<LimitArgs>() == 48);
const _: () = assert!(size_of::<InfoArgs>() == 1024);

/// `BTRFS_IOC_SUBVOL_CREATE`.
const CREATE: Opcode = opcode::write::<NameArgs>(0x94, 14);
/// `BTRFS_IOC_SNAP_DESTROY`.
const DESTROY: Opcode = opcode::write::<NameArgs>(0x94, 15);
/// `BTRFS_IOC_INO_LOOKUP`.
const LOOKUP: Opcode = opcode::read_write::<LookupArgs>(0x94, 18);
/// `BTRFS_IOC_FS_INFO`.
const INFO: Opcode = opcode::read::<InfoArgs>(0x94, 31);
/// `BTRFS_IOC_QGROUP_LIMIT`, which is numbered as if it were read, and is written.
const LIMIT: Opcode = opcode::read::<LimitArgs>(0x94, 43);

/// The id of the btrfs that this lies on, as `/sys/fs/btrfs` writes it; `None` on any other file
/// system.
pub fn btrfs_id(file: BorrowedFd<'_>) -> io::Result<Option<String>> {
    if !is_btrfs(&fstatfs(file)?) {
        return Ok(None);
    }
    // SAFETY: the opcode writes as many bytes as the structure has, all of which are plain.
    let getter = unsafe { Getter::<INFO, InfoArgs>::new() };
    // SAFETY: the kernel fills the structure and keeps no pointer to it.
    let info = unsafe { ioctl(file, getter) }?;
    let digits = format!("{:032x}", u128::from_be_bytes(info.fsid));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| digits.get(part));
    Ok(Some(parts.map(Option::unwrap_or_default).join("-")))
}

/// Whether this directory is the root of a subvolume.
pub fn is_subvolume(dir: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(fstat(dir)?.st_ino == ROOT_INODE && is_btrfs(&fstatfs(dir)?))
}

/// Makes a subvolume in a directory, as `mkdir` makes a directory.
pub fn create_subvolume(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: the opcode reads as many bytes as the structure has.
    let setter = unsafe { Setter::<CREATE, NameArgs>::new(name_args(name)?) };
    // SAFETY: the structure is plain, its name ends with a 0, and the kernel keeps no pointer.
    unsafe { ioctl(parent, setter) }?;
    Ok(())
}

/// Removes a subvolume with all that is in it, however full it is.
pub fn remove_subvolume(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    // SAFETY: the opcode reads as many bytes as the structure has.
    let setter = unsafe { Setter::<DESTROY, NameArgs>::new(name_args(name)?) };
    // SAFETY: the structure is plain, its name ends with a 0, and the kernel keeps no pointer.
    unsafe { ioctl(parent, setter) }?;
    Ok(())
}

fn name_args(name: &str) -> io::Result<NameArgs> {
    let mut args = NameArgs {
        fd: 0,
        name: [0; 4088],
    };
    // The last byte stays 0, and no name is as long.
    let room = args.name.split_last_mut().map(|(_, room)| room);
    match room.and_then(|room| room.get_mut(..name.len())) {
        Some(room) => room.copy_from_slice(name.as_bytes()),
        None => return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)),
    }
    Ok(args)
}

/// Has no more than so many bytes lie in a subvolume that lies in `around`. What lies there already
/// stays.
///
/// Fails where this is no subvolume's root: it would limit what is around it.
pub fn limit_subvolume(
    around: BorrowedFd<'_>,
    root: BorrowedFd<'_>,
    bytes_max: Option<u64>,
) -> io::Result<()> {
    if !is_subvolume(root)? {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let args = LimitArgs {
        qgroup: number_of(root)?,
        flags: MAX_REFERRED,
        max_referred: bytes_max.unwrap_or(NO_LIMIT),
        max_exclusive: 0,
        reserved_referred: 0,
        reserved_exclusive: 0,
    };
    // SAFETY: the opcode reads as many bytes as the structure has.
    let setter = unsafe { Setter::<LIMIT, LimitArgs>::new(args) };
    // SAFETY: the structure is plain, and the kernel keeps no pointer.
    unsafe { ioctl(around, setter) }?;
    Ok(())
}

/// The number of the subvolume that this lies in.
fn number_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut args = LookupArgs {
        tree: 0,
        object: ROOT_INODE,
        name: [0; 4080],
    };
    // SAFETY: the opcode reads and writes as many bytes as the structure has.
    let updater = unsafe { Updater::<LOOKUP, LookupArgs>::new(&mut args) };
    // SAFETY: the structure is plain, and the kernel keeps no pointer.
    unsafe { ioctl(file, updater) }?;
    Ok(args.tree)
}

fn is_btrfs(disk: &StatFs) -> bool {
    u64::try_from(disk.f_type) == Ok(MAGIC)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn opcodes_are_those_of_the_kernel() {
        // `linux/btrfs.h`, as gcc sees it on x86-64 and arm64.
        assert_eq!(CREATE, 0x5000_940e);
        assert_eq!(DESTROY, 0x5000_940f);
        assert_eq!(LOOKUP, 0xd000_9412);
        assert_eq!(INFO, 0x8400_941f);
        assert_eq!(LIMIT, 0x8030_942b);
    }

    #[test]
    fn what_is_no_subvolume_is_never_limited() {
        let dir = std::fs::File::open("/proc").unwrap();
        assert_eq!(btrfs_id(dir.as_fd()).unwrap(), None);
        assert!(!is_subvolume(dir.as_fd()).unwrap());
        let refused = limit_subvolume(dir.as_fd(), dir.as_fd(), Some(1)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
