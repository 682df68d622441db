//! Namespaces that need a process of their own to be made.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, open},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid},
};

use super::step::{Fail as _, Step};
use crate::sys::{self, Forked};

/// Writes both maps of a user namespace: its 0 is `first` out here.
///
/// In two parts: what is mapped as one must be one in our own map, too, and in that of an ordinary
/// user the first id comes from elsewhere than the others.
pub(super) fn map_ids(pid: u32, first: u32, count: u32) -> Step<()> {
    let text = match count {
        1 => format!("0 {first} 1\n"),
        _ => format!("0 {first} 1\n1 {} {}\n", first + 1, count - 1),
    };
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{pid}/{map}");
        std::fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .step(&format!("writing {map}"))?;
    }
    Ok(())
}

/// A user namespace of this one whose 0 is `first` here, held by its descriptor alone.
pub(crate) fn user_namespace(first: u32, count: u32) -> Step<OwnedFd> {
    UserNamespace::begin(first, count)?.finish()
}

/// A user namespace that is being made.
pub(super) struct UserNamespace {
    maker: Maker,
    first: u32,
    count: u32,
}

impl UserNamespace {
    const STEP: &str = "making a user namespace";

    pub(super) fn begin(first: u32, count: u32) -> Step<Self> {
        let maker = Maker::fork(libc::CLONE_NEWUSER).step(Self::STEP)?;
        Ok(Self {
            maker,
            first,
            count,
        })
    }

    pub(super) fn finish(self) -> Step<OwnedFd> {
        let take = |pid| {
            map_ids(pid, self.first, self.count)?;
            open_namespace(pid, "user").step(Self::STEP)
        };
        self.maker.give(take).step(Self::STEP)?
    }
}

/// Like [`sys::fork_into`] the group of the agent, in a namespace that sees the one of the sandbox as
/// the root of all.
///
/// Such a namespace begins at the group of the process that makes it: one that is born there,
/// since moving somebody waits for a grace period of the whole kernel, some 10 ms. It has to bear
/// the agent, too: a namespace is left by nobody, nor entered from a group outside. What it
/// bears is our child.
pub(super) fn fork_below(
    kinds: libc::c_int,
    sandbox: BorrowedFd<'_>,
    agent: BorrowedFd<'_>,
) -> io::Result<Forked> {
    let (answer, answers) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork_into(0, Some(sandbox))? {
        Forked::Child => {
            let born = sys::unshare(libc::CLONE_NEWCGROUP)
                .and_then(|()| sys::fork_into(kinds | libc::CLONE_PARENT, Some(agent)));
            let told = match born {
                Ok(Forked::Child) => return Ok(Forked::Child),
                Ok(Forked::Parent { pid, .. }) => i64::from(pid),
                Err(e) => -i64::from(e.raw_os_error().unwrap_or(libc::EIO)),
            };
            match rustix::io::write(&answers, &told.to_ne_bytes()) {
                Ok(_) | Err(_) => sys::exit_now(0), // A parent that is gone needs nothing.
            }
        }
        Forked::Parent { pidfd, .. } => {
            drop(answers);
            let mut told = [0; size_of::<i64>()];
            let read = std::fs::File::from(answer).read_exact(&mut told);
            waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            read?;
            let pid = i32::try_from(i64::from_ne_bytes(told)).map_err(io::Error::other)?;
            match Pid::from_raw(pid) {
                Some(child) if pid > 0 => Ok(Forked::Parent {
                    pid: pid.unsigned_abs(),
                    pidfd: pidfd_open(child, PidfdFlags::empty())?,
                }),
                Some(_) | None => Err(io::Error::from_raw_os_error(-pid)),
            }
        }
    }
}

/// A process in a new namespace, which lasts for as long as it does. Who goes on meanwhile doesn't
/// wait for it to be scheduled.
struct Maker {
    pid: u32,
    pidfd: OwnedFd,
    /// It ends when nobody has this any more.
    _keep: OwnedFd,
}

impl Maker {
    fn fork(kinds: libc::c_int) -> io::Result<Self> {
        let (gate, keep) = pipe_with(PipeFlags::CLOEXEC)?;
        match sys::fork_into(kinds, None)? {
            Forked::Child => {
                drop(keep);
                match rustix::io::read(&gate, &mut [0; 1]) {
                    Ok(_) | Err(_) => sys::exit_now(0),
                }
            }
            Forked::Parent { pid, pidfd } => Ok(Self {
                pid,
                pidfd,
                _keep: keep,
            }),
        }
    }

    /// Lets it go once what it has is taken.
    fn give<T>(self, take: impl FnOnce(u32) -> T) -> io::Result<T> {
        let taken = take(self.pid);
        // Others that were forked after it hold its gate, too.
        sys::pidfd_signal(self.pidfd.as_fd(), 9)?;
        waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)?;
        Ok(taken)
    }
}

fn open_namespace(pid: u32, kind: &str) -> rustix::io::Result<OwnedFd> {
    open(
        format!("/proc/{pid}/ns/{kind}"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}
