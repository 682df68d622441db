//! The root file system that the workload sees, built by PID 1 of P before it becomes
//! `sbx-init`: an overlay of the image and the sandbox's disk, and the usual kernel mounts.

use std::os::fd::{AsFd, OwnedFd};

use outlive_api::launch::{IdRange, NetworkMode};
use rustix::{
    fs::{CWD, Mode, OFlags, chmod, mkdirat, openat, symlinkat},
    mount::{
        MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount, mount_bind,
        mount_change, move_mount, unmount,
    },
};

use super::{
    kernel,
    nested::Layers,
    step::{Fail, Step, failure},
};
use crate::{limits::TERMINALS_MAX, sys};

/// What to build from.
pub(super) struct RootPlan<'l> {
    pub(super) ids: IdRange,
    pub(super) layers: &'l Layers,
    pub(super) network: NetworkMode,
    /// What the workload may take of memory, where that is limited.
    pub(super) memory_max: Option<u64>,
}

/// Where everything is put together: any directory serves, it is covered and left again.
const SCAFFOLD: &str = "/tmp";
/// The group `tty`, as the workload counts.
const TTY: u32 = 5;
/// What part of the workload's memory `/dev/shm` may hold, and `/run`; with the kernel's own share for
/// their files a third is left for programs.
const SHM_SHARE: u64 = 2;
const RUN_SHARE: u64 = 16;
/// Room for nodes and links, which is all that belongs into `/dev`.
const DEV_BYTES_MAX: u64 = 1 << 20;
/// A file of memory is this large on average, or there can be no more; the kernel keeps a good
/// thousand bytes of each.
const MEMORY_FILE_BYTES: u64 = 8192;
/// Device files that every program may use.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Links in `/dev`.
const DEV_LINKS: &[(&str, &str)] = &[
    ("pts/ptmx", "ptmx"),
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
];

/// Builds the root and goes there; [`enter`] makes it the only one.
pub(super) fn build(plan: &RootPlan<'_>) -> Step<()> {
    let owner = plan.ids.workload_offset();
    scaffold(owner, "keeping the workload's mounts to itself")?;
    for dir in ["disk", "usr", "root"] {
        make_dir(&format!("{SCAFFOLD}/{dir}"), 0o755)?;
    }
    attach(&plan.layers.disk, "disk")?;
    let mut names = Vec::with_capacity(plan.layers.lowers.len());
    for (number, layer) in plan.layers.lowers.iter().enumerate() {
        // Short, because all names together must fit into one page of mount options.
        let name = format!("{number:x}");
        make_dir(&format!("{SCAFFOLD}/{name}"), 0o755)?;
        attach(layer, &name)?;
        names.push(name);
    }
    overlay(&names, "root", "root")?;
    if let Some(usr) = &plan.layers.usr {
        attach(usr, "usr")?;
        overlay(&["usr".to_owned()], "usr", "root/usr")?;
    }
    let root = format!("{SCAFFOLD}/root");
    for (dir, mode) in [
        ("dev", 0o755),
        ("proc", 0o555),
        ("sys", 0o555),
        ("run", 0o755),
        ("tmp", 0o1777),
    ] {
        mount_point(&root, dir, mode)?;
    }
    kernel::show(&root, owner, plan.network)?;
    tmpfs(
        &format!("{root}/run"),
        owner,
        "0755",
        MountFlags::NOSUID | MountFlags::NODEV,
        share(plan.memory_max, RUN_SHARE),
    )?;
    devices(&format!("{root}/dev"), plan.ids, plan.memory_max)?;
    rustix::process::chdir(root).step("going to the workload's root")
}

/// Keeps what is mounted from here on to this namespace, and has an empty place for it.
fn scaffold(owner: u32, step: &str) -> Step<()> {
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )
    .step(step)?;
    tmpfs(
        SCAFFOLD,
        owner,
        "0755",
        MountFlags::NOSUID | MountFlags::NODEV,
        None,
    )
}

/// Tries an overlay above `/usr`, and what the kernel shows, below the scaffold.
pub(super) fn rehearse(ids: IdRange, usr: &OwnedFd) -> Step<()> {
    let owner = ids.workload_offset();
    scaffold(owner, "keeping mounts to a namespace")?;
    for dir in [
        "disk",
        "disk/upper",
        "disk/upper/usr",
        "disk/work",
        "disk/work/usr",
        "usr",
        "root",
        "kernel",
        "kernel/proc",
        "kernel/sys",
        "kernel/dev",
    ] {
        make_dir(&format!("{SCAFFOLD}/{dir}"), 0o755)?;
    }
    attach(usr, "usr")?;
    overlay(&["usr".to_owned()], "usr", "root")?;
    kernel::show(&format!("{SCAFFOLD}/kernel"), owner, NetworkMode::None)?;
    devices(&format!("{SCAFFOLD}/kernel/dev"), ids, None)
}

/// Makes a directory; one that is there stays as it is.
pub(super) fn make_dir(path: &str, mode: u32) -> Step<()> {
    let step = format!("making {path}");
    match mkdirat(CWD, path, Mode::from_raw_mode(mode)) {
        // The mask of this process doesn't count.
        Ok(()) => chmod(path, Mode::from_raw_mode(mode)).step(&step),
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(e).step(&step),
    }
}

/// A directory of the root that something is mounted on. An image or a workload may have put a
/// link there, which would lead the mount away from the root.
fn mount_point(root: &str, name: &str, mode: u32) -> Step<()> {
    let path = format!("{root}/{name}");
    make_dir(&path, mode)?;
    match openat(
        CWD,
        &path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        Ok(_dir) => Ok(()),
        Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => Err(failure(
            "preparing the root",
            &format!("/{name} of the image or of the sandbox's disk is not a directory"),
        )),
        Err(e) => Err(e).step(&format!("opening /{name} of the image")),
    }
}

fn attach(tree: &OwnedFd, name: &str) -> Step<()> {
    move_mount(
        tree.as_fd(),
        "",
        CWD,
        format!("{SCAFFOLD}/{name}"),
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step("attaching a part of the image")
}

/// Mounts an overlay of these lower layers, topmost first, and the disk's layer of this name.
fn overlay(lowers: &[String], layer: &str, at: &str) -> Step<()> {
    let lowers: Vec<String> = lowers
        .iter()
        .map(|name| format!("{SCAFFOLD}/{name}"))
        .collect();
    let options = format!(
        "lowerdir={},upperdir={SCAFFOLD}/disk/upper/{layer},\
         workdir={SCAFFOLD}/disk/work/{layer},userxattr",
        lowers.join(":")
    );
    let options = super::c_string(&options)?;
    mount(
        "overlay",
        format!("{SCAFFOLD}/{at}"),
        "overlay",
        MountFlags::NODEV,
        options.as_c_str(),
    )
    .step("mounting the overlay")
}

/// How much a file system of memory may hold: files and what the kernel keeps of each count against
/// the workload's limit, and nothing could be started any more, not even to remove them.
fn share(memory_max: Option<u64>, of: u64) -> Option<u64> {
    memory_max.map(|max| max / of)
}

/// Mounts memory that belongs to this id, as the agent counts, for at most so many bytes; half of the
/// machine's when there is no limit.
pub(super) fn tmpfs(
    at: &str,
    owner: u32,
    mode: &str,
    flags: MountFlags,
    bytes_max: Option<u64>,
) -> Step<()> {
    // A size of 0 would be no limit.
    let room = bytes_max.map_or_else(String::new, |bytes| {
        let (bytes, files) = (bytes.max(1), (bytes / MEMORY_FILE_BYTES).max(1));
        format!(",size={bytes},nr_inodes={files}")
    });
    let options = format!("mode={mode},uid={owner},gid={owner}{room}");
    let options = super::c_string(&options)?;
    mount("tmpfs", at, "tmpfs", flags, options.as_c_str()).step(&format!("mounting {at}"))
}

/// Mounts `/proc` of the calling process's pid namespace.
pub(super) fn mount_proc(at: &str) -> Step<()> {
    mount(
        "proc",
        at,
        "proc",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )
    .step(&format!("mounting {at}"))
}

fn devices(dev: &str, ids: IdRange, memory_max: Option<u64>) -> Step<()> {
    let owner = ids.workload_offset();
    tmpfs(
        dev,
        owner,
        "0755",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        Some(DEV_BYTES_MAX),
    )?;
    for name in DEVICES {
        let step = format!("making /dev/{name}");
        openat(
            CWD,
            format!("{dev}/{name}"),
            OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o644),
        )
        .step(&step)?;
        mount_bind(format!("/dev/{name}"), format!("{dev}/{name}")).step(&step)?;
    }
    for (target, name) in DEV_LINKS {
        symlinkat(*target, CWD, format!("{dev}/{name}")).step(&format!("linking /dev/{name}"))?;
    }
    for dir in ["pts", "shm", "mqueue"] {
        make_dir(&format!("{dev}/{dir}"), 0o755)?;
    }
    // A workload with fewer ids has no such group.
    let tty = owner + TTY.min(ids.workload_count() - 1);
    let options = format!("newinstance,ptmxmode=0666,mode=0620,gid={tty},max={TERMINALS_MAX}");
    let options = super::c_string(&options)?;
    mount(
        "devpts",
        format!("{dev}/pts"),
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        options.as_c_str(),
    )
    .step("mounting /dev/pts")?;
    tmpfs(
        &format!("{dev}/shm"),
        owner,
        "1777",
        MountFlags::NOSUID | MountFlags::NODEV,
        share(memory_max, SHM_SHARE),
    )?;
    mount(
        "mqueue",
        format!("{dev}/mqueue"),
        "mqueue",
        MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC,
        None,
    )
    .step("mounting /dev/mqueue")
}

/// Makes the current directory the root and drops everything else, the scaffold included.
pub(crate) fn enter() -> Step<()> {
    let step = "entering the workload's root";
    sys::pivot_root_here().step(step)?;
    unmount(".", UnmountFlags::DETACH).step(step)?;
    rustix::process::chdir("/").step(step)
}
