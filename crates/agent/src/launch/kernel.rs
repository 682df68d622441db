//! What the workload sees of the kernel: `/proc` and `/sys`, with covers over what tells about
//! the host or could change it.
//!
//! The covers are mounts of P's mount namespace, which the agent's user namespace owns: root of
//! the workload can't take them away, and in a namespace of its own they come locked. A kernel
//! refuses a new `/proc` where every one in sight has something covered, which would keep
//! sandboxes, containers and `unshare --mount-proc` from working inside. So an uncovered one
//! lies where no path leads, below the mount point of the other:
//!
//! ```text
//!   /proc      tmpfs: proc/, sys/          nobody gets here
//!   /proc      procfs with covers          what everybody sees, on top
//! ```
//!
//! The covers are a second wall: who mounts a `/proc` of their own finds the files of the host's
//! root, whom no id of the workload is.

use std::os::fd::{AsFd, OwnedFd};

use outlive_api::launch::NetworkMode;
use rustix::{
    fs::CWD,
    io::Errno,
    mount::{
        MountFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_remount, move_mount,
        open_tree,
    },
};

use super::{
    root::{make_dir, mount_proc, tmpfs},
    step::{Fail, Step},
};

/// Files that read as empty.
const HIDDEN_FILES: &[&str] = &[
    "proc/interrupts",
    "proc/kcore",
    "proc/key-users",
    "proc/keys",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/timer_list",
    "proc/timer_stats",
];
/// Directories that look empty.
const HIDDEN_DIRS: &[&str] = &[
    "proc/acpi",
    "proc/asound",
    "proc/scsi",
    "sys/devices/virtual/powercap",
    "sys/firmware",
];
/// What can be read and not written.
const READ_ONLY: &[&str] = &[
    "proc/bus",
    "proc/fs",
    "proc/irq",
    "proc/sys",
    "proc/sysrq-trigger",
];
/// Settings of the network belong to the network namespace: a sandbox inside may change its own.
const NETWORK_SETTINGS: &str = "proc/sys/net";

/// No program starts from these and no device is one.
const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Mounts both below `root`, of which what is ours belongs to `owner`.
pub(super) fn show(root: &str, owner: u32, network: NetworkMode) -> Step<()> {
    let proc = format!("{root}/proc");
    let sys = format!("{root}/sys");
    tmpfs(&proc, owner, "0700", FLAGS, None)?;
    make_dir(&format!("{proc}/proc"), 0o555)?;
    make_dir(&format!("{proc}/sys"), 0o555)?;
    mount_proc(&format!("{proc}/proc"))?;
    // A sysfs belongs to a network namespace: in the host's we could only show the host's.
    if network != NetworkMode::Host {
        for at in [format!("{proc}/sys"), sys] {
            mount("sysfs", at, "sysfs", FLAGS | MountFlags::RDONLY, None).step("mounting /sys")?;
        }
    }
    // What is bound from below the cover would be read-only like it.
    let settings = open_tree(
        CWD,
        format!("{proc}/{NETWORK_SETTINGS}"),
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
    )
    .step("opening the network's settings")?;
    mount_proc(&proc)?;
    cover(root, &settings)
}

fn cover(root: &str, settings: &OwnedFd) -> Step<()> {
    for path in HIDDEN_FILES {
        let step = format!("hiding /{path}");
        present(mount_bind("/dev/null", format!("{root}/{path}"))).step(&step)?;
    }
    for path in HIDDEN_DIRS {
        let at = format!("{root}/{path}");
        let flags = FLAGS | MountFlags::RDONLY;
        present(mount("tmpfs", at, "tmpfs", flags, c"mode=0555"))
            .step(&format!("hiding /{path}"))?;
    }
    for path in READ_ONLY {
        let step = format!("closing /{path} to writers");
        let at = format!("{root}/{path}");
        if present(mount_bind(&at, &at)).step(&step)? {
            mount_remount(&at, MountFlags::BIND | MountFlags::RDONLY | FLAGS, c"").step(&step)?;
        }
    }
    move_mount(
        settings.as_fd(),
        "",
        CWD,
        format!("{root}/{NETWORK_SETTINGS}"),
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step("showing the network's settings")
}

/// Whether it worked; a kernel that doesn't have the file has nothing to cover.
fn present(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(e) => Err(e),
    }
}
