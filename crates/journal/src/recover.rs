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

use std::{
    io::{self, ErrorKind},
    path::Path,
    sync::Arc,
};

use crate::{
    damage::{Damage, DamageReport},
    frame::{KIND_CHECKPOINT, KIND_LEASE, KIND_ROLL, KIND_SEAL, State},
    limits::{READ_CHUNK_BYTES, SEQ_MAX},
    record::{Gap, KIND_GAP, Record},
    scan::{Frame, Look, Scan, Step},
    segment::{Copies, HeadSlot, ResumeSlot, SegmentHeader, SegmentName},
    storage::{Access, DataFile, FileStorage, Storage},
};

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

/// How a segment ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    Clean,
    /// A frame is being filled at this offset.
    Open {
        offset: u64,
        kind: u8,
        stream: u8,
        attempt: u32,
        at_nanos: i64,
    },
    /// A batch is partly written from this offset on.
    Torn {
        offset: u64,
    },
    /// There are bytes that are no frame.
    Bad,
}

/// What the last frame of a segment says about its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nothing: it is a record or a lease.
    Silent,
    /// A newer segment exists.
    Rolled,
    /// Everything up to this number was written.
    Sealed(u64),
}

/// A segment that was read.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) name: SegmentName,
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn DataFile>,
    /// Last number it holds or follows.
    pub(crate) last_seq: u64,
    pub(crate) last_at: i64,
    pub(crate) last_attempt: u32,
    /// Time of its first record, when it has one.
    pub(crate) first_at: Option<i64>,
    /// End of the last good frame.
    pub(crate) end: u64,
    pub(crate) cum: u64,
    pub(crate) lease: u64,
    pub(crate) tail: Tail,
    pub(crate) ending: Ending,
    pub(crate) checkpoint: Option<(u64, Vec<u8>)>,
    pub(crate) checkpoint_copies: u32,
    pub(crate) records: Vec<Record>,
    pub(crate) lost: Vec<Gap>,
    skipped: u64,
    pub(crate) copies: Copies,
    /// Where reading began, when that was not the beginning.
    pub(crate) unread: Option<ResumeSlot>,
    /// Length of the frame at its end that was completed when the journal was opened.
    pub(crate) completed: Option<u32>,
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

struct Batch {
    offset: u64,
    records: usize,
    last_seq: u64,
    last_at: i64,
    cum: u64,
    skipped: u64,
}

impl Segment {
    pub(crate) fn at_its_beginning(
        name: SegmentName,
        header: SegmentHeader,
        copies: Copies,
        file: Arc<dyn DataFile>,
    ) -> Self {
        Self {
            name,
            header,
            file,
            last_seq: header.first_seq.saturating_sub(1),
            last_at: header.created_at,
            last_attempt: 0,
            first_at: None,
            end: header.data_at(),
            cum: header.cum,
            lease: header.lease,
            tail: Tail::Clean,
            ending: Ending::Silent,
            checkpoint: None,
            checkpoint_copies: 0,
            records: Vec::new(),
            lost: Vec::new(),
            skipped: 0,
            copies,
            unread: None,
            completed: None,
        }
    }

    pub(crate) fn scan(&self, offset: u64) -> Scan {
        let (file, salt) = (Arc::clone(&self.file), self.header.salt);
        Scan::new(file, salt, Look::Whole, offset, READ_CHUNK_BYTES)
    }

    fn read(
        &mut self,
        logical_len: fn(u8, u32) -> u64,
        resume: Option<ResumeSlot>,
    ) -> io::Result<()> {
        let mut scan = match resume {
            Some(slot) => match self.resume(slot)? {
                Some(scan) => scan,
                None => self.scan(self.header.data_at()),
            },
            None => self.scan(self.header.data_at()),
        };
        let mut batch: Option<Batch> = None;
        loop {
            match scan.step()? {
                Step::Frame(frame) => {
                    batch = self.follow_batch(batch, &frame, scan.skipped());
                    self.add(&frame, logical_len);
                }
                Step::Open { offset, header } => {
                    self.tail = Tail::Open {
                        offset,
                        kind: header.kind,
                        stream: header.stream,
                        attempt: header.attempt,
                        at_nanos: header.at_nanos,
                    };
                    break;
                }
                Step::Incomplete { offset } => {
                    self.tail = Tail::Torn { offset };
                    break;
                }
                Step::Bad => {
                    self.tail = Tail::Bad;
                    break;
                }
                Step::End => break,
            }
        }
        self.skipped = scan.skipped();
        if let Some(batch) = batch
            && matches!(self.tail, Tail::Clean | Tail::Torn { .. })
            && batch.skipped == self.skipped
        {
            self.drop_batch(&batch);
        }
        Ok(())
    }

    fn follow_batch(&self, batch: Option<Batch>, frame: &Frame, skipped: u64) -> Option<Batch> {
        match frame.header.state {
            State::CommittedMore => Some(batch.unwrap_or(Batch {
                offset: frame.offset,
                records: self.records.len(),
                last_seq: self.last_seq,
                last_at: self.last_at,
                cum: self.cum,
                skipped,
            })),
            State::Committed | State::Open => None,
        }
    }

    /// Forgets a batch that was written in part: nobody was ever told about it.
    fn drop_batch(&mut self, batch: &Batch) {
        self.tail = Tail::Torn {
            offset: batch.offset,
        };
        self.records.truncate(batch.records);
        self.last_seq = batch.last_seq;
        self.last_at = batch.last_at;
        self.cum = batch.cum;
        self.end = batch.offset;
    }

    pub(crate) fn add(&mut self, frame: &Frame, logical_len: fn(u8, u32) -> u64) {
        let header = &frame.header;
        self.end = frame.end();
        self.ending = Ending::Silent;
        if header.is_record() {
            self.add_record(frame, logical_len);
            return;
        }
        match header.kind {
            KIND_CHECKPOINT => {
                // Two copies begin the segment; one may follow at its end.
                if self.checkpoint.is_none() && self.first_at.is_some() {
                    self.checkpoint_copies = 2;
                }
                self.checkpoint_copies += 1;
                self.checkpoint = Some((header.seq, frame.payload.to_vec()));
                self.records.retain(|record| record.seq > header.seq);
            }
            KIND_LEASE => self.lease = self.lease.max(header.seq),
            KIND_ROLL => {
                self.lease = self.lease.max(header.seq);
                self.ending = Ending::Rolled;
            }
            KIND_SEAL => self.ending = Ending::Sealed(header.seq),
            _ => {} // Of a later format; this one has no meaning for it.
        }
    }

    fn add_record(&mut self, frame: &Frame, logical_len: fn(u8, u32) -> u64) {
        let header = &frame.header;
        if header.seq <= self.last_seq || header.seq > SEQ_MAX {
            return; // Can't happen to a frame that holds; must not confuse what follows.
        }
        let next = self.last_seq + 1;
        let generation = self.header.generation;
        if header.seq > next && header.kind != KIND_GAP {
            let gap = Gap {
                from: next,
                to: header.seq - 1,
            };
            let at = self.last_at;
            self.lost.push(gap);
            self.records
                .push(Record::for_gap(gap, at, self.last_attempt, generation));
        }
        self.cum += logical_len(header.kind, header.len);
        self.last_seq = header.seq;
        self.last_at = self.last_at.max(header.at_nanos);
        self.last_attempt = header.attempt;
        self.first_at.get_or_insert(header.at_nanos);
        self.records.push(to_record(frame, generation));
    }
}

/// A frame as readers see it.
pub(crate) fn to_record(frame: &Frame, generation: u64) -> Record {
    Record {
        seq: frame.header.seq,
        at_nanos: frame.header.at_nanos,
        kind: frame.header.kind,
        stream: frame.header.stream,
        attempt: frame.header.attempt,
        generation,
        payload: frame.payload.clone(),
    }
}
