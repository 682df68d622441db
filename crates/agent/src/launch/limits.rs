//! Limits of a workload, as control groups of each version write them, and how they change while it
//! runs.
//!
//! A change is made as a whole or not at all. What a group refuses is the answer, and no failure:
//! memory that is in use, or a group that was never made since nobody asked for that limit when
//! the sandbox was started. Processes are born into version 1 groups, so none is made later.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use outlive_api::launch::{LaunchConfig, Limited, Limits};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{
    cgroups::{FOLDER, WORK, places_of},
    quota,
    step::{Fail, Step, failure},
};
use crate::process::cgroup::{
    WORKLOAD_CPU, WORKLOAD_MEMORY, WORKLOAD_PIDS, open_dir, read_file, write_file,
};

/// One limit, as each version writes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Ours, not the caller's.
    pub(super) wished: bool,
    pub(super) controller: &'static str,
    pub(super) name: &'static str,
    pub(super) v1: Vec<(&'static str, String)>,
    pub(super) v2: (&'static str, String),
}

/// What is to be enforced.
pub(super) fn wanted(limits: Limits) -> Vec<Limit> {
    let mut wanted = Vec::new();
    if let Some(bytes) = limits.memory_bytes_max {
        wanted.push(Limit {
            wished: false,
            controller: "memory",
            name: WORKLOAD_MEMORY,
            v1: vec![("memory.limit_in_bytes", bytes.to_string())],
            v2: (MEMORY_MAX, bytes.to_string()),
        });
    }
    if let Some(count) = limits.pids_max.or(limits.pids_wished) {
        wanted.push(Limit {
            wished: limits.pids_max.is_none(),
            controller: "pids",
            name: WORKLOAD_PIDS,
            v1: vec![("pids.max", count.to_string())],
            v2: ("pids.max", count.to_string()),
        });
    }
    if let Some(millis) = limits.cpu_millis_max {
        let quota = u64::from(millis) * 100;
        wanted.push(Limit {
            wished: false,
            controller: "cpu",
            name: WORKLOAD_CPU,
            v1: vec![
                ("cpu.cfs_period_us", "100000".to_owned()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ],
            v2: ("cpu.max", format!("{quota} 100000")),
        });
    }
    wanted
}

/// How much memory a group of cgroup2 may have.
const MEMORY_MAX: &str = "memory.max";
/// And how much of the machine's swap beside it; there is no such file where there can be none.
const SWAP_MAX: &str = "memory.swap.max";

/// Sets a limit. On cgroup2 what has a limit of memory has no swap: it would take the machine's
/// instead of running out.
pub(super) fn set_limit(group: BorrowedFd<'_>, file: &str, value: &str) -> io::Result<()> {
    write_file(group, file, value.as_bytes())?;
    if file != MEMORY_MAX {
        return Ok(());
    }
    let swap = if value == NO_LIMIT { NO_LIMIT } else { "0" };
    match write_file(group, SWAP_MAX, swap.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// What cgroup2 calls no limit.
const NO_LIMIT: &str = "max";

/// What nobody limits, said to groups that may have a limit from before.
fn lifted(limits: Limits) -> Vec<Limit> {
    let none = |controller, name, v1, v2| Limit {
        wished: true,
        controller,
        name,
        v1: vec![v1],
        v2,
    };
    let max = || NO_LIMIT.to_owned();
    let less = || "-1".to_owned();
    let mut lifted = Vec::new();
    if limits.memory_bytes_max.is_none() {
        let v1 = ("memory.limit_in_bytes", less());
        lifted.push(none("memory", WORKLOAD_MEMORY, v1, (MEMORY_MAX, max())));
    }
    if limits.pids_max.or(limits.pids_wished).is_none() {
        let v1 = ("pids.max", max());
        lifted.push(none("pids", WORKLOAD_PIDS, v1, ("pids.max", max())));
    }
    if limits.cpu_millis_max.is_none() {
        let v1 = ("cpu.cfs_quota_us", less());
        let v2 = ("cpu.max", "max 100000".to_owned());
        lifted.push(none("cpu", WORKLOAD_CPU, v1, v2));
    }
    lifted
}

/// A group of a workload that is there.
#[derive(Debug)]
enum Group {
    /// Of version 1.
    One(OwnedFd),
    /// Of cgroup2.
    Two(OwnedFd),
}

impl Group {
    fn directory(&self) -> BorrowedFd<'_> {
        match self {
            Self::One(directory) | Self::Two(directory) => directory.as_fd(),
        }
    }

    /// What a limit is to it; nothing where it knows no such limit.
    fn files<'l>(&self, limit: &'l Limit) -> Vec<&'l (&'static str, String)> {
        let files: Vec<_> = match self {
            Self::One(_) => limit.v1.iter().collect(),
            Self::Two(_) => vec![&limit.v2],
        };
        let known = |(file, _): &&(&str, String)| read_file(self.directory(), file).is_ok();
        if files.iter().all(known) {
            files
        } else {
            Vec::new()
        }
    }
}

/// What was in a file before it was changed.
type Before<'g> = (BorrowedFd<'g>, &'static str, String);

/// Has a sandbox that runs be limited as its configuration says.
pub(super) fn change(config: &LaunchConfig) -> Step<Limited> {
    let groups = groups_of(config)?;
    let mut before = Vec::new();
    let back = |before: Vec<Before<'_>>, step: &str| {
        for (group, file, text) in before.into_iter().rev() {
            set_limit(group, file, &text).step(step)?;
        }
        Ok(())
    };
    let limits = wanted(config.limits);
    for limit in limits.into_iter().chain(lifted(config.limits)) {
        let step = format!("limiting {}", limit.controller);
        if let Err(error) = set(&limit, &groups, &mut before) {
            back(before, &step)?;
            return Ok(Limited::Refused(failure(&step, &why(&error))));
        }
    }
    // Nothing can keep it from being changed but a file system that stopped to count.
    if let Err(refused) = quota::change(config) {
        back(before, "limiting the disk")?;
        return Ok(Limited::Refused(refused));
    }
    Ok(Limited::Done)
}

fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => "more than that is in use".to_owned(),
        Some(libc::ENODEV) => "it was started without such a limit".to_owned(),
        Some(_) | None => error.to_string(),
    }
}

fn set<'g>(limit: &Limit, groups: &'g [Group], before: &mut Vec<Before<'g>>) -> io::Result<()> {
    let found = groups.iter().find_map(|group| {
        let files = group.files(limit);
        (!files.is_empty()).then_some((group, files))
    });
    let Some((group, files)) = found else {
        if limit.wished {
            return Ok(()); // Nothing is limited, or what nobody asked for.
        }
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    };
    let directory = group.directory();
    for (file, value) in files {
        let old = read_file(directory, file)?;
        if *file == MEMORY_MAX {
            make_room(directory, value)?;
        }
        before.push((directory, file, old.trim().to_owned()));
        set_limit(directory, file, value)?;
    }
    Ok(())
}

/// Takes back memory that is not really needed, as version 1 does by itself: where cgroup2 has less
/// than is in use, it kills for it.
fn make_room(group: BorrowedFd<'_>, value: &str) -> io::Result<()> {
    let Ok(bytes) = value.parse::<u64>() else {
        return Ok(());
    };
    let over = || -> io::Result<u64> {
        let current = read_file(group, "memory.current")?;
        let current: u64 = current.trim().parse().map_err(io::Error::other)?;
        Ok(current.saturating_sub(bytes))
    };
    let much = over()?;
    if much == 0 {
        return Ok(());
    }
    match write_file(group, "memory.reclaim", much.to_string().as_bytes()) {
        Ok(()) | Err(_) => {} // Older kernels have none, and what counts is what is left.
    }
    if over()? == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }
}

fn groups_of(config: &LaunchConfig) -> Step<Vec<Group>> {
    let step = "opening the sandbox's control groups";
    let mut groups = Vec::new();
    for place in places_of(config)?.lines() {
        let path = format!("{place}/{FOLDER}/{}", config.sandbox);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, path.as_str(), flags, Mode::empty()).step(step)?;
        groups.push(match open_dir(folder.as_fd(), WORK) {
            Ok(work) => Group::Two(work),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Group::One(folder),
            Err(e) => return Err(e).step(step),
        });
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn group(directory: &Path, files: &[(&str, &str)]) -> OwnedFd {
        for (file, text) in files {
            fs::write(directory.join(file), text).unwrap();
        }
        fs::File::open(directory).unwrap().into()
    }

    fn memory(bytes: u64) -> Limits {
        Limits {
            memory_bytes_max: Some(bytes),
            ..Limits::default()
        }
    }

    #[test]
    fn every_controller_is_told_something() {
        let all = Limits {
            memory_bytes_max: Some(1),
            pids_max: Some(2),
            cpu_millis_max: Some(3),
            pids_wished: None,
        };
        for limits in [Limits::default(), memory(1), all] {
            let told = wanted(limits).into_iter().chain(lifted(limits));
            let mut told: Vec<_> = told.map(|limit| limit.controller).collect();
            told.sort_unstable();
            assert_eq!(told, ["cpu", "memory", "pids"]);
        }
    }

    #[test]
    fn what_was_never_limited_is_refused_and_what_is_in_use_too() {
        let dir = tempfile::tempdir().unwrap();
        let none = wanted(memory(5)).remove(0);
        let refused = set(&none, &[], &mut Vec::new()).unwrap_err();
        assert_eq!(why(&refused), "it was started without such a limit");
        set(&lifted(Limits::default())[0], &[], &mut Vec::new()).unwrap();
        let files = [("memory.max", "9\n"), ("memory.current", "7\n")];
        let groups = [Group::Two(group(dir.path(), &files))];
        let refused = set(&none, &groups, &mut Vec::new()).unwrap_err();
        assert_eq!(why(&refused), "more than that is in use");
        assert_eq!(fs::read(dir.path().join("memory.max")).unwrap(), b"9\n");
        let mut before = Vec::new();
        set(&wanted(memory(8)).remove(0), &groups, &mut before).unwrap();
        assert_eq!(before[0].2, "9");
        let now = fs::read_to_string(dir.path().join("memory.max")).unwrap();
        assert!(now.starts_with('8'), "{now}");
    }
}
