//! Attempts to break out, made from inside as root of the workload. Each must be refused, with
//! one of the errors named beside it; the program prints what came instead, and fails.
#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "raw system calls, each with arguments that the kernel may refuse at leisure"
)]

use std::{
    ffi::CString,
    fs::File,
    io::{self},
    net::{SocketAddr, TcpStream},
    process::ExitCode,
    time::Duration,
};

use libc::{EACCES, ECONNREFUSED, EINVAL, ENETUNREACH, ENOENT, ENOTDIR, ESRCH};

/// The word that makes a test's program make attempts instead of telling stories.
pub const WORD: &str = "escape";

/// The attempts that the arguments name.
pub fn find() -> Option<fn() -> ExitCode> {
    match std::env::args().nth(1)?.as_str() {
        WORD => Some(main),
        hoard::WORD => Some(hoard::main),
        _ => None,
    }
}

/// What was tried, and with which errors it may be refused.
struct Attempt {
    what: String,
    refused: Vec<i32>,
    outcome: io::Result<()>,
}

fn attempt(what: &str, refused: &[i32], outcome: io::Result<()>) -> Attempt {
    Attempt {
        what: what.to_owned(),
        refused: refused.to_vec(),
        outcome,
    }
}

/// Arguments: the tier, then `pid=PID` of the host, `path=PATH` of the host, `port=ADDRESS` of a
/// service there; where the host is in sight, `agent=PID` and `journal=PATH`.
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(2);
    let mut attempts = vec![strays()];
    attempts.extend(calls::calls());
    attempts.extend(calls::foreign_calls());
    match arguments.next().as_deref() {
        Some("nested") => {
            attempts.extend(agent::hidden());
            attempts.extend(mounts::mounts());
            attempts.extend(mounts::own_namespaces());
            attempts.extend(machine::devices());
            attempts.extend(machine::kernel_files());
            attempts.extend(machine::network());
        }
        // The host's own mounts and devices are no place for attempts.
        Some("none") => {}
        Some("two-uid") => attempts.extend(power::without_power()),
        other => panic!("unknown tier {other:?}"),
    }
    for argument in arguments {
        attempts.extend(named(&argument));
    }
    let mut through = 0;
    for attempt in &attempts {
        let Attempt {
            what,
            refused,
            outcome,
        } = attempt;
        match outcome {
            Err(e) if e.raw_os_error().is_some_and(|e| refused.contains(&e)) => {}
            Err(e) => {
                through += 1;
                println!("{what}: refused otherwise: {e}");
            }
            Ok(()) => {
                through += 1;
                println!("{what}: GOT THROUGH");
            }
        }
    }
    println!("{} attempts, {through} got through", attempts.len());
    if through == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {
        done(unsafe { libc::syscall($number $(, $argument)*) })
    };
}

// After the macro, which they use.
mod agent;
mod calls;
pub mod hoard;
mod machine;
mod mounts;
mod power;

/// What needs a path or an id of the host.
fn named(argument: &str) -> Vec<Attempt> {
    match argument.split_once('=') {
        Some(("pid", pid)) => {
            let pid: i32 = pid.parse().unwrap();
            vec![
                attempt(
                    "kill a process of the host",
                    &[ESRCH],
                    call!(libc::SYS_kill, pid, 9),
                ),
                attempt(
                    "hold a process of the host",
                    &[ESRCH, EINVAL],
                    call!(libc::SYS_pidfd_open, pid, 0),
                ),
            ]
        }
        Some(("path", path)) => {
            let refused = [ENOENT, EACCES, ENOTDIR];
            vec![
                attempt(path, &refused, File::open(path).map(drop)),
                attempt(
                    &format!("{path} by the init's root"),
                    &refused,
                    File::open(format!("/proc/1/root{path}")).map(drop),
                ),
                attempt(
                    &format!("connect to {path}"),
                    &refused,
                    std::os::unix::net::UnixStream::connect(path).map(drop),
                ),
            ]
        }
        Some(("agent", pid)) => agent::visible(pid.parse().unwrap()),
        Some(("journal", path)) => {
            let opened = File::open(path).map(drop);
            vec![attempt("open the journal", &[EACCES], opened)]
        }
        Some(("port", address)) => {
            let address: SocketAddr = address.parse().unwrap();
            let connected = TcpStream::connect_timeout(&address, Duration::from_secs(2));
            // Dropped on the way: nobody answers, for as long as we care to wait.
            let connected = match connected {
                Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                    Err(io::Error::from_raw_os_error(ENETUNREACH))
                }
                other => other.map(drop),
            };
            vec![attempt(
                &format!("reach {address}"),
                &[ECONNREFUSED, ENETUNREACH, libc::EHOSTUNREACH],
                connected,
            )]
        }
        _ => panic!("unknown argument {argument}"),
    }
}

/// What the agent left open in us; asked first, before an attempt opens anything.
fn strays() -> Attempt {
    // The three streams, and the directory itself.
    let strays = std::fs::read_dir("/proc/self/fd").unwrap().count() - 4;
    let outcome = match strays {
        0 => Err(io::Error::from_raw_os_error(ENOENT)),
        _ => Ok(()),
    };
    attempt("find descriptors of the host", &[ENOENT], outcome)
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}
