//! Where a launcher's child goes on as the keeper.
//!
//! It runs the right program already. Starting that once more would give it memory of its own, and
//! take a millisecond in which whoever asked for the sandbox waits: so it lets go of the launcher's
//! descriptors, names and environment instead. The next keeper of this runtime, after an upgrade, is
//! a program of its own.
#![expect(unsafe_code, reason = "closes the descriptors of a life before")]

use super::{
    handover::{Handover, KEEPER_TITLE},
    log, run,
};
use crate::sys;

/// Becomes the keeper with this state, for the rest of the process. What it names stays open, and the
/// standard streams; nothing else does.
pub(crate) fn begin(handover: Handover) -> ! {
    let kept: Vec<_> = handover.descriptors().collect();
    // SAFETY: this never returns to who owns the others, nor drops them.
    unsafe { sys::close_fds_but(&kept) };
    match name(&handover.sandbox).and_then(|()| run::run(handover)) {
        Ok(()) => sys::exit_now(0),
        Err(error) => {
            log(&format!("{error:#}"));
            sys::exit_now(1)
        }
    }
}

fn name(sandbox: &str) -> anyhow::Result<()> {
    sys::set_title(&[KEEPER_TITLE, sandbox])?;
    Ok(())
}
