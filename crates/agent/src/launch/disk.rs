//! A sandbox's directory on the host.
//!
//! ```text
//!   DIRECTORY/          agent's, 0700
//!     state/            agent's, 0700: socket, journals, exits, keeper.pid, agent.log
//!     own/              what the image says differently for this sandbox, root's
//!     upper/{root,usr}  the workload's changes; both may lie in `disk/`, see `quota`
//!     work/{root,usr}   overlayfs's own
//!     files/            home in the runtimes without namespaces
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use outlive_api::launch::{IdRange, LaunchConfig, RuntimeKind};
use outlive_journal::remove_tree;
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fchmod, fchown, fstat, mkdirat, open,
    openat, statat,
};

use super::{
    quota::{self, Counted},
    step::{Fail, Step, failure},
};

/// The directories that a launch needs open.
pub(super) struct Dirs {
    pub(super) sandbox: OwnedFd,
    pub(super) state: OwnedFd,
    /// What `upper` and `work` lie in.
    pub(super) disk: OwnedFd,
}

/// Makes what is missing, and gives each directory its owner.
pub(super) fn prepare(config: &LaunchConfig) -> Step<Dirs> {
    if !config.directory.starts_with('/') {
        return Err(failure("opening the sandbox's directory", "not absolute"));
    }
    let sandbox = open(
        config.directory.as_str(),
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step("opening the sandbox's directory")?;
    fchmod(&sandbox, Mode::from_raw_mode(way_through(config.runtime)))
        .step("closing the sandbox's directory to others")?;
    let state = make_dir(sandbox.as_fd(), "state")?;
    fchmod(&state, Mode::from_raw_mode(0o700)).step("closing the state directory to others")?;
    let counted = match (config.runtime, config.quota) {
        (RuntimeKind::Namespace, Some(_)) => Counted::Yes,
        (RuntimeKind::Namespace | RuntimeKind::TwoUid | RuntimeKind::Process, _) => Counted::No,
    };
    let disk = quota::disk_of(sandbox.as_fd(), counted)?;
    match (config.runtime, config.ids) {
        (RuntimeKind::Namespace, Some(ids)) => {
            quota::loosen(config, sandbox.as_fd(), disk.as_fd())?;
            give_to_namespaces(&sandbox, &state, &disk, ids)?;
            empty_tmp(config)?;
        }
        (RuntimeKind::TwoUid, Some(ids)) => {
            let files = make_dir(sandbox.as_fd(), "files")?;
            give_tree(&state, ids.first)?;
            give_tree(&files, ids.workload())?;
            fchmod(&files, Mode::from_raw_mode(0o700)).step("closing the files to others")?;
        }
        (RuntimeKind::Namespace | RuntimeKind::TwoUid, None) => {
            return Err(failure(
                "preparing directories",
                "no range of ids was given",
            ));
        }
        (RuntimeKind::Process, _) => drop(make_dir(sandbox.as_fd(), "files")?),
    }
    Ok(Dirs {
        sandbox,
        state,
        disk,
    })
}

/// Who else may pass through the sandbox's directory: without namespaces, the workload has to.
const fn way_through(runtime: RuntimeKind) -> u32 {
    match runtime {
        RuntimeKind::Namespace | RuntimeKind::Process => 0o700,
        RuntimeKind::TwoUid => 0o711,
    }
}

/// Gives a directory with all that is in it to somebody, unless it is theirs.
fn give_tree(dir: &OwnedFd, id: u32) -> Step<()> {
    if fstat(dir).step("looking at the owner")?.st_uid == id {
        return Ok(());
    }
    chown_tree(dir.as_fd(), id)
}

fn give_to_namespaces(
    sandbox: &OwnedFd,
    state: &OwnedFd,
    disk: &OwnedFd,
    ids: IdRange,
) -> Step<()> {
    for dir in [sandbox, disk] {
        fchown(dir, Some(uid(ids.first)), Some(gid(ids.first)))
            .step("giving the directory to the agent")?;
    }
    give_tree(state, ids.first)?;
    for part in ["upper", "work"] {
        let parent = make_dir(disk.as_fd(), part)?;
        fchown(&parent, Some(uid(ids.first)), Some(gid(ids.first)))
            .step("giving the disk to the agent")?;
        for layer in ["root", "usr"] {
            let layer = make_dir(parent.as_fd(), layer)?;
            let owner = fstat(&layer).step("looking at the disk")?.st_uid;
            if owner != ids.workload() && owner != rustix::process::geteuid().as_raw() {
                return Err(failure(
                    "giving the disk to the workload",
                    "it belongs to another range of ids",
                ));
            }
            fchown(&layer, Some(uid(ids.workload())), Some(gid(ids.workload())))
                .step("giving the disk to the workload")?;
            fchmod(&layer, Mode::from_raw_mode(0o755)).step("opening the disk")?;
        }
    }
    Ok(())
}

/// What an earlier generation left in `/tmp` goes; the rest of the disk is kept. Below is the
/// image's own, empty `/tmp`.
fn empty_tmp(config: &LaunchConfig) -> Step<()> {
    let tmp = quota::path_of_disk(config).join("upper/root/tmp");
    remove_tree(&tmp).step("emptying /tmp")
}

/// Shorthands for a change of owner.
fn uid(id: u32) -> Uid {
    Uid::from_raw(id)
}

fn gid(id: u32) -> Gid {
    Gid::from_raw(id)
}

/// Opens a directory below, made when missing.
pub(super) fn make_dir(parent: BorrowedFd<'_>, name: &str) -> Step<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(e) => return Err(e).step(&format!("making {name}/")),
    }
    open_dir(parent, name)
}

pub(super) fn open_dir(parent: BorrowedFd<'_>, name: &str) -> Step<OwnedFd> {
    openat(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .step(&format!("opening {name}/"))
}

/// Opens a file of the agent for writing, made when missing, with the directory's owner.
pub(super) fn open_file(dir: BorrowedFd<'_>, name: &str, flags: OFlags) -> Step<OwnedFd> {
    let step = format!("opening {name}");
    let file = openat(
        dir,
        name,
        flags | OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::from_raw_mode(0o600),
    )
    .step(&step)?;
    let owner = fstat(dir).step(&step)?;
    fchown(&file, Some(uid(owner.st_uid)), Some(gid(owner.st_gid))).step(&step)?;
    Ok(file)
}

/// Writes a small file anew. It is read by whoever comes after a crash, and only its last state
/// counts; a torn one is as good as none.
pub(super) fn write_small(dir: BorrowedFd<'_>, name: &str, text: &str) -> Step<()> {
    let file = open_file(dir, name, OFlags::TRUNC)?;
    rustix::io::write(&file, text.as_bytes()).step(&format!("writing {name}"))?;
    Ok(())
}

fn chown_tree(dir: BorrowedFd<'_>, id: u32) -> Step<()> {
    let step = "giving files to their user";
    for entry in Dir::read_from(dir).step(step)? {
        let entry = entry.step(step)?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).step(step)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let below = openat(
                dir,
                name,
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .step(step)?;
            chown_tree(below.as_fd(), id)?;
        } else {
            chownat(
                dir,
                name,
                Some(uid(id)),
                Some(gid(id)),
                AtFlags::SYMLINK_NOFOLLOW,
            )
            .step(step)?;
        }
    }
    fchown(dir, Some(uid(id)), Some(gid(id))).step(step)
}
