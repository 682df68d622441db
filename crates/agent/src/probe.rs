//! What this machine can do, one `key=value` a line, for `outlive doctor`.
//!
//! Every answer comes from trying, not from version numbers. Keys:
//!
//! ```text
//!   isolation      nested | two-uid | none     what a launch would reach here
//!   journal_protected  true | false
//!   two_uid        ok | reason                 agent and workload can have a user each
//!   userns         root | N ids | enter: N ids | reason    see `probe_userns`
//!   cgroup2        path | reason               the group that we make groups in, when we may
//!   cgroup.memory, cgroup.pids, cgroup.cpu     v1 PATH | v2 | reason
//!   splice_pty     ok | reason
//!   pidfd_exit     ok | reason                 the kernel knows exits that others reaped
//!   idmap_usr      ok | reason                 /usr can be shown through other ids
//!   landlock       ok | what it keeps | reason  what runs as our user can't trace or signal us
//!   bridge         ok | reason                 sandboxes can have a network of their own
//!   disk_quota     btrfs ID | project | reason  the file system of the folder that is named as an
//!                                              argument can limit what a sandbox writes
//!   weaker         TIER: one sentence; repeated
//!   off            one sentence; repeated
//! ```

use std::{
    io::{self, Read as _},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use outlive_api::launch::{IdRange, IsolationTier};
use rustix::{
    fs::{CWD, Mode, OFlags, open},
    mount::{OpenTreeFlags, open_tree},
    pipe::{PipeFlags, SpliceFlags, pipe_with, splice},
    process::{WaitId, WaitIdOptions, waitid},
};

use crate::{
    launch::{
        Hierarchy, ONE_ID, discover, probe_bridge, probe_two_uid, rehearse, user_namespace,
        would_limit,
    },
    process::{
        fence::{Fence, Keeps},
        pty,
    },
    rootless::{self, Standing},
    sys::{self, Forked, Projects},
};

/// Prints the report; the argument is the folder that a server keeps its data in.
pub fn main() -> anyhow::Result<()> {
    let data = std::env::args_os().nth(2).map(PathBuf::from);
    rustix::io::write(rustix::stdio::stdout(), report(data.as_deref()).as_bytes())?;
    Ok(())
}

/// The report as it grows.
#[derive(Debug, Default)]
struct Report {
    lines: Vec<String>,
    off: Vec<&'static str>,
}

impl Report {
    /// One thing that was tried, and what is off where it doesn't work.
    fn tried(&mut self, key: &str, found: io::Result<String>, else_off: Option<&'static str>) {
        if found.is_err() {
            self.off.extend(else_off);
        }
        self.lines.push(line(key, found));
    }

    fn text(self) -> String {
        let off = self.off.iter().map(|sentence| format!("off={sentence}"));
        let mut lines = self.lines;
        lines.extend(off);
        lines.push(String::new());
        lines.join("\n")
    }
}

fn report(data: Option<&Path>) -> String {
    let mut report = Report::default();
    isolation(&mut report);
    control_groups(&mut report);
    report.tried(
        "splice_pty",
        probe_splice().map(ok),
        Some("output in the kernel: terminals are copied through memory"),
    );
    report.tried("pidfd_exit", probe_pidfd_exit().map(ok), None);
    report.tried(
        "idmap_usr",
        probe_idmap().map(ok),
        Some("idmapped mounts: files of /usr belong to nobody inside"),
    );
    report.tried(
        "landlock",
        probe_landlock(),
        Some("Landlock: in the runtime `process` programs can trace the agent and signal it"),
    );
    report.tried(
        "bridge",
        probe_bridge().map(ok),
        Some("network `bridge`: sandboxes reach nothing, or the host's network"),
    );
    report.tried("disk_quota", probe_quota(data), None);
    report.text()
}

fn isolation(report: &mut Report) {
    let userns = probe_userns();
    let two_uid = probe_two_uid();
    let tier = match (&userns, &two_uid) {
        (Ok(_), _) => IsolationTier::Nested,
        (Err(_), Ok(())) => IsolationTier::TwoUid,
        (Err(_), Err(_)) => IsolationTier::None,
    };
    let protected = tier != IsolationTier::None;
    report.lines.push(format!("isolation={}", tier.name()));
    report.lines.push(format!("journal_protected={protected}"));
    if tier != IsolationTier::Nested {
        report.off.push("namespaces: none to be had");
        report.off.extend(tier.weaker());
    }
    report.tried("two_uid", two_uid.map(ok), None);
    for tier in [IsolationTier::TwoUid, IsolationTier::None] {
        for sentence in tier.weaker() {
            let name = tier.name();
            report.lines.push(format!("weaker={name}: {sentence}"));
        }
    }
    if userns.as_ref().is_ok_and(|ids| ids.contains("1 id")) {
        report.off.push(ONE_ID);
    }
    report.tried("userns", userns, None);
}

fn control_groups(report: &mut Report) {
    let hierarchies = discover();
    report.tried(
        "cgroup2",
        probe_unified(&hierarchies),
        Some("freeze and kill as a whole: no cgroup2 group of our own"),
    );
    for (controller, off) in [
        ("memory", "limit of memory: no controller to enforce it"),
        ("pids", "limit of pids: no controller to enforce it"),
        ("cpu", "limit of cpu: no controller to enforce it"),
    ] {
        let found = probe_controller(&hierarchies, controller);
        report.tried(&format!("cgroup.{controller}"), found, Some(off));
    }
}

/// The word for what works and needs no more said.
fn ok((): ()) -> String {
    "ok".to_owned()
}

fn probe_landlock() -> io::Result<String> {
    Ok(match Fence::make()?.keeps() {
        Keeps::TracingAndSignals => ok(()),
        Keeps::Tracing => "tracing only; signals take Linux 6.12".to_owned(),
    })
}

fn line(key: &str, value: io::Result<String>) -> String {
    match value {
        Ok(value) => format!("{key}={value}"),
        Err(e) => format!("{key}=no: {e}"),
    }
}

fn refused(message: &str) -> io::Error {
    io::Error::other(message.to_owned())
}

/// What namespaces a launch would get, as the server reads it: `root`, or `N ids` of a user
/// namespace, which an ordinary user has yet to enter (`enter: N ids`).
fn probe_userns() -> io::Result<String> {
    match Standing::here()? {
        Standing::Root => user_namespace(ROOTS_OWN, IdRange::WORKLOAD_COUNT_MAX)
            .map(|_namespace| "root".to_owned())
            .map_err(io::Error::other),
        Standing::OfNamespace(ids) => rehearse(ids)
            .map(|()| ids_in_words(ids, None))
            .map_err(io::Error::other),
        Standing::Ordinary => in_child(|| {
            let why_one = rootless::enter().map_err(io::Error::other)?;
            let Standing::OfNamespace(ids) = Standing::here()? else {
                return Err(refused("the namespace has no map"));
            };
            rehearse(ids).map_err(io::Error::other)?;
            Ok(format!("enter: {}", ids_in_words(ids, why_one)))
        }),
    }
}

fn ids_in_words(ids: IdRange, why_one: Option<String>) -> String {
    match (ids.count(), why_one) {
        (1, Some(why)) => format!("1 id: {why}"),
        (1, None) => "1 id".to_owned(),
        (count, _) => format!("{count} ids"),
    }
}

/// Asks in a child, which may become what we don't want to be.
fn in_child(ask: impl FnOnce() -> io::Result<String>) -> io::Result<String> {
    let (answers, answer) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork_into(0, None)? {
        Forked::Child => {
            drop(answers);
            let text = ask().unwrap_or_else(|e| format!("!{e}"));
            match rustix::io::write(&answer, text.as_bytes()) {
                Ok(_) | Err(_) => sys::exit_now(0), // Nobody listens, or everything is said.
            }
        }
        Forked::Parent { pidfd, .. } => {
            drop(answer);
            let mut text = String::new();
            std::fs::File::from(answers).read_to_string(&mut text)?;
            waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            match text.strip_prefix('!') {
                Some(why) => Err(refused(why)),
                None => Ok(text),
            }
        }
    }
}

/// An id that root can map and nobody uses.
const ROOTS_OWN: u32 = 0x1000_0001;

fn probe_idmap() -> io::Result<()> {
    if Standing::here()? != Standing::Root {
        return Err(refused("needs root of the machine"));
    }
    let userns =
        user_namespace(ROOTS_OWN, IdRange::WORKLOAD_COUNT_MAX).map_err(io::Error::other)?;
    let tree = open_tree(
        CWD,
        "/usr",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )?;
    sys::idmap_mount(tree.as_fd(), userns.as_fd())
}

fn probe_unified(hierarchies: &[Hierarchy]) -> io::Result<String> {
    let unified = hierarchies
        .iter()
        .find(|h| h.controller.is_empty())
        .ok_or_else(|| refused("no cgroup2 mount"))?;
    writable(&unified.base)?;
    Ok(unified.base.clone())
}

fn writable(path: &str) -> io::Result<()> {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?;
    Ok(())
}

fn probe_controller(hierarchies: &[Hierarchy], controller: &str) -> io::Result<String> {
    if let Some(v1) = hierarchies.iter().find(|h| h.controller == controller) {
        writable(&v1.base)?;
        return Ok(format!("v1 {}", v1.base));
    }
    let unified = hierarchies
        .iter()
        .find(|h| h.controller.is_empty())
        .ok_or_else(|| refused("no cgroup2 mount"))?;
    would_limit(&unified.base, controller).map(|()| "v2".to_owned())
}

fn probe_splice() -> io::Result<()> {
    let pty = pty::open(None, 24, 80, None)?;
    rustix::io::write(&pty.slave, b"x")?;
    let moved = splice(
        &pty.master,
        None,
        &pty.spill_write,
        None,
        4096,
        SpliceFlags::NONBLOCK,
    )?;
    if moved == 1 {
        Ok(())
    } else {
        Err(refused("a byte got lost"))
    }
}

/// Whether the file system of this folder, or of where it is to be made, counts what lies in
/// parts of it, and we may limit them. Nothing is tried: what was made for that would be counted for
/// half a minute more.
fn probe_quota(data: Option<&Path>) -> io::Result<String> {
    let data = data.ok_or_else(|| refused("no folder was named"))?;
    let there = data.ancestors().find(|folder| folder.is_dir());
    let there = there.ok_or_else(|| refused("there is no such folder"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = open(there, flags, Mode::empty())?;
    let found = match sys::btrfs_id(folder.as_fd())? {
        Some(id) => btrfs_quota(there, &id)?,
        None => project_quota(there, folder.as_fd())?,
    };
    if Standing::here()? != Standing::Root {
        return Err(refused("needs root of the machine"));
    }
    Ok(found)
}

fn btrfs_quota(there: &Path, id: &str) -> io::Result<String> {
    let off = || {
        let folder = there.display();
        io::Error::other(format!("quotas are off on the btrfs of {folder}"))
    };
    match std::fs::read_to_string(format!("/sys/fs/btrfs/{id}/qgroups/enabled")) {
        Ok(text) if text.trim() == "1" => Ok(format!("btrfs {id}")),
        Ok(_) => Err(off()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(off()),
        Err(e) => Err(e),
    }
}

fn project_quota(there: &Path, folder: BorrowedFd<'_>) -> io::Result<String> {
    match sys::projects(folder)? {
        Projects::Limited => Ok("project".to_owned()),
        Projects::Counted => Err(io::Error::other(format!(
            "the file system of {} counts projects and limits none: mount it with prjquota",
            there.display()
        ))),
        Projects::Unknown => Err(refused(
            "the server's data lie on a file system without: it takes btrfs with quotas, or ext4 or \
             XFS mounted with prjquota",
        )),
    }
}

/// Makes a child, reaps it, and asks its pidfd afterwards.
fn probe_pidfd_exit() -> io::Result<()> {
    match sys::fork_into(0, None)? {
        Forked::Child => sys::exit_now(7),
        Forked::Parent { pidfd, .. } => {
            waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            match sys::pidfd_exit_status(pidfd.as_fd())? {
                Some(outlive_core::event::ExitStatus::Code(7)) => Ok(()),
                Some(_) => Err(refused("a wrong status")),
                None => Err(refused("the kernel is older than 6.15")),
            }
        }
    }
}
