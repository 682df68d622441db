//! `sbx-init`: PID 1 of the workload's pid namespace.
//!
//! It keeps the agent's credentials, so that root of the workload can neither signal nor trace
//! it, holds no descriptor, and does one thing: reap orphans.
#![expect(unsafe_code, reason = "closes every descriptor")]

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::sys;

/// `argv[0]` of the workload's PID 1.
pub const INIT_TITLE: &str = "sbx-init";

/// Reaps for ever.
pub fn main() -> anyhow::Result<()> {
    sys::set_comm(c"sbx-init")?;
    sys::hide_memory()?;
    // A signal is noticed in the wait below, and by nothing else.
    sys::block_signals()?;
    // SAFETY: no value that owns a descriptor lives here, and none is made below.
    unsafe { sys::close_all_fds() };
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => sys::wait_for_child_signal(), // No child now.
        }
    }
}
