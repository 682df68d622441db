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

mod run;
mod seal;

use std::{
    collections::HashMap,
    io::{self, ErrorKind},
    sync::Arc,
};

use crate::{
    bytes_at::{put, u32_at, u64_at},
    limits::{
        RECEIPT_AGE_NANOS, RECEIPT_RUNS_MAX, RECEIPTS_ACTIVE_MAX, RECEIPTS_KEPT_MIN, RECEIPTS_MAX,
    },
    storage::{Access, Storage},
};
use run::{HEADER_BYTES, Run, RunFacts};
use seal::{Forget, Origin, Task};
pub use seal::{Work, Written};

const MARK_NAME: &str = "receipts.mark";

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
    /// Work was begun and not finished: its runs must stay.
    is_working: bool,
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
            is_working: false,
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
            if self.is_working {
                return Err(ReceiptError::Full {
                    count: self.count(),
                });
            }
            if let Some(merge) = self.merge_from(0, now, head_seq) {
                self.finish(merge.write(), now, head_seq)?;
            }
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
        let Some(seal) = self.begin_seal(up_to)? else {
            return Ok(());
        };
        self.finish(seal.write(), now, head_seq)?;
        match self.begin_merge(now, head_seq) {
            Some(merge) => self.finish(merge.write(), now, head_seq),
            None => Ok(()),
        }
    }

    /// The first third of [`seal`](Self::seal), for whoever must not wait for the disk while it
    /// holds these receipts: then [`Work::write`] without them, then [`finish`](Self::finish).
    ///
    /// Nothing when there is nothing to write, or when other work was not finished yet.
    pub fn begin_seal(&mut self, up_to: u64) -> io::Result<Option<Work>> {
        if self.is_working {
            return Ok(None);
        }
        let receipts: Vec<Receipt> = self
            .active
            .values()
            .filter(|receipt| receipt.seq <= up_to)
            .copied()
            .collect();
        if receipts.is_empty() {
            return self.write_mark(up_to).map(|()| None);
        }
        let after = self.runs_end();
        Ok(Some(self.work(
            Task::Seal { receipts, up_to },
            after,
            up_to.max(self.covered),
        )))
    }

    /// Merging, when there are too many runs; see [`begin_seal`](Self::begin_seal).
    pub fn begin_merge(&mut self, now: i64, head_seq: u64) -> Option<Work> {
        if self.is_working || self.runs.len() <= RECEIPT_RUNS_MAX {
            return None;
        }
        self.merge_from(self.merge_begin(), now, head_seq)
    }

    fn work(&mut self, task: Task, after: u64, up_to: u64) -> Work {
        let ordinal = self.next_ordinal;
        self.next_ordinal += 1;
        self.is_working = true;
        Work {
            storage: Arc::clone(&self.storage),
            task,
            ordinal,
            after,
            up_to,
        }
    }

    /// Makes use of what was written. `now` and `head_seq` say which runs may go.
    pub fn finish(
        &mut self,
        written: io::Result<Written>,
        now: i64,
        head_seq: u64,
    ) -> io::Result<()> {
        self.is_working = false;
        match written? {
            Written {
                run,
                of: Origin::Active { up_to },
            } => {
                self.runs.push(run);
                self.active.retain(|_, receipt| receipt.seq > up_to);
                self.covered = self.covered.max(up_to);
                self.drop_expired(now, head_seq)
            }
            Written {
                run,
                of: Origin::Runs { replaced },
            } => {
                let begin = self
                    .runs
                    .iter()
                    .position(|run| replaced.contains(&run.name));
                self.runs.retain(|run| !replaced.contains(&run.name));
                self.runs.insert(begin.unwrap_or(self.runs.len()), run);
                for name in replaced {
                    self.storage.remove(&name)?;
                }
                Ok(())
            }
        }
    }

    /// Notes that the events up to `up_to` need not be looked through for receipts after an
    /// opening, if they had none. Every receipt up to there must have been inserted.
    pub fn note_none(&mut self, up_to: u64) -> io::Result<()> {
        let has_any = || self.active.values().any(|receipt| receipt.seq <= up_to);
        if self.is_working || up_to <= self.covered || has_any() {
            return Ok(());
        }
        self.write_mark(up_to)
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
    fn merge_from(&mut self, begin: usize, now: i64, head_seq: u64) -> Option<Work> {
        let runs = self.runs.get(begin..)?.to_vec();
        let (after, up_to) = (runs.first()?.facts.after, runs.last()?.facts.up_to);
        let forget = (begin == 0).then(|| Forget {
            keep: RECEIPTS_KEPT_MIN.saturating_sub(self.active.len()),
            now,
            head_seq,
        });
        Some(self.work(Task::Merge { runs, forget }, after, up_to))
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
