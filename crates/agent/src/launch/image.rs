//! The layer of one sandbox, above those of its image: the few files that name it.
//!
//! The layers of an image are shared by all sandboxes that use it and are never written. What
//! differs from sandbox to sandbox is written anew for every generation into `own/`; what the
//! workload itself changed lies in `upper/`, above both.

use std::os::fd::{AsFd, BorrowedFd};

use outlive_api::launch::LaunchConfig;
use outlive_core::hash::StableHasher;
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, openat, unlinkat};

use super::{
    disk, names,
    step::{Fail, Step},
};

/// Writes `own/` below the sandbox's directory. No runtime of this sandbox lives, so nobody looks
/// at it; a launch that is killed here leaves what the next one writes anew.
pub(super) fn write_own(sandbox: BorrowedFd<'_>, config: &LaunchConfig) -> Step<()> {
    let own = disk::make_dir(sandbox, "own")?;
    let etc = disk::make_dir(own.as_fd(), "etc")?;
    for dir in [&own, &etc] {
        fchmod(dir, Mode::from_raw_mode(0o755)).step("opening the sandbox's own layer")?;
    }
    let name = &config.hostname;
    write(etc.as_fd(), "hostname", format!("{name}\n").as_bytes())?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {name}\n");
    write(etc.as_fd(), "hosts", hosts.as_bytes())?;
    let id = format!("{}\n", machine_id(name));
    write(etc.as_fd(), "machine-id", id.as_bytes())?;
    match names::of_host(config.network) {
        Some(text) => write(etc.as_fd(), "resolv.conf", text.as_bytes()),
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

fn write(dir: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Step<()> {
    let file = openat(
        dir,
        name,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o644),
    )
    .step(&format!("making {name} of the sandbox"))?;
    fchmod(&file, Mode::from_raw_mode(0o644)).step("opening a file of the sandbox")?;
    std::io::Write::write_all(&mut std::fs::File::from(file), bytes)
        .step(&format!("writing {name} of the sandbox"))
}
