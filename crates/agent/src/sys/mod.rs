//! The system calls that neither `std` nor `rustix` offers, each behind a safe function.
//!
//! This module and `process::child` hold all unsafe code of the workspace.
#![expect(
    unsafe_code,
    reason = "raw system calls; every block says why it is sound"
)]

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::Arc,
};

use outlive_core::event::{ExitStatus, Rusage};

/// `CLONE_INTO_CGROUP`; the C library's constant is an `int`, into which it doesn't fit.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

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
    let mut args = libc::clone_args {
        flags,
        pidfd: ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD.cast_unsigned().into(),
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

/// Moves the calling thread (or its future children) into namespaces.
pub fn setns(fd: impl AsFd, kinds: libc::c_int) -> io::Result<()> {
    // SAFETY: setns reads no memory of ours.
    check(unsafe { libc::syscall(libc::SYS_setns, fd.as_fd().as_raw_fd(), kinds) })?;
    Ok(())
}

/// Gives the calling process, which has one thread, namespaces of its own.
pub fn unshare(kinds: libc::c_int) -> io::Result<()> {
    // SAFETY: no memory involved; nothing in this program counts on the old namespaces.
    check(unsafe { libc::syscall(libc::SYS_unshare, kinds) })?;
    Ok(())
}

/// Moves the calling process, which has one thread, into a control-group namespace.
pub fn enter_cgroup_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    setns(namespace, libc::CLONE_NEWCGROUP)
}

/// Shows a detached mount through the ids of a user namespace.
pub fn idmap_mount(mount: BorrowedFd<'_>, userns: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::from(userns.as_raw_fd().cast_unsigned()),
    };
    mount_setattr(mount, &attr, libc::AT_EMPTY_PATH)
}

/// Makes a mount, and those below it, read-only.
pub fn mount_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    mount_setattr(mount, &attr, libc::AT_EMPTY_PATH | libc::AT_RECURSIVE)
}

fn mount_setattr(
    mount: BorrowedFd<'_>,
    attr: &libc::mount_attr,
    flags: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the path is a C string and `attr` a mount_attr of the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(attr),
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Makes the current directory the root; the old root is then mounted over it.
pub fn pivot_root_here() -> io::Result<()> {
    // SAFETY: both paths are C strings.
    check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) })?;
    Ok(())
}

/// Whom to wait for.
#[derive(Debug, Clone, Copy)]
pub enum WaitFor<'fd> {
    /// Any child.
    Any,
    /// The child behind this pidfd.
    Pidfd(BorrowedFd<'fd>),
    /// The child with this id.
    Pid(u32),
}

/// What becomes of a zombie that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reap {
    /// It stays, and can be asked again.
    No,
    /// It goes.
    Yes,
}

/// A child that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its id.
    pub pid: u32,
    /// How.
    pub status: ExitStatus,
    /// What it used.
    pub rusage: Rusage,
}

/// Asks, without waiting, whether a child ended. `ECHILD` says that there is no such child.
pub fn wait_ended(whom: WaitFor<'_>, reap: Reap) -> io::Result<Option<Ended>> {
    let (kind, id) = match whom {
        WaitFor::Any => (libc::P_ALL, 0),
        WaitFor::Pidfd(fd) => (libc::P_PIDFD, fd.as_raw_fd().cast_unsigned()),
        WaitFor::Pid(pid) => (libc::P_PID, pid),
    };
    let options = libc::WEXITED
        | libc::WNOHANG
        | match reap {
            Reap::No => libc::WNOWAIT,
            Reap::Yes => 0,
        };
    // SAFETY: siginfo_t and rusage are plain data for which all-zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both structures are ours and have the types that the call fills. The raw call has
    // a fifth argument, the usage, that the C library hides.
    check(unsafe {
        libc::syscall(
            libc::SYS_waitid,
            kind,
            id,
            ptr::from_mut(&mut info),
            options,
            ptr::from_mut(&mut usage),
        )
    })?;
    // SAFETY: for SIGCHLD, and in the zeroed structure, this field is set.
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: waitid filled the structure for SIGCHLD.
    let status = unsafe { info.si_status() };
    Ok(Some(Ended {
        pid: pid.cast_unsigned(),
        status: decode_status(info.si_code, status),
        rusage: Rusage {
            user_us: micros(usage.ru_utime),
            system_us: micros(usage.ru_stime),
            rss_kib_max: usage.ru_maxrss.cast_unsigned(),
        },
    }))
}

fn micros(time: libc::timeval) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_usec.cast_unsigned()
}

fn decode_status(code: libc::c_int, status: libc::c_int) -> ExitStatus {
    let low = u8::try_from(status & 0xff).unwrap_or(u8::MAX);
    match code {
        libc::CLD_EXITED => ExitStatus::Code(low),
        libc::CLD_KILLED => ExitStatus::Signal {
            signal: low,
            core: false,
        },
        libc::CLD_DUMPED => ExitStatus::Signal {
            signal: low,
            core: true,
        },
        _ => ExitStatus::Unknown,
    }
}

/// The head of `struct pidfd_info` up to the exit code (kernel 6.15).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// Asks the kernel how the process behind a pidfd ended, though somebody else reaped it.
///
/// `None` where the kernel doesn't know or is too old.
pub fn pidfd_exit_status(pidfd: BorrowedFd<'_>) -> io::Result<Option<ExitStatus>> {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // _IOWR(0xFF, 11, struct pidfd_info)
    let request =
        (3 << 30) | ((size_of::<PidfdInfo>() as libc::c_ulong) << 16) | (0xff << 8) | 0x0b;
    // SAFETY: the request's size field is the size of the structure, which is ours.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), request, ptr::from_mut(&mut info)) };
    match check(result.into()) {
        Ok(_) => {}
        Err(e) => {
            return match e.raw_os_error() {
                // Too old a kernel, or nothing left to tell.
                Some(libc::ENOTTY | libc::EINVAL | libc::ESRCH) => Ok(None),
                _ => Err(e),
            };
        }
    }
    if info.mask & PIDFD_INFO_EXIT == 0 {
        return Ok(None);
    }
    let code = info.exit_code;
    Ok(Some(match (code & 0x7f, code & 0x80) {
        (0, _) => decode_status(libc::CLD_EXITED, (code >> 8) & 0xff),
        (signal, 0) => decode_status(libc::CLD_KILLED, signal),
        (signal, _) => decode_status(libc::CLD_DUMPED, signal),
    }))
}

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

/// Ends the process at once, without destructors or handlers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit is always allowed.
    unsafe { libc::_exit(code) }
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

/// Waits until a child ended that may be reaped, for a process without descriptors.
pub fn wait_for_child_signal() {
    let set = full_set();
    // SAFETY: the set is initialised and the information isn't wanted. Interruption is fine: the
    // caller looks for children and comes back.
    unsafe { libc::sigwaitinfo(&raw const set, ptr::null_mut()) };
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

/// Closes every descriptor.
///
/// # Safety
///
/// No owner of a descriptor may be used or dropped afterwards.
pub unsafe fn close_all_fds() {
    // SAFETY: close_range touches no memory; the rest is the caller's promise.
    unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32) };
}

/// Starts the loopback device of our network namespace.
pub fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: ifreq is plain data for which all-zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = i16::try_from(flags).map_err(io::Error::other)?;
    // SAFETY: the request is an ifreq with its name and flags set, as SIOCSIFFLAGS wants.
    check(libc::c_long::from(unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS,
            ptr::from_ref(&request),
        )
    }))?;
    Ok(())
}
