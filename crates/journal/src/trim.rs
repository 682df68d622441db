//! Retention: a logical head that moves over the records, age first, then bytes.
//!
//! The head walks over frame headers, a few KiB at a time, behind the appends that push it. It
//! is written into a slot of the active segment now and then; between two writes it can be
//! computed again, because what it depends on (time, sizes) never goes back.

use std::{io, sync::Arc};

use crate::{
    appender::{Appender, Freshness},
    error::AppendError,
    limits::{AGE_PARTS, HEAD_LAG_BYTES_MAX, TRIM_CHUNK_BYTES},
    scan::{Look, Scan, Step},
    segment::{HeadSlot, IndexSlot, SegmentHeader, SegmentName},
    storage::{Access, DataFile},
};

/// Where retention stands.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) slot: HeadSlot,
    /// As it is on disk.
    pub(crate) saved: HeadSlot,
    walk: Option<Walk>,
    /// The record at the head, when it was looked at already.
    first: Option<First>,
}

#[derive(Debug)]
struct Walk {
    name: SegmentName,
    /// None for a segment that can't be read and is passed over.
    scan: Option<Scan>,
}

#[derive(Debug, Clone, Copy)]
struct First {
    seq: u64,
    at_nanos: i64,
    logical: u64,
}

impl Head {
    pub(crate) fn new(slot: HeadSlot) -> Self {
        Self {
            slot,
            saved: slot,
            walk: None,
            first: None,
        }
    }
}

impl Appender {
    /// What is due without appends: moves the head by age, seals an idle segment so that its
    /// records can go, writes the head down. Returns when it has to be called again, in
    /// nanoseconds since 1970; `None` while nothing is retained. Afterwards a sync may be due and
    /// [`take_garbage`](Self::take_garbage) may have files.
    pub fn maintain(&mut self, now: i64) -> Result<Option<i64>, AppendError> {
        self.settle()?;
        self.trim(now);
        let part = self.config.retention.age_nanos() / i64::from(AGE_PARTS);
        let all_gone = self.head.slot.seq >= self.next_seq;
        if let Some(first_at) = self.active.first_at
            && (all_gone || first_at.saturating_add(part) <= now)
            && self.checkpoint.freshness == Freshness::Fresh
        {
            match self.roll(now) {
                Ok(()) | Err(AppendError::Full) => {} // Later, when there is space.
                Err(error) => return Err(error),
            }
        }
        self.save_head();
        if let Some(scan) = self.head.walk.as_mut().and_then(|walk| walk.scan.as_mut()) {
            scan.release();
        }
        let age = self.config.retention.age_nanos();
        let head_due = self.first().map(|first| first.at_nanos.saturating_add(age));
        let seal_due = self
            .active
            .first_at
            .filter(|_| self.checkpoint.freshness == Freshness::Fresh)
            .map(|at| at.saturating_add(part).max(now.saturating_add(1)));
        self.check_broken()?;
        Ok([head_due, seal_due].into_iter().flatten().min())
    }

    /// Moves the head as far as retention asks for.
    pub(crate) fn trim(&mut self, now: i64) {
        let age = self.config.retention.age_nanos();
        let bytes_max = self.config.retention.bytes_max;
        while let Some(first) = self.first() {
            let expired = first.at_nanos.saturating_add(age) <= now;
            let over = self.cum - self.head.slot.cum > bytes_max;
            let newest = first.seq + 1 >= self.next_seq;
            if !expired && (!over || newest) {
                break;
            }
            if self.skip_segment(now, age, bytes_max) {
                continue;
            }
            self.head.slot = HeadSlot {
                seq: first.seq + 1,
                cum: (self.head.slot.cum + first.logical).min(self.cum),
            };
            self.head.first = None;
        }
        if self.head.slot.cum - self.head.saved.cum.min(self.head.slot.cum) >= HEAD_LAG_BYTES_MAX {
            self.save_head();
        }
    }

    /// Writes the head down, if it moved.
    pub(crate) fn save_head(&mut self) {
        if self.head.slot == self.head.saved {
            return;
        }
        let written = self
            .head
            .slot
            .write(&*self.active.file, &self.active.header);
        self.hint_written(written);
        self.head.saved = self.head.slot;
    }

    /// The record at the head.
    fn first(&mut self) -> Option<First> {
        if self.head.slot.seq >= self.next_seq {
            return None;
        }
        if self.head.first.is_none() {
            self.head.first = self.find_first();
        }
        self.head.first
    }

    fn find_first(&mut self) -> Option<First> {
        loop {
            if self.head.walk.is_none() {
                let name = self.segment_of(self.head.slot.seq);
                self.enter(name);
            }
            if let Some(first) = self.step_walk() {
                return Some(first);
            }
            let at = self.head.walk.take().map(|walk| walk.name);
            let Some(name) = self.segments.iter().find(|n| Some(**n) > at).copied() else {
                // Nothing that could be read is left before the next record.
                self.head.slot = HeadSlot {
                    seq: self.next_seq,
                    cum: self.cum,
                };
                return None;
            };
            self.enter(name);
        }
    }

    /// The next record at or after the head in the segment of the walk.
    fn step_walk(&mut self) -> Option<First> {
        let walk = self.head.walk.as_mut()?;
        let is_active = walk.name == self.active.name;
        let scan = walk.scan.as_mut()?;
        loop {
            // An old file that can't be read is passed over like one that is damaged.
            let Ok(Step::Frame(frame)) = scan.step() else {
                return None;
            };
            if is_active && frame.offset >= self.active.end {
                scan.seek(frame.offset);
                scan.release();
                return None;
            }
            if frame.header.is_record() && frame.header.seq >= self.head.slot.seq {
                return Some(First {
                    seq: frame.header.seq,
                    at_nanos: frame.header.at_nanos,
                    logical: (self.config.logical_len)(frame.header.kind, frame.header.len),
                });
            }
        }
    }

    /// Passes over the whole segment at whose beginning the head stands, when all of it is due.
    fn skip_segment(&mut self, now: i64, age: i64, bytes_max: u64) -> bool {
        let Some(walk) = &self.head.walk else {
            return false;
        };
        if walk.name.first_seq < self.head.slot.seq {
            return false;
        }
        let Some(name) = self.segments.iter().find(|n| **n > walk.name).copied() else {
            return false;
        };
        let Ok((header, _)) = self.header_of(name) else {
            return false;
        };
        let due = header.created_at.saturating_add(age) <= now
            || self.cum.saturating_sub(header.cum) > bytes_max;
        if due {
            self.enter(name);
        }
        due
    }

    /// Puts the walk into a segment. Its header says how many bytes are before it, so an error
    /// of counting (after damage) ends here.
    fn enter(&mut self, name: SegmentName) {
        self.head.first = None;
        self.head.walk = None;
        let Ok((header, file)) = self.header_of(name) else {
            self.head.walk = Some(Walk { name, scan: None });
            return;
        };
        let mut offset = header.data_at();
        if self.head.slot.seq <= header.first_seq {
            self.head.slot = HeadSlot {
                seq: header.first_seq,
                cum: header.cum,
            };
        } else if let Ok(Some(slot)) = IndexSlot::find(&*file, &header, self.head.slot.seq) {
            offset = slot.offset;
        }
        self.head.walk = Some(Walk {
            name,
            scan: Some(Scan::new(
                file,
                header.salt,
                Look::Headers,
                offset,
                TRIM_CHUNK_BYTES,
            )),
        });
    }

    fn header_of(&self, name: SegmentName) -> io::Result<(SegmentHeader, Arc<dyn DataFile>)> {
        if name == self.active.name {
            return Ok((self.active.header, Arc::clone(&self.active.file)));
        }
        let file = self.storage.open(&name.file_name(), Access::Read)?;
        match SegmentHeader::read(&*file)? {
            Some((header, _)) => Ok((header, file)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The segment that holds `seq`, or would.
    fn segment_of(&self, seq: u64) -> SegmentName {
        let found = self
            .segments
            .iter()
            .rev()
            .find(|name| name.first_seq <= seq);
        let oldest = self.segments.front();
        *found.or(oldest).unwrap_or(&self.active.name)
    }
}
