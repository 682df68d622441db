//! The sandbox's control groups, made on the host and handed down as descriptors.
//!
//! ```text
//!   cgroup2 (with or without controllers)      version 1 controller, one folder each
//!     BASE/outlive/SANDBOX/agent                 BASE/outlive/SANDBOX
//!     BASE/outlive/SANDBOX/work/SESSION.N
//! ```
//!
//! On version 1 BASE is our own group in that hierarchy, and nothing is moved: the spawner thread
//! enters the folder once and its children are born there. On cgroup2 it is the one around, see
//! `room`. Where BASE was is written down in the sandbox's directory, since the one who sweeps
//! later may stand elsewhere.

mod left;
mod room;

use std::{
    io::Read,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use outlive_api::launch::{LaunchConfig, LaunchFailure, RuntimeKind};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Gid, Mode, OFlags, Uid, chownat, fchown, mkdirat, open},
};

pub(crate) use self::room::would_limit;
pub use self::{left::main as tidy, room::settle};
use super::{
    limits::{Limit, set_limit, wanted},
    step::{Fail, Step, failure},
};
use crate::process::cgroup::{
    self, WORKLOAD_UNIFIED, kill_dir, open_dir, remove_below, remove_dir, write_file,
};

/// Our folder below BASE.
pub(super) const FOLDER: &str = "outlive";
/// The workload's part of a sandbox's group on cgroup2.
pub(super) const WORK: &str = "work";
/// Where the places of a sandbox's groups are written down, in its directory.
const PLACES: &str = "cgroups";
/// How long killed processes may take to be gone.
const SWEEP_MAX: Duration = Duration::from_secs(10);

/// One hierarchy of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// `""` for cgroup2, else the controller.
    pub(crate) controller: String,
    /// The group in it that ours are made in, as a path.
    pub(crate) base: String,
}

/// The controllers of version 1 that we use.
const CONTROLLERS: &[&str] = &["memory", "pids", "cpu"];

/// Finds every hierarchy that we can use, from what the kernel says about mounts and us.
pub(crate) fn discover() -> Vec<Hierarchy> {
    let read = |path: &str| {
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_string(&mut text))
            .map_or(String::new(), |_| text)
    };
    let (mounts, groups) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
    discover_in(&mounts, &groups, room::around)
}

/// `around` says which group, for one of cgroup2 below a mount.
fn discover_in(
    mounts: &str,
    groups: &str,
    around: impl Fn(&str, String) -> String,
) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let ([_, _, _, root, mount, ..], [kind, _, options, ..]) =
            (left.as_slice(), right.as_slice())
        else {
            continue;
        };
        let controllers: Vec<&str> = match *kind {
            "cgroup2" => vec![""],
            "cgroup" => options
                .split(',')
                .filter(|option| CONTROLLERS.contains(option))
                .collect(),
            _ => continue,
        };
        for controller in controllers {
            let known = found.iter().any(|h| h.controller == controller);
            if let (false, Some(base)) = (known, base(groups, controller, root, mount)) {
                found.push(Hierarchy {
                    controller: controller.to_owned(),
                    base: match controller {
                        "" => around(mount, base),
                        _ => base,
                    },
                });
            }
        }
    }
    found
}

/// The path of our own group below a mount that shows the hierarchy from `root` on.
fn base(groups: &str, controller: &str, root: &str, mount: &str) -> Option<String> {
    let own = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, names, path) = (fields.next()?, fields.next()?, fields.next()?);
        names
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })?;
    let below = match root {
        "/" => own,
        _ => own.strip_prefix(root)?,
    };
    // A group outside what this namespace shows.
    if below.starts_with("/..") {
        return None;
    }
    Some(format!("{mount}{}", below.trim_end_matches('/')))
}

/// The groups of a sandbox.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    agent: Option<OwnedFd>,
    sandbox: Option<OwnedFd>,
    workload: Option<OwnedFd>,
    folders: Vec<(&'static str, OwnedFd)>,
    /// Limits that cgroup2 has yet to be told of.
    unified: Vec<Limit>,
    off: Vec<String>,
}

impl Cgroups {
    /// Makes them. A limit that was asked for and can't be enforced is an error; everything
    /// else that is missing is only told.
    pub(super) fn make(config: &LaunchConfig) -> Step<Self> {
        let owner = match (config.runtime, config.ids) {
            (RuntimeKind::Namespace | RuntimeKind::TwoUid, Some(ids)) => Some(ids.first),
            (RuntimeKind::Process, _) | (_, None) => None,
        };
        let hierarchies = discover();
        let mut groups = Self::default();
        let mut places = String::new();
        match hierarchies.iter().find(|h| h.controller.is_empty()) {
            Some(unified) => match groups.make_unified(unified, config, owner) {
                Ok(()) => places.extend([unified.base.as_str(), "\n"]),
                Err(e) => groups.off.push(format!(
                    "control group: {e}; freezing is by signal, and freeze, kill and stop reach \
                     sessions and process groups only"
                )),
            },
            None => groups.off.push(
                "control group: no cgroup2 mount; freezing is by signal, and freeze, kill and \
                 stop reach sessions and process groups only"
                    .to_owned(),
            ),
        }
        groups.limit(&hierarchies, config, owner, &mut places)?;
        write_places(config, &places)?;
        Ok(groups)
    }

    fn make_unified(
        &mut self,
        unified: &Hierarchy,
        config: &LaunchConfig,
        owner: Option<u32>,
    ) -> std::io::Result<()> {
        let sandbox = make_folder(unified, config)?;
        let agent = make_group(sandbox.as_fd(), "agent")?;
        let workload = make_group(sandbox.as_fd(), WORK)?;
        left::hold(&workload)?;
        for group in [&sandbox, &agent, &workload] {
            own(
                group.as_fd(),
                owner,
                &[
                    "cgroup.procs",
                    "cgroup.threads",
                    "cgroup.subtree_control",
                    "cgroup.kill",
                    "cgroup.freeze",
                ],
            )?;
        }
        self.agent = Some(agent);
        self.sandbox = Some(sandbox);
        self.workload = Some(workload);
        Ok(())
    }

    fn limit(
        &mut self,
        hierarchies: &[Hierarchy],
        config: &LaunchConfig,
        owner: Option<u32>,
        places: &mut String,
    ) -> Step<()> {
        for limit in wanted(config.limits) {
            let v1 = hierarchies
                .iter()
                .find(|h| h.controller == limit.controller);
            let limited = match v1 {
                Some(hierarchy) => self.limit_by(&limit, hierarchy, config, owner, places),
                None => self.prepare(&limit, hierarchies),
            };
            match limited.step(&format!("limiting {}", limit.controller)) {
                Ok(()) if v1.is_none() => self.unified.push(limit),
                Ok(()) => {}
                Err(e) if limit.wished => self.off.push(format!(
                    "limit of {}: {}; nobody asked for one",
                    limit.controller, e.message
                )),
                Err(e) => return Err(required(e)),
            }
        }
        Ok(())
    }

    fn limit_by(
        &mut self,
        limit: &Limit,
        hierarchy: &Hierarchy,
        config: &LaunchConfig,
        owner: Option<u32>,
        places: &mut String,
    ) -> std::io::Result<()> {
        let folder = make_folder(hierarchy, config)?;
        for (file, value) in &limit.v1 {
            write_file(folder.as_fd(), file, value.as_bytes())?;
        }
        own(folder.as_fd(), owner, &["tasks", "cgroup.procs"])?;
        places.extend([hierarchy.base.as_str(), "\n"]);
        self.folders.push((limit.name, folder));
        Ok(())
    }

    /// Has what lies around limit sandboxes. Where it can't, trying would spoil it: with processes
    /// in it, it could hold no sandbox at all.
    fn prepare(&self, limit: &Limit, hierarchies: &[Hierarchy]) -> std::io::Result<()> {
        let unified = hierarchies.iter().find(|h| h.controller.is_empty());
        let unified = unified.ok_or_else(none_there)?;
        room::can_limit(&unified.base, limit.controller)?;
        self.enable(limit, &["../../", "../"])
    }

    /// Sets the limits of cgroup2. From here on no process can be in the sandbox's group itself.
    pub(super) fn divide(&self) -> Step<()> {
        for limit in &self.unified {
            self.limit_unified(limit)
                .step(&format!("limiting {}", limit.controller))
                .map_err(required)?;
        }
        Ok(())
    }

    fn limit_unified(&self, limit: &Limit) -> std::io::Result<()> {
        self.enable(limit, &[""])?;
        if limit.controller == "memory" {
            self.enable(limit, &["work/"])?; // Each attempt has a count of its own kills.
        }
        let workload = self.workload.as_ref().ok_or_else(none_there)?;
        set_limit(workload.as_fd(), limit.v2.0, &limit.v2.1)
    }

    /// Has these groups, as seen from the sandbox's, limit what is in them.
    fn enable(&self, limit: &Limit, groups: &[&str]) -> std::io::Result<()> {
        let sandbox = self.sandbox.as_ref().ok_or_else(none_there)?;
        let enable = format!("+{}", limit.controller);
        for group in groups {
            let file = format!("{group}cgroup.subtree_control");
            write_file(sandbox.as_fd(), &file, enable.as_bytes())?;
        }
        Ok(())
    }

    /// The group in which the agent starts.
    pub(super) fn agent(&self) -> Option<BorrowedFd<'_>> {
        self.agent.as_ref().map(AsFd::as_fd)
    }

    /// The group of agent and workload together.
    pub(super) fn sandbox(&self) -> Option<BorrowedFd<'_>> {
        self.sandbox.as_ref().map(AsFd::as_fd)
    }

    /// What the keeper keeps, by name.
    pub(super) fn kept(&self) -> Vec<(&'static str, BorrowedFd<'_>)> {
        let workload = self.workload.as_ref();
        workload
            .map(|fd| (WORKLOAD_UNIFIED, fd.as_fd()))
            .into_iter()
            .chain(self.folders.iter().map(|(name, fd)| (*name, fd.as_fd())))
            .collect()
    }

    /// What is off, in sentences.
    pub(super) fn off(&self) -> &[String] {
        &self.off
    }
}

fn none_there() -> std::io::Error {
    std::io::Error::other("no control group can be made for it")
}

/// Not the tier is missing: the sandbox is refused, not run with less around it.
fn required(mut failure: LaunchFailure) -> LaunchFailure {
    failure.unsupported = false;
    failure
}

fn make_folder(hierarchy: &Hierarchy, config: &LaunchConfig) -> std::io::Result<OwnedFd> {
    let base = open(
        hierarchy.base.as_str(),
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let folder = make_group(base.as_fd(), FOLDER)?;
    left::hold(&folder)?; // Up to the next lock.
    let group = make_group(folder.as_fd(), config.sandbox.as_str())?;
    left::hold(&group)?;
    Ok(group)
}

fn make_group(parent: BorrowedFd<'_>, name: &str) -> std::io::Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    open_dir(parent, name)
}

/// Gives a group to the agent; files that this kernel doesn't have are left out.
fn own(group: BorrowedFd<'_>, owner: Option<u32>, files: &[&str]) -> std::io::Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    let (uid, gid) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)));
    fchown(group, uid, gid)?;
    for file in files {
        match chownat(group, *file, uid, gid, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn write_places(config: &LaunchConfig, places: &str) -> Step<()> {
    std::fs::write(format!("{}/{PLACES}", config.directory), places)
        .step("writing down the control groups")
}

/// Where the groups of a sandbox are, one line for each hierarchy; none where it has none.
pub(super) fn places_of(config: &LaunchConfig) -> Step<String> {
    match std::fs::read_to_string(format!("{}/{PLACES}", config.directory)) {
        Ok(places) => Ok(places),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(e).step("reading where the control groups are"),
    }
}

/// Kills what is left of a sandbox, waits until it is gone, and removes its groups.
pub(super) fn sweep(config: &LaunchConfig) -> Step<()> {
    // cgroup2 comes first: it kills, and then the others are empty.
    for place in places_of(config)?.lines() {
        let folder = format!("{place}/{FOLDER}");
        let folder = match open(
            folder.as_str(),
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(folder) => folder,
            Err(rustix::io::Errno::NOENT) => continue,
            Err(e) => return Err(e).step("opening the control groups"),
        };
        match open_dir(folder.as_fd(), config.sandbox.as_str()) {
            Ok(group) => empty(group.as_fd())?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e).step("opening the sandbox's control group"),
        }
        remove_dir(folder.as_fd(), config.sandbox.as_str())
            .step("removing the sandbox's control group")?;
    }
    Ok(())
}

fn empty(group: BorrowedFd<'_>) -> Step<()> {
    if cgroup::read_file(group, "cgroup.events").is_ok() {
        kill_dir(group).step("killing what is left of the sandbox")?;
        wait_until_empty(group)?;
    }
    remove_below(group).step("removing control groups")
}

fn wait_until_empty(group: BorrowedFd<'_>) -> Step<()> {
    let step = "waiting until the sandbox's processes are gone";
    let until = crate::sys::boot_clock() + SWEEP_MAX;
    let events = open_events(group).step(step)?;
    loop {
        let text = cgroup::read_events(events.as_fd()).step(step)?;
        if text.lines().any(|line| line == "populated 0") {
            return Ok(());
        }
        let left = until.saturating_sub(crate::sys::boot_clock());
        if left.is_zero() {
            return Err(failure(step, "some are still there after 10 s"));
        }
        let mut fds = [PollFd::new(&events, PollFlags::PRI)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).step(step),
        }
    }
}

fn open_events(group: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
    cgroup::open_file(group, "cgroup.events")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(_mount: &str, own: String) -> String {
        own
    }

    #[test]
    fn a_hybrid_machine_has_a_place_in_every_hierarchy() {
        let mounts = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        let groups = "4:memory:/a/b\n1:cpu:/\n0::/";
        let found: Vec<_> = discover_in(mounts, groups, own)
            .into_iter()
            .map(|h| (h.controller, h.base))
            .collect();
        let expected = [
            ("cpu", "/sys/fs/cgroup/cpu"),
            ("memory", "/sys/fs/cgroup/memory/a/b"),
            ("", "/sys/fs/cgroup/unified"),
        ]
        .map(|(c, b)| (c.to_owned(), b.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_service_of_a_unified_machine_builds_beside_itself() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate";
        let found = discover_in(mounts, "0::/system.slice/outlive.service\n", |_, own| {
            own.replace("/outlive.service", "")
        });
        assert_eq!(
            found.first().map(|h| h.base.as_str()),
            Some("/sys/fs/cgroup/system.slice")
        );
    }

    #[test]
    fn a_mount_that_shows_only_a_part_is_used_for_that_part() {
        let mounts = "30 23 0:26 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(
            discover_in(mounts, "0::/pod/box\n", own),
            vec![Hierarchy {
                controller: String::new(),
                base: "/sys/fs/cgroup/box".to_owned(),
            }]
        );
        assert_eq!(discover_in(mounts, "0::/elsewhere\n", own), vec![]);
    }
}
