//! Attempts on the agent's processes: hidden behind their init, or in sight.

use std::{fs::File, io};

use libc::{EACCES, EPERM};

use super::{Attempt, attempt, done};

/// The agent: its PID 1 is the only process of it that can be named from here.
pub(super) fn hidden() -> Vec<Attempt> {
    let mut word = [0_u8; 8];
    let here = libc::iovec {
        iov_base: word.as_mut_ptr().cast(),
        iov_len: 8,
    };
    let there = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(0x40_0000),
        iov_len: 8,
    };
    let vectors = (&raw const here, &raw const there);
    let closed = [EACCES, EPERM];
    let mut attempts = on_process(1, "the init");
    attempts.push(attempt(
        "read the init's memory by a call",
        &[EPERM],
        call!(
            libc::SYS_process_vm_readv,
            1,
            vectors.0,
            1,
            vectors.1,
            1,
            0_u64
        ),
    ));
    for file in [
        "mem",
        "environ",
        "maps",
        "ns/mnt",
        "ns/net",
        "ns/user",
        "map_files",
    ] {
        let opened = File::open(format!("/proc/1/{file}")).map(drop);
        attempts.push(attempt(&format!("open /proc/1/{file}"), &closed, opened));
    }
    for dir in ["root", "cwd", "fd"] {
        let listed = std::fs::read_dir(format!("/proc/1/{dir}/")).map(drop);
        attempts.push(attempt(&format!("list /proc/1/{dir}"), &closed, listed));
    }
    attempts
}

/// Where its processes are in sight, by their ids on the host: one of them, and each thread of it.
pub(super) fn visible(pid: i32) -> Vec<Attempt> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    let name = name.trim();
    let mut attempts = on_process(pid, name);
    attempts.push(attempt(
        &format!("signal {name} by a descriptor"),
        &[EPERM],
        signal_by_descriptor(pid),
    ));
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

/// Whatever the process is.
fn on_process(pid: i32, name: &str) -> Vec<Attempt> {
    vec![
        attempt(
            &format!("signal {name}"),
            &[EPERM],
            call!(libc::SYS_kill, pid, libc::SIGKILL),
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
    ]
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
