//! Quotas of projects, as ext4 and XFS have them.
//!
//! A project is a number that a directory gives to all that is made in it. Where the file system
//! counts, it has an account for each number, whoever the files belong to; a limit on it holds for
//! everybody without `CAP_SYS_RESOURCE`. Nobody changes numbers from within a user namespace.
//!
//! Numbers and shapes are those of `linux/fs.h`, `linux/quota.h` and `linux/dqblk_xfs.h`.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
};

use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

use super::check;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    flags: u32,
    rest: [u32; 2],
    project: u32,
    more: [u32; 3],
}

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Block {
    hard_kib: u64,
    soft_kib: u64,
    bytes: u64,
    hard_entries: u64,
    soft_entries: u64,
    entries: u64,
    times: [u64; 2],
    valid: u32,
}

/// The beginning of `struct fs_quota_statv`, with as much room as it may take.
#[repr(C)]
struct State {
    version: i8,
    pad: u8,
    flags: u16,
    rest: [u64; 32],
}

const _: () = assert!(size_of::<Attributes>() == 28);
const _: () = assert!(size_of::<Block>() == 72);

/// `FS_IOC_FSGETXATTR`.
const GET_ATTRIBUTES: Opcode = opcode::read::<Attributes>(b'X', 31);
/// `FS_IOC_FSSETXATTR`.
const SET_ATTRIBUTES: Opcode = opcode::write::<Attributes>(b'X', 32);
/// `FS_XFLAG_PROJINHERIT`.
const INHERIT: u32 = 0x200;
/// `PRJQUOTA`.
const PROJECTS: u32 = 2;
/// `Q_GETQUOTA`, `Q_SETQUOTA` and `Q_XGETQSTATV`.
const GET: u32 = 0x80_0007;
const SET: u32 = 0x80_0008;
const STATE: u32 = 0x5808;
/// `QIF_LIMITS`.
const LIMITS: u32 = 1 | 4;
/// `FS_QSTATV_VERSION1`.
const VERSION: i8 = 1;
/// `FS_QUOTA_PDQ_ACCT` and `FS_QUOTA_PDQ_ENFD`.
const ACCOUNTED: u16 = 1 << 4;
const ENFORCED: u16 = 1 << 5;

/// What a file system does about projects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projects {
    /// It knows none, or counts none now.
    Unknown,
    /// It counts, and limits nobody.
    Counted,
    /// It counts, and holds them to their limits.
    Limited,
}

/// What is known of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// How many files, directories and others have its number.
    pub entries: u64,
    /// Whether it has a limit.
    pub is_limited: bool,
}

/// What the file system that this lies on does.
pub fn projects(file: BorrowedFd<'_>) -> io::Result<Projects> {
    let mut state = State {
        version: VERSION,
        pad: 0,
        flags: 0,
        rest: [0; 32],
    };
    match quotactl(file, STATE, 0, &mut state) {
        Ok(()) if state.flags & ENFORCED != 0 => Ok(Projects::Limited),
        Ok(()) if state.flags & ACCOUNTED != 0 => Ok(Projects::Counted),
        Ok(()) => Ok(Projects::Unknown),
        // ENOSYS is also said by file systems without, and EINVAL by those without projects.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOSYS | libc::EINVAL | libc::ESRCH)
            ) =>
        {
            Ok(Projects::Unknown)
        }
        Err(e) => Err(e),
    }
}

/// The project that this directory gives to what is made in it.
pub fn project_of(directory: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    match attributes(directory) {
        Ok(found) => Ok((found.flags & INHERIT != 0).then_some(found.project)),
        // What file systems say that have no such thing.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)
            ) =>
        {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Has this directory, and what will be made in it, belong to a project.
pub fn set_project(directory: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let mut changed = attributes(directory)?;
    changed.flags |= INHERIT;
    changed.project = project;
    // SAFETY: the opcode reads as many bytes as the structure has.
    let setter = unsafe { Setter::<SET_ATTRIBUTES, Attributes>::new(changed) };
    // SAFETY: the structure is plain, and the kernel keeps no pointer.
    unsafe { ioctl(directory, setter) }?;
    Ok(())
}

fn attributes(directory: BorrowedFd<'_>) -> io::Result<Attributes> {
    // SAFETY: the opcode writes as many bytes as the structure has, all of which are plain.
    let getter = unsafe { Getter::<GET_ATTRIBUTES, Attributes>::new() };
    // SAFETY: the kernel fills the structure and keeps no pointer to it.
    Ok(unsafe { ioctl(directory, getter) }?)
}

/// What is known of a project on the file system that this lies on.
pub fn project_account(file: BorrowedFd<'_>, project: u32) -> io::Result<Account> {
    let mut block = Block::default();
    match quotactl(file, GET, project, &mut block) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {} // Nobody ever had that number.
        Err(e) => return Err(e),
    }
    let limits = [
        block.hard_kib,
        block.soft_kib,
        block.hard_entries,
        block.soft_entries,
    ];
    Ok(Account {
        entries: block.entries,
        is_limited: limits.iter().any(|limit| *limit != 0),
    })
}

/// Has a project hold no more than so many bytes, and files; what is there stays.
pub fn limit_project(
    file: BorrowedFd<'_>,
    project: u32,
    most: Option<(u64, u64)>,
) -> io::Result<()> {
    // 0 is none, so the least is 1.
    let (kib, entries) = most.map_or((0, 0), |(bytes, entries)| {
        ((bytes / 1024).max(1), entries.max(1))
    });
    let mut block = Block {
        hard_kib: kib,
        hard_entries: entries,
        valid: LIMITS,
        ..Block::default()
    };
    quotactl(file, SET, project, &mut block)
}

fn quotactl<T>(file: BorrowedFd<'_>, command: u32, project: u32, data: &mut T) -> io::Result<()> {
    // SAFETY: each command reads or writes no more than the structure that goes with it above,
    // which is plain, and the kernel keeps no pointer to it.
    check(unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            file.as_raw_fd(),
            (command << 8) | PROJECTS,
            project,
            ptr::from_mut(data),
        )
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn opcodes_are_those_of_the_kernel() {
        // `linux/fs.h`, as gcc sees it on x86-64 and arm64.
        assert_eq!(GET_ATTRIBUTES, 0x801c_581f);
        assert_eq!(SET_ATTRIBUTES, 0x401c_5820);
    }

    #[test]
    fn what_has_no_projects_says_so() {
        let dir = std::fs::File::open("/proc").unwrap();
        assert_eq!(projects(dir.as_fd()).unwrap(), Projects::Unknown);
        assert_eq!(project_of(dir.as_fd()).unwrap(), None);
    }
}
