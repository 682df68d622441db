//! Arguments of `sandbox snapshot`.

use clap::{Args, Subcommand};

use super::sandbox::OneSandbox;

/// One snapshot.
#[derive(Debug, Args)]
pub struct OneSnapshot {
    /// The snapshot's id or name.
    #[arg(value_name = "SNAPSHOT")]
    pub snapshot: String,
}

/// The commands of `sandbox snapshot`.
#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Keep the files that a sandbox has now; it is neither woken nor changed.
    ///
    /// Its processes stand still while the files are copied, so that they are those of one
    /// instant. `outlive sandbox create --snapshot-id` makes sandboxes from it, also when this
    /// one is gone.
    #[command(
        after_help = "Example:\n  outlive sandbox snapshot create sbx-0a1b2c3d-4e5 --name before-upgrade"
    )]
    Create {
        /// Which.
        #[command(flatten)]
        target: OneSandbox,
        /// A name that none of your snapshots has.
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// What it is for.
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// When it is deleted, as in 2030-01-31T12:00:00Z.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// List the snapshots of a sandbox, or all.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  outlive sandbox snapshot list\n  \
                      outlive sandbox snapshot list sbx-0a1b2c3d-4e5"
    )]
    List {
        /// Only those of this sandbox.
        #[arg(value_name = "SANDBOX")]
        sandbox: Option<String>,
    },
    /// Show a snapshot.
    #[command(after_help = "Example:\n  outlive sandbox snapshot get before-upgrade")]
    Get(OneSnapshot),
    /// Put a sandbox's files back to those of a snapshot.
    ///
    /// A sandbox that runs is ended for it and started again: its sessions recover by their own
    /// policy, and keep their events. One that sleeps or is paused is paused afterwards.
    #[command(
        after_help = "Example:\n  outlive sandbox snapshot restore sbx-0a1b2c3d-4e5 before-upgrade"
    )]
    Restore {
        /// Whose files.
        #[command(flatten)]
        target: OneSandbox,
        /// What they are put back to.
        #[command(flatten)]
        snapshot: OneSnapshot,
    },
    /// Delete a snapshot; sandboxes that were made from it stay.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  outlive sandbox snapshot delete before-upgrade"
    )]
    Delete(OneSnapshot),
}
