//! The supervisor of one sandbox.

use crate::inherit::Inheritance;

/// Serves until the runtime ends.
pub fn main() -> anyhow::Result<()> {
    let inherited = Inheritance::take()?;
    inherited.keeper.ready()?;
    rustix::event::pause();
    Ok(())
}
