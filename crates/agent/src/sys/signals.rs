//! Signals: sent to groups, processes and terminals, and how ours are blocked, read and reset.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
};

use super::{check, new_fd};

/// Signals a process group.
pub fn kill_group(group: i32, signal: u8) -> io::Result<()> {
    // SAFETY: kill reads no memory of ours.
    check(libc::c_long::from(unsafe {
        libc::kill(-group, libc::c_int::from(signal))
    }))?;
    Ok(())
}

/// Signals the process behind a pidfd.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: u8) -> io::Result<()> {
    // SAFETY: a null siginfo makes the call behave like kill.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            libc::c_int::from(signal),
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    })?;
    Ok(())
}

/// Lets the kernel signal a terminal's foreground group, by its master: INT, QUIT or TSTP.
pub fn pty_signal(master: BorrowedFd<'_>, signal: u8) -> io::Result<()> {
    // SAFETY: TIOCSIG takes its argument by value.
    check(libc::c_long::from(unsafe {
        libc::ioctl(master.as_raw_fd(), libc::TIOCSIG, libc::c_int::from(signal))
    }))?;
    Ok(())
}

/// The foreground process group of a terminal, by its master, as our pid namespace counts.
pub fn pty_foreground(master: BorrowedFd<'_>) -> io::Result<i32> {
    let mut group: libc::pid_t = 0;
    // SAFETY: TIOCGPGRP fills one pid_t, which is ours.
    check(libc::c_long::from(unsafe {
        libc::ioctl(
            master.as_raw_fd(),
            libc::TIOCGPGRP,
            ptr::from_mut(&mut group),
        )
    }))?;
    Ok(group)
}

/// Blocks every signal in the calling thread and returns a descriptor that reads them.
pub fn block_signals_into_fd() -> io::Result<OwnedFd> {
    let set = full_set();
    // SAFETY: the set is initialised; the old mask isn't wanted.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: the set is initialised.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    new_fd(fd.into())
}

/// Blocks every signal, so that [`wait_for_child_signal`] sees it.
pub fn block_signals() -> io::Result<()> {
    let set = full_set();
    // SAFETY: the set is initialised; the old mask isn't wanted.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Waits until a child ended that may be reaped, for a process without descriptors.
pub fn wait_for_child_signal() {
    let set = full_set();
    // SAFETY: the set is initialised and the information isn't wanted. Interruption is fine: the
    // caller looks for children and comes back.
    unsafe { libc::sigwaitinfo(&raw const set, ptr::null_mut()) };
}

fn full_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data; sigfillset initialises it below.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours. The call can't fail on a valid pointer.
    unsafe { libc::sigfillset(&raw mut set) };
    set
}

/// Unblocks every signal and gives each its default action, as a fresh program expects.
///
/// Only system calls: allowed in the child of a program with threads.
pub fn reset_signals() {
    #[repr(C)]
    struct KernelAction {
        handler: usize,
        flags: libc::c_ulong,
        restorer: usize,
        mask: u64,
    }
    let default = KernelAction {
        handler: libc::SIG_DFL,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    for signal in 1..=64_i32 {
        // SAFETY: the structure is the kernel's `struct sigaction` with its 8-byte mask. KILL
        // and STOP refuse, which is fine: they always are at their default.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                ptr::from_ref(&default),
                ptr::null::<KernelAction>(),
                8_usize,
            )
        };
    }
    let none = 0_u64;
    // SAFETY: an 8-byte mask, as the size says.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            ptr::from_ref(&none),
            ptr::null::<u64>(),
            8_usize,
        )
    };
}
