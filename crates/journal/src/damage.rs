//! What was found wrong when a journal was opened. It is a report, never a refusal.

use crate::{limits::DAMAGE_LISTED_MAX, record::Gap};

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// Records are gone; readers see a gap.
    Lost(Gap),
    /// Bytes inside a segment were no frame and were skipped.
    Skipped {
        /// The segment's file.
        file: String,
        /// How many.
        bytes: u64,
    },
    /// One of the two copies of a segment's header was bad; the other one served.
    HeaderCopy {
        /// The segment's file.
        file: String,
    },
    /// Both copies of a segment's header were bad; none of its records can be read.
    Unreadable {
        /// The segment's file.
        file: String,
    },
    /// A segment's file is not there.
    Missing {
        /// Its place in the order of files.
        ordinal: u64,
    },
    /// One of the two copies of a checkpoint was bad; the other one served.
    CheckpointCopy {
        /// The segment's file.
        file: String,
    },
    /// A segment has no checkpoint that holds; an older one served, with the records since.
    CheckpointOlder {
        /// The segment's file.
        file: String,
    },
    /// No checkpoint holds. The checkpoint handed out is empty.
    CheckpointLost,
    /// A batch was only partly written when its writer was killed. It was never published and is
    /// taken away.
    Torn {
        /// The segment's file.
        file: String,
        /// Bytes taken away.
        bytes: u64,
    },
    /// A frame was being filled when its writer was killed; it was completed from the size of
    /// the file. Nothing is lost.
    Completed {
        /// Its number.
        seq: u64,
        /// Bytes it holds.
        bytes: u64,
    },
    /// A frame was being filled when the machine went down; its bytes are dropped.
    Dropped {
        /// Bytes dropped.
        bytes: u64,
    },
}

/// All findings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DamageReport {
    /// The first of them.
    pub findings: Vec<Damage>,
    /// How many more there were.
    pub unlisted: u64,
}

impl DamageReport {
    /// Was nothing found.
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    /// Are records or state gone for good, rather than repaired.
    pub fn is_loss(&self) -> bool {
        self.findings.iter().any(|finding| match finding {
            Damage::Lost(_)
            | Damage::Unreadable { .. }
            | Damage::Missing { .. }
            | Damage::CheckpointLost
            | Damage::Skipped { .. } => true,
            Damage::HeaderCopy { .. }
            | Damage::CheckpointCopy { .. }
            | Damage::CheckpointOlder { .. }
            | Damage::Torn { .. }
            | Damage::Completed { .. }
            | Damage::Dropped { .. } => false,
        })
    }

    pub(crate) fn add(&mut self, finding: Damage) {
        if self.findings.len() < DAMAGE_LISTED_MAX {
            self.findings.push(finding);
        } else {
            self.unlisted += 1;
        }
    }
}
