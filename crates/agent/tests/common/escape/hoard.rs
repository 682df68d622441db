//! Takes as much as it gets of what the kernel has for everybody, and keeps it.

use std::{
    fs::File,
    io,
    os::fd::{FromRawFd, OwnedFd},
    process::ExitCode,
};

use super::done;

/// The word that makes a test's program hoard.
pub const WORD: &str = "hoard";

/// Argument: of what. Says how much it was and why no more, and keeps it until it is killed.
pub(super) fn main() -> ExitCode {
    let take: fn() -> io::Result<OwnedFd> = match std::env::args().nth(2).as_deref() {
        Some("terminals") => || {
            let options = File::options().read(true).write(true).open("/dev/ptmx");
            options.map(OwnedFd::from)
        },
        Some("inotify") => || descriptor(unsafe { libc::inotify_init1(libc::O_CLOEXEC) }),
        Some("namespaces") => namespace,
        other => panic!("unknown hoard {other:?}"),
    };
    let limit = libc::rlimit {
        rlim_cur: 4096,
        rlim_max: 4096,
    };
    done(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }.into()).unwrap();
    let mut hoard = Vec::new();
    let error = loop {
        match take() {
            Ok(taken) => hoard.push(taken),
            Err(e) => break e.raw_os_error().unwrap(),
        }
    };
    println!("{} {error}", hoard.len());
    unsafe { libc::pause() };
    drop(hoard);
    ExitCode::SUCCESS
}

/// A user namespace, which lasts for as long as somebody has it open.
fn namespace() -> io::Result<OwnedFd> {
    let kinds = libc::CLONE_NEWUSER | libc::SIGCHLD;
    let child = unsafe { libc::syscall(libc::SYS_clone, kinds, 0, 0, 0, 0) };
    if child == 0 {
        unsafe { libc::pause() };
    }
    done(child)?;
    let opened = File::open(format!("/proc/{child}/ns/user")).map(OwnedFd::from);
    let child = i32::try_from(child).unwrap();
    done(unsafe { libc::kill(child, libc::SIGKILL) }.into())?;
    done(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }.into())?;
    opened
}

fn descriptor(fd: i32) -> io::Result<OwnedFd> {
    done(fd.into())?;
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
