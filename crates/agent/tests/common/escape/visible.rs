//! Attempts on the agent where its processes are in sight, by their ids on the host.

use std::{fs::File, io};

use libc::{EACCES, ENOENT, EPERM};

use super::{Attempt, attempt, c, done, mount, unmount};

/// One process of the agent, and each thread of it.
pub(super) fn agent(pid: i32) -> Vec<Attempt> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    let name = name.trim();
    let mut attempts = vec![
        attempt(
            &format!("signal {name}"),
            &[EPERM],
            call!(libc::SYS_kill, pid, libc::SIGKILL),
        ),
        attempt(
            &format!("signal {name} by a descriptor"),
            &[EPERM],
            signal_by_descriptor(pid),
        ),
        attempt(
            &format!("trace {name}"),
            &[EPERM],
            call!(libc::SYS_ptrace, libc::PTRACE_ATTACH, pid, 0, 0),
        ),
        attempt(
            &format!("seize {name}"),
            &[EPERM],
            call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, pid, 0, 0),
        ),
        attempt(
            &format!("take a descriptor of {name}"),
            &[EPERM],
            take_descriptor(pid),
        ),
        attempt(&format!("limit {name}"), &[EPERM], limit(pid)),
    ];
    for file in [
        "mem", "environ", "maps", "ns/mnt", "root/", "cwd/", "fd/0", "fd/3",
    ] {
        let opened = File::open(format!("/proc/{pid}/{file}")).map(drop);
        let what = format!("open {file} of {name}");
        attempts.push(attempt(&what, &[EACCES], opened));
    }
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let thread: i32 = thread
            .unwrap()
            .file_name()
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        attempts.push(attempt(
            &format!("signal a thread of {name}"),
            &[EPERM],
            call!(libc::SYS_tgkill, pid, thread, libc::SIGKILL),
        ));
        attempts.push(attempt(
            &format!("trace a thread of {name}"),
            &[EPERM],
            call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, thread, 0, 0),
        ));
    }
    attempts
}

fn descriptor_of(pid: i32) -> io::Result<i64> {
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    done(pidfd)?;
    Ok(pidfd)
}

fn signal_by_descriptor(pid: i32) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    call!(
        libc::SYS_pidfd_send_signal,
        descriptor_of(pid)?,
        libc::SIGKILL,
        none,
        0
    )
}

fn take_descriptor(pid: i32) -> io::Result<()> {
    call!(libc::SYS_pidfd_getfd, descriptor_of(pid)?, 0, 0)
}

/// Sets the limit that is there, so that getting through does no harm.
fn limit(pid: i32) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let none = std::ptr::null_mut::<libc::rlimit>();
    let resource = libc::RLIMIT_NOFILE;
    call!(libc::SYS_prlimit64, pid, resource, none, &raw mut limit)?;
    call!(libc::SYS_prlimit64, pid, resource, &raw const limit, none)
}

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
