//! When a sandbox falls asleep by itself, and what keeps it awake.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// When a sandbox falls asleep by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IdleRule {
    /// Frozen so many seconds after the last thing that counts; never when not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) freeze_after_seconds: Option<u64>,
    /// What counts.
    pub(crate) counts: BTreeSet<IdleKind>,
}

/// What may keep a sandbox awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IdleKind {
    /// A client follows a session, or waits for it.
    Attached,
    /// A session says something.
    Output,
    /// A client types, signals or changes a session.
    Input,
    /// A command that was started through us runs for its caller.
    Exec,
    /// An SSH connection is open.
    Ssh,
    /// Traffic of a service.
    Service,
    /// A file is read or written.
    Files,
    /// Any process of a session lives, quiet or not.
    Process,
    /// A client asked for it; see `holds`.
    Hold,
}

impl IdleKind {
    /// Every one of them.
    pub(crate) const ALL: [Self; 9] = [
        Self::Attached,
        Self::Output,
        Self::Input,
        Self::Exec,
        Self::Ssh,
        Self::Service,
        Self::Files,
        Self::Process,
        Self::Hold,
    ];

    /// The word for it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Output => "output",
            Self::Input => "input",
            Self::Exec => "exec",
            Self::Ssh => "ssh",
            Self::Service => "service",
            Self::Files => "files",
            Self::Process => "process",
            Self::Hold => "hold",
        }
    }
}

impl Default for IdleRule {
    /// Every dialect counts the same; a quiet process that nobody is attached to does not.
    fn default() -> Self {
        Self {
            freeze_after_seconds: None,
            counts: IdleKind::ALL
                .into_iter()
                .filter(|kind| *kind != IdleKind::Process)
                .collect(),
        }
    }
}

impl IdleRule {
    /// Whether a kind keeps the sandbox awake.
    pub(crate) fn counts(&self, kind: IdleKind) -> bool {
        self.counts.contains(&kind)
    }
}
