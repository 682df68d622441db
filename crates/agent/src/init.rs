//! `sbx-init`: PID 1 of the workload's pid namespace.
//!
//! It begins in the directory that is to be its root, with the host's around it, and moves in. It
//! keeps the agent's credentials, so that root of the workload can neither signal nor trace
//! it, holds no descriptor, and does one thing: reap orphans.
#![expect(unsafe_code, reason = "closes every descriptor")]

use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::{launch::enter_root, sys};

/// `argv[0]` of the workload's PID 1.
pub const INIT_TITLE: &str = "sbx-init";

/// Reaps for ever.
pub fn main() -> anyhow::Result<()> {
    sys::set_comm(c"sbx-init")?;
    sys::hide_memory()?;
    // A signal is noticed in the wait below, and by nothing else.
    sys::block_signals()?;
    if let Err(failure) = enter_root() {
        // The launcher listens at the other end of the standard input.
        let message = minicbor::to_vec(&failure)?;
        rustix::io::write(rustix::stdio::stdin(), &message)?;
        return Err(failure.into());
    }
    // SAFETY: no value that owns a descriptor lives here, and none is made below.
    unsafe { sys::close_all_fds() };
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => sys::wait_for_child_signal(), // No child now.
        }
    }
}
