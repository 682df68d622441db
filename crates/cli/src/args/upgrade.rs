//! Arguments of `upgrade`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `upgrade`.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// The new `outlive-agent`, on the server's machine [default: the server's own].
    #[arg(long, value_name = "PATH")]
    pub agent: Option<PathBuf>,
    /// Every running sandbox, of every owner.
    #[arg(long, conflicts_with = "sandboxes")]
    pub all: bool,
    /// These sandboxes.
    #[arg(value_name = "SANDBOX", required_unless_present = "all")]
    pub sandboxes: Vec<String>,
}
