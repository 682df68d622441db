//! An ordinary user who calls the agent, and becomes root of a user namespace before.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, chown, lchown},
    path::Path,
    process::Command,
};

use outlive_api::launch::{IdRange, LaunchConfig};

use crate::common::sandbox::Caller;

/// What the machine grants this user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Granted {
    /// 65,536 ids.
    Ids,
    /// None.
    Nothing,
}

/// This user, and the first id that is granted.
pub(crate) const USER: u32 = 54_321;
pub(crate) const FIRST: u32 = 7_000_000;
/// In a mount namespace of its own, because what is granted stands in `/etc`.
const SCRIPT: &str = "set -e; for file in passwd subuid subgid; do mount --bind $1/$file /etc/$file; \
                      done; exec setpriv --reuid 54321 --regid 54321 --clear-groups \
                      $1/agent enter -- $1/agent $2";

/// An ordinary user, whose the sandbox of this configuration becomes.
pub(crate) fn ordinary(granted: Granted, config: &mut LaunchConfig) -> Caller {
    let map = match granted {
        Granted::Ids => format!("0 {USER} 1\n1 {FIRST} 65536\n"),
        Granted::Nothing => format!("0 {USER} 1\n"),
    };
    config.ids = IdRange::of_uid_map(&map);
    let directory = Path::new(&config.directory);
    let ours = directory.join("caller");
    fs::create_dir(&ours).unwrap();
    let ids = match granted {
        Granted::Ids => format!("tester:{FIRST}:65536\n"),
        Granted::Nothing => String::new(),
    };
    let passwd = format!("root:x:0:0::/root:/bin/sh\ntester:x:{USER}:{USER}::/:/bin/sh\n");
    for (file, text) in [("passwd", &passwd), ("subuid", &ids), ("subgid", &ids)] {
        fs::write(ours.join(file), text).unwrap();
    }
    fs::copy(std::env::current_exe().unwrap(), ours.join("agent")).unwrap();
    for (file, mode) in [("", 0o755), ("passwd", 0o644), ("agent", 0o755)] {
        fs::set_permissions(ours.join(file), Permissions::from_mode(mode)).unwrap();
    }
    chown(directory, Some(USER), Some(USER)).unwrap();
    // As a server lays layers down that can't be shown through other ids.
    let root_inside = match granted {
        Granted::Ids => FIRST,
        Granted::Nothing => USER,
    };
    give(&directory.join("layer"), root_inside);
    give(&directory.join("upper"), root_inside);
    chown(directory.join("upper"), Some(USER), Some(USER)).unwrap();
    Box::new(move |face| {
        #[expect(clippy::disallowed_methods, reason = "test")]
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SCRIPT, "sh"]);
        command.arg(&ours).arg(face);
        command
    })
}

/// Gives everything below to one owner.
fn give(path: &Path, owner: u32) {
    lchown(path, Some(owner), Some(owner)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        for entry in fs::read_dir(path).unwrap() {
            give(&entry.unwrap().path(), owner);
        }
    }
}
