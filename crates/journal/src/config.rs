//! What a journal is told when it is opened.

use std::time::Duration;

use crate::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_PARTS};

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Most logical bytes; the newest record stays even when it alone is larger.
    pub bytes_max: u64,
    /// Greatest age.
    pub age_max: Duration,
}

impl Retention {
    /// Size at which a segment file is sealed.
    pub fn segment_bytes_target(&self) -> u64 {
        (self.bytes_max / SEGMENT_PARTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
    }

    pub(crate) fn age_nanos(&self) -> i64 {
        i64::try_from(self.age_max.as_nanos()).unwrap_or(i64::MAX)
    }
}

/// What a journal is told when it is opened.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How much is kept.
    pub retention: Retention,
    /// Number of the runtime that appends from now on. A new one begins a new segment.
    pub generation: u64,
    /// Identity of this boot of the machine (`/proc/sys/kernel/random/boot_id`). While it is the
    /// same, what was written is still in the page cache, synced or not.
    pub boot_id: [u8; 16],
    /// Size of a record for retention, from its kind and the length of its payload.
    pub logical_len: fn(kind: u8, payload_len: u32) -> u64,
}
