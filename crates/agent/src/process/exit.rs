//! How an attempt ended: asked of whoever can know, and never made up.
//!
//! ```text
//!   pidfd readable ─► ours to wait for?  waitid(WNOWAIT)  ── status, usage
//!                     the keeper's?      its exit records ── status, usage
//!                     reaped by others?  PIDFD_GET_INFO   ── status
//!                     else               Unknown
//! ```
//!
//! Looking doesn't reap: journal the end durably, then [`reap`].

use std::{io, os::fd::AsFd};

use outlive_core::event::{ExitStatus, Rusage};

use super::attempt::{Attempt, AttemptKey, Part};
use crate::{
    keeper::{ExitRecord, KeeperClient, KeeperError},
    sys::{self, Reap, WaitFor, wait_ended},
};

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessEnd {
    /// How.
    pub status: ExitStatus,
    /// What it used, where somebody counted.
    pub rusage: Option<Rusage>,
}

/// Whether a process goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Running,
    /// It ended.
    Ended(ProcessEnd),
}

/// Why nobody could be asked.
#[derive(Debug, thiserror::Error)]
pub enum ExitError {
    /// The system failed.
    #[error("waiting for a process: {0}")]
    Io(#[from] io::Error),
    /// The keeper failed.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
}

/// Looks, without waiting and without reaping, whether and how an attempt ended.
pub fn look(attempt: &Attempt, keeper: &KeeperClient) -> Result<Life, ExitError> {
    match wait_ended(WaitFor::Pidfd(attempt.pidfd.as_fd()), Reap::No) {
        Ok(None) => return Ok(Life::Running),
        Ok(Some(ended)) => {
            return Ok(Life::Ended(ProcessEnd {
                status: ended.status,
                rusage: Some(ended.rusage),
            }));
        }
        // Not our child: a supervisor before us made it, the keeper has it now.
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => {}
        Err(e) => return Err(e.into()),
    }
    if !has_ended(attempt)? {
        return Ok(Life::Running);
    }
    // Asking makes the keeper look for children first, so a process that has ended by now is in
    // the answer.
    let records = keeper.exits()?;
    Ok(Life::Ended(match find(&records, &attempt.key) {
        Some(record) => ProcessEnd {
            status: record.status,
            rusage: Some(record.rusage),
        },
        None => ProcessEnd {
            status: sys::pidfd_exit_status(attempt.pidfd.as_fd())?.unwrap_or(ExitStatus::Unknown),
            rusage: None,
        },
    }))
}

/// What the keeper calls the end of an attempt.
pub(crate) fn name(key: &AttemptKey) -> String {
    key.name(Part::Pidfd)
}

/// The keeper's record of an attempt, if it had to reap it.
pub fn find<'r>(records: &'r [ExitRecord], key: &AttemptKey) -> Option<&'r ExitRecord> {
    let name = name(key);
    records.iter().rev().find(|record| record.name == name)
}

/// Whether the pidfd reports the end.
fn has_ended(attempt: &Attempt) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut fds = [PollFd::new(&*attempt.pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now))?;
    Ok(fds.iter().any(|fd| !fd.revents().is_empty()))
}

/// Lets the process go, after its end is on disk. Fine when somebody else did.
pub fn reap(attempt: &Attempt) -> io::Result<()> {
    match wait_ended(WaitFor::Pidfd(attempt.pidfd.as_fd()), Reap::Yes) {
        Ok(_) => Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(()),
        Err(e) => Err(e),
    }
}
