//! What is written and what is read.

use bytes::Bytes;

/// Kinds from here on belong to the journal itself; callers use those below.
pub const KIND_RESERVED: u8 = 0xF0;

/// Kind of a [`Record`] that stands for lost ones. Its `seq` is the last missing number.
pub const KIND_GAP: u8 = 0xFF;

/// A record as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number: never repeated, never lower than one before.
    pub seq: u64,
    /// When it was appended, nanoseconds since 1970; never lower than one before.
    pub at_nanos: i64,
    /// What it is, in the caller's numbering; [`KIND_GAP`] for a gap.
    pub kind: u8,
    /// Which stream it belongs to, in the caller's numbering.
    pub stream: u8,
    /// Number of the attempt it belongs to.
    pub attempt: u32,
    /// Number of the runtime that wrote it.
    pub generation: u64,
    /// Its bytes. Shares the buffer it was read into; copy it when it must live long.
    pub payload: Bytes,
}

/// A range of numbers whose records are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// First missing number.
    pub from: u64,
    /// Last missing number.
    pub to: u64,
}

impl Gap {
    /// As it stands in the payload of a gap frame.
    pub(crate) fn to_payload(self) -> [u8; 16] {
        let mut payload = [0; 16];
        let (from, to) = payload.split_at_mut(8);
        from.copy_from_slice(&self.from.to_le_bytes());
        to.copy_from_slice(&self.to.to_le_bytes());
        payload
    }
}

impl Record {
    /// A record that stands for lost ones.
    pub(crate) fn for_gap(gap: Gap, at_nanos: i64, attempt: u32, generation: u64) -> Self {
        Self {
            seq: gap.to,
            at_nanos,
            kind: KIND_GAP,
            stream: 0,
            attempt,
            generation,
            payload: Bytes::copy_from_slice(&gap.to_payload()),
        }
    }

    /// The lost range, when this record stands for one.
    pub fn gap(&self) -> Option<Gap> {
        if self.kind != KIND_GAP {
            return None;
        }
        let from = self
            .payload
            .first_chunk::<8>()
            .map_or(self.seq, |bytes| u64::from_le_bytes(*bytes));
        Some(Gap {
            from: from.min(self.seq),
            to: self.seq,
        })
    }
}

/// A record to append.
#[derive(Debug, Clone, Copy)]
pub struct NewRecord<'a> {
    /// What it is; below [`KIND_RESERVED`].
    pub kind: u8,
    /// Which stream it belongs to.
    pub stream: u8,
    /// Number of the attempt it belongs to.
    pub attempt: u32,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// When readers may see a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Class A: only once it is on disk. Nothing after it is published before it.
    BeforePublish,
    /// Class B: at once; it reaches the disk with the next group sync.
    WithGroup,
}
