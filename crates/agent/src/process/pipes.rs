//! Pipes of an attempt: who owns which end, and what may block.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Gid, OFlags, Uid, fchown, fcntl_getfl, fcntl_setfl},
    pipe::{PipeFlags, pipe_with},
};

/// A pipe between us and a child.
#[derive(Debug)]
pub struct ChildPipe {
    /// Our end, non-blocking.
    pub ours: OwnedFd,
    /// The child's end, blocking, and owned by the child's user.
    pub theirs: OwnedFd,
}

/// Whom the child's ends belong to; `None` leaves them ours.
pub type Owner = Option<(u32, u32)>;

/// A pipe that the child reads.
pub fn to_child(owner: Owner) -> io::Result<ChildPipe> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    prepare(write, read, owner)
}

/// A pipe that the child writes.
pub fn from_child(owner: Owner) -> io::Result<ChildPipe> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    prepare(read, write, owner)
}

/// The two ends have descriptions of their own, so only ours stops blocking.
fn prepare(ours: OwnedFd, theirs: OwnedFd, owner: Owner) -> io::Result<ChildPipe> {
    set_nonblocking(&ours)?;
    own(&theirs, owner)?;
    Ok(ChildPipe { ours, theirs })
}

/// Without this, opening `/dev/stdout` again fails inside.
pub(super) fn own(fd: impl AsFd, owner: Owner) -> io::Result<()> {
    if let Some((uid, gid)) = owner {
        fchown(fd, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

/// Makes reads and writes return instead of waiting, for everybody who shares the description.
pub(super) fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(())
}
