//! One segment, read from its beginning or from a checkpoint in its middle.

use std::{io, sync::Arc};

use crate::{
    frame::{KIND_CHECKPOINT, KIND_LEASE, KIND_ROLL, KIND_SEAL, State},
    limits::{READ_CHUNK_BYTES, SEQ_MAX},
    record::{Gap, KIND_GAP, Record},
    scan::{Frame, Look, Scan, Step},
    segment::{Copies, ResumeSlot, SegmentHeader, SegmentName},
    storage::DataFile,
};

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
    pub(super) skipped: u64,
    pub(crate) copies: Copies,
    /// Where reading began, when that was not the beginning.
    pub(crate) unread: Option<ResumeSlot>,
    /// Length of the frame at its end that was completed when the journal was opened.
    pub(crate) completed: Option<u32>,
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

    pub(super) fn read(
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
