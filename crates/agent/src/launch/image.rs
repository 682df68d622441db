//! The layer of one sandbox, above those of its image: the few files that name it.
//!
//! The layers of an image are shared by all sandboxes that use it and are never written. What
//! differs from sandbox to sandbox is written anew for every generation into `own/`; what the
//! workload itself changed lies in `upper/`, above both.

use std::os::fd::{AsFd, BorrowedFd};

use outlive_api::launch::{LaunchConfig, NetworkMode};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, openat, unlinkat};

use super::{
    disk,
    step::{Fail, Step},
};

/// Largest `resolv.conf` of the host that is taken over.
const RESOLV_BYTES_MAX: u64 = 64 << 10;

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
    match config.network {
        NetworkMode::Host => copy_resolv(etc.as_fd()),
        NetworkMode::None => remove(etc.as_fd(), "resolv.conf"),
    }
}

/// The host's resolvers as they are now.
fn copy_resolv(etc: BorrowedFd<'_>) -> Step<()> {
    let path = "/etc/resolv.conf";
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() <= RESOLV_BYTES_MAX => {}
        // Not on this host, or nothing we want.
        Ok(_) | Err(_) => return remove(etc, "resolv.conf"),
    }
    let bytes = std::fs::read(path).step("reading /etc/resolv.conf")?;
    write(etc, "resolv.conf", &bytes)
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
