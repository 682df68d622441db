//! From files to a state: what is there, what is damaged, which number comes next.
//!
//! Opening reads one segment: the newest one begins with a checkpoint. Older ones are read only
//! when no checkpoint of a newer one holds. On the same boot, where nothing can be missing that was
//! written, reading begins in the middle of a long segment, at the checkpoint that its resume slot
//! names; damage before it is found by whoever reads it. Nothing here writes.
//!
//! ```text
//! how the newest segment ends      same boot                     another boot
//! ───────────────────────────────  ────────────────────────────  ─────────────────────────
//! after a seal                     next number                   next number
//! after a whole frame              next number                   behind the lease
//! in a frame being filled          completed from the file size  dropped, behind the lease
//! in a batch partly written        taken away, next number       behind the lease
//! in bytes that are no frame       behind the lease              behind the lease
//! by saying that a newer one       behind the lease              behind the lease
//! exists, which doesn't
//! ```
//!
//! On the same boot everything that was written is in the page cache, so the only unfinished
//! business is what a kill interrupted. After another boot nothing is sure but what was synced,
//! and no number up to the lease may be used again.

mod segment;

use std::{
    io::{self, ErrorKind},
    path::Path,
};

use crate::{
    damage::{Damage, DamageReport},
    limits::SEQ_MAX,
    record::{Gap, Record},
    segment::{Copies, HeadSlot, ResumeSlot, SegmentHeader, SegmentName},
    storage::{Access, FileStorage, Storage},
};

pub(crate) use segment::{Ending, Segment, Tail, to_record};

/// Why a journal can't be opened. Damage is no reason.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory holds no segment: nothing that was ever promised is in it.
    #[error("no journal there")]
    Empty,
    /// The system refused.
    #[error("journal can't be read: {0}")]
    Io(#[from] io::Error),
}

/// A journal as its files tell it.
#[derive(Debug)]
pub struct Recovered {
    /// State of the session as of [`checkpoint_seq`](Self::checkpoint_seq); empty when it is
    /// lost, and then the damage report says so.
    pub checkpoint: Vec<u8>,
    /// The last record that the checkpoint contains.
    pub checkpoint_seq: u64,
    /// The records after it that the segment holds.
    pub records: Vec<Record>,
    /// First retained record; `latest + 1` when there is none.
    pub earliest: u64,
    /// Last record.
    pub latest: u64,
    /// Time of the last record or of the last segment's beginning, whichever is later.
    pub last_at_nanos: i64,
    /// Generation of the last segment.
    pub generation: u64,
    /// What was found wrong.
    pub damage: DamageReport,
}

/// Reads a journal that nobody appends to, for those who show it.
pub fn recover(path: &Path) -> Result<Recovered, OpenError> {
    recover_from(&*FileStorage::open(path)?)
}

/// [`recover`] on any storage.
pub fn recover_from(storage: &dyn Storage) -> Result<Recovered, OpenError> {
    let found = find(storage, Access::Read, |_, _| 0, None)?;
    let earliest = match &found.base {
        Some(base) => HeadSlot::read(&*base.file, &base.header)?.seq,
        None => 0,
    };
    let first = found.segments.first().map_or(1, |name| name.first_seq);
    Ok(Recovered {
        earliest: earliest.max(first).min(found.last_seq + 1),
        latest: found.last_seq,
        last_at_nanos: found.last_at,
        generation: found.base.map_or(0, |base| base.header.generation),
        checkpoint: found.checkpoint,
        checkpoint_seq: found.checkpoint_seq,
        records: found.records,
        damage: found.damage,
    })
}

/// What [`find`] found.
#[derive(Debug)]
pub(crate) struct Found {
    /// All segments, readable or not, without those that were never completed.
    pub(crate) segments: Vec<SegmentName>,
    /// Segments whose making was interrupted; nothing can be in them.
    pub(crate) unborn: Vec<SegmentName>,
    /// The newest readable segment.
    pub(crate) base: Option<Segment>,
    /// A segment newer than `base` exists or existed and can't be read.
    pub(crate) newer_lost: bool,
    pub(crate) checkpoint: Vec<u8>,
    pub(crate) checkpoint_seq: u64,
    pub(crate) records: Vec<Record>,
    pub(crate) last_seq: u64,
    pub(crate) last_at: i64,
    /// No number up to this one may be used again once the tail is in doubt.
    pub(crate) lease: u64,
    pub(crate) damage: DamageReport,
}

enum Seen {
    Read(Box<Segment>),
    Unborn,
    Unreadable { seq_bound: u64 },
}

/// Reads what is needed of a journal; of a segment of `boot` only what follows its newest
/// checkpoint.
pub(crate) fn find(
    storage: &dyn Storage,
    access: Access,
    logical_len: fn(u8, u32) -> u64,
    boot: Option<[u8; 16]>,
) -> Result<Found, OpenError> {
    let segments = SegmentName::sorted(&storage.list()?);
    if segments.is_empty() {
        return Err(OpenError::Empty);
    }
    let mut found = Found {
        segments,
        unborn: Vec::new(),
        base: None,
        newer_lost: false,
        checkpoint: Vec::new(),
        checkpoint_seq: 0,
        records: Vec::new(),
        last_seq: 0,
        last_at: 0,
        lease: 0,
        damage: DamageReport::default(),
    };
    find_missing(&mut found);
    let mut has_checkpoint = false;
    for name in found.segments.clone().into_iter().rev() {
        match look(storage, access, name, logical_len, boot)? {
            Seen::Unborn if found.base.is_none() && !found.newer_lost => {
                found.unborn.push(name);
            }
            Seen::Unborn => found.damage.add(Damage::Unreadable {
                file: name.file_name(),
            }),
            Seen::Unreadable { seq_bound } => {
                found.damage.add(Damage::Unreadable {
                    file: name.file_name(),
                });
                found.newer_lost |= found.base.is_none();
                found.lease = found.lease.max(seq_bound);
            }
            Seen::Read(segment) => {
                has_checkpoint = take(&mut found, *segment);
            }
        }
        if has_checkpoint {
            break;
        }
    }
    found.segments.retain(|name| !found.unborn.contains(name));
    if found.segments.is_empty() {
        return Err(OpenError::Empty);
    }
    if !has_checkpoint {
        found.damage.add(Damage::CheckpointLost);
    }
    let after = found.checkpoint_seq;
    found.records.retain(|record| record.seq > after);
    Ok(found)
}

fn find_missing(found: &mut Found) {
    let ordinals: Vec<u64> = found.segments.iter().map(|name| name.ordinal).collect();
    for pair in ordinals.windows(2) {
        if let [older, newer] = pair {
            // A name can be forged or misread; the report lists no more than it can hold.
            for ordinal in (older + 1..*newer).take(8) {
                found.damage.add(Damage::Missing { ordinal });
            }
        }
    }
}

/// Adds a segment that is older than all before; says whether its checkpoint serves.
fn take(found: &mut Found, mut segment: Segment) -> bool {
    let file = segment.name.file_name();
    if segment.skipped > 0 {
        found.damage.add(Damage::Skipped {
            file: file.clone(),
            bytes: segment.skipped,
        });
    }
    let mut records = std::mem::take(&mut segment.records);
    if segment.copies == Copies::One {
        found.damage.add(Damage::HeaderCopy { file: file.clone() });
    }
    for gap in std::mem::take(&mut segment.lost) {
        found.damage.add(Damage::Lost(gap));
    }
    if let Some(first) = found.records.first() {
        let next = segment.last_seq + 1;
        let first_seq = first.gap().map_or(first.seq, |gap| gap.from);
        if first_seq > next {
            let gap = Gap {
                from: next,
                to: first_seq - 1,
            };
            found.damage.add(Damage::Lost(gap));
            let (at, attempt) = (first.at_nanos, segment.last_attempt);
            records.push(Record::for_gap(gap, at, attempt, segment.header.generation));
        }
    }
    records.append(&mut found.records);
    found.records = records;
    let checkpoint = segment.checkpoint.take();
    match segment.checkpoint_copies {
        0 => found.damage.add(Damage::CheckpointOlder { file }),
        1 => found.damage.add(Damage::CheckpointCopy { file }),
        _ => {}
    }
    if found.base.is_none() {
        found.last_seq = segment.last_seq;
        found.last_at = segment.last_at;
        found.lease = found.lease.max(segment.lease);
        if segment.ending == Ending::Rolled {
            found.newer_lost = true;
            found.damage.add(Damage::Missing {
                ordinal: segment.name.ordinal + 1,
            });
        }
        found.base = Some(segment);
    }
    match checkpoint {
        Some((seq, bytes)) => {
            found.checkpoint = bytes;
            found.checkpoint_seq = seq;
            true
        }
        None => false,
    }
}

fn look(
    storage: &dyn Storage,
    access: Access,
    name: SegmentName,
    logical_len: fn(u8, u32) -> u64,
    boot: Option<[u8; 16]>,
) -> io::Result<Seen> {
    let file = match storage.open(&name.file_name(), access) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Seen::Unborn),
        Err(error) => return Err(error),
    };
    let byte_len = file.byte_len()?;
    if byte_len == 0 {
        return Ok(Seen::Unborn);
    }
    let Some((header, copies)) = SegmentHeader::read(&*file)? else {
        let seq_bound = (name.first_seq.saturating_add(byte_len / 32)).min(SEQ_MAX);
        return Ok(Seen::Unreadable { seq_bound });
    };
    let resume = if boot == Some(header.boot_id) {
        ResumeSlot::read(&*file, &header)?
    } else {
        None
    };
    let mut segment = Segment::at_its_beginning(name, header, copies, file);
    segment.read(logical_len, resume)?;
    let empty = segment.checkpoint.is_none() && segment.first_at.is_none();
    if empty && segment.tail != Tail::Bad && segment.skipped == 0 {
        return Ok(Seen::Unborn);
    }
    Ok(Seen::Read(Box::new(segment)))
}
