//! Attempts on what belongs to the machine: devices, the kernel's files, the network.

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::AsRawFd,
};

use libc::{EACCES, ENOENT, EPERM, EROFS};

use super::{Attempt, attempt, c, done};

/// Devices of the machine, by a name that is there and by one that is made.
pub(super) fn devices() -> Vec<Attempt> {
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
pub(super) fn kernel_files() -> Vec<Attempt> {
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
pub(super) fn network() -> Vec<Attempt> {
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
        attempt(
            "reach the hypervisor",
            &[EPERM],
            open(libc::AF_VSOCK, libc::SOCK_STREAM, 0),
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
