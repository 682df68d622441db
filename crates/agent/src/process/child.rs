//! The child between `clone3` and `execve`: system calls only, everything prepared before.
//!
//! It is a copy of one thread of a program with many, so any lock may be held for ever: no
//! allocation, no formatting, no function of the C library that keeps state.
#![expect(unsafe_code, reason = "raw system calls in a forked child")]

use std::{
    ffi::CString,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use super::{
    fence,
    manner::{Groups, Powers},
};
use crate::{account::Credentials, sys};

/// First byte of the exec-status pipe: the gate was opened.
pub(super) const RELEASED: u8 = b'R';
/// Second byte of it: the start failed; a stage byte and an errno follow.
pub(super) const FAILED: u8 = b'F';
/// Exit code of a child whose gate was never opened.
const NEVER_RELEASED: i32 = 126;
/// Exit code of a child that reported a failed start.
const START_FAILED: i32 = 127;

/// Stages of a start, as they stand in the exec-status pipe.
pub(super) mod stage {
    pub(in crate::process) const SETUP: u8 = 0;
    pub(in crate::process) const CWD: u8 = 1;
    pub(in crate::process) const EXEC: u8 = 2;
}

/// Everything the child needs, made by its parent.
#[derive(Debug)]
pub(super) struct ChildPlan {
    /// `cgroup.procs` of version 1 groups to join.
    pub(super) joins: Vec<OwnedFd>,
    /// Process whose mount, ipc and uts namespaces to enter.
    pub(super) inner: Option<RawFd>,
    /// User namespace to enter.
    pub(super) user_namespace: Option<RawFd>,
    /// Landlock domain to enter.
    pub(super) fence: Option<RawFd>,
    /// User and groups to become.
    pub(super) ids: Option<Credentials>,
    /// What becomes of the parent's further groups.
    pub(super) groups: Groups,
    /// What becomes of the parent's capabilities.
    pub(super) powers: Powers,
    /// Standard input, output and error.
    pub(super) stdio: [RawFd; 3],
    /// Standard input is a terminal that becomes the controlling one.
    pub(super) terminal: bool,
    /// Read end of the gate.
    pub(super) gate: RawFd,
    /// Write end of the exec-status pipe.
    pub(super) status: RawFd,
    /// Soft limit of open files.
    pub(super) nofile_soft: libc::rlimit,
    /// Filter of system calls.
    pub(super) filter: Vec<libc::sock_filter>,
    /// Working directory; none stays at the root.
    pub(super) cwd: CString,
    /// Paths to try, in order.
    pub(super) candidates: Vec<CString>,
    /// Pointers into strings that the parent keeps, null at the end.
    pub(super) argv: Vec<*const libc::c_char>,
    /// Likewise.
    pub(super) envp: Vec<*const libc::c_char>,
}

/// Becomes the program, or tells why not.
pub(super) fn run(plan: &ChildPlan) -> ! {
    if let Err(errno) = prepare(plan) {
        fail(plan.status, stage::SETUP, errno);
    }
    let mut byte = 0_u8;
    loop {
        let place = std::ptr::from_mut(&mut byte);
        // SAFETY: one byte of ours.
        let n = unsafe { libc::syscall(libc::SYS_read, plan.gate, place, 1_usize) };
        match n {
            1 => break,
            -1 if errno() == libc::EINTR => {}
            _ => sys::exit_now(NEVER_RELEASED),
        }
    }
    tell(plan.status, &[RELEASED]);
    if !plan.cwd.is_empty() {
        // SAFETY: a C string.
        let result = unsafe { libc::syscall(libc::SYS_chdir, plan.cwd.as_ptr()) };
        if result < 0 {
            fail(plan.status, stage::CWD, errno());
        }
    }
    let errno = exec(plan);
    fail(plan.status, stage::EXEC, errno);
}

pub(super) fn errno() -> i32 {
    // SAFETY: asks for an address, nothing more.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the address is this thread's own, valid as long as it runs.
    unsafe { *place }
}

fn check(result: libc::c_long) -> Result<libc::c_long, i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn tell(status: RawFd, bytes: &[u8]) {
    // SAFETY: the slice is valid. A reader that is gone can't be told anything: no check.
    unsafe { libc::syscall(libc::SYS_write, status, bytes.as_ptr(), bytes.len()) };
}

fn fail(status: RawFd, stage: u8, errno: i32) -> ! {
    let [a, b, c, d] = errno.to_le_bytes();
    tell(status, &[FAILED, stage, a, b, c, d]);
    sys::exit_now(START_FAILED);
}

fn prepare(plan: &ChildPlan) -> Result<(), i32> {
    for procs in &plan.joins {
        // SAFETY: two bytes of a constant.
        check(unsafe {
            libc::syscall(libc::SYS_write, procs.as_raw_fd(), c"0".as_ptr(), 1_usize)
        })?;
    }
    enter_namespaces(plan)?;
    drop_power(plan)?;
    if let Some(ruleset) = plan.fence {
        fence::enter(ruleset)?;
    }
    install_filter(plan)?;
    if let Some(ids) = &plan.ids {
        become_user(ids, plan.groups)?;
    }
    if plan.powers == Powers::Dropped {
        drop_capabilities()?;
    }
    // SAFETY: no memory involved.
    check(unsafe { libc::syscall(libc::SYS_setsid) })?;
    connect_streams(plan)?;
    sys::reset_signals();
    // SAFETY: no memory involved.
    unsafe { libc::syscall(libc::SYS_umask, 0o022) };
    // SAFETY: the structure is the kernel's 64-bit rlimit and outlives the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_NOFILE,
            &raw const plan.nofile_soft,
            std::ptr::null::<libc::rlimit>(),
        )
    })?;
    close_others(plan)
}

/// Closes every copy of the supervisor's descriptors but the two that the start still needs.
///
/// Not at exec: at the gate a copy of the gate's own write end would hide the supervisor's death,
/// and a copy of another session's input would hide its end.
fn close_others(plan: &ChildPlan) -> Result<(), i32> {
    let gate = u32::try_from(plan.gate).map_err(|_| libc::EBADF)?;
    let status = u32::try_from(plan.status).map_err(|_| libc::EBADF)?;
    let (low, high) = (gate.min(status), gate.max(status));
    for (first, last) in [
        (3, low.saturating_sub(1)),
        (low + 1, high.saturating_sub(1)),
        (high + 1, u32::MAX),
    ] {
        if first <= last {
            // SAFETY: no memory involved, and nothing of this process owns what is closed.
            check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) })?;
        }
    }
    Ok(())
}

fn enter_namespaces(plan: &ChildPlan) -> Result<(), i32> {
    if let Some(inner) = plan.inner {
        let kinds = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        // SAFETY: no memory involved.
        check(unsafe { libc::syscall(libc::SYS_setns, inner, kinds) })?;
    }
    if let Some(user) = plan.user_namespace {
        // SAFETY: no memory involved.
        check(unsafe { libc::syscall(libc::SYS_setns, user, libc::CLONE_NEWUSER) })?;
    }
    Ok(())
}

/// Capabilities that no program of a sandbox has a use for: they are about the machine, which
/// isn't the sandbox's. The kernel asks for them outside of W; without them here a fault of the
/// kernel finds less to work with.
const NEVER: &[libc::c_int] = &[
    16, // CAP_SYS_MODULE
    17, // CAP_SYS_RAWIO
    20, // CAP_SYS_PACCT
    22, // CAP_SYS_BOOT
    25, // CAP_SYS_TIME
    30, // CAP_AUDIT_CONTROL
    32, // CAP_MAC_OVERRIDE
    33, // CAP_MAC_ADMIN
    34, // CAP_SYSLOG
    35, // CAP_WAKE_ALARM
    36, // CAP_BLOCK_SUSPEND
    37, // CAP_AUDIT_READ
    38, // CAP_PERFMON
    39, // CAP_BPF
];

/// In a user namespace of its own the program may gain what W gives; elsewhere, where that would
/// be the host's, it gains nothing by an exec.
fn drop_power(plan: &ChildPlan) -> Result<(), i32> {
    if plan.user_namespace.is_none() {
        // SAFETY: no memory involved.
        check(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        return Ok(());
    }
    for capability in NEVER {
        // SAFETY: no memory involved.
        let dropped =
            unsafe { libc::syscall(libc::SYS_prctl, libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) };
        match check(dropped) {
            Ok(_) | Err(libc::EINVAL) => {} // An older kernel doesn't know it.
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Needs the capabilities that come with a user namespace, or the promise to gain none, so
/// before the user changes.
fn install_filter(plan: &ChildPlan) -> Result<(), i32> {
    let filter = &plan.filter;
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| libc::E2BIG)?,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the program points to that many instructions and the kernel copies them.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    })?;
    Ok(())
}

fn become_user(ids: &Credentials, further: Groups) -> Result<(), i32> {
    let (uid, gid, groups) = (ids.uid, ids.gid, &ids.groups);
    if further == Groups::Replaced {
        // SAFETY: as many ids as the length says, of which the kernel takes a copy.
        check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    }
    // SAFETY: no memory involved. The raw calls change this thread only, and it is the only one.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })?;
    Ok(())
}

/// Leaves nothing permitted, so that nothing is left over an exec either.
fn drop_capabilities() -> Result<(), i32> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header {
        version: 0x2008_0522, // _LINUX_CAPABILITY_VERSION_3
        pid: 0,
    };
    // Effective, permitted and inheritable, two words each.
    let none = [0_u32; 6];
    // SAFETY: a header and data of this version's size.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) })?;
    Ok(())
}

/// None of the three is below 3: the parent saw to it, so no `dup` overwrites another.
fn connect_streams(plan: &ChildPlan) -> Result<(), i32> {
    for (number, fd) in [0, 1, 2].into_iter().zip(plan.stdio) {
        // SAFETY: no memory involved. The copy isn't close-on-exec.
        check(unsafe { libc::syscall(libc::SYS_dup3, fd, number, 0) })?;
    }
    if plan.terminal {
        // SAFETY: TIOCSCTTY takes its argument by value.
        check(unsafe { libc::syscall(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0) })?;
    }
    Ok(())
}

/// Tries the candidates as `execvp` does: a missing one is no reason to stop, a forbidden one
/// is remembered.
fn exec(plan: &ChildPlan) -> i32 {
    let mut worst = libc::ENOENT;
    for path in &plan.candidates {
        // SAFETY: both arrays end in null, and the strings behind them live in the parent's
        // memory, of which this is a copy.
        unsafe {
            libc::syscall(
                libc::SYS_execve,
                path.as_ptr(),
                plan.argv.as_ptr(),
                plan.envp.as_ptr(),
            )
        };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => worst = libc::EACCES,
            other => return other,
        }
    }
    worst
}
