//! A supervisor, as its keeper sees it.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use super::{handover::SupervisorHandover, log};
use crate::sys::{self, Forked};

/// `argv[0]` of a supervisor.
pub const SUPERVISOR_TITLE: &str = "outlive-supervisor";
/// Name of the variable that tells a supervisor which descriptor leads to its keeper.
pub const KEEPER_FD_ENV: &str = "OUTLIVE_KEEPER_FD";

/// A supervisor that runs.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(super) pid: u32,
    /// Our end; none when it closed its own.
    pub(super) socket: Option<OwnedFd>,
    pub(super) ready: bool,
}

impl Supervisor {
    /// Starts one. The first thing that it does is to ask its keeper, so it may be started by who
    /// is about to become that: each program becomes itself while the other does.
    pub(crate) fn begin(exe: BorrowedFd<'_>, sandbox: &str) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let title = CString::new(SUPERVISOR_TITLE).map_err(io::Error::other)?;
        let sandbox = CString::new(sandbox).map_err(io::Error::other)?;
        let environment = CString::new(format!("{KEEPER_FD_ENV}={}", theirs.as_raw_fd()))
            .map_err(io::Error::other)?;
        match sys::fork_single_threaded()? {
            Forked::Parent { pid, .. } => Ok(Self {
                pid,
                socket: Some(ours),
                ready: false,
            }),
            Forked::Child => {
                sys::reset_signals();
                if let Err(e) = fcntl_setfd(&theirs, FdFlags::empty()) {
                    log(&format!("the supervisor's socket: {e}"));
                    sys::exit_now(126);
                }
                let error = sys::exec_fd(exe, &[title, sandbox], &[environment]);
                log(&format!("exec of the supervisor: {error}"));
                sys::exit_now(127);
            }
        }
    }

    pub(super) fn resume(from: &SupervisorHandover) -> io::Result<Self> {
        Ok(Self {
            pid: from.pid,
            socket: from.socket.map(sys::inherit_fd).transpose()?,
            ready: from.ready,
        })
    }

    /// For the next program of its keeper; valid as long as this lives.
    pub(crate) fn handover(&self) -> SupervisorHandover {
        SupervisorHandover {
            pid: self.pid,
            socket: self.socket.as_ref().map(AsRawFd::as_raw_fd),
            ready: self.ready,
        }
    }
}

/// Has this process and those that it starts open as many files as it may.
pub(crate) fn allow_open_files() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}
