//! How a process is made, becomes another program, and ends on the spot.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
};

use super::{check, new_fd};

/// `CLONE_INTO_CGROUP`; the C library's constant is an `int`, into which it doesn't fit.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Where a process was made.
#[derive(Debug)]
pub enum Forked {
    /// In the new process.
    Child,
    /// In the old one.
    Parent {
        /// The new process's id.
        pid: u32,
        /// And its descriptor.
        pidfd: OwnedFd,
    },
}

/// Makes a process with a copy of our memory, in new namespaces and a cgroup where asked for.
///
/// # Safety
///
/// In the child only the calling thread exists: a lock that another thread held stays locked.
/// Unless the program has one thread, the child may only make system calls until it execs.
pub unsafe fn fork(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    let mut pidfd: RawFd = -1;
    let flags = u64::from(flags.cast_unsigned()) | u64::from(libc::CLONE_PIDFD.cast_unsigned());
    // A sibling ends as its maker does.
    let is_sibling = flags & u64::from(libc::CLONE_PARENT.cast_unsigned()) != 0;
    let exit_signal = if is_sibling { 0 } else { libc::SIGCHLD };
    let mut args = libc::clone_args {
        flags,
        pidfd: ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: exit_signal.cast_unsigned().into(),
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // SAFETY: the arguments are a valid clone_args without CLONE_VM, so the child runs on its
    // own copy of this stack; what it may do there is the caller's promise.
    let result = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            ptr::from_mut(&mut args),
            size_of::<libc::clone_args>(),
        )
    };
    match check(result)? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent {
            pid: u32::try_from(pid).map_err(io::Error::other)?,
            pidfd: new_fd(pidfd.into())?,
        }),
    }
}

/// Makes a process with a copy of our memory, from a program that has one thread.
///
/// A second thread makes the call fail, since its locks would stay locked in the child.
pub fn fork_single_threaded() -> io::Result<Forked> {
    fork_into(0, None)
}

/// Like [`fork_single_threaded`], into new namespaces and a cgroup.
pub fn fork_into(flags: libc::c_int, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(io::Error::other("fork in a program with several threads"));
    }
    // SAFETY: this program has no other thread, so no lock is held by one.
    unsafe { fork(flags, cgroup) }
}

/// Replaces the program by the file behind `exe`. Returns only on failure.
pub fn exec_fd(exe: BorrowedFd<'_>, argv: &[CString], envp: &[CString]) -> io::Error {
    let argv = pointers(argv);
    let envp = pointers(envp);
    // SAFETY: both arrays end in null and point to C strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            exe.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// A null-terminated array of C strings; it borrows them, so keep them alive.
pub fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// Ends the process at once, without destructors or handlers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit is always allowed.
    unsafe { libc::_exit(code) }
}
