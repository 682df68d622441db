//! System calls that no workload may make, in whatever tier: they answer `EPERM`.
//!
//! They are about the machine, or parts of the kernel where faults are found again and again and
//! that a sandbox can do without. So are sockets to the hypervisor and to other virtual machines
//! (`AF_VSOCK`): no network namespace has any of its own, and no rule of a network sees them. What
//! remains stays allowed on purpose: debuggers, package
//! managers and sandboxes inside need `ptrace`, `mount`, `unshare` and user namespaces.

/// The calls, by their numbers on this machine.
const DENIED: &[libc::c_long] = &[
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_open_by_handle_at,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_lookup_dcookie,
    libc::SYS_fanotify_init,
    libc::SYS_io_uring_setup,
];

/// The filter, ready for the kernel.
///
/// Written out by hand: a match of the architecture, then one comparison a call. Calls of
/// another architecture's table (32-bit programs) have other numbers and are all refused.
pub(super) fn denied_calls() -> Vec<libc::sock_filter> {
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    #[cfg(target_arch = "x86_64")]
    const JUMP_NOT_BELOW: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    const ARCH_AT: u32 = 4;
    const CALL_AT: u32 = 0;
    const FIRST_ARGUMENT_AT: u32 = 16; // Its lower half, on both of our architectures.
    #[cfg(target_arch = "x86_64")]
    const ARCH: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCH: u32 = 0xc000_00b7;
    let allow = libc::SECCOMP_RET_ALLOW;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();

    let instruction = |code, k, jt| libc::sock_filter { code, jt, jf: 0, k };
    let mut filter = vec![
        instruction(LOAD, ARCH_AT, 0),
        instruction(JUMP_EQUAL, ARCH, 1),
        instruction(RETURN, refuse, 0),
        instruction(LOAD, CALL_AT, 0),
    ];
    let number = |call: libc::c_long| u32::try_from(call).unwrap_or(u32::MAX);
    let tail = [
        instruction(JUMP_EQUAL, number(libc::SYS_socket), 1),
        instruction(RETURN, allow, 0),
        instruction(LOAD, FIRST_ARGUMENT_AT, 0),
        instruction(JUMP_EQUAL, libc::AF_VSOCK.cast_unsigned(), 1),
        instruction(RETURN, allow, 0),
        instruction(RETURN, refuse, 0),
    ];
    // How far the refusal at the end is from behind the list's entry that has so many after it.
    let to_end = |after: usize| u8::try_from(after + tail.len() - 1).unwrap_or(u8::MAX);
    // x86-64 has a second table of the same calls (x32), marked by this bit.
    #[cfg(target_arch = "x86_64")]
    filter.push(instruction(
        JUMP_NOT_BELOW,
        0x4000_0000,
        to_end(DENIED.len()),
    ));
    for (index, call) in DENIED.iter().enumerate() {
        let after = DENIED.len() - index - 1;
        filter.push(instruction(JUMP_EQUAL, number(*call), to_end(after)));
    }
    filter.extend(tail);
    filter
}
