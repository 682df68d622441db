//! Reading, also from another process, at the reader's own speed.
//!
//! A reader holds no lock and no queue: it is a position in a file. It can follow a journal that
//! is written, sealed and trimmed at the same time. Whatever happens to the files, it answers
//! with records, with a gap, or with [`ReadError::Expired`].

use std::{
    io::{self, ErrorKind},
    path::Path,
    sync::Arc,
};

use crate::{
    frame::{KIND_ROLL, KIND_SEAL},
    limits::{READ_AGAIN_MAX, READ_CHUNK_BYTES},
    record::{Gap, KIND_GAP, Record},
    recover::to_record,
    scan::{Look, Scan, Step},
    segment::{HeadSlot, IndexSlot, SegmentHeader, SegmentName},
    storage::{Access, DataFile, FileStorage, Storage},
};

/// Why there are no records.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The position is before what is retained.
    #[error("cursor expired; the earliest record is {earliest}")]
    Expired {
        /// First retained record.
        earliest: u64,
    },
    /// The position is behind the newest record.
    #[error("cursor is ahead; the latest record is {latest}")]
    Ahead {
        /// Last record.
        latest: u64,
    },
    /// There is no journal.
    #[error("no journal there")]
    Empty,
    /// The system refused.
    #[error("journal can't be read: {0}")]
    Io(#[from] io::Error),
}

/// A position in a journal.
#[derive(Debug)]
pub struct Reader {
    storage: Arc<dyn Storage>,
    position: Option<Position>,
}

#[derive(Debug)]
struct Position {
    name: SegmentName,
    header: SegmentHeader,
    scan: Scan,
    /// The next number; what is before it was passed.
    next_seq: u64,
    last_at: i64,
    last_attempt: u32,
    /// The segment said that a newer one exists.
    rolled: bool,
}

/// What a call may return.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    upto: u64,
    bytes_max: usize,
    records_max: usize,
}

#[derive(Debug, Default)]
struct Page {
    records: Vec<Record>,
    bytes: usize,
}

impl Page {
    fn push(&mut self, record: Record) {
        self.bytes += record.payload.len();
        self.records.push(record);
    }

    fn is_full(&self, bounds: &Bounds) -> bool {
        self.bytes >= bounds.bytes_max || self.records.len() >= bounds.records_max
    }
}

/// The newest segment that can be read.
type Newest = (SegmentName, SegmentHeader, Arc<dyn DataFile>);

/// What the walk through one segment ended with.
enum Reached {
    /// The bounds of the call.
    Bounds,
    /// The end of what is written there.
    End,
    /// Bytes that are no frame and none behind them.
    Bad,
}

impl Reader {
    /// Reads the journal in a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::on(FileStorage::open(path)?))
    }

    /// Reads the journal on a storage.
    pub fn on(storage: Arc<dyn Storage>) -> Self {
        Self {
            storage,
            position: None,
        }
    }

    /// Records after `after` and up to `upto`, in order and without holes: a lost range is a
    /// record of [`KIND_GAP`]. At least one when there is one, and
    /// then no more than `bytes_max` of payload (the last may exceed it) and `records_max`.
    ///
    /// `upto` is the published tail; `u64::MAX` reads whatever is there, which is right only when
    /// nobody appends. Going on where the last call ended is cheap; any other place is found
    /// through names and the sparse index.
    pub fn read_after(
        &mut self,
        after: u64,
        upto: u64,
        bytes_max: usize,
        records_max: usize,
    ) -> Result<Vec<Record>, ReadError> {
        if after > upto {
            return Err(ReadError::Ahead { latest: upto });
        }
        if after == upto {
            return Ok(Vec::new());
        }
        let bounds = Bounds {
            upto,
            bytes_max: bytes_max.max(1),
            records_max: records_max.max(1),
        };
        let next = after + 1;
        if self.position.as_ref().is_none_or(|at| at.next_seq != next) {
            self.position = None;
            self.go_to(next, upto)?;
        }
        let mut page = Page::default();
        let result = self.fill(&mut page, &bounds);
        match result {
            Ok(()) => Ok(page.records),
            Err(_) if !page.records.is_empty() => {
                // What was read is right; the next call meets the same trouble.
                self.position = None;
                Ok(page.records)
            }
            Err(error) => {
                self.position = None;
                Err(error)
            }
        }
    }

    /// First and last record by the files alone; `(n + 1, n)` when there is none.
    pub fn window(&self) -> Result<(u64, u64), ReadError> {
        for _ in 0..READ_AGAIN_MAX {
            let segments = self.segments()?;
            let Some((name, header, file)) = self.newest(&segments)? else {
                continue; // Trimmed while we looked.
            };
            let earliest = Self::earliest(&segments, &header, &*file)?;
            let latest = latest_of(name, &header, &file)?;
            return Ok((earliest.min(latest + 1), latest));
        }
        Err(ReadError::Empty)
    }

    fn segments(&self) -> Result<Vec<SegmentName>, ReadError> {
        let segments = SegmentName::sorted(&self.storage.list()?);
        if segments.is_empty() {
            return Err(ReadError::Empty);
        }
        Ok(segments)
    }

    /// The newest segment that can be read.
    fn newest(&self, segments: &[SegmentName]) -> io::Result<Option<Newest>> {
        for name in segments.iter().rev() {
            if let Some((header, file)) = self.try_open(*name)? {
                return Ok(Some((*name, header, file)));
            }
        }
        Ok(None)
    }

    /// `None` when the file is gone or its header can't be read.
    fn try_open(
        &self,
        name: SegmentName,
    ) -> io::Result<Option<(SegmentHeader, Arc<dyn DataFile>)>> {
        let file = match self.storage.open(&name.file_name(), Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(SegmentHeader::read(&*file)?.map(|(header, _)| (header, file)))
    }

    fn earliest(
        segments: &[SegmentName],
        newest: &SegmentHeader,
        file: &dyn DataFile,
    ) -> io::Result<u64> {
        let oldest = segments.first().map_or(1, |name| name.first_seq);
        Ok(HeadSlot::read(file, newest)?.seq.max(oldest))
    }

    /// Goes to the segment that holds `next`, or would.
    fn go_to(&mut self, next: u64, upto: u64) -> Result<(), ReadError> {
        for _ in 0..READ_AGAIN_MAX {
            let segments = self.segments()?;
            let Some((newest, newest_header, newest_file)) = self.newest(&segments)? else {
                continue;
            };
            let earliest = Self::earliest(&segments, &newest_header, &*newest_file)?;
            if next < earliest {
                return Err(ReadError::Expired { earliest });
            }
            if upto == u64::MAX {
                let latest = latest_of(newest, &newest_header, &newest_file)?;
                if next > latest + 1 {
                    return Err(ReadError::Ahead { latest });
                }
            }
            let holder = segments.iter().rev().find(|name| name.first_seq <= next);
            let Some(mut at) = holder.or_else(|| segments.first()).copied() else {
                continue;
            };
            // A segment that can't be read is passed over; its range becomes a gap.
            loop {
                if let Some((header, file)) = self.try_open(at)? {
                    self.position = Some(Position::at(at, header, file, next)?);
                    return Ok(());
                }
                match segments.iter().find(|name| **name > at) {
                    Some(name) => at = *name,
                    None => break,
                }
            }
        }
        Err(ReadError::Empty)
    }

    fn fill(&mut self, page: &mut Page, bounds: &Bounds) -> Result<(), ReadError> {
        let mut again = 0;
        loop {
            let Some(position) = self.position.as_mut() else {
                return Ok(());
            };
            let reached = position.walk(page, bounds)?;
            match reached {
                Reached::Bounds => return Ok(()),
                Reached::End | Reached::Bad if position.next_seq > bounds.upto => return Ok(()),
                Reached::End | Reached::Bad => {}
            }
            if self.enter_next(page, bounds)? {
                continue;
            }
            // Nothing newer exists. A writer may be half way through a header.
            if matches!(reached, Reached::Bad) && again < READ_AGAIN_MAX {
                again += 1;
                std::thread::yield_now();
                continue;
            }
            if bounds.upto != u64::MAX && page.records.is_empty() && again < READ_AGAIN_MAX {
                again += 1;
                continue;
            }
            if bounds.upto != u64::MAX {
                // Published, and not there any more.
                self.lose(page, bounds.upto);
            }
            return Ok(());
        }
    }

    /// Goes on to the next segment, if there is one.
    fn enter_next(&mut self, page: &mut Page, bounds: &Bounds) -> Result<bool, ReadError> {
        let Some(position) = self.position.as_ref() else {
            return Ok(false);
        };
        let (current, next_seq) = (position.name, position.next_seq);
        let segments = self.segments()?;
        let Some((newest_name, newest_header, newest_file)) = self.newest(&segments)? else {
            return Ok(false);
        };
        if newest_name <= current {
            return Ok(false);
        }
        let mut entered = None;
        for name in segments.iter().filter(|name| **name > current) {
            if let Some((header, file)) = self.try_open(*name)? {
                entered = Some((*name, header, file));
                break;
            }
        }
        let Some((name, header, file)) = entered else {
            return Ok(false);
        };
        if let Some(position) = self.position.as_mut()
            && let Reached::Bounds = position.walk(page, bounds)?
        {
            // The old segment grew before it was sealed.
            return Ok(true);
        }
        let next_seq = self.position.as_ref().map_or(next_seq, |at| at.next_seq);
        if header.first_seq > next_seq {
            let earliest = Self::earliest(&segments, &newest_header, &*newest_file)?;
            if next_seq < earliest {
                return Err(ReadError::Expired { earliest });
            }
            let before = header.first_seq - 1;
            self.lose(page, before.min(bounds.upto));
        }
        let next_seq = self.position.as_ref().map_or(next_seq, |at| at.next_seq);
        let (last_at, last_attempt) = self
            .position
            .as_ref()
            .map_or((0, 0), |at| (at.last_at, at.last_attempt));
        let mut position = Position::at(name, header, file, next_seq)?;
        position.last_at = position.last_at.max(last_at);
        position.last_attempt = last_attempt;
        self.position = Some(position);
        Ok(true)
    }

    /// Serves everything up to `to` as one gap.
    fn lose(&mut self, page: &mut Page, to: u64) {
        let Some(position) = self.position.as_mut() else {
            return;
        };
        if to < position.next_seq {
            return;
        }
        let gap = Gap {
            from: position.next_seq,
            to,
        };
        position.next_seq = to + 1;
        page.push(position.gap_record(gap));
    }
}

impl Position {
    fn at(
        name: SegmentName,
        header: SegmentHeader,
        file: Arc<dyn DataFile>,
        next_seq: u64,
    ) -> io::Result<Self> {
        let offset = if next_seq > header.first_seq {
            IndexSlot::find(&*file, &header, next_seq)?.map(|slot| slot.offset)
        } else {
            None
        };
        let data_at = header.data_at();
        let offset = offset.unwrap_or(data_at).max(data_at);
        Ok(Self {
            name,
            scan: Scan::new(file, header.salt, Look::Whole, offset, READ_CHUNK_BYTES),
            next_seq,
            last_at: header.created_at,
            last_attempt: 0,
            rolled: false,
            header,
        })
    }

    fn gap_record(&self, gap: Gap) -> Record {
        Record::for_gap(gap, self.last_at, self.last_attempt, self.header.generation)
    }

    /// Takes records from this segment.
    fn walk(&mut self, page: &mut Page, bounds: &Bounds) -> io::Result<Reached> {
        loop {
            if self.next_seq > bounds.upto || page.is_full(bounds) {
                return Ok(Reached::Bounds);
            }
            let frame = match self.scan.step()? {
                Step::Frame(frame) => frame,
                Step::Open { .. } | Step::Incomplete { .. } | Step::End => return Ok(Reached::End),
                Step::Bad => return Ok(Reached::Bad),
            };
            self.rolled |= frame.header.kind == KIND_ROLL;
            if !frame.header.is_record() || frame.header.seq < self.next_seq {
                continue;
            }
            let seq = frame.header.seq;
            let is_gap = frame.header.kind == KIND_GAP;
            if seq > bounds.upto {
                // Not published yet, and it may still be taken back.
                self.scan.seek(frame.offset);
                self.scan.release();
                if self.next_seq <= bounds.upto && !is_gap {
                    return Ok(Reached::Bad);
                }
                return Ok(Reached::Bounds);
            }
            if seq > self.next_seq && !is_gap {
                let gap = Gap {
                    from: self.next_seq,
                    to: seq - 1,
                };
                page.push(self.gap_record(gap));
                self.next_seq = seq;
                if page.is_full(bounds) {
                    self.scan.seek(frame.offset);
                    return Ok(Reached::Bounds);
                }
            }
            self.last_at = frame.header.at_nanos;
            self.last_attempt = frame.header.attempt;
            self.next_seq = seq + 1;
            page.push(to_record(&frame, self.header.generation));
        }
    }
}

/// The last record of a segment, or the one before it.
fn latest_of(
    name: SegmentName,
    header: &SegmentHeader,
    file: &Arc<dyn DataFile>,
) -> io::Result<u64> {
    let slots = IndexSlot::read_all(&**file, header)?;
    let data_at = header.data_at();
    let offset = slots
        .last()
        .map_or(data_at, |slot| slot.offset.max(data_at));
    let mut latest = slots
        .last()
        .map_or(name.first_seq, |slot| slot.seq)
        .saturating_sub(1);
    let mut scan = Scan::new(
        Arc::clone(file),
        header.salt,
        Look::Whole,
        offset,
        READ_CHUNK_BYTES,
    );
    while let Step::Frame(frame) = scan.step()? {
        if frame.header.is_record() || frame.header.kind == KIND_SEAL {
            latest = latest.max(frame.header.seq);
        }
    }
    Ok(latest)
}
