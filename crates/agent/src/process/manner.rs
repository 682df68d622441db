//! How attempts of one sandbox are started, as its tier has it.

use outlive_api::launch::{LaunchConfig, RuntimeKind};

use super::fence::Fence;
use crate::log;

/// See the module.
#[derive(Debug)]
pub(crate) struct Manner {
    /// What is put around each.
    pub(super) fence: Option<Fence>,
    /// The workload's 0, as this process counts.
    pub(super) root: u32,
    /// What becomes of the agent's supplementary groups.
    pub(super) groups: Groups,
    /// What becomes of the agent's capabilities.
    pub(super) powers: Powers,
}

/// See [`Manner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Powers {
    /// They are what the kernel leaves after the change of user or namespace.
    Kept,
    /// They go: between two ordinary users the kernel would leave them all.
    Dropped,
}

/// See [`Manner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Groups {
    /// They make way for those of the user.
    Replaced,
    /// They stay: in a user namespace with one id the kernel lets nobody give them up. They are of
    /// ids that it has not, so nobody sees which.
    Kept,
}

impl Manner {
    /// Of sandboxes that were launched so.
    pub(crate) fn of(config: &LaunchConfig) -> Self {
        let plain = Self {
            fence: None,
            root: 0,
            groups: Groups::Replaced,
            powers: Powers::Kept,
        };
        match (config.runtime, config.ids) {
            (RuntimeKind::Namespace, Some(ids)) => Self {
                root: ids.workload_offset(),
                groups: match ids.of_namespace {
                    Some(1) => Groups::Kept,
                    Some(_) | None => Groups::Replaced,
                },
                ..plain
            },
            (RuntimeKind::Namespace, None) => plain,
            (RuntimeKind::TwoUid, _) => Self {
                powers: Powers::Dropped,
                ..plain
            },
            // A kernel without it was told of at the launch.
            (RuntimeKind::Process, _) => Self {
                fence: Fence::make()
                    .inspect_err(|error| log::warn(format_args!("no fence: {error}")))
                    .ok(),
                ..plain
            },
        }
    }
}
