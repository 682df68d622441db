//! Attempts on the mounts of the sandbox, which are the agent's.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::fd::{FromRawFd, OwnedFd},
};

use libc::{EACCES, EINVAL, ENODEV, ENOENT, EPERM};

use super::{Attempt, attempt, c, done};

/// Mounts of the sandbox, which are the agent's.
pub(super) fn mounts() -> Vec<Attempt> {
    let rebind = libc::MS_REMOUNT | libc::MS_BIND;
    let name = c("elsewhere");
    let slash = c("/");
    vec![
        attempt(
            "mount a file system",
            &[EPERM],
            mount("none", "/mnt", "tmpfs", 0),
        ),
        attempt(
            "bind a directory",
            &[EPERM],
            mount("/etc", "/mnt", "", libc::MS_BIND),
        ),
        attempt("uncover /proc/sys", &[EPERM], unmount("/proc/sys")),
        attempt("uncover /proc", &[EPERM], unmount("/proc")),
        attempt(
            "open /proc/sys to writers",
            &[EPERM],
            mount("", "/proc/sys", "", rebind),
        ),
        attempt(
            "change the flags of /",
            &[EPERM],
            mount("", "/", "", rebind),
        ),
        attempt(
            "change the root",
            &[EPERM],
            call!(libc::SYS_pivot_root, slash.as_ptr(), slash.as_ptr()),
        ),
        attempt(
            "name the host",
            &[EPERM],
            call!(libc::SYS_sethostname, name.as_ptr(), 9),
        ),
    ]
}

/// Root of a user namespace inside has mounts of its own, and no more power over ours.
pub(super) fn own_namespaces() -> Vec<Attempt> {
    let kinds = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP;
    let rebind = libc::MS_REMOUNT | libc::MS_BIND;
    let tried = in_child(kinds, || {
        vec![
            unmount("/proc/sys"),
            unmount("/proc"),
            mount("", "/proc/sys", "", rebind),
            mount("none", "/mnt", "tmpfs", 0).and_then(|()| {
                // It stands, but only in there.
                Err(io::Error::from_raw_os_error(ENODEV))
            }),
            change_groups(),
        ]
    });
    let names = [
        ("uncover /proc/sys in a namespace of its own", vec![EINVAL]),
        ("uncover /proc in a namespace of its own", vec![EINVAL]),
        ("open /proc/sys to writers there", vec![EPERM]),
        ("mount where others see it", vec![ENODEV]),
        (
            "change the limits of the control group",
            vec![EACCES, EPERM, ENOENT],
        ),
    ];
    let mut attempts: Vec<Attempt> = names
        .into_iter()
        .zip(tried)
        .map(|((what, refused), outcome)| attempt(what, &refused, outcome))
        .collect();
    assert_eq!(attempts.len(), 5, "no namespaces inside");
    let seen = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let seen = seen.lines().any(|line| line.contains(" /mnt "));
    let outcome = if seen {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(ENOENT))
    };
    attempts.push(attempt("find that mount outside", &[ENOENT], outcome));
    attempts
}

fn change_groups() -> io::Result<()> {
    mount("none", "/mnt", "cgroup2", 0)?;
    for file in ["cgroup.procs", "cgroup.freeze", "cgroup.kill"] {
        let mut opened = OpenOptions::new()
            .write(true)
            .open(format!("/mnt/{file}"))?;
        opened.write_all(b"0")?;
    }
    Ok(())
}

/// Runs this in a child in new namespaces, and reads back how each part went.
fn in_child(kinds: i32, run: impl FnOnce() -> Vec<io::Result<()>>) -> Vec<io::Result<()>> {
    let mut ends = [0; 2];
    done(unsafe { libc::pipe(ends.as_mut_ptr()) }.into()).unwrap();
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcomes = match call!(libc::SYS_unshare, kinds) {
            Ok(()) => run(),
            Err(e) => vec![Err(e)],
        };
        let mut writer = unsafe { File::from_raw_fd(ends[1]) };
        for outcome in outcomes {
            let errno = outcome.err().map_or(0, |e| e.raw_os_error().unwrap_or(-1));
            writer.write_all(&errno.to_le_bytes()).unwrap();
        }
        drop(writer);
        unsafe { libc::_exit(0) };
    }
    drop(unsafe { OwnedFd::from_raw_fd(ends[1]) });
    let mut bytes = Vec::new();
    let mut reader = unsafe { File::from_raw_fd(ends[0]) };
    reader.read_to_end(&mut bytes).unwrap();
    done(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }.into()).unwrap();
    bytes
        .chunks_exact(4)
        .map(
            |errno| match i32::from_le_bytes(errno.try_into().unwrap()) {
                0 => Ok(()),
                errno => Err(io::Error::from_raw_os_error(errno)),
            },
        )
        .collect()
}

pub(super) fn mount(source: &str, at: &str, kind: &str, flags: u64) -> io::Result<()> {
    let (source, at, kind) = (c(source), c(at), c(kind));
    let data = std::ptr::null::<u8>();
    call!(
        libc::SYS_mount,
        source.as_ptr(),
        at.as_ptr(),
        kind.as_ptr(),
        flags,
        data
    )
}

pub(super) fn unmount(at: &str) -> io::Result<()> {
    let at = c(at);
    call!(libc::SYS_umount2, at.as_ptr(), libc::MNT_DETACH)
}
