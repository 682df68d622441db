//! The system calls that neither `std` nor `rustix` offers, each behind a safe function.
//!
//! This module, `process::child`, `keeper::begin` and `init` hold all unsafe code of the workspace.
#![expect(
    unsafe_code,
    reason = "raw system calls; every block says why it is sound"
)]

mod btrfs;
mod fork;
mod locks;
mod namespaces;
mod project;
mod signals;
mod title;
mod wait;

use std::{
    ffi::CStr,
    io,
    os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::Arc,
};

pub use self::{
    btrfs::{btrfs_id, create_subvolume, is_subvolume, limit_subvolume, remove_subvolume},
    fork::{Forked, exec_fd, exit_now, fork, fork_into, fork_single_threaded, pointers},
    locks::{is_byte_shared, share_byte},
    namespaces::{idmap_mount, loopback_up, mount_read_only, pivot_root_here, setns, unshare},
    project::{Projects, limit_project, project_account, project_of, projects, set_project},
    signals::{
        block_signals, block_signals_into_fd, kill_group, pidfd_signal, pty_foreground, pty_signal,
        reset_signals, wait_for_child_signal,
    },
    title::set_title,
    wait::{Ended, Reap, WaitFor, pidfd_exit_status, wait_ended},
};

/// Turns `-1` into the calling thread's error.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The file descriptor that a system call made.
fn new_fd(result: libc::c_long) -> io::Result<OwnedFd> {
    let raw = RawFd::try_from(check(result)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened this descriptor for us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Takes over a descriptor that the program was started with.
///
/// Returns an error when it isn't open. Call it once per number, before anything else opens
/// descriptors.
pub fn inherit_fd(raw: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD only reads a flag.
    check(libc::c_long::from(unsafe {
        libc::fcntl(raw, libc::F_GETFD)
    }))?;
    // SAFETY: it is open (checked above), and by contract the caller is its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Has the runtime watch a descriptor.
pub(crate) fn watch(
    fd: Arc<OwnedFd>,
    interest: tokio::io::Interest,
) -> io::Result<tokio::io::unix::AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the value owns a share of the descriptor, so it stays open and the same for as long
    // as it is registered.
    let watched = unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, interest) };
    watched.map_err(io::Error::from)
}

/// Looks at a descriptor by its number, for as long as the program runs.
///
/// For numbers that travel in a keeper's state; a number that isn't open makes calls fail.
pub(crate) fn borrow_fd(raw: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the number isn't -1, and whoever closes it before the borrow is used makes the
    // next call fail with EBADF, since the keeper opens nothing in between.
    unsafe { BorrowedFd::borrow_raw(raw) }
}

/// Names the process in `/proc/PID/comm`.
pub fn set_comm(name: &CStr) -> io::Result<()> {
    rustix::thread::set_name(name)?;
    Ok(())
}

/// Wall clock, nanoseconds since 1970.
pub fn wall_clock_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Boot clock: goes on in sleep, never steps.
pub fn boot_clock() -> std::time::Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    std::time::Duration::new(
        now.tv_sec.cast_unsigned(),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Start time of a process, clock ticks since boot: with its id it names one process.
pub fn start_ticks(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold blanks and parentheses: count after its end.
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|ticks| ticks.parse().ok())
        .ok_or_else(|| io::Error::other("malformed /proc/PID/stat"))
}

/// Keeps memory and `/proc` of this process from others of its user, and core files away.
pub fn hide_memory() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// Closes every descriptor.
///
/// # Safety
///
/// No owner of a descriptor may be used or dropped afterwards.
pub unsafe fn close_all_fds() {
    // SAFETY: close_range touches no memory; the rest is the caller's promise.
    unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32) };
}

/// Has no program that this process becomes, or starts, inherit a descriptor but the standard streams,
/// until one is meant to.
pub fn keep_fds_to_ourselves() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: close_range with this flag closes nothing yet.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, flags) })?;
    Ok(())
}

/// Closes every descriptor but the standard streams and these.
///
/// # Safety
///
/// No owner of another descriptor may be used or dropped afterwards.
pub unsafe fn close_fds_but(kept: &[RawFd]) {
    let mut kept: Vec<_> = kept
        .iter()
        .filter_map(|fd| u32::try_from(*fd).ok())
        .chain([0, 1, 2])
        .collect();
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept {
        if from < fd {
            // SAFETY: close_range touches no memory; the rest is the caller's promise.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0_u32) };
        }
        from = fd + 1;
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, from, u32::MAX, 0_u32) };
}
