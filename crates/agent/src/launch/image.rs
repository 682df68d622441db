//! The image `host`: every tool of this machine, none of its secrets.
//!
//! `/usr` comes from the host, with the links beside it (`/bin`, `/lib`, …). Everything else is
//! generated once for a sandbox, into its `lower/`: a small `/etc`, and empty directories. What
//! is copied from the host's `/etc` is named one by one below; nothing else is.

use std::os::fd::{AsFd, BorrowedFd};

use outlive_api::launch::{LaunchConfig, NetworkMode};
use rustix::fs::{
    CWD, Dir, FileType, Mode, OFlags, fchmod, mkdirat, openat, readlinkat, symlinkat,
};

use super::{
    disk,
    step::{Fail, Step, unsupported},
};

/// Links of a merged `/usr`.
const USR_LINKS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Empty directories, and their modes.
const DIRS: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
];
/// Directories one level down.
const DEEPER_DIRS: &[(&str, &str, u32)] = &[
    ("var", "cache", 0o755),
    ("var", "lib", 0o755),
    ("var", "log", 0o755),
    ("var", "tmp", 0o1777),
    ("etc", "ssl", 0o755),
    ("home", "user", 0o755),
];
/// Files of the host's `/etc` that tools need and that say nothing about the host.
const ETC_FILES: &[&str] = &[
    "bash.bashrc",
    "debian_version",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "magic",
    "mime.types",
    "netconfig",
    "nsswitch.conf",
    "os-release",
    "profile",
    "protocols",
    "rpc",
    "services",
    "timezone",
];
/// Directories of the host's `/etc` that are copied, files and links, not deeper.
const ETC_DIRS: &[&str] = &["alternatives", "ld.so.conf.d", "ssl/certs"];
/// Largest file that is copied.
const ETC_FILE_BYTES_MAX: u64 = 4 << 20;

/// Generates `lower/` below the sandbox's directory, unless it is there.
pub(super) fn generate(sandbox: BorrowedFd<'_>, config: &LaunchConfig) -> Step<()> {
    if openat(
        sandbox,
        "lower",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .is_ok()
    {
        return Ok(());
    }
    // Made under another name, so that a launch that was killed leaves no half image.
    remove_tree(sandbox, "lower.new")?;
    let lower = disk::make_dir(sandbox, "lower.new")?;
    for (name, mode) in DIRS {
        make(lower.as_fd(), name, *mode)?;
    }
    for (parent, name, mode) in DEEPER_DIRS {
        make(disk::open_dir(lower.as_fd(), parent)?.as_fd(), name, *mode)?;
    }
    let home = disk::open_dir(disk::open_dir(lower.as_fd(), "home")?.as_fd(), "user")?;
    let user = (
        rustix::fs::Uid::from_raw(1000),
        rustix::fs::Gid::from_raw(1000),
    );
    rustix::fs::fchown(&home, Some(user.0), Some(user.1)).step("giving a user its home")?;
    links(lower.as_fd())?;
    let etc = disk::open_dir(lower.as_fd(), "etc")?;
    generate_etc(etc.as_fd(), config)?;
    copy_etc(etc.as_fd())?;
    rustix::fs::renameat(sandbox, "lower.new", sandbox, "lower").step("naming the image")
}

fn make(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Step<()> {
    let dir = disk::make_dir(parent, name)?;
    fchmod(&dir, Mode::from_raw_mode(mode)).step("opening a directory of the image")
}

fn remove_tree(parent: BorrowedFd<'_>, name: &str) -> Step<()> {
    let Ok(dir) = disk::open_dir(parent, name) else {
        return Ok(());
    };
    let step = "removing half an image";
    for entry in Dir::read_from(&dir).step(step)? {
        let entry = entry.step(step)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            remove_tree(dir.as_fd(), &name)?;
        } else {
            rustix::fs::unlinkat(&dir, &name, rustix::fs::AtFlags::empty()).step(step)?;
        }
    }
    rustix::fs::unlinkat(parent, name, rustix::fs::AtFlags::REMOVEDIR).step(step)
}

fn links(lower: BorrowedFd<'_>) -> Step<()> {
    for name in USR_LINKS {
        let path = format!("/{name}");
        match readlinkat(CWD, path.as_str(), Vec::new()) {
            Ok(target) => symlinkat(target.as_c_str(), lower, *name)
                .step("linking a directory of the image")?,
            Err(rustix::io::Errno::NOENT) => {}
            Err(rustix::io::Errno::INVAL) => {
                return Err(unsupported(
                    "making the image `host`",
                    &format!("{path} of this host isn't a link into /usr; use a rootfs image"),
                ));
            }
            Err(e) => return Err(e).step("reading a link of the host"),
        }
    }
    Ok(())
}

fn generate_etc(etc: BorrowedFd<'_>, config: &LaunchConfig) -> Step<()> {
    let name = &config.hostname;
    let shell = match std::fs::exists("/usr/bin/bash") {
        Ok(true) => "/bin/bash",
        Ok(false) | Err(_) => "/bin/sh",
    };
    let passwd = format!(
        "root:x:0:0:root:/root:{shell}\n\
         daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
         user:x:1000:1000:user:/home/user:{shell}\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let files = [
        ("passwd", passwd.as_str()),
        (
            "group",
            "root:x:0:\ndaemon:x:1:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
        ),
        ("shadow", "root:*:19000:0:99999:7:::\n"),
        ("hostname", &format!("{name}\n")),
        (
            "hosts",
            &format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 {name}\n"),
        ),
        ("environment", ""),
        ("fstab", ""),
    ];
    for (file, text) in files {
        let mode = if file == "shadow" { 0o600 } else { 0o644 };
        write(etc, file, text.as_bytes(), mode)?;
    }
    if config.network == NetworkMode::Host {
        copy_file(etc, "resolv.conf")?;
    }
    Ok(())
}

fn copy_etc(etc: BorrowedFd<'_>) -> Step<()> {
    for name in ETC_FILES {
        copy_file(etc, name)?;
    }
    for name in ETC_DIRS {
        copy_dir(etc, name)?;
    }
    Ok(())
}

/// Copies a file or link of the host's `/etc`; one that isn't there is left out.
fn copy_file(etc: BorrowedFd<'_>, name: &str) -> Step<()> {
    let path = format!("/etc/{name}");
    match readlinkat(CWD, path.as_str(), Vec::new()) {
        // A link into /usr means the same inside.
        Ok(target)
            if target.to_bytes().starts_with(b"/usr/")
                || target.to_bytes().starts_with(b"../usr/") =>
        {
            return symlinkat(target.as_c_str(), etc, name).step("linking a file of the image");
        }
        Ok(_) | Err(_) => {}
    }
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_file() && meta.len() <= ETC_FILE_BYTES_MAX => {}
        Ok(_) | Err(_) => return Ok(()), // Not on this host, or nothing we want.
    }
    let bytes = std::fs::read(&path).step(&format!("reading {path}"))?;
    write(etc, name, &bytes, 0o644)
}

fn copy_dir(etc: BorrowedFd<'_>, name: &str) -> Step<()> {
    let path = format!("/etc/{name}");
    let Ok(entries) = std::fs::read_dir(&path) else {
        return Ok(()); // Not on this host.
    };
    mkdirat(etc, name, Mode::from_raw_mode(0o755)).step(&format!("making {path}"))?;
    let dir = openat(
        etc,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step(&format!("opening {path}"))?;
    for entry in entries {
        let entry = entry.step(&format!("reading {path}"))?;
        let Ok(file) = entry.file_name().into_string() else {
            continue;
        };
        let kind = entry.file_type().step(&format!("reading {path}"))?;
        if kind.is_symlink() {
            let target = std::fs::read_link(entry.path()).step("reading a link of the host")?;
            symlinkat(&target, &dir, &file).step("linking a file of the image")?;
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).step("reading a file of the host")?;
            write(dir.as_fd(), &file, &bytes, 0o644)?;
        }
    }
    Ok(())
}

fn write(dir: BorrowedFd<'_>, name: &str, bytes: &[u8], mode: u32) -> Step<()> {
    let file = openat(
        dir,
        name,
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::from_raw_mode(mode),
    )
    .step(&format!("making {name} of the image"))?;
    fchmod(&file, Mode::from_raw_mode(mode)).step("opening a file of the image")?;
    std::io::Write::write_all(&mut std::fs::File::from(file), bytes)
        .step(&format!("writing {name} of the image"))
}
