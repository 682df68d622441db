//! What takes powers over the host.

use std::fs::File;

use libc::{EACCES, ENOENT, EPERM};

use super::{
    Attempt, attempt, c, done,
    mounts::{mount, unmount},
};

/// What takes powers that an ordinary user of the host has not. Tried by nobody else: they would
/// do harm.
pub(super) fn without_power() -> Vec<Attempt> {
    let own = unsafe { libc::geteuid() };
    assert_ne!(own, 0, "the workload is root of the host");
    let name = c("elsewhere");
    let slash = c("/");
    let none = std::ptr::null::<libc::gid_t>();
    let make = |path: &str| {
        let path = c(path);
        let disk = libc::makedev(254, 0);
        call!(libc::SYS_mknod, path.as_ptr(), libc::S_IFBLK | 0o666, disk)
    };
    let ambient = |capability: i32| {
        let raise = libc::PR_CAP_AMBIENT_RAISE;
        call!(
            libc::SYS_prctl,
            libc::PR_CAP_AMBIENT,
            raise,
            capability,
            0,
            0
        )
    };
    let mut attempts = vec![
        attempt("become root", &[EPERM], call!(libc::SYS_setuid, 0)),
        attempt(
            "become the agent",
            &[EPERM],
            call!(libc::SYS_setuid, own - 1),
        ),
        attempt("join root's group", &[EPERM], call!(libc::SYS_setgid, 0)),
        attempt("drop groups", &[EPERM], call!(libc::SYS_setgroups, 0, none)),
        attempt(
            "mount a file system",
            &[EPERM],
            mount("none", "/mnt", "tmpfs", 0),
        ),
        attempt("unmount /proc", &[EPERM], unmount("/proc")),
        attempt(
            "change the root",
            &[EPERM],
            call!(libc::SYS_chroot, slash.as_ptr()),
        ),
        attempt(
            "name the host",
            &[EPERM],
            call!(libc::SYS_sethostname, name.as_ptr(), 9),
        ),
        attempt("make a disk", &[EPERM], make("/tmp/outlive-disk")),
        attempt(
            "open a raw socket",
            &[EPERM],
            call!(
                libc::SYS_socket,
                libc::AF_INET,
                libc::SOCK_RAW,
                libc::IPPROTO_ICMP
            ),
        ),
        // Of the agent's four, and one of root's.
        attempt("keep the power to kill", &[EPERM], ambient(5)),
        attempt("keep the power to become others", &[EPERM], ambient(7)),
        attempt("gain the power over files", &[EPERM], ambient(1)),
    ];
    for path in ["/etc/shadow", "/dev/mem", "/dev/vda"] {
        let opened = File::open(path).map(drop);
        let what = format!("open {path}");
        attempts.push(attempt(&what, &[EACCES, ENOENT, EPERM], opened));
    }
    attempts
}
