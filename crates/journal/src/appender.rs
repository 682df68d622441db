//! The one writer of a journal.
//!
//! It is meant to stand behind a mutex that a driver (lifecycle records) and a pump (output)
//! share. Nothing here waits for a disk to be synced; see [`crate::sync`] for that.
//!
//! What readers may see ends at [`Appender::published`]: before the first record of class A that
//! isn't on disk, and never beyond a lease that isn't. So no number that anybody saw is used
//! again, whatever is lost.
//!
//! The appender keeps the newest checkpoint, so it can begin a new segment at any time. Between
//! that checkpoint and the segment's first record there is only output, because every other
//! record comes with a new checkpoint.

mod active;
mod writing;

use std::{collections::VecDeque, io, ops::RangeInclusive, sync::Arc};

pub(crate) use self::active::{Active, Beginning, begin_segment, plain_header};
use crate::{
    config::{Config, Retention},
    error::{AppendError, is_full},
    frame::{self, Header, KIND_CHECKPOINT, KIND_SEAL, State},
    limits::{BATCH_RECORDS_MAX, PAYLOAD_BYTES_MAX, SEQ_LEASE},
    output::Filling,
    record::{Durability, Gap, KIND_RESERVED, NewRecord},
    segment::{HeadSlot, SegmentName},
    storage::Storage,
    sync::{Dirt, Garbage, SyncPoint},
    trim::Head,
};

/// Does the checkpoint contain everything but output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// There are records that only the caller has applied.
    Stale,
}

/// Must the next record begin a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RollDue {
    BySize,
    /// The active segment belongs to another runtime, another boot, or is damaged at its end.
    Always,
}

/// State of the session as of a record.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) seq: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) freshness: Freshness,
}

/// The writer.
#[derive(Debug)]
pub struct Appender {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) config: Config,
    pub(crate) active: Active,
    /// All segments, the active one last.
    pub(crate) segments: VecDeque<SegmentName>,
    pub(crate) next_seq: u64,
    pub(crate) last_at: i64,
    /// Logical bytes of all records ever appended.
    pub(crate) cum: u64,
    pub(crate) lease: u64,
    pub(crate) lease_durable: u64,
    /// First records of the class A batches that aren't on disk.
    pub(crate) awaiting: VecDeque<u64>,
    pub(crate) ordinal_durable: u64,
    pub(crate) dirt: Dirt,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) roll_due: RollDue,
    pub(crate) gap_due: Option<Gap>,
    /// The seal that ends the active segment, if one does.
    pub(crate) sealed_at: Option<u64>,
    pub(crate) head: Head,
    pub(crate) pinned_after: u64,
    pub(crate) filling: Option<Filling>,
    pub(crate) broken: Option<Arc<io::Error>>,
    pub(crate) scratch: Vec<u8>,
}

impl Appender {
    /// Makes a journal in an empty directory. `checkpoint` is the state before the first record.
    /// Nothing is published before the first sync.
    pub fn create(
        storage: Arc<dyn Storage>,
        config: Config,
        now: i64,
        checkpoint: &[u8],
    ) -> Result<Self, AppendError> {
        check_len(checkpoint.len())?;
        let name = SegmentName {
            ordinal: 1,
            first_seq: 1,
        };
        let head = HeadSlot { seq: 1, cum: 0 };
        let beginning = Beginning {
            name,
            now,
            lease: SEQ_LEASE,
            cum: 0,
            head,
            checkpoint_seq: 0,
            checkpoint,
            gap: None,
        };
        let active = begin_segment(&*storage, &config, &beginning).map_err(|error| {
            if is_full(&error) {
                AppendError::Full
            } else {
                AppendError::Broken(Arc::new(error))
            }
        })?;
        Ok(Self {
            storage,
            config,
            active,
            segments: VecDeque::from([name]),
            next_seq: 1,
            last_at: now,
            cum: 0,
            lease: SEQ_LEASE,
            lease_durable: 0,
            awaiting: VecDeque::new(),
            ordinal_durable: 0,
            dirt: Dirt {
                writes: 1,
                names: 1,
                ..Dirt::default()
            },
            checkpoint: Checkpoint {
                seq: 0,
                bytes: checkpoint.to_vec(),
                freshness: Freshness::Fresh,
            },
            roll_due: RollDue::BySize,
            gap_due: None,
            sealed_at: None,
            head: Head::new(head),
            pinned_after: u64::MAX,
            filling: None,
            broken: None,
            scratch: Vec::new(),
        })
    }

    /// Appends a batch by one write, and takes the session's state after it. Either all of the
    /// batch is in the journal or nothing, also after a kill.
    pub fn append(
        &mut self,
        now: i64,
        durability: Durability,
        records: &[NewRecord<'_>],
        checkpoint_after: &[u8],
    ) -> Result<RangeInclusive<u64>, AppendError> {
        self.settle()?;
        check_batch(records, checkpoint_after)?;
        let bytes: usize = records.iter().map(|r| r.payload.len() + 64).sum();
        self.make_room(now, bytes as u64, records.len() as u64)?;
        let (first, at) = (self.next_seq, now.max(self.last_at));
        let base = self.begin_scratch();
        let renewed = self.push_lease(at, records.len() as u64);
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut cum = self.cum;
        for (index, record) in records.iter().enumerate() {
            let header = Header {
                state: if index + 1 == records.len() {
                    State::Committed
                } else {
                    State::CommittedMore
                },
                kind: record.kind,
                stream: record.stream,
                attempt: record.attempt,
                ..plain_header(record.kind, first + index as u64, at, record.payload.len())
            };
            frame::push(
                &mut scratch,
                &header,
                self.active.header.salt,
                record.payload,
            );
            cum += (self.config.logical_len)(record.kind, header.len);
        }
        let written = self.write_frames(base, &scratch, &[]);
        self.keep_scratch(scratch);
        written?;
        let last = first + records.len() as u64 - 1;
        if durability == Durability::BeforePublish {
            self.awaiting.push_back(first);
        }
        self.lease = renewed.unwrap_or(self.lease);
        self.checkpoint.bytes.clear();
        self.checkpoint.bytes.extend_from_slice(checkpoint_after);
        self.checkpoint.seq = last;
        self.checkpoint.freshness = Freshness::Fresh;
        self.appended(base, at, last, cum);
        self.trim(now);
        Ok(first..=last)
    }

    /// Takes the session's state as of the last record. Needed once after
    /// [`open`](Self::open), when its records were applied; useful now and then while only
    /// output comes, so that recovery has less to apply.
    pub fn put_checkpoint(&mut self, now: i64, checkpoint: &[u8]) -> Result<(), AppendError> {
        self.settle()?;
        check_len(checkpoint.len())?;
        self.checkpoint.bytes.clear();
        self.checkpoint.bytes.extend_from_slice(checkpoint);
        self.checkpoint.seq = self.next_seq - 1;
        self.checkpoint.freshness = Freshness::Fresh;
        if self.roll_due == RollDue::Always {
            self.roll(now)?;
        }
        Ok(())
    }

    /// Ends what is under way: writes the checkpoint down and says that everything is written.
    /// With the next sync the journal is one that was closed in order: opening it on another boot
    /// jumps over no numbers. Appending may go on.
    pub fn seal(&mut self, now: i64) -> Result<(), AppendError> {
        self.settle()?;
        if self.roll_due == RollDue::Always {
            self.roll(now)?;
        }
        self.save_head();
        let at = now.max(self.last_at);
        let base = self.begin_scratch();
        let mut scratch = std::mem::take(&mut self.scratch);
        let salt = self.active.header.salt;
        if self.checkpoint.freshness == Freshness::Fresh {
            let bytes = &self.checkpoint.bytes;
            let header = plain_header(KIND_CHECKPOINT, self.checkpoint.seq, at, bytes.len());
            frame::push(&mut scratch, &header, salt, bytes);
        }
        let last = self.next_seq - 1;
        frame::push(
            &mut scratch,
            &plain_header(KIND_SEAL, last, at, 0),
            salt,
            &[],
        );
        let written = self.write_frames(base, &scratch, &[]);
        self.keep_scratch(scratch);
        written?;
        self.sealed_at = Some(last);
        self.lease_durable = self.lease_durable.min(last);
        Ok(())
    }

    /// What has to be synced now; `None` when everything is on disk.
    pub fn sync_point(&mut self) -> Result<Option<SyncPoint>, AppendError> {
        self.settle()?;
        if self.dirt.is_clean() {
            return Ok(None);
        }
        let mut files: Vec<_> = self
            .dirt
            .sealed
            .iter()
            .map(|(_, f)| Arc::clone(f))
            .collect();
        files.push(Arc::clone(&self.active.file));
        Ok(Some(SyncPoint {
            files,
            directory: self.dirt.directory_for(&self.storage),
            writes: self.dirt.writes,
            names: self.dirt.names,
            up_to_seq: self.next_seq - 1,
            lease: self.sealed_at.unwrap_or(self.lease),
            ordinal: self.active.name.ordinal,
        }))
    }

    /// Says that a point was synced.
    pub fn synced(&mut self, point: &SyncPoint) {
        self.dirt.synced(point);
        while self
            .awaiting
            .front()
            .is_some_and(|first| *first <= point.up_to_seq)
        {
            self.awaiting.pop_front();
        }
        self.lease_durable = self.lease_durable.max(point.lease);
        self.ordinal_durable = self.ordinal_durable.max(point.ordinal);
    }

    /// Says that a sync failed. What is on disk is unknown from then on, so nothing more is
    /// taken and nothing more is published.
    pub fn sync_failed(&mut self, error: io::Error) {
        self.broken.get_or_insert_with(|| Arc::new(error));
    }

    /// The last record that readers may see.
    pub fn published(&self) -> u64 {
        let written = self.next_seq - 1;
        let settled = self.awaiting.front().map_or(written, |first| first - 1);
        written.min(settled).min(self.lease_durable)
    }

    /// First retained and last published record; `(n + 1, n)` when there is none.
    pub fn window(&self) -> (u64, u64) {
        let latest = self.published();
        (self.head.slot.seq.min(latest + 1), latest)
    }

    /// The last record, published or not.
    pub fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// Time of the last record.
    pub fn last_at_nanos(&self) -> i64 {
        self.last_at
    }

    /// Bytes of all records that are retained, as retention counts them.
    pub fn retained_bytes(&self) -> u64 {
        self.cum - self.head.slot.cum
    }

    /// The last record of the segments that are sealed: receipts up to it may be written as a
    /// run.
    pub fn sealed_up_to(&self) -> u64 {
        self.active.header.first_seq - 1
    }

    /// Opening on this boot will read records after this one only; 0 when it reads the whole
    /// segment.
    pub fn resumes_after(&self) -> u64 {
        self.active.resume_seq
    }

    /// Keeps files with records after `seq`, whatever retention says, until called again:
    /// receipts of them may not be on disk yet.
    pub fn pin_after(&mut self, seq: u64) {
        self.pinned_after = seq;
    }

    /// Changes what is kept, at once.
    pub fn set_retention(&mut self, now: i64, retention: Retention) -> Result<(), AppendError> {
        self.settle()?;
        self.config.retention = retention;
        self.trim(now);
        // With another retention it can't be computed again.
        self.save_head();
        Ok(())
    }

    /// Files that are wholly before the head and whose successor is on disk.
    pub fn take_garbage(&mut self) -> Option<Garbage> {
        let mut names = Vec::new();
        while let (Some(oldest), Some(next)) = (self.segments.front(), self.segments.get(1)) {
            let passed = next.first_seq <= self.head.slot.seq;
            let replaced = next.ordinal <= self.ordinal_durable;
            if !passed || !replaced || next.first_seq - 1 > self.pinned_after {
                break;
            }
            names.push(oldest.file_name());
            self.segments.pop_front();
        }
        (!names.is_empty()).then(|| Garbage {
            storage: Arc::clone(&self.storage),
            names,
        })
    }
}

fn check_len(len: usize) -> Result<(), AppendError> {
    if len > PAYLOAD_BYTES_MAX {
        return Err(AppendError::TooLong(len));
    }
    Ok(())
}

pub(crate) fn check_record(kind: u8, len: usize) -> Result<(), AppendError> {
    if kind >= KIND_RESERVED {
        return Err(AppendError::ReservedKind(kind));
    }
    check_len(len)
}

fn check_batch(records: &[NewRecord<'_>], checkpoint: &[u8]) -> Result<(), AppendError> {
    if records.is_empty() || records.len() > BATCH_RECORDS_MAX {
        return Err(AppendError::BatchSize(records.len()));
    }
    for record in records {
        check_record(record.kind, record.payload.len())?;
    }
    check_len(checkpoint.len())
}
