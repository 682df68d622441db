//! Attempts on the agent where its processes are in sight, by their ids on the host.

use std::{fs::File, io};

use libc::{EACCES, EPERM};

use super::{Attempt, attempt, done};

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
