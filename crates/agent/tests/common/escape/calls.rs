//! System calls that are refused whatever their arguments are.

use std::io;

use libc::EPERM;

use super::{Attempt, attempt, done};

/// Refused whatever the arguments are.
pub(super) fn calls() -> Vec<Attempt> {
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
pub(super) fn foreign_calls() -> Vec<Attempt> {
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
pub(super) fn foreign_calls() -> Vec<Attempt> {
    Vec::new()
}
