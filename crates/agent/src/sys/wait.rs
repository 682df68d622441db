//! How children, and processes that somebody else reaped, ended.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use outlive_core::event::{ExitStatus, Rusage};

use super::check;

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
