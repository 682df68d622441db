//! A place in the middle of a long segment where reading may begin when it is opened again.
//!
//! ```text
//!  frames … │ lease │ checkpoint │ frames …
//!           ▲
//!           └── resume slot: record before it, logical bytes, offset
//! ```
//! So opening costs the same however full the segment is. The slot is a hint like the others: if
//! what it names doesn't hold, the segment is read from its beginning. What was not read can be
//! looked through later, see [`Unread`].

use std::{io, sync::Arc};

use crate::{
    appender::{Appender, Freshness, plain_header},
    damage::{Damage, DamageReport},
    error::AppendError,
    frame::{self, KIND_CHECKPOINT, KIND_LEASE, align},
    limits::RESUME_SPACING_BYTES,
    record::Gap,
    recover::Segment,
    scan::{Scan, Step},
    segment::ResumeSlot,
};

impl Appender {
    /// Writes the checkpoint down in the middle of a long segment, so that opening it again reads
    /// no more than what follows. Only a convenience: without space it stays away.
    pub(crate) fn note_resume(&mut self, now: i64) -> Result<(), AppendError> {
        let is_useful = self.active.first_at.is_some()
            && self.checkpoint.freshness == Freshness::Fresh
            && !self.checkpoint.bytes.is_empty();
        if self.active.end < self.active.resume_at || !is_useful {
            return Ok(());
        }
        let at = now.max(self.last_at);
        let offset = self.begin_scratch();
        let mut scratch = std::mem::take(&mut self.scratch);
        let salt = self.active.header.salt;
        let bytes = &self.checkpoint.bytes;
        let spacing = RESUME_SPACING_BYTES.max(4 * bytes.len() as u64);
        frame::push(
            &mut scratch,
            &plain_header(KIND_LEASE, self.lease, at, 0),
            salt,
            &[],
        );
        let header = plain_header(KIND_CHECKPOINT, self.checkpoint.seq, at, bytes.len());
        frame::push(&mut scratch, &header, salt, bytes);
        let written = self.write_frames(offset, &scratch, &[]);
        self.keep_scratch(scratch);
        match written {
            Ok(()) => {}
            Err(AppendError::Full) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.active.resume_at = self.active.end + spacing;
        let slot = ResumeSlot {
            seq: self.next_seq - 1,
            offset,
            cum: self.cum,
        };
        let written = slot.write(&*self.active.file, &self.active.header);
        self.hint_written(written);
        self.active.resume_seq = slot.seq;
        Ok(())
    }
}

/// The part of a segment that opening did not read. Readers report what is damaged in it when they
/// come there; this looks for it before.
#[derive(Debug)]
#[must_use = "damage in it is not in the report of the opening"]
pub struct Unread {
    segment: Segment,
    slot: ResumeSlot,
}

impl Unread {
    pub(crate) fn of(segment: &Segment) -> Option<Self> {
        let slot = segment.unread?;
        let file = Arc::clone(&segment.file);
        let segment = Segment::at_its_beginning(segment.name, segment.header, segment.copies, file);
        Some(Self { segment, slot })
    }

    /// Reads it. Blocks for some milliseconds; appends may go on meanwhile.
    pub fn check(mut self) -> io::Result<DamageReport> {
        let segment = &mut self.segment;
        let mut scan = segment.scan(segment.header.data_at());
        while let Step::Frame(frame) = scan.step()? {
            if frame.offset >= self.slot.offset {
                break;
            }
            segment.add(&frame, |_, _| 0);
            segment.records.clear();
        }
        let mut damage = DamageReport::default();
        if scan.skipped() > 0 {
            damage.add(Damage::Skipped {
                file: segment.name.file_name(),
                bytes: scan.skipped(),
            });
        }
        for gap in segment.lost.drain(..) {
            damage.add(Damage::Lost(gap));
        }
        if segment.last_seq < self.slot.seq {
            damage.add(Damage::Lost(Gap {
                from: segment.last_seq + 1,
                to: self.slot.seq,
            }));
        }
        Ok(damage)
    }
}

impl Segment {
    /// Takes what stands at a resume slot; nothing when what it says does not hold.
    pub(crate) fn resume(&mut self, slot: ResumeSlot) -> io::Result<Option<Scan>> {
        if slot.offset < self.header.data_at() || slot.seq < self.header.first_seq {
            return Ok(None);
        }
        let mut scan = self.scan(slot.offset);
        let (Step::Frame(lease), Step::Frame(checkpoint)) = (scan.step()?, scan.step()?) else {
            return Ok(None);
        };
        let is_there = lease.offset == slot.offset
            && lease.header.kind == KIND_LEASE
            && checkpoint.offset == align(lease.end())
            && checkpoint.header.kind == KIND_CHECKPOINT
            && checkpoint.header.seq <= slot.seq
            && slot.seq <= lease.header.seq;
        if !is_there {
            return Ok(None);
        }
        self.unread = Some(slot);
        self.last_seq = slot.seq;
        self.last_at = self.last_at.max(checkpoint.header.at_nanos);
        // When exactly isn't known, but not before.
        self.first_at = Some(self.header.created_at);
        self.end = checkpoint.end();
        self.cum = slot.cum;
        self.lease = self.lease.max(lease.header.seq);
        self.checkpoint = Some((checkpoint.header.seq, checkpoint.payload.to_vec()));
        self.checkpoint_copies = 2;
        Ok(Some(scan))
    }
}
