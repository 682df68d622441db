//! The fence around programs that run as the agent's own user: a Landlock domain for each attempt.
//!
//! Nothing but the user's id stands between such a program and the agent, and that is the same.
//! In a domain of its own an attempt traces and signals its own processes and no others, root's
//! powers included; what traces and signals attempts, the supervisor, is outside of every domain.
//!
//! The fence says nothing of files. Landlock knows only what is allowed: to keep one directory
//! closed, everything beside it would have to be listed, at every level of its path and before it
//! is made. The journal stays as open as the user's other files.
#![expect(unsafe_code, reason = "a system call in a forked child")]

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

use landlock::{
    AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};

/// What a fence keeps from processes outside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Tracing, and with it memory, descriptors and environment.
    Tracing,
    /// Signals, too.
    TracingAndSignals,
}

/// A domain that processes can enter.
#[derive(Debug)]
pub(crate) struct Fence {
    ruleset: OwnedFd,
    keeps: Keeps,
}

impl Fence {
    /// The best that this kernel can.
    pub(crate) fn make() -> io::Result<Self> {
        Self::of(Keeps::TracingAndSignals).or_else(|_older| Self::of(Keeps::Tracing))
    }

    fn of(keeps: Keeps) -> io::Result<Self> {
        let ruleset = match keeps {
            Keeps::TracingAndSignals => scoped().map_err(io::Error::other)?,
            Keeps::Tracing => {
                let root = PathFd::new("/").map_err(io::Error::other)?;
                nearly_empty(root).map_err(io::Error::other)?
            }
        };
        let ruleset: Option<OwnedFd> = ruleset.into();
        let ruleset = ruleset.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
        Ok(Self { ruleset, keeps })
    }

    pub(crate) const fn keeps(&self) -> Keeps {
        self.keeps
    }
}

impl AsRawFd for Fence {
    fn as_raw_fd(&self) -> RawFd {
        self.ruleset.as_raw_fd()
    }
}

/// Since Landlock's version 6 (Linux 6.12).
fn scoped() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::Signal)?
        .create()
}

/// Any domain keeps from tracing, but an older kernel takes none that is about nothing: this one
/// is about files of a kind that takes root to make, and allows them everywhere. So it does, by
/// name, with moves between directories, which a domain forbids unasked.
fn nearly_empty(root: PathFd) -> Result<RulesetCreated, RulesetError> {
    let about = AccessFs::MakeBlock | AccessFs::Refer;
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(about)?
        .create()?
        .add_rule(PathBeneath::new(root, about))
}

/// Enters the domain, for good. Needs the promise to gain nothing by an exec.
///
/// Only a system call: allowed in the child of a program with threads.
pub(super) fn enter(ruleset: RawFd) -> Result<(), i32> {
    // SAFETY: no memory involved.
    match unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) } {
        0 => Ok(()),
        _ => Err(super::child::errno()),
    }
}
