//! Receipts of inputs: proof that an input was accepted, kept longer than its event.
//!
//! ```text
//!  reserve ─► (journal append) ─► insert ─► memory ─ seal ─► run  run  run   sorted, immutable
//!                                                              └── merged above 8 ──┘
//! ```
//!
//! New receipts are in memory, and in the journal as events. Sealing writes them as a run, a
//! file sorted by id, so that finding one costs some reads, however many there are. After an
//! opening, the receipts of events after [`Receipts::covered_up_to`] have to be inserted again.
//!
//! Kept are the newest 65,536 and those of 24 hours, whichever is more, and all whose events are
//! retained. Above a million there is no room for another one: the input has to be refused,
//! because forgetting one would let an input in twice.

use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    sync::Arc,
};

use crate::{
    bytes_at::{i64_at, put, u32_at, u64_at},
    limits::{
        RECEIPT_AGE_NANOS, RECEIPT_RUNS_MAX, RECEIPTS_ACTIVE_MAX, RECEIPTS_KEPT_MIN, RECEIPTS_MAX,
    },
    storage::{Access, DataFile, Storage},
};

const MAGIC: [u8; 8] = *b"OUTLIVER";
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 48;
const MARK_NAME: &str = "receipts.mark";
/// Entries taken from a run at once while searching.
const BLOCK_ENTRIES: u64 = 64;

/// One receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// Hash of the caller's id for the input.
    pub id: u128,
    /// Digest of what the input was.
    pub digest: u64,
    /// Number of its event.
    pub seq: u64,
    /// When it was accepted, nanoseconds since 1970.
    pub at_nanos: i64,
}

/// No room for another receipt.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// As many as allowed are kept and none may be forgotten yet.
    #[error("{count} receipts are kept and none may be forgotten yet")]
    Full {
        /// How many.
        count: usize,
    },
    /// The system refused.
    #[error("receipts can't be read or written: {0}")]
    Io(#[from] io::Error),
}

/// The receipts of one journal.
#[derive(Debug)]
pub struct Receipts {
    storage: Arc<dyn Storage>,
    active: HashMap<u128, Receipt>,
    /// Oldest first.
    runs: Vec<Run>,
    covered: u64,
    next_ordinal: u64,
    /// Before this time no receipt can be forgotten, so looking for one is useless.
    full_until: i64,
    damaged: u64,
}

#[derive(Debug)]
struct Run {
    name: String,
    file: Arc<dyn DataFile>,
    facts: RunFacts,
}

/// Header of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RunFacts {
    ordinal: u64,
    count: u64,
    /// It holds the receipts of all events after `after` and up to `up_to`.
    after: u64,
    up_to: u64,
    at_max: i64,
}

impl RunFacts {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        put(&mut b, 0, &MAGIC);
        put(&mut b, 8, &1_u64.to_le_bytes());
        put(&mut b, 16, &self.count.to_le_bytes());
        put(&mut b, 24, &self.after.to_le_bytes());
        put(&mut b, 32, &self.up_to.to_le_bytes());
        put(&mut b, 40, &self.at_max.to_le_bytes());
        put(&mut b, 48, &self.ordinal.to_le_bytes());
        let crc = crc32c::crc32c(b.get(..60).unwrap_or_default());
        put(&mut b, 60, &crc.to_le_bytes());
        b
    }

    fn decode(b: &[u8]) -> Option<Self> {
        let holds = b.get(..8)? == MAGIC
            && u64_at(b, 8)? == 1
            && u32_at(b, 60)? == crc32c::crc32c(b.get(..60)?);
        holds.then_some(Self {
            count: u64_at(b, 16)?,
            after: u64_at(b, 24)?,
            up_to: u64_at(b, 32)?,
            at_max: i64_at(b, 40)?,
            ordinal: u64_at(b, 48)?,
        })
    }
}

impl Receipt {
    fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut b = [0; ENTRY_BYTES];
        put(&mut b, 0, &self.id.to_le_bytes());
        put(&mut b, 16, &self.digest.to_le_bytes());
        put(&mut b, 24, &self.seq.to_le_bytes());
        put(&mut b, 32, &self.at_nanos.to_le_bytes());
        let crc = crc32c::crc32c(b.get(..40).unwrap_or_default());
        put(&mut b, 40, &crc.to_le_bytes());
        b
    }

    fn decode(b: &[u8]) -> Option<Self> {
        if u32_at(b, 40)? != crc32c::crc32c(b.get(..40)?) {
            return None;
        }
        Some(Self {
            id: u128::from_le_bytes(*b.first_chunk::<16>()?),
            digest: u64_at(b, 16)?,
            seq: u64_at(b, 24)?,
            at_nanos: i64_at(b, 32)?,
        })
    }
}

impl Receipts {
    /// Opens what the storage of a journal holds; nothing is as good as empty.
    pub fn open(storage: Arc<dyn Storage>) -> io::Result<Self> {
        let mut receipts = Self {
            active: HashMap::new(),
            runs: Vec::new(),
            covered: 0,
            next_ordinal: 1,
            full_until: i64::MIN,
            damaged: 0,
            storage,
        };
        for name in receipts.storage.list()? {
            if name.starts_with("receipts-") {
                receipts.open_run(name)?;
            }
        }
        receipts
            .runs
            .sort_by_key(|run| (run.facts.after, run.facts.ordinal));
        receipts.drop_merged()?;
        // Older runs than the first were forgotten in order, unless some can't be read.
        if receipts.damaged == 0
            && let Some(oldest) = receipts.runs.first()
        {
            receipts.covered = oldest.facts.after;
        }
        for run in &receipts.runs {
            if run.facts.after <= receipts.covered {
                receipts.covered = receipts.covered.max(run.facts.up_to);
            }
        }
        if let Some((after, up_to)) = receipts.read_mark()?
            && after <= receipts.covered
        {
            receipts.covered = receipts.covered.max(up_to);
        }
        Ok(receipts)
    }

    fn open_run(&mut self, name: String) -> io::Result<()> {
        let Some(ordinal) = name
            .strip_prefix("receipts-")
            .and_then(|rest| rest.strip_suffix(".run"))
        else {
            // Left half written by a crash; its receipts are still in the journal.
            return self.storage.remove(&name);
        };
        let ordinal = ordinal.parse::<u64>().unwrap_or(0);
        let file = self.storage.open(&name, Access::Read)?;
        let mut header = [0; HEADER_BYTES];
        let count = file.read_at(&mut header, 0)?;
        let facts = RunFacts::decode(header.get(..count).unwrap_or_default());
        self.next_ordinal = self.next_ordinal.max(ordinal + 1);
        match facts {
            Some(facts) => self.runs.push(Run { name, file, facts }),
            None => self.damaged += 1,
        }
        Ok(())
    }

    /// Removes runs that a merge has replaced, if a crash kept it from doing so.
    fn drop_merged(&mut self) -> io::Result<()> {
        let all: Vec<RunFacts> = self.runs.iter().map(|run| run.facts).collect();
        let mut kept = Vec::new();
        for run in std::mem::take(&mut self.runs) {
            let mine = run.facts;
            let replaced = all.iter().any(|other| {
                other.ordinal > mine.ordinal
                    && other.after <= mine.after
                    && other.up_to >= mine.up_to
            });
            if replaced {
                self.storage.remove(&run.name)?;
            } else {
                kept.push(run);
            }
        }
        self.runs = kept;
        Ok(())
    }

    /// Receipts of events up to this number are in runs. Those of later events have to be
    /// inserted after an opening.
    pub fn covered_up_to(&self) -> u64 {
        self.covered
    }

    /// How many run files could not be read when this was opened. The receipts of events that
    /// are still in the journal come back by inserting them.
    pub fn damaged_runs(&self) -> u64 {
        self.damaged
    }

    /// How many receipts are kept.
    pub fn count(&self) -> usize {
        let runs: u64 = self.runs.iter().map(|run| run.facts.count).sum();
        self.active.len() + usize::try_from(runs).unwrap_or(usize::MAX)
    }

    /// How many of them are in memory only.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// Makes sure that another receipt has room, before its input is accepted. `head_seq` is the
    /// first retained event.
    pub fn reserve(&mut self, now: i64, head_seq: u64) -> Result<(), ReceiptError> {
        if self.count() < RECEIPTS_MAX {
            return Ok(());
        }
        if now >= self.full_until {
            self.merge_from(0, now, head_seq)?;
            if self.count() < RECEIPTS_MAX {
                return Ok(());
            }
            // Looking again costs a merge of everything, so not more than once a minute.
            self.full_until = now.saturating_add(60_000_000_000);
        }
        Err(ReceiptError::Full {
            count: self.count(),
        })
    }

    /// Adds a receipt whose event is in the journal.
    pub fn insert(&mut self, receipt: Receipt) {
        self.active.insert(receipt.id, receipt);
    }

    /// Finds a receipt.
    pub fn find(&self, id: u128) -> io::Result<Option<Receipt>> {
        if let Some(receipt) = self.active.get(&id) {
            return Ok(Some(*receipt));
        }
        for run in self.runs.iter().rev() {
            if let Some(receipt) = run.find(id)? {
                return Ok(Some(receipt));
            }
        }
        Ok(None)
    }

    /// Should [`seal`](Self::seal) be called. `sealed_up_to` is the journal's.
    pub fn is_seal_due(&self, sealed_up_to: u64) -> bool {
        sealed_up_to > self.covered || self.active.len() >= RECEIPTS_ACTIVE_MAX
    }

    /// Writes the receipts of events up to `up_to` as a run, on disk when this returns. Every
    /// receipt up to there must have been inserted.
    pub fn seal(&mut self, up_to: u64, now: i64, head_seq: u64) -> io::Result<()> {
        let mut receipts: Vec<Receipt> = self
            .active
            .values()
            .filter(|receipt| receipt.seq <= up_to)
            .copied()
            .collect();
        if receipts.is_empty() {
            return self.write_mark(up_to);
        }
        let after = self.runs_end();
        let run = self.write_run(&mut receipts, after, up_to.max(self.covered))?;
        self.runs.push(run);
        self.active.retain(|_, receipt| receipt.seq > up_to);
        self.covered = self.covered.max(up_to);
        self.drop_expired(now, head_seq)?;
        if self.runs.len() > RECEIPT_RUNS_MAX {
            self.merge_from(self.merge_begin(), now, head_seq)?;
        }
        Ok(())
    }

    /// Notes that no receipt belongs to the events up to `up_to` that isn't in a run. Losing
    /// the note costs time at the next opening, nothing else, so it isn't synced.
    fn write_mark(&mut self, up_to: u64) -> io::Result<()> {
        if up_to <= self.covered {
            return Ok(());
        }
        let mut mark = [0; 32];
        put(&mut mark, 0, &self.runs_end().to_le_bytes());
        put(&mut mark, 8, &up_to.to_le_bytes());
        let crc = crc32c::crc32c(mark.get(..28).unwrap_or_default());
        put(&mut mark, 28, &crc.to_le_bytes());
        let file = match self.storage.open(MARK_NAME, Access::Write) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => self.storage.create(MARK_NAME)?,
            Err(error) => return Err(error),
        };
        file.write_all_at(&mark, &[], 0)?;
        self.covered = up_to;
        Ok(())
    }

    fn read_mark(&self) -> io::Result<Option<(u64, u64)>> {
        let file = match self.storage.open(MARK_NAME, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut mark = [0; 32];
        let count = file.read_at(&mut mark, 0)?;
        let mark = mark.get(..count).unwrap_or_default();
        let read = || {
            let holds = u32_at(mark, 28)? == crc32c::crc32c(mark.get(..28)?);
            holds.then_some((u64_at(mark, 0)?, u64_at(mark, 8)?))
        };
        Ok(read())
    }

    fn runs_end(&self) -> u64 {
        self.runs
            .iter()
            .map(|run| run.facts.up_to)
            .max()
            .unwrap_or(0)
    }

    fn write_run(&mut self, receipts: &mut [Receipt], after: u64, up_to: u64) -> io::Result<Run> {
        receipts.sort_unstable_by_key(|receipt| (receipt.id, receipt.seq));
        let facts = RunFacts {
            ordinal: self.next_ordinal,
            count: receipts.len() as u64,
            after,
            up_to,
            at_max: receipts.iter().map(|r| r.at_nanos).max().unwrap_or(0),
        };
        let mut bytes = Vec::with_capacity(HEADER_BYTES + receipts.len() * ENTRY_BYTES);
        bytes.extend_from_slice(&facts.encode());
        for receipt in receipts.iter() {
            bytes.extend_from_slice(&receipt.encode());
        }
        let name = format!("receipts-{:012}.run", facts.ordinal);
        let temporary = format!("receipts-{:012}.new", facts.ordinal);
        self.next_ordinal += 1;
        let file = self.storage.create(&temporary)?;
        let written = file
            .write_all_at(&bytes, &[], 0)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            return match self.storage.remove(&temporary) {
                Ok(()) | Err(_) => Err(error), // The next opening removes it.
            };
        }
        self.storage.rename(&temporary, &name)?;
        self.storage.sync_directory()?;
        Ok(Run { name, file, facts })
    }

    /// From which run on to merge: the two newest, and every older one that is not larger than
    /// those taken so far. So each receipt is written a logarithmic number of times.
    fn merge_begin(&self) -> usize {
        let mut begin = self.runs.len();
        let mut taken = 0;
        for (index, run) in self.runs.iter().enumerate().rev() {
            if self.runs.len() - begin >= 2 && run.facts.count > taken {
                break;
            }
            taken += run.facts.count;
            begin = index;
        }
        begin
    }

    /// Merges the runs from `begin` on into one; when that is all of them, without those that
    /// may be forgotten.
    fn merge_from(&mut self, begin: usize, now: i64, head_seq: u64) -> io::Result<()> {
        let mut receipts = Vec::new();
        for run in self.runs.iter().skip(begin) {
            run.read_all(&mut receipts)?;
        }
        let (Some(first), Some(last)) = (self.runs.get(begin), self.runs.last()) else {
            return Ok(());
        };
        let (after, up_to) = (first.facts.after, last.facts.up_to);
        if begin == 0 {
            self.forget(&mut receipts, now, head_seq);
        }
        let merged = self.write_run(&mut receipts, after, up_to)?;
        for run in self.runs.drain(begin..) {
            self.storage.remove(&run.name)?;
        }
        self.runs.push(merged);
        Ok(())
    }

    /// Drops what neither the count nor the age nor the events keep.
    fn forget(&self, receipts: &mut Vec<Receipt>, now: i64, head_seq: u64) {
        let keep = RECEIPTS_KEPT_MIN.saturating_sub(self.active.len());
        let excess = receipts.len().saturating_sub(keep);
        if excess == 0 {
            return;
        }
        receipts.sort_unstable_by_key(|receipt| receipt.seq);
        let mut index = 0;
        receipts.retain(|receipt| {
            index += 1;
            index > excess
                || receipt.seq >= head_seq
                || receipt.at_nanos.saturating_add(RECEIPT_AGE_NANOS) > now
        });
    }

    /// Removes the oldest runs while nothing keeps any of their receipts.
    fn drop_expired(&mut self, now: i64, head_seq: u64) -> io::Result<()> {
        while let Some(oldest) = self.runs.first() {
            let count = usize::try_from(oldest.facts.count).unwrap_or(usize::MAX);
            let newer = self.count() - count;
            let kept = newer < RECEIPTS_KEPT_MIN
                || oldest.facts.up_to >= head_seq
                || oldest.facts.at_max.saturating_add(RECEIPT_AGE_NANOS) > now;
            // A single file carries what is covered, so one always stays.
            if kept || self.runs.len() < 2 {
                break;
            }
            let run = self.runs.remove(0);
            self.storage.remove(&run.name)?;
        }
        Ok(())
    }
}

impl Run {
    fn read_block(&self, from: u64, count: u64) -> io::Result<Vec<Option<Receipt>>> {
        let len = usize::try_from(count).unwrap_or(0) * ENTRY_BYTES;
        let mut bytes = vec![0; len];
        let at = HEADER_BYTES as u64 + from * ENTRY_BYTES as u64;
        let read = self.file.read_at(&mut bytes, at)?;
        bytes.truncate(read);
        Ok(bytes
            .chunks_exact(ENTRY_BYTES)
            .map(Receipt::decode)
            .collect())
    }

    /// Searches by where the id should be, and by halves in turn, so that neither an unlucky nor
    /// a hostile choice of ids makes it slow.
    fn find(&self, id: u128) -> io::Result<Option<Receipt>> {
        let (mut low, mut high) = (0, self.facts.count);
        let (mut low_key, mut high_key) = (0, u128::MAX);
        let mut guess_by_value = true;
        while low < high {
            let span = high - low;
            let offset = if guess_by_value {
                share(id - low_key, high_key - low_key, span)
            } else {
                span / 2
            };
            guess_by_value = !guess_by_value;
            let from = (low + offset).saturating_sub(BLOCK_ENTRIES / 2).max(low);
            let count = BLOCK_ENTRIES.min(high - from);
            let block = self.read_block(from, count)?;
            if block.len() as u64 != count || block.iter().any(Option::is_none) {
                return self.find_by_walk(id);
            }
            let (Some(Some(first)), Some(Some(last))) = (block.first(), block.last()) else {
                return Ok(None);
            };
            if id < first.id {
                (high, high_key) = (from, first.id);
            } else if id > last.id {
                (low, low_key) = (from + count, last.id);
            } else {
                // Of several with one id the newest counts; they stand side by side.
                return Ok(block
                    .into_iter()
                    .flatten()
                    .rfind(|receipt| receipt.id == id));
            }
        }
        Ok(None)
    }

    /// Looks at every entry: the way around a damaged one.
    fn find_by_walk(&self, id: u128) -> io::Result<Option<Receipt>> {
        let mut all = Vec::new();
        self.read_all(&mut all)?;
        Ok(all.into_iter().rfind(|receipt| receipt.id == id))
    }

    fn read_all(&self, into: &mut Vec<Receipt>) -> io::Result<()> {
        let mut from = 0;
        while from < self.facts.count {
            let block = self.read_block(from, (self.facts.count - from).min(4096))?;
            if block.is_empty() {
                break; // The file was cut short.
            }
            from += block.len() as u64;
            into.extend(block.into_iter().flatten());
        }
        Ok(())
    }
}

/// `span · part / whole`, below `span`.
fn share(part: u128, whole: u128, span: u64) -> u64 {
    let whole = (whole >> 64).max(1);
    let share = (part >> 64).saturating_mul(u128::from(span)) / whole;
    u64::try_from(share).unwrap_or(u64::MAX).min(span - 1)
}
