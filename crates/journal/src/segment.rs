//! One segment file: its name, its header, the slots that change in place.
//!
//! ```text
//! 0      128    256    288        320                 320 + 32·slots
//! ├──────┼──────┼──────┼──────────┼───────────────────┼───────────┬───────────┬────────
//!  header copy   head   resume     sparse index        checkpoint  its copy    frames …
//! ```
//!
//! The slots are 32 bytes at multiples of 32, each with its own check value, and are written in
//! place. They are hints: a slot that does not hold is as good as one that was never written.

use std::io;

use crate::{
    bytes_at::{i64_at, put, u16_at, u32_at, u64_at},
    limits::{INDEX_SLOTS_MAX, INDEX_SPACING_BYTES, SEGMENT_BYTES_MAX},
    storage::DataFile,
};

/// Version of the format that this build writes. It reads all versions up to this one.
pub const FORMAT_VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"OUTLIVEJ";
const HEADER_BYTES: usize = 128;
const COPY_AT: usize = 128;
const HEAD_AT: u64 = 256;
const RESUME_AT: u64 = 288;
const INDEX_AT: u64 = 320;
const SLOT_BYTES: u64 = 32;

/// Name of a segment: its place in the order of files and its first number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentName {
    pub(crate) ordinal: u64,
    pub(crate) first_seq: u64,
}

impl SegmentName {
    pub(crate) fn file_name(self) -> String {
        format!("{:012}-{:020}.seg", self.ordinal, self.first_seq)
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (ordinal, first_seq) = name.strip_suffix(".seg")?.split_once('-')?;
        let digits = |text: &str, count: usize| {
            (text.len() == count && text.bytes().all(|b| b.is_ascii_digit()))
                .then(|| text.parse::<u64>().ok())
                .flatten()
        };
        Some(Self {
            ordinal: digits(ordinal, 12)?,
            first_seq: digits(first_seq, 20)?,
        })
    }

    /// The segments among `names`, in order.
    pub(crate) fn sorted(names: &[String]) -> Vec<Self> {
        let mut segments: Vec<_> = names.iter().filter_map(|name| Self::parse(name)).collect();
        segments.sort_unstable();
        segments
    }
}

/// The facts that hold for a whole segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) ordinal: u64,
    pub(crate) first_seq: u64,
    pub(crate) generation: u64,
    pub(crate) created_at: i64,
    pub(crate) boot_id: [u8; 16],
    pub(crate) lease: u64,
    /// Logical bytes of all records before this segment.
    pub(crate) cum: u64,
    /// Where retention stood when the segment began.
    pub(crate) head: HeadSlot,
    pub(crate) salt: u32,
    pub(crate) index_slots: u16,
}

/// Whether both copies of a header could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    Both,
    One,
}

impl SegmentHeader {
    /// Number of index slots for a segment of this target.
    pub(crate) fn index_slots_for(segment_bytes_target: u64) -> u16 {
        let slots = segment_bytes_target.min(SEGMENT_BYTES_MAX) / INDEX_SPACING_BYTES;
        u16::try_from(slots.saturating_sub(1))
            .unwrap_or(INDEX_SLOTS_MAX)
            .min(INDEX_SLOTS_MAX)
    }

    /// Offset of the first frame.
    pub(crate) fn data_at(&self) -> u64 {
        INDEX_AT + SLOT_BYTES * u64::from(self.index_slots)
    }

    /// Everything before the first frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.data_at()).unwrap_or(0)];
        let header = self.encode_one();
        put(&mut bytes, 0, &header);
        put(&mut bytes, COPY_AT, &header);
        bytes
    }

    fn encode_one(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        put(&mut b, 0, &MAGIC);
        put(&mut b, 8, &FORMAT_VERSION.to_le_bytes());
        put(&mut b, 10, &self.index_slots.to_le_bytes());
        put(&mut b, 12, &self.salt.to_le_bytes());
        put(&mut b, 16, &self.ordinal.to_le_bytes());
        put(&mut b, 24, &self.first_seq.to_le_bytes());
        put(&mut b, 32, &self.generation.to_le_bytes());
        put(&mut b, 40, &self.created_at.to_le_bytes());
        put(&mut b, 48, &self.boot_id);
        put(&mut b, 64, &self.lease.to_le_bytes());
        put(&mut b, 72, &self.cum.to_le_bytes());
        put(&mut b, 80, &self.head.seq.to_le_bytes());
        put(&mut b, 88, &self.head.cum.to_le_bytes());
        let crc = crc32c::crc32c(b.get(..124).unwrap_or_default());
        put(&mut b, 124, &crc.to_le_bytes());
        b
    }

    fn decode_one(b: &[u8]) -> Option<Self> {
        if b.get(..8)? != MAGIC || u32_at(b, 124)? != crc32c::crc32c(b.get(..124)?) {
            return None;
        }
        let version = u16_at(b, 8)?;
        if version == 0 || version > FORMAT_VERSION {
            return None;
        }
        let index_slots = u16_at(b, 10)?;
        Some(Self {
            salt: u32_at(b, 12)?,
            ordinal: u64_at(b, 16)?,
            first_seq: u64_at(b, 24)?,
            generation: u64_at(b, 32)?,
            created_at: i64_at(b, 40)?,
            boot_id: *b.get(48..)?.first_chunk::<16>()?,
            lease: u64_at(b, 64)?,
            cum: u64_at(b, 72)?,
            head: HeadSlot {
                seq: u64_at(b, 80)?,
                cum: u64_at(b, 88)?,
            },
            index_slots: (index_slots <= INDEX_SLOTS_MAX).then_some(index_slots)?,
        })
    }

    /// Reads a header; `None` when neither copy holds.
    pub(crate) fn read(file: &dyn DataFile) -> io::Result<Option<(Self, Copies)>> {
        let mut bytes = [0; COPY_AT + HEADER_BYTES];
        let count = file.read_at(&mut bytes, 0)?;
        let bytes = bytes.get(..count).unwrap_or_default();
        let first = bytes.get(..HEADER_BYTES).and_then(Self::decode_one);
        let second = bytes.get(COPY_AT..).and_then(Self::decode_one);
        Ok(match (first, second) {
            (Some(header), Some(copy)) if header == copy => Some((header, Copies::Both)),
            (Some(header), _) | (None, Some(header)) => Some((header, Copies::One)),
            (None, None) => None,
        })
    }
}

/// Where retention stands: the first record that is kept, and the logical bytes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadSlot {
    pub(crate) seq: u64,
    pub(crate) cum: u64,
}

impl HeadSlot {
    /// Reads the slot, or what the header says when there is none.
    pub(crate) fn read(file: &dyn DataFile, header: &SegmentHeader) -> io::Result<Self> {
        let slot = read_slot(file, HEAD_AT, header.salt)?;
        Ok(slot.map_or(header.head, |(seq, cum, _)| Self { seq, cum }))
    }

    pub(crate) fn write(self, file: &dyn DataFile, header: &SegmentHeader) -> io::Result<()> {
        file.write_all_at(
            &encode_slot(header.salt, self.seq, self.cum, 0),
            &[],
            HEAD_AT,
        )
    }
}

/// Where reading may begin instead of at the segment's beginning: a lease and a checkpoint stand
/// at `offset`, behind record `seq` and so many logical bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResumeSlot {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    pub(crate) cum: u64,
}

impl ResumeSlot {
    pub(crate) fn read(file: &dyn DataFile, header: &SegmentHeader) -> io::Result<Option<Self>> {
        let slot = read_slot(file, RESUME_AT, header.salt)?;
        Ok(slot.map(|(seq, cum, offset)| Self { seq, offset, cum }))
    }

    pub(crate) fn write(self, file: &dyn DataFile, header: &SegmentHeader) -> io::Result<()> {
        let bytes = encode_slot(header.salt, self.seq, self.cum, self.offset);
        file.write_all_at(&bytes, &[], RESUME_AT)
    }
}

/// An entry of the sparse index: a frame and the logical bytes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexSlot {
    pub(crate) seq: u64,
    pub(crate) offset: u64,
    pub(crate) cum: u64,
}

impl IndexSlot {
    /// Where slot `number` stands.
    pub(crate) fn write(
        self,
        file: &dyn DataFile,
        header: &SegmentHeader,
        number: u16,
    ) -> io::Result<()> {
        let at = INDEX_AT + SLOT_BYTES * u64::from(number);
        let bytes = encode_slot(header.salt, self.seq, self.cum, self.offset);
        file.write_all_at(&bytes, &[], at)
    }

    /// All entries that hold, in order.
    pub(crate) fn read_all(file: &dyn DataFile, header: &SegmentHeader) -> io::Result<Vec<Self>> {
        let mut bytes = vec![0; usize::from(header.index_slots) * 32];
        let count = file.read_at(&mut bytes, INDEX_AT)?;
        bytes.truncate(count);
        let mut slots = Vec::new();
        for chunk in bytes.chunks_exact(32) {
            if let Some((seq, cum, offset)) = decode_slot(chunk, header.salt) {
                slots.push(Self { seq, offset, cum });
            }
        }
        Ok(slots)
    }

    /// The last entry at or before `seq`, if any.
    pub(crate) fn find(
        file: &dyn DataFile,
        header: &SegmentHeader,
        seq: u64,
    ) -> io::Result<Option<Self>> {
        let slots = Self::read_all(file, header)?;
        Ok(slots.into_iter().take_while(|slot| slot.seq <= seq).last())
    }
}

fn read_slot(file: &dyn DataFile, at: u64, salt: u32) -> io::Result<Option<(u64, u64, u64)>> {
    let mut bytes = [0; 32];
    let count = file.read_at(&mut bytes, at)?;
    Ok(bytes.get(..count).and_then(|slot| decode_slot(slot, salt)))
}

fn encode_slot(salt: u32, seq: u64, cum: u64, offset: u64) -> [u8; 32] {
    let mut b = [0; 32];
    put(&mut b, 0, &seq.to_le_bytes());
    put(&mut b, 8, &cum.to_le_bytes());
    put(&mut b, 16, &offset.to_le_bytes());
    let crc = crc32c::crc32c_append(salt, b.get(..28).unwrap_or_default());
    put(&mut b, 28, &crc.to_le_bytes());
    b
}

fn decode_slot(b: &[u8], salt: u32) -> Option<(u64, u64, u64)> {
    if u32_at(b, 28)? != crc32c::crc32c_append(salt, b.get(..28)?) {
        return None;
    }
    let (seq, cum, offset) = (u64_at(b, 0)?, u64_at(b, 8)?, u64_at(b, 16)?);
    (seq > 0).then_some((seq, cum, offset))
}
