//! How a start went: what the child writes into its exec-status pipe, read without taking it out.
//!
//! ```text
//!   at end of file
//!     (nothing)            never released
//!     R                    the program was reached
//!     R F stage errno      released, but chdir or exec failed
//!     F stage errno        could not even be prepared
//! ```

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::pipe::{PipeFlags, pipe_with, tee};

use crate::process::child::{self, FAILED, RELEASED};

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartStage {
    /// Before the gate: namespaces, user, streams.
    Setup,
    /// Changing to the working directory.
    WorkingDirectory,
    /// Executing the program.
    Exec,
}

/// What became of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecOutcome {
    /// The gate is shut, or exec is under way.
    Pending,
    /// The child ended before it was let go: it never ran.
    NeverReleased,
    /// The program was reached.
    Running,
    /// It was not.
    Failed {
        /// Where.
        stage: StartStage,
        /// The system's error number.
        errno: i32,
    },
}

impl ExecOutcome {
    /// The message for the user, when the start failed.
    pub fn message(&self, program: &str, cwd: &str) -> Option<String> {
        let Self::Failed { stage, errno } = self else {
            return None;
        };
        let what = match stage {
            StartStage::Setup => "preparing the process",
            StartStage::WorkingDirectory => cwd,
            StartStage::Exec => program,
        };
        let text = errno_text(*errno);
        Some(match stage {
            StartStage::WorkingDirectory => format!("working directory: {text}: {what}"),
            StartStage::Setup | StartStage::Exec => format!("{text}: {what}"),
        })
    }
}

/// The system's words, in lower case and without the number.
fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    let text = text
        .rsplit_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words);
    text.to_lowercase()
}

/// The read end of an exec-status pipe. Looking at it takes nothing out.
#[derive(Debug)]
pub struct ExecStatus(OwnedFd);

impl AsFd for ExecStatus {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for ExecStatus {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl ExecStatus {
    pub(in crate::process) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Looks how the start went. Anything but `Pending` is final.
    ///
    /// To wait, poll the pidfd or this descriptor for *hangup*: it becomes readable already when
    /// the gate opens. [`ExecStatus::wait`] does it on the spot.
    pub fn look(&self) -> io::Result<ExecOutcome> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};

        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut fds, Some(&now))?;
        if !fds.iter().any(|fd| fd.revents().contains(PollFlags::HUP)) {
            return Ok(ExecOutcome::Pending);
        }
        self.read()
    }

    /// Waits until exec succeeded or failed: below a millisecond once the gate is open.
    pub fn wait(&self) -> io::Result<ExecOutcome> {
        use rustix::event::{PollFd, PollFlags, poll};

        loop {
            // No event is asked for: only hangup ends the wait.
            let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
            match poll(&mut fds, None) {
                Ok(_) => return self.read(),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn read(&self) -> io::Result<ExecOutcome> {
        if rustix::io::ioctl_fionread(&self.0)? == 0 {
            return Ok(ExecOutcome::NeverReleased);
        }
        let (copy_read, copy_write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        tee(
            &self.0,
            &copy_write,
            16,
            rustix::pipe::SpliceFlags::NONBLOCK,
        )?;
        // Up to two writes may sit in two buffers; one read of the copy takes both.
        let mut bytes = [0; 16];
        let length = rustix::io::read(&copy_read, &mut bytes)?;
        let bytes = bytes.get(..length).unwrap_or_default();
        let report = bytes.strip_prefix(&[RELEASED]).unwrap_or(bytes);
        Ok(match report {
            [FAILED, stage, a, b, c, d] => ExecOutcome::Failed {
                stage: match *stage {
                    child::stage::CWD => StartStage::WorkingDirectory,
                    child::stage::EXEC => StartStage::Exec,
                    _ => StartStage::Setup,
                },
                errno: i32::from_le_bytes([*a, *b, *c, *d]),
            },
            _ => ExecOutcome::Running,
        })
    }
}
