//! How frames get into the active segment, and what becomes of writes that are refused.

use std::{io, sync::Arc};

use super::{Appender, Beginning, Freshness, RollDue, begin_segment, plain_header};
use crate::{
    error::{AppendError, is_full},
    frame::{self, KIND_LEASE, KIND_ROLL, align},
    limits::{INDEX_SPACING_BYTES, SEQ_LEASE, SEQ_MAX},
    record::KIND_GAP,
    segment::{IndexSlot, SegmentName},
};

impl Appender {
    /// Takes only what can be written: begins a segment when one is due.
    pub(crate) fn make_room(
        &mut self,
        now: i64,
        bytes: u64,
        count: u64,
    ) -> Result<(), AppendError> {
        if self.next_seq + count > SEQ_MAX {
            return Err(AppendError::Exhausted);
        }
        if self.roll_due == RollDue::Always {
            return self.roll(now);
        }
        let target = self.config.retention.segment_bytes_target();
        let due = self.active.first_at.is_some()
            && self.active.end + bytes > target
            && self.checkpoint.freshness == Freshness::Fresh;
        match if due { self.roll(now) } else { Ok(()) } {
            // The active segment takes it as well.
            Err(AppendError::Full) => Ok(()),
            Ok(()) => self.note_resume(now),
            outcome => outcome,
        }
    }

    /// Begins a new segment.
    pub(crate) fn roll(&mut self, now: i64) -> Result<(), AppendError> {
        self.check_broken()?;
        if self.checkpoint.freshness == Freshness::Stale {
            return Err(AppendError::CheckpointNeeded);
        }
        let at = now.max(self.last_at);
        let lease = self.lease.max(self.next_seq - 1 + SEQ_LEASE);
        let gap = self.gap_due;
        let beginning = Beginning {
            name: SegmentName {
                // Behind every file there is, also one that can't be read.
                ordinal: self.segments.back().map_or(0, |name| name.ordinal) + 1,
                first_seq: gap.map_or(self.next_seq, |gap| gap.from),
            },
            now: at,
            lease,
            cum: self.cum,
            head: self.head.slot,
            checkpoint_seq: self.checkpoint.seq,
            checkpoint: &self.checkpoint.bytes,
            gap,
        };
        let begun = begin_segment(&*self.storage, &self.config, &beginning);
        let next = begun.map_err(|error| self.refused(error))?;
        // From here on the old segment says that it isn't the last one, so that a loss of the
        // new one can't go unnoticed.
        let roll = plain_header(KIND_ROLL, lease, at, 0).encode(self.active.header.salt, &[]);
        let base = align(self.active.end);
        if let Err(error) = self.active.file.write_all_at(&roll, &[], base) {
            let error = self.take_back(error);
            return Err(match self.storage.remove(&next.name.file_name()) {
                Ok(()) => error,
                Err(worse) => self.latch(worse),
            });
        }
        self.dirt.writes += 1;
        self.dirt.names += 1;
        let old = std::mem::replace(&mut self.active, next);
        self.dirt.sealed.push((old.name.ordinal, old.file));
        self.segments.push_back(self.active.name);
        self.lease = lease;
        self.roll_due = RollDue::BySize;
        self.sealed_at = None;
        self.head.saved = self.head.slot;
        if gap.is_some() {
            self.gap_due = None;
            self.cum += (self.config.logical_len)(KIND_GAP, 16);
        }
        self.last_at = at;
        Ok(())
    }

    /// Empties the scratch buffer; returns the offset it will be written at.
    pub(crate) fn begin_scratch(&mut self) -> u64 {
        self.scratch.clear();
        align(self.active.end)
    }

    pub(crate) fn keep_scratch(&mut self, mut scratch: Vec<u8>) {
        scratch.clear();
        scratch.shrink_to(16 * 1024);
        self.scratch = scratch;
    }

    /// Puts a renewal of the lease into the scratch buffer, when half of it is used up.
    pub(crate) fn push_lease(&mut self, at: i64, count: u64) -> Option<u64> {
        if self.lease >= self.next_seq + count + SEQ_LEASE / 2 {
            return None;
        }
        let lease = self.next_seq - 1 + count + SEQ_LEASE;
        let header = plain_header(KIND_LEASE, lease, at, 0);
        frame::push(&mut self.scratch, &header, self.active.header.salt, &[]);
        Some(lease)
    }

    /// Writes whole frames at `base`, or nothing.
    pub(crate) fn write_frames(
        &mut self,
        base: u64,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), AppendError> {
        self.check_broken()?;
        if let Err(error) = self.active.file.write_all_at(head, body, base) {
            return Err(self.take_back(error));
        }
        self.active.end = base + (head.len() + body.len()) as u64;
        self.dirt.writes += 1;
        self.sealed_at = None;
        Ok(())
    }

    /// Counts records that were written, and keeps the sparse index.
    pub(crate) fn appended(&mut self, offset: u64, at: i64, last: u64, cum: u64) {
        if offset >= self.active.index_at && self.active.index_next < self.active.header.index_slots
        {
            let slot = IndexSlot {
                seq: self.next_seq,
                offset,
                cum: self.cum,
            };
            let (file, header) = (Arc::clone(&self.active.file), self.active.header);
            let written = slot.write(&*file, &header, self.active.index_next);
            self.hint_written(written);
            self.active.index_next += 1;
            self.active.index_at = offset + INDEX_SPACING_BYTES;
        }
        self.active.first_at.get_or_insert(at);
        self.next_seq = last + 1;
        self.last_at = at;
        self.cum = cum;
    }

    /// Slots are hints: without space they stay as they were. Any other refusal is the disk's
    /// and stops the next call.
    pub(crate) fn hint_written(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => self.dirt.writes += 1,
            Err(error) if is_full(&error) => {}
            Err(error) => {
                self.broken.get_or_insert_with(|| Arc::new(error));
            }
        }
    }

    pub(crate) fn check_broken(&self) -> Result<(), AppendError> {
        match &self.broken {
            Some(error) => Err(AppendError::Broken(Arc::clone(error))),
            None => Ok(()),
        }
    }

    /// After a failed write: cuts what it may have left.
    pub(crate) fn take_back(&mut self, error: io::Error) -> AppendError {
        match self.active.file.truncate(self.active.end) {
            Ok(()) => self.refused(error),
            Err(_) => self.latch(error), // The first failure says more than the second.
        }
    }

    pub(crate) fn refused(&mut self, error: io::Error) -> AppendError {
        if is_full(&error) {
            AppendError::Full
        } else {
            self.latch(error)
        }
    }

    pub(crate) fn latch(&mut self, error: io::Error) -> AppendError {
        let error = self.broken.get_or_insert_with(|| Arc::new(error));
        AppendError::Broken(Arc::clone(error))
    }
}
