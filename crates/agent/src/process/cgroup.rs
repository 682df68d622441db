//! Control groups of a sandbox's workload and of each attempt.
//!
//! Never "version 1 or 2" for the machine: each hierarchy is what it is. Any cgroup2 mount, even
//! without controllers, gives a group that can be killed, watched and frozen as a whole; memory
//! and pids come from wherever their controller lives.
//!
//! The launcher makes the sandbox's groups and leaves their directories, as descriptors, in the
//! keeper. Paths play no part afterwards.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use outlive_core::event::Oom;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, mkdirat, openat, unlinkat};

use super::{
    attempt::AttemptKey,
    crowd::{attempt_pids, open_pidfd, signal_growing},
};
use crate::{keeper::Kept, sys};

/// Name in the keeper of the workload's group on cgroup2.
pub const WORKLOAD_UNIFIED: &str = "cgroup/unified";
/// Name in the keeper of the workload's group of the version 1 memory controller.
pub const WORKLOAD_MEMORY: &str = "cgroup/memory";

/// Name in the keeper of the workload's group of the version 1 pids controller.
pub const WORKLOAD_PIDS: &str = "cgroup/pids";
/// Name in the keeper of the workload's group of the version 1 cpu controller.
pub const WORKLOAD_CPU: &str = "cgroup/cpu";

/// The groups of a sandbox's workload.
#[derive(Debug, Default)]
pub struct WorkloadCgroups {
    unified: Option<OwnedFd>,
    memory: Option<OwnedFd>,
    /// Version 1 groups that limit the workload as a whole.
    whole: Vec<OwnedFd>,
}

impl WorkloadCgroups {
    /// Finds them among what the keeper kept.
    pub fn from_kept(kept: &[Kept]) -> io::Result<Self> {
        let find = |name: &str| {
            kept.iter()
                .find(|k| k.label.name == name)
                .map(|k| k.fd.try_clone())
                .transpose()
        };
        let whole = [find(WORKLOAD_PIDS)?, find(WORKLOAD_CPU)?];
        Ok(Self {
            unified: find(WORKLOAD_UNIFIED)?,
            memory: find(WORKLOAD_MEMORY)?,
            whole: whole.into_iter().flatten().collect(),
        })
    }

    /// Moves the calling thread into the version 1 groups, so that its children are born there.
    ///
    /// Moving each child instead would cost it milliseconds.
    pub(super) fn enter_thread(&self) -> io::Result<()> {
        for group in &self.whole {
            write_file(group.as_fd(), "tasks", b"0")?;
        }
        Ok(())
    }

    /// Makes the groups of one attempt. Without any it is a bundle of nothing.
    pub fn attempt(&self, key: &AttemptKey) -> io::Result<AttemptCgroup> {
        let name = AttemptCgroup::name(key);
        let make = |parent: &OwnedFd| -> io::Result<OwnedFd> {
            match mkdirat(parent, &name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            open_dir(parent.as_fd(), &name)
        };
        Ok(AttemptCgroup {
            name: name.clone(),
            unified: self.unified.as_ref().map(make).transpose()?,
            memory: self.memory.as_ref().map(make).transpose()?,
        })
    }

    /// Removes an attempt's groups, once they are empty.
    pub fn remove(&self, attempt: &AttemptCgroup) -> io::Result<()> {
        for (parent, group) in [
            (&self.unified, &attempt.unified),
            (&self.memory, &attempt.memory),
        ] {
            if let (Some(parent), Some(group)) = (parent, group) {
                remove_below(group.as_fd())?;
                remove_dir(parent.as_fd(), &attempt.name)?;
            }
        }
        Ok(())
    }

    /// The group that can be frozen or killed as a whole.
    pub fn unified(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(AsFd::as_fd)
    }

    /// Stops or continues every process of the workload. `false`: there is no group to do it.
    ///
    /// They stand still once [`WorkloadCgroups::events`] say `frozen 1`.
    pub fn set_frozen(&self, frozen: Frozen) -> io::Result<bool> {
        let Some(unified) = self.unified() else {
            return Ok(false);
        };
        let text: &[u8] = match frozen {
            Frozen::Yes => b"1",
            Frozen::No => b"0",
        };
        write_file(unified, "cgroup.freeze", text)?;
        Ok(true)
    }

    /// Whether somebody froze the workload and nobody thawed it since.
    pub fn is_set_frozen(&self) -> io::Result<bool> {
        match self.unified() {
            Some(unified) => Ok(read_file(unified, "cgroup.freeze")?.trim() == "1"),
            None => Ok(false),
        }
    }

    /// A file that reports `POLLPRI` whenever the workload came to stand still or to run.
    pub fn events(&self) -> io::Result<Option<OwnedFd>> {
        self.unified()
            .map(|group| open_file(group, "cgroup.events"))
            .transpose()
    }
}

/// Whether the processes of the group whose events these are stand still.
pub(crate) fn stands_still(events: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(value_of(&read_events(events)?, "frozen") == Some(1))
}

/// Whether a workload stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frozen {
    /// It does.
    Yes,
    /// It runs.
    No,
}

/// The processes of one attempt.
#[derive(Debug)]
pub struct AttemptCgroup {
    name: String,
    unified: Option<OwnedFd>,
    memory: Option<OwnedFd>,
}

/// How far a kill reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Every process of the attempt.
    Group,
    /// Those of the leader's session and process group, and what they started; there is no group to
    /// do better.
    Session,
}

impl AttemptCgroup {
    fn name(key: &AttemptKey) -> String {
        format!("{}.{}", key.session, key.number)
    }

    pub(super) fn recovered(
        key: &AttemptKey,
        unified: Option<OwnedFd>,
        memory: Option<OwnedFd>,
    ) -> Self {
        Self {
            name: Self::name(key),
            unified,
            memory,
        }
    }

    pub(super) fn dirs(&self) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        (
            self.unified.as_ref().map(AsFd::as_fd),
            self.memory.as_ref().map(AsFd::as_fd),
        )
    }

    /// Whether the attempt has a group of its own, which finds every process of it.
    pub fn is_group(&self) -> bool {
        self.unified.is_some()
    }

    /// A file that reports `POLLPRI` (and `EPOLLPRI`) whenever the group became empty or not.
    ///
    /// `None` where there is no group: then poll the leader's pidfd only.
    pub fn events(&self) -> io::Result<Option<OwnedFd>> {
        self.unified
            .as_ref()
            .map(|group| open_file(group.as_fd(), "cgroup.events"))
            .transpose()
    }

    /// Whether any process of the attempt is left, zombies aside.
    pub fn populated(&self, leader: u32) -> io::Result<bool> {
        match &self.unified {
            Some(group) => {
                let events = read_file(group.as_fd(), "cgroup.events")?;
                Ok(value_of(&events, "populated") != Some(0))
            }
            None => Ok(!attempt_pids(leader)?.is_empty()),
        }
    }

    /// Ids of the attempt's processes, as the agent counts.
    pub fn pids(&self, leader: u32) -> io::Result<Vec<u32>> {
        match &self.unified {
            Some(group) => pids_below(group.as_fd()),
            None => attempt_pids(leader),
        }
    }

    /// Signals every process of the attempt. One that ends meanwhile is fine.
    ///
    /// Each is signalled by pidfd, after a second look that it still belongs here; so are those that
    /// they start meanwhile.
    pub fn signal_all(&self, leader: u32, signal: u8) -> io::Result<Reach> {
        let reach = match self.unified {
            Some(_) => Reach::Group,
            None => Reach::Session,
        };
        signal_growing(&|| self.pids(leader), signal)?;
        Ok(reach)
    }

    /// Kills every process of the attempt, frozen ones too.
    pub fn kill_tree(&self, leader: u32) -> io::Result<Reach> {
        match &self.unified {
            Some(group) => {
                kill_dir(group.as_fd())?;
                Ok(Reach::Group)
            }
            None => self.signal_all(leader, 9),
        }
    }

    /// Whether the out-of-memory killer took any process of the attempt.
    pub fn oom(&self) -> io::Result<Oom> {
        let (group, file) = match (&self.memory, &self.unified) {
            (Some(memory), _) => (memory, "memory.oom_control"),
            (None, Some(unified)) => (unified, "memory.events"),
            (None, None) => return Ok(Oom::Unknown),
        };
        match read_file(group.as_fd(), file) {
            Ok(text) => Ok(match value_of(&text, "oom_kill") {
                Some(0) => Oom::No,
                Some(_) => Oom::Yes,
                None => Oom::Unknown,
            }),
            // No memory controller in this hierarchy.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Oom::Unknown),
            Err(e) => Err(e),
        }
    }
}

/// Kills everything in a cgroup2 directory and below.
pub(crate) fn kill_dir(group: BorrowedFd<'_>) -> io::Result<()> {
    match write_file(group, "cgroup.kill", b"1") {
        Ok(()) => return Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {} // A kernel before 5.14.
        // A launcher that failed halfway sees this group as the root of all, which it may not kill.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
        Err(e) => return Err(e),
    }
    loop {
        let pids = pids_below(group)?;
        if pids.is_empty() {
            return Ok(());
        }
        for pid in pids {
            if let Some(pidfd) = open_pidfd(pid)? {
                match sys::pidfd_signal(pidfd.as_fd(), 9) {
                    Ok(()) => {}
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(e) => return Err(e),
                }
            }
        }
    }
}

pub(crate) fn open_dir(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

pub(crate) fn open_file(group: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(
        group,
        name,
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The descriptor through which a process joins this group by writing `0`.
pub(super) fn open_procs(group: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(openat(
        group,
        "cgroup.procs",
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

pub(crate) fn write_file(group: BorrowedFd<'_>, name: &str, text: &[u8]) -> io::Result<()> {
    let file = openat(group, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

/// Reads an open `cgroup.events` from its start, which also re-arms its poll.
pub(crate) fn read_events(events: BorrowedFd<'_>) -> io::Result<String> {
    let mut bytes = [0; 256];
    let length = rustix::io::pread(events, &mut bytes, 0)?;
    Ok(String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned())
}

pub(crate) fn read_file(group: BorrowedFd<'_>, name: &str) -> io::Result<String> {
    let mut text = String::new();
    let mut file = std::fs::File::from(open_file(group, name)?);
    io::Read::read_to_string(&mut file, &mut text)?;
    Ok(text)
}

/// The number after `key` in a file of `key value` lines.
fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        if name == key {
            value.trim().parse().ok()
        } else {
            None
        }
    })
}

pub(crate) fn children(group: BorrowedFd<'_>) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(group)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if entry.file_type() == FileType::Directory && name != "." && name != ".." {
            names.push(name.into_owned());
        }
    }
    Ok(names)
}

pub(crate) fn pids_below(group: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut pids: Vec<u32> = match read_file(group, "cgroup.procs") {
        Ok(text) => text.lines().filter_map(|line| line.parse().ok()).collect(),
        // A group that was removed has none.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => Vec::new(),
        Err(e) => return Err(e),
    };
    // 0 is a process that our pid namespace doesn't see.
    pids.retain(|pid| *pid != 0);
    for name in children(group)? {
        match open_dir(group, &name) {
            Ok(child) => pids.extend(pids_below(child.as_fd())?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Ok(pids)
}

/// Removes the groups below this one; all must be empty.
pub(crate) fn remove_below(group: BorrowedFd<'_>) -> io::Result<()> {
    for name in children(group)? {
        match open_dir(group, &name) {
            Ok(child) => remove_below(child.as_fd())?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        }
        remove_dir(group, &name)?;
    }
    Ok(())
}

pub(crate) fn remove_dir(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
