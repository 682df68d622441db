//! One run: a file of receipts sorted by id, written once.

use std::{io, sync::Arc};

use super::Receipt;
use crate::{
    bytes_at::{i64_at, put, u32_at, u64_at},
    storage::{DataFile, Storage},
};

const MAGIC: [u8; 8] = *b"OUTLIVER";
pub(super) const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 48;
/// Entries taken from a run at once while searching.
const BLOCK_ENTRIES: u64 = 64;

#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) name: String,
    pub(super) file: Arc<dyn DataFile>,
    pub(super) facts: RunFacts,
}

/// Header of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunFacts {
    pub(super) ordinal: u64,
    pub(super) count: u64,
    /// It holds the receipts of all events after `after` and up to `up_to`.
    pub(super) after: u64,
    pub(super) up_to: u64,
    pub(super) at_max: i64,
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

    pub(super) fn decode(b: &[u8]) -> Option<Self> {
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

impl Run {
    /// Writes receipts as a run, on disk when this returns. Waits for the disk.
    pub(super) fn write(
        storage: &dyn Storage,
        receipts: &mut [Receipt],
        ordinal: u64,
        after: u64,
        up_to: u64,
    ) -> io::Result<Self> {
        receipts.sort_unstable_by_key(|receipt| (receipt.id, receipt.seq));
        let facts = RunFacts {
            ordinal,
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
        let name = format!("receipts-{ordinal:012}.run");
        let temporary = format!("receipts-{ordinal:012}.new");
        let file = storage.create(&temporary)?;
        let written = file
            .write_all_at(&bytes, &[], 0)
            .and_then(|()| file.sync_data());
        if let Err(error) = written {
            return match storage.remove(&temporary) {
                Ok(()) | Err(_) => Err(error), // The next opening removes it.
            };
        }
        storage.rename(&temporary, &name)?;
        storage.sync_directory()?;
        Ok(Self { name, file, facts })
    }

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
    pub(super) fn find(&self, id: u128) -> io::Result<Option<Receipt>> {
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

    pub(super) fn read_all(&self, into: &mut Vec<Receipt>) -> io::Result<()> {
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
