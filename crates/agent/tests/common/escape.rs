//! Attempts to break out, made from inside as root of the workload. Each must be refused, with
//! one of the errors named beside it; the program prints what came instead, and fails.
#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "raw system calls, each with arguments that the kernel may refuse at leisure"
)]

use std::{
    ffi::CString,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::ExitCode,
    time::Duration,
};

use libc::{
    EACCES, ECONNREFUSED, EINVAL, ENETUNREACH, ENODEV, ENOENT, ENOTDIR, EPERM, EROFS, ESRCH,
};

/// The word that makes a test's program make attempts instead of telling stories.
pub const WORD: &str = "escape";

/// The attempts that the arguments name.
pub fn find() -> Option<fn() -> ExitCode> {
    let mut arguments = std::env::args().skip(1);
    (arguments.next()? == WORD).then_some(main as fn() -> ExitCode)
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
    attempts.extend(calls());
    attempts.extend(foreign_calls());
    match arguments.next().as_deref() {
        Some("nested") => {
            attempts.extend(agent());
            attempts.extend(mounts());
            attempts.extend(own_namespaces());
            attempts.extend(devices());
            attempts.extend(kernel_files());
            attempts.extend(network());
        }
        // The host's own mounts and devices are no place for attempts.
        Some("none") => {}
        Some("two-uid") => attempts.extend(visible::without_power()),
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

// After the macro, which it uses.
mod visible;

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
        Some(("agent", pid)) => visible::agent(pid.parse().unwrap()),
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

/// The agent: its PID 1 is the only process of it that can be named from here.
fn agent() -> Vec<Attempt> {
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
    let mut attempts = vec![
        attempt("signal the init", &[EPERM], call!(libc::SYS_kill, 1, 9)),
        attempt(
            "trace the init",
            &[EPERM],
            call!(libc::SYS_ptrace, libc::PTRACE_ATTACH, 1, 0, 0),
        ),
        attempt(
            "seize the init",
            &[EPERM],
            call!(libc::SYS_ptrace, libc::PTRACE_SEIZE, 1, 0, 0),
        ),
        attempt(
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
        ),
        attempt("take a descriptor of the init", &[EPERM], take_descriptor()),
        attempt("limit the init", &[EPERM], limit_init()),
    ];
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

fn take_descriptor() -> io::Result<()> {
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, 1, 0) };
    done(pidfd)?;
    call!(libc::SYS_pidfd_getfd, pidfd, 0, 0)
}

fn limit_init() -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let none = std::ptr::null_mut::<libc::rlimit>();
    call!(
        libc::SYS_prlimit64,
        1,
        libc::RLIMIT_NOFILE,
        &raw const limit,
        none
    )
}

/// Refused whatever the arguments are.
fn calls() -> Vec<Attempt> {
    let denied = [
        ("add_key", libc::SYS_add_key),
        ("request_key", libc::SYS_request_key),
        ("keyctl", libc::SYS_keyctl),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("kexec_load", libc::SYS_kexec_load),
        ("kexec_file_load", libc::SYS_kexec_file_load),
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("open_by_handle_at", libc::SYS_open_by_handle_at),
        ("reboot", libc::SYS_reboot),
        ("swapon", libc::SYS_swapon),
        ("swapoff", libc::SYS_swapoff),
        ("settimeofday", libc::SYS_settimeofday),
        ("clock_settime", libc::SYS_clock_settime),
        ("adjtimex", libc::SYS_adjtimex),
        ("clock_adjtime", libc::SYS_clock_adjtime),
        #[cfg(target_arch = "x86_64")]
        ("iopl", libc::SYS_iopl),
        #[cfg(target_arch = "x86_64")]
        ("ioperm", libc::SYS_ioperm),
        ("acct", libc::SYS_acct),
        ("quotactl", libc::SYS_quotactl),
        ("quotactl_fd", libc::SYS_quotactl_fd),
        ("syslog", libc::SYS_syslog),
        ("lookup_dcookie", libc::SYS_lookup_dcookie),
        ("fanotify_init", libc::SYS_fanotify_init),
        ("io_uring_setup", libc::SYS_io_uring_setup),
    ];
    denied
        .iter()
        .map(|(name, number)| attempt(name, &[EPERM], call!(*number, 0, 0, 0, 0, 0)))
        .collect()
}

/// Tables of the same calls under other numbers.
#[cfg(target_arch = "x86_64")]
fn foreign_calls() -> Vec<Attempt> {
    let mut result: i64 = 88; // reboot, of 32-bit programs
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") result,
            in("rcx") 0_u64,
            in("rdx") 0_u64,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    let errno = i32::try_from(-result).unwrap();
    let legacy = if errno > 0 {
        Err(io::Error::from_raw_os_error(errno))
    } else {
        Ok(())
    };
    let x32 = 0x4000_0000 | libc::SYS_reboot;
    vec![
        attempt("reboot as a 32-bit program", &[EPERM], legacy),
        attempt("reboot as an x32 program", &[EPERM], call!(x32, 0, 0, 0, 0)),
    ]
}

#[cfg(not(target_arch = "x86_64"))]
fn foreign_calls() -> Vec<Attempt> {
    Vec::new()
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn mount(source: &str, at: &str, kind: &str, flags: u64) -> io::Result<()> {
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

fn unmount(at: &str) -> io::Result<()> {
    let at = c(at);
    call!(libc::SYS_umount2, at.as_ptr(), libc::MNT_DETACH)
}

/// Mounts of the sandbox, which are the agent's.
fn mounts() -> Vec<Attempt> {
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
fn own_namespaces() -> Vec<Attempt> {
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

/// Devices of the machine, by a name that is there and by one that is made.
fn devices() -> Vec<Attempt> {
    let disk = libc::makedev(254, 0);
    let memory = libc::makedev(1, 1);
    let make = |path: &str, kind: u32, device: u64| {
        let path = c(path);
        call!(libc::SYS_mknod, path.as_ptr(), kind | 0o666, device)
    };
    let mut attempts = vec![
        attempt(
            "make a disk",
            &[EPERM],
            make("/root/disk", libc::S_IFBLK, disk),
        ),
        attempt(
            "make a disk in /dev",
            &[EPERM],
            make("/dev/disk", libc::S_IFBLK, disk),
        ),
        attempt(
            "make the memory",
            &[EPERM],
            make("/dev/mem", libc::S_IFCHR, memory),
        ),
    ];
    for device in [
        "mem", "kmsg", "port", "vda", "sda", "nvme0n1", "kvm", "fuse", "loop0",
    ] {
        let opened = File::open(format!("/dev/{device}")).map(drop);
        attempts.push(attempt(&format!("open /dev/{device}"), &[ENOENT], opened));
    }
    attempts
}

/// What `/proc` and `/sys` would tell, or take.
fn kernel_files() -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for file in ["proc/kcore", "proc/keys", "proc/timer_list", "proc/kmsg"] {
        let path = format!("/{file}");
        let outcome = match std::fs::read(&path) {
            Ok(bytes) if bytes.is_empty() => Err(io::Error::from_raw_os_error(ENOENT)),
            other => other.map(drop),
        };
        attempts.push(attempt(&format!("read {path}"), &[ENOENT, EACCES], outcome));
    }
    for dir in ["proc/acpi", "proc/scsi", "sys/firmware"] {
        let path = format!("/{dir}");
        let outcome = std::fs::read_dir(&path).and_then(|mut entries| match entries.next() {
            Some(_) => Ok(()),
            None => Err(io::Error::from_raw_os_error(ENOENT)),
        });
        attempts.push(attempt(&format!("look into {path}"), &[ENOENT], outcome));
    }
    for file in [
        "proc/sysrq-trigger",
        "proc/sys/kernel/core_pattern",
        "proc/sys/kernel/hostname",
        "proc/sys/vm/overcommit_memory",
        "proc/irq/default_smp_affinity",
        "sys/kernel/mm/ksm/run",
        "sys/power/state",
    ] {
        let path = format!("/{file}");
        let opened = OpenOptions::new().write(true).open(&path).map(drop);
        attempts.push(attempt(
            &format!("write {path}"),
            &[EACCES, EROFS, ENOENT],
            opened,
        ));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let bounds = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let bounds = u64::from_str_radix(bounds.unwrap().trim(), 16).unwrap();
    // Modules, raw input and output, boot, the clock, the log, bpf.
    let bounds = [16, 17, 22, 25, 34, 39]
        .iter()
        .any(|bit| bounds & (1 << bit) != 0);
    let outcome = if bounds {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(EPERM))
    };
    attempts.push(attempt(
        "gain a capability over the machine",
        &[EPERM],
        outcome,
    ));
    attempts
}

/// The network namespace is the agent's.
fn network() -> Vec<Attempt> {
    let open =
        |family: i32, kind: i32, protocol: i32| call!(libc::SYS_socket, family, kind, protocol);
    vec![
        attempt(
            "open a raw socket",
            &[EPERM],
            open(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
        ),
        attempt(
            "listen to all packets",
            &[EPERM],
            open(libc::AF_PACKET, libc::SOCK_RAW, 0x0300),
        ),
        attempt("take the loopback device down", &[EPERM], loopback_down()),
        attempt(
            "let the network forward",
            &[EACCES, EPERM],
            OpenOptions::new()
                .write(true)
                .open("/proc/sys/net/ipv4/ip_forward")
                .map(drop),
        ),
    ]
}

fn loopback_down() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    call!(
        libc::SYS_ioctl,
        socket.as_raw_fd(),
        libc::SIOCSIFFLAGS,
        &raw const request
    )
}
