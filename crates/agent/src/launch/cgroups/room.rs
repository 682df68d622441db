//! In which group of cgroup2 those of sandboxes are made.
//!
//! ```text
//!   AROUND/                 holds no process, so that what is in it can be limited
//!     OWN                   the server's: its unit, a session's scope, or the leaf below
//!     outlive/SANDBOX
//!
//!   OWN/                    where AROUND is nobody's to change: a group that was given to us
//!     outlive-server        where its processes went; from here, OWN is what lies around
//!     outlive/SANDBOX
//! ```
//!
//! The kernel limits nothing in a group that holds processes itself, the whole machine aside. A
//! unit's process is in the unit's group, and comes back there when it is started again, which
//! the kernel refuses as soon as something in that group is limited. So we never stay inside of it.

use std::{fs, io, os::unix::process::parent_id, path::Path};

use rustix::fs::{Access, access};

use super::discover;

/// The leaf that processes of a group that was given to us are moved to.
const LEAF: &str = "outlive-server";
/// What has to be ours of a group to make others in it, fill them and limit them.
const NEEDED: [&str; 3] = ["", "cgroup.procs", "cgroup.subtree_control"];
/// How often a group is looked at that starts more processes meanwhile.
const ROUNDS_MAX: u32 = 100;

/// Where a process of the group `own` makes those of sandboxes, below this mount.
pub(super) fn around(mount: &str, own: String) -> String {
    if own == mount {
        return own;
    }
    match own.rsplit_once('/') {
        Some((around, _)) if is_ours(around).is_ok() && is_free(around) => around.to_owned(),
        Some(_) | None => own,
    }
}

/// Whether a limit by this controller can be set in a group that [`around`] answered.
pub(super) fn can_limit(group: &str, controller: &str) -> io::Result<()> {
    gives(group, controller)?;
    if is_free(group) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "processes are in {group} itself, so that nothing in it can be limited; a unit with a user \
         of its own needs DelegateSubgroup=server, of systemd 254"
    )))
}

/// The same, for a server that would start where we are.
pub(crate) fn would_limit(group: &str, controller: &str) -> io::Result<()> {
    if is_fixed() {
        can_limit(group, controller)
    } else {
        gives(group, controller) // It settles first.
    }
}

fn gives(group: &str, controller: &str) -> io::Result<()> {
    is_ours(group)?;
    let given = fs::read_to_string(format!("{group}/cgroup.controllers"))?;
    if given.split_whitespace().any(|name| name == controller) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "not delegated to us: {group} has no such controller"
    )))
}

/// Moves the server, whose child we are, out of the way where it stands in it.
pub fn settle() -> anyhow::Result<()> {
    let unified = discover().into_iter().find(|it| it.controller.is_empty());
    let Some(group) = unified.map(|unified| unified.base) else {
        return Ok(());
    };
    // A hierarchy that gives nothing limits nothing, and processes may be anywhere in it.
    let gives = fs::read_to_string(format!("{group}/cgroup.controllers"));
    let gives = gives.is_ok_and(|names| !names.trim().is_empty());
    if !gives || is_free(&group) || is_fixed() || is_ours(&group).is_err() {
        return Ok(());
    }
    Ok(empty(&group)?)
}

fn empty(group: &str) -> io::Result<()> {
    let leaf = format!("{group}/{LEAF}");
    match fs::create_dir(&leaf) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    for _ in 0..ROUNDS_MAX {
        let here = fs::read_to_string(format!("{group}/cgroup.procs"))?;
        if here.is_empty() {
            return Ok(());
        }
        for pid in here.lines() {
            match fs::write(format!("{leaf}/cgroup.procs"), pid) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // It ended.
                Err(error) => return Err(error),
            }
        }
    }
    Err(io::Error::other(format!(
        "{group} is never without processes"
    )))
}

/// Whether the server is what systemd starts as a unit, and puts into this very group again when it
/// starts it anew. That would fail if the group were divided.
fn is_fixed() -> bool {
    let main = std::env::var("SYSTEMD_EXEC_PID");
    main.is_ok_and(|pid| pid.parse() == Ok(parent_id()))
}

fn is_ours(group: &str) -> io::Result<()> {
    for file in NEEDED {
        access(Path::new(group).join(file), Access::WRITE_OK)?;
    }
    Ok(())
}

/// Whether something in this group can be limited.
fn is_free(group: &str) -> bool {
    // The machine's own group has no such file.
    let is_whole = fs::exists(format!("{group}/cgroup.events")).is_ok_and(|is_part| !is_part);
    let held = fs::read_to_string(format!("{group}/cgroup.procs"));
    is_whole || held.is_ok_and(|pids| pids.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(path: &Path, pids: &str) {
        fs::create_dir_all(path).unwrap();
        for (file, text) in [
            ("cgroup.events", "populated 1\n"),
            ("cgroup.procs", pids),
            ("cgroup.subtree_control", ""),
            ("cgroup.controllers", "cpu memory\n"),
        ] {
            fs::write(path.join(file), text).unwrap();
        }
    }

    // A server in a unit of its own could start no sandbox at all on a machine with cgroup2 alone.
    #[test]
    fn sandboxes_lie_beside_their_server_where_nobody_stands_around_them() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path().to_str().unwrap();
        let (slice, unit) = (
            format!("{mount}/a.slice"),
            format!("{mount}/a.slice/b.service"),
        );
        group(Path::new(&slice), "");
        group(Path::new(&unit), "7\n");
        assert_eq!(around(mount, unit.clone()), slice);
        can_limit(&slice, "memory").unwrap();
        let refused = can_limit(&slice, "pids").unwrap_err().to_string();
        assert!(refused.contains("not delegated to us"), "{refused}");
        let refused = can_limit(&unit, "memory").unwrap_err().to_string();
        assert!(refused.contains("DelegateSubgroup=server"), "{refused}");
        fs::write(format!("{slice}/cgroup.procs"), "9\n").unwrap();
        assert_eq!(around(mount, unit.clone()), unit);
        assert_eq!(
            around(&unit, unit.clone()),
            unit,
            "what is outside is not seen"
        );
        // The whole machine's has processes, and limits all the same.
        fs::remove_file(format!("{slice}/cgroup.events")).unwrap();
        assert_eq!(around(mount, unit), slice);
    }

    #[test]
    fn processes_of_a_group_that_is_given_to_us_go_to_a_leaf() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().to_str().unwrap();
        group(dir.path(), "");
        empty(own).unwrap();
        assert!(dir.path().join(LEAF).is_dir());
        assert!(is_free(own));
        assert_eq!(around(&format!("{own}/none"), format!("{own}/{LEAF}")), own);
    }
}
