//! The layer of one sandbox, above those of its image: the few files that name it.
//!
//! The layers of an image are shared by all sandboxes that use it and are never written. What
//! differs from sandbox to sandbox is written anew for every generation into `own/`; what the
//! workload itself changed lies in `upper/`, above both.

use std::os::fd::{AsFd, BorrowedFd};

use outlive_api::launch::{IdRange, LaunchConfig};
use outlive_core::hash::StableHasher;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, fchmod, fchown, openat, unlinkat};

use super::{
    disk, names,
    step::{Fail, Step},
};

/// Writes `own/` below the sandbox's directory. No runtime of this sandbox lives, so nobody looks
/// at it; a launch that is killed here leaves what the next one writes anew.
pub(super) fn write_own(sandbox: BorrowedFd<'_>, config: &LaunchConfig, ids: IdRange) -> Step<()> {
    let own = disk::make_dir(sandbox, "own")?;
    let etc = disk::make_dir(own.as_fd(), "etc")?;
    for dir in [&own, &etc] {
        fchmod(dir, Mode::from_raw_mode(0o755)).step("opening the sandbox's own layer")?;
        give(dir, ids)?;
    }
    let write = |name: &str, bytes: &[u8]| write(etc.as_fd(), name, bytes, ids);
    let name = &config.hostname;
    write("hostname", format!("{name}\n").as_bytes())?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {name}\n");
    write("hosts", hosts.as_bytes())?;
    let id = format!("{}\n", machine_id(name));
    write("machine-id", id.as_bytes())?;
    match names::of_host(config.network) {
        Some(text) => write("resolv.conf", text.as_bytes()),
        None => remove(etc.as_fd(), "resolv.conf"),
    }
}

/// The id of this sandbox as a machine: 32 hexadecimal digits, the same in every generation and
/// another in a fork.
fn machine_id(name: &str) -> String {
    let hasher = StableHasher::new().piece(b"machine-id");
    let digest = hasher.piece(name.as_bytes()).finish128();
    format!("{:032x}", digest.as_u128())
}

fn remove(dir: BorrowedFd<'_>, name: &str) -> Step<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(e).step(&format!("removing {name} of an earlier generation")),
    }
}

/// Where it can't be shown through other ids, the layer belongs to the workload on the disk, too.
fn give(fd: impl AsFd, ids: IdRange) -> Step<()> {
    if ids.of_namespace.is_none() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(ids.workload()), Gid::from_raw(ids.workload()));
    fchown(fd, Some(uid), Some(gid)).step("giving the sandbox's own layer to the workload")
}

fn write(dir: BorrowedFd<'_>, name: &str, bytes: &[u8], ids: IdRange) -> Step<()> {
    let file = openat(
        dir,
        name,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o644),
    )
    .step(&format!("making {name} of the sandbox"))?;
    fchmod(&file, Mode::from_raw_mode(0o644)).step("opening a file of the sandbox")?;
    give(&file, ids)?;
    std::io::Write::write_all(&mut std::fs::File::from(file), bytes)
        .step(&format!("writing {name} of the sandbox"))
}
