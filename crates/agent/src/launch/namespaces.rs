//! Namespaces that need a process of their own to be made.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, open},
    pipe::{PipeFlags, pipe_with},
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
        let maker = Maker::fork(libc::CLONE_NEWUSER, None, || Ok(())).step(Self::STEP)?;
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

/// A namespace, on its way, that sees the sandbox's control group as the root of all.
///
/// Such a namespace begins at the group of the process that makes it, and the agent is born in
/// another one: moving it there later would wait for a grace period of the whole kernel, some
/// 10 ms.
pub(super) struct CgroupNamespace(Maker);

impl CgroupNamespace {
    const STEP: &str = "making a namespace of control groups";

    pub(super) fn begin(sandbox: BorrowedFd<'_>) -> Step<Self> {
        let unshare = || sys::unshare(libc::CLONE_NEWCGROUP);
        let maker = Maker::fork(0, Some(sandbox), unshare).step(Self::STEP)?;
        Ok(Self(maker))
    }

    /// Has what is forked from here on live in it.
    pub(super) fn enter(self) -> Step<()> {
        let take = |pid| open_namespace(pid, "cgroup").step(Self::STEP);
        let made = self.0.give(take).step(Self::STEP)?;
        sys::enter_cgroup_namespace(made?.as_fd()).step(Self::STEP)
    }
}

/// A process that prepares something, and keeps it until somebody takes it. Who goes on meanwhile
/// doesn't wait for it to be scheduled.
struct Maker {
    pid: u32,
    pidfd: OwnedFd,
    /// An error number once it has what it makes; 0 for none.
    ready: OwnedFd,
    /// It ends when nobody has this any more.
    _keep: OwnedFd,
}

impl Maker {
    fn fork(
        kinds: libc::c_int,
        cgroup: Option<BorrowedFd<'_>>,
        prepare: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Self> {
        let (ready_read, ready) = pipe_with(PipeFlags::CLOEXEC)?;
        let (gate, keep) = pipe_with(PipeFlags::CLOEXEC)?;
        match sys::fork_into(kinds, cgroup)? {
            Forked::Child => {
                drop((ready_read, keep));
                let errno =
                    prepare().map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0);
                match rustix::io::write(&ready, &errno.to_ne_bytes()) {
                    Ok(_) | Err(_) => {} // A parent that is gone needs nothing.
                }
                match rustix::io::read(&gate, &mut [0; 1]) {
                    Ok(_) | Err(_) => sys::exit_now(0),
                }
            }
            Forked::Parent { pid, pidfd } => Ok(Self {
                pid,
                pidfd,
                ready: ready_read,
                _keep: keep,
            }),
        }
    }

    /// Waits until it is prepared, and lets it go once it is taken.
    fn give<T>(self, take: impl FnOnce(u32) -> T) -> io::Result<T> {
        let mut errno = [0; size_of::<i32>()];
        let prepared = std::fs::File::from(self.ready).read_exact(&mut errno);
        let taken = match (prepared, i32::from_ne_bytes(errno)) {
            (Ok(()), 0) => Ok(take(self.pid)),
            (Ok(()), errno) => Err(io::Error::from_raw_os_error(errno)),
            (Err(e), _) => Err(e),
        };
        // Others that were forked after it hold its gate, too.
        sys::pidfd_signal(self.pidfd.as_fd(), 9)?;
        rustix::process::waitid(
            rustix::process::WaitId::PidFd(self.pidfd.as_fd()),
            rustix::process::WaitIdOptions::EXITED,
        )?;
        taken
    }
}

fn open_namespace(pid: u32, kind: &str) -> rustix::io::Result<OwnedFd> {
    open(
        format!("/proc/{pid}/ns/{kind}"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}
