//! Which inputs a session has accepted: told for every retry, forgotten only by rule.
//!
//! The journal is the truth: `input.accepted` carries the id and the digest. This is its index.
//! The newest receipts are in memory; beyond [`RECEIPTS_RECENT_MAX`] they are written as an
//! immutable sorted *run* beside the journal, so that memory and the cost of a look-up stay flat.
//! A run is written whole, synced and renamed before anything relies on it, and may hold what the
//! active segment holds too: a successor reads the segment again and writes another run.
//!
//! ```text
//!   run file  receipts-<n>.run: entries of 48 bytes, ascending by id hash
//!   entry     id hash 16 | digest 8 | seq 8 | time 8 | check 8     little-endian
//! ```

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use outlive_core::{receipt::id_hash, time::Timestamp};

use crate::limits::{
    RECEIPT_AGE_KEPT, RECEIPT_RUNS_MAX, RECEIPTS_KEPT, RECEIPTS_MAX, RECEIPTS_RECENT_MAX,
};

const ENTRY_BYTES: usize = 48;
const ENTRIES_A_READ: usize = 85; // Some 4 KiB: what one page of the file holds.

/// What is known of one accepted input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// Digest over attempt, bytes and EOF.
    pub(crate) digest: u64,
    /// Its event.
    pub(crate) seq: u64,
    /// When it was accepted.
    pub(crate) at: Timestamp,
}

/// The receipts of one session.
#[derive(Debug)]
pub(crate) struct Receipts {
    dir: PathBuf,
    recent: HashMap<u128, Receipt>,
    runs: Vec<Run>,
    number_next: u64,
}

#[derive(Debug)]
struct Run {
    path: PathBuf,
    file: File,
    entries: u64,
}

impl Receipts {
    /// Finds the runs in a session's directory.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let mut numbered = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            match run_number(&path) {
                Some(number) => numbered.push((number, Run::open(path)?)),
                None if path.extension().is_some_and(|ext| ext == "run-new") => {
                    fs::remove_file(&path)?; // Never finished: nothing relies on it.
                }
                None => {}
            }
        }
        numbered.sort_by_key(|(number, _)| *number);
        let number_next = numbered.last().map_or(1, |(number, _)| number + 1);
        let runs = numbered.into_iter().map(|(_, run)| run).collect();
        Ok(Self {
            dir: dir.to_owned(),
            recent: HashMap::new(),
            runs,
            number_next,
        })
    }

    /// Remembers an accepted input.
    pub(crate) fn note(&mut self, input_id: &str, receipt: Receipt) {
        self.recent.insert(hash_id(input_id), receipt);
    }

    /// The receipt of an id, if it was accepted.
    pub(crate) fn find(&self, input_id: &str) -> io::Result<Option<Receipt>> {
        let id = hash_id(input_id);
        if let Some(receipt) = self.recent.get(&id) {
            return Ok(Some(*receipt));
        }
        for run in self.runs.iter().rev() {
            if let Some(receipt) = run.find(id)? {
                return Ok(Some(receipt));
            }
        }
        Ok(None)
    }

    /// Whether no further receipt may be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= RECEIPTS_MAX
    }

    /// Whether [`Receipts::settle`] is due.
    pub(crate) fn is_settling_due(&self) -> bool {
        self.recent.len() >= RECEIPTS_RECENT_MAX
    }

    /// Writes the newest as a run, and merges the runs when there are many.
    ///
    /// `earliest` is the first retained event: receipts of retained events are always kept.
    pub(crate) fn settle(&mut self, now: Timestamp, earliest: u64) -> io::Result<()> {
        let mut entries: Vec<_> = self
            .recent
            .iter()
            .map(|(id, receipt)| (*id, *receipt))
            .collect();
        let merge = self.runs.len() >= RECEIPT_RUNS_MAX;
        if merge {
            for run in &self.runs {
                run.read_into(&mut entries)?;
            }
            forget(&mut entries, now, earliest);
        }
        entries.sort_unstable_by_key(|(id, receipt)| (*id, receipt.seq));
        entries.dedup_by_key(|(id, _)| *id);
        let run = Run::write(&self.dir, self.number_next, &entries)?;
        self.number_next += 1;
        self.recent = HashMap::new();
        let old = if merge {
            std::mem::take(&mut self.runs)
        } else {
            Vec::new()
        };
        self.runs.push(run);
        for run in old {
            fs::remove_file(&run.path)?;
        }
        Ok(())
    }

    fn len(&self) -> usize {
        let settled: u64 = self.runs.iter().map(|run| run.entries).sum();
        self.recent.len() + usize::try_from(settled).unwrap_or(usize::MAX)
    }
}

/// Drops what is neither young, nor among the newest, nor of a retained event.
fn forget(entries: &mut Vec<(u128, Receipt)>, now: Timestamp, earliest: u64) {
    entries.sort_unstable_by_key(|(_, receipt)| std::cmp::Reverse(receipt.seq));
    let mut newer = 0;
    entries.retain(|(_, receipt)| {
        newer += 1;
        newer <= RECEIPTS_KEPT
            || receipt.seq >= earliest
            || now.since(receipt.at) <= RECEIPT_AGE_KEPT
    });
}

impl Run {
    fn open(path: PathBuf) -> io::Result<Self> {
        let file = File::open(&path)?;
        let entries = file.metadata()?.len() / ENTRY_BYTES as u64;
        Ok(Self {
            path,
            file,
            entries,
        })
    }

    fn write(dir: &Path, number: u64, entries: &[(u128, Receipt)]) -> io::Result<Self> {
        let path = dir.join(format!("receipts-{number}.run"));
        let unfinished = dir.join(format!("receipts-{number}.run-new"));
        let mut file = io::BufWriter::new(File::create(&unfinished)?);
        for (id, receipt) in entries {
            file.write_all(&encode(*id, receipt))?;
        }
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_data()?;
        rustix::fs::rename(&unfinished, &path)?;
        File::open(dir)?.sync_all()?;
        Self::open(path)
    }

    /// Ids are hashes, so their place can be guessed: mostly one or two reads, whatever the size.
    fn find(&self, id: u128) -> io::Result<Option<Receipt>> {
        let (mut low, mut high) = (0, self.entries);
        let (mut low_id, mut high_id) = (0_u128, u128::MAX);
        let mut page = [0; ENTRY_BYTES * ENTRIES_A_READ];
        let mut guesses = 0;
        while low < high {
            let span = high - low;
            // After some bad guesses halve: a run whose bytes are damaged must end the search too.
            guesses += 1;
            let guess = if guesses > 8 {
                low + span / 2
            } else {
                // The upper halves of the ids say where, to well below one entry.
                let whole = ((high_id - low_id) >> 64).max(1);
                let part = (id.saturating_sub(low_id) >> 64).min(whole);
                low + u64::try_from(part * u128::from(span - 1) / whole).unwrap_or(0)
            };
            let first = guess.saturating_sub(ENTRIES_A_READ as u64 / 2).max(low);
            let count = usize::try_from((high - first).min(ENTRIES_A_READ as u64)).unwrap_or(0);
            let bytes = &mut page[..count * ENTRY_BYTES];
            self.file.read_exact_at(bytes, first * ENTRY_BYTES as u64)?;
            let ids = |at: usize| id_at(bytes, at);
            if id < ids(0) {
                (high, high_id) = (first, ids(0));
            } else if id > ids(count - 1) {
                (low, low_id) = (first + count as u64, ids(count - 1));
            } else {
                return Ok(bytes
                    .chunks_exact(ENTRY_BYTES)
                    .filter_map(decode)
                    .find(|(other, _)| *other == id)
                    .map(|(_, receipt)| receipt));
            }
        }
        Ok(None)
    }

    fn read_into(&self, entries: &mut Vec<(u128, Receipt)>) -> io::Result<()> {
        let mut bytes = vec![0; ENTRY_BYTES * usize::try_from(self.entries).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, 0)?;
        entries.extend(bytes.chunks_exact(ENTRY_BYTES).filter_map(decode));
        Ok(())
    }
}

fn run_number(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("receipts-")?
        .strip_suffix(".run")?
        .parse()
        .ok()
}

fn encode(id: u128, receipt: &Receipt) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..16].copy_from_slice(&id.to_le_bytes());
    entry[16..24].copy_from_slice(&receipt.digest.to_le_bytes());
    entry[24..32].copy_from_slice(&receipt.seq.to_le_bytes());
    entry[32..40].copy_from_slice(&receipt.at.unix_nanos().to_le_bytes());
    let check = check_of(&entry[..40]);
    entry[40..].copy_from_slice(&check.to_le_bytes());
    entry
}

/// A damaged entry costs itself.
fn decode(entry: &[u8]) -> Option<(u128, Receipt)> {
    if word(entry, 40) != check_of(entry.get(..40)?) {
        return None;
    }
    let receipt = Receipt {
        digest: word(entry, 16),
        seq: word(entry, 24),
        at: Timestamp::from_unix_nanos(word(entry, 32).cast_signed()),
    };
    Some((id_at(entry, 0), receipt))
}

fn id_at(entries: &[u8], index: usize) -> u128 {
    let at = index * ENTRY_BYTES;
    u128::from(word(entries, at)) | u128::from(word(entries, at + 8)) << 64
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn check_of(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| mix_64(hash, *byte))
}

fn mix_64(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
}

fn hash_id(input_id: &str) -> u128 {
    id_hash(input_id).as_u128()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(n: u64) -> Receipt {
        Receipt {
            digest: n * 7,
            seq: n,
            at: Timestamp::from_unix_nanos(n.cast_signed()),
        }
    }

    #[test]
    fn ten_thousand_receipts_are_found_again_also_by_a_successor() {
        let dir = tempfile::tempdir().unwrap();
        let mut receipts = Receipts::open(dir.path()).unwrap();
        for n in 1..=50_000 {
            receipts.note(&format!("input-{n}"), receipt(n));
            if receipts.is_settling_due() {
                receipts.settle(Timestamp::EPOCH, 1).unwrap();
            }
        }
        receipts.settle(Timestamp::EPOCH, 1).unwrap();
        let receipts = Receipts::open(dir.path()).unwrap();
        assert!(receipts.runs.len() <= RECEIPT_RUNS_MAX);
        for n in (1..=50_000).step_by(97) {
            assert_eq!(
                receipts.find(&format!("input-{n}")).unwrap(),
                Some(receipt(n))
            );
            assert_eq!(receipts.find(&format!("other-{n}")).unwrap(), None);
        }
    }

    #[test]
    fn only_what_is_old_and_not_retained_is_forgotten() {
        let day_ns = i64::try_from(RECEIPT_AGE_KEPT.as_nanos()).unwrap();
        let now = Timestamp::from_unix_nanos(day_ns + 1_000);
        let count = RECEIPTS_KEPT as u64 + 2_000;
        let mut entries: Vec<_> = (1..=count).map(|n| (u128::from(n), receipt(n))).collect();
        forget(&mut entries, now, count);
        let least = entries.iter().map(|(_, receipt)| receipt.seq).min();
        assert_eq!(
            least,
            Some(1_000),
            "younger than a day, or among the newest"
        );
        let mut entries: Vec<_> = (1..=count).map(|n| (u128::from(n), receipt(n))).collect();
        forget(&mut entries, now, 500);
        assert_eq!(entries.len() as u64, count - 499);
    }
}
