//! What waits for the disk: writing a run from memory, or from other runs. Done without the
//! receipts at hand, so that an input never waits for it.

use std::{io, sync::Arc};

use super::{Receipt, run::Run};
use crate::{limits::RECEIPT_AGE_NANOS, storage::Storage};

/// A run that has to be written.
#[derive(Debug)]
pub struct Work {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) task: Task,
    pub(super) ordinal: u64,
    pub(super) after: u64,
    pub(super) up_to: u64,
}

#[derive(Debug)]
pub(super) enum Task {
    /// From memory.
    Seal { receipts: Vec<Receipt>, up_to: u64 },
    /// From these runs, without what may be forgotten.
    Merge {
        runs: Vec<Run>,
        forget: Option<Forget>,
    },
}

/// What a merge of everything may leave out.
#[derive(Debug)]
pub(super) struct Forget {
    /// So many of the newest stay.
    pub(super) keep: usize,
    pub(super) now: i64,
    pub(super) head_seq: u64,
}

/// A run that is on disk.
#[derive(Debug)]
pub struct Written {
    pub(super) run: Run,
    pub(super) of: Origin,
}

#[derive(Debug)]
pub(super) enum Origin {
    /// Receipts in memory, of events up to this one.
    Active { up_to: u64 },
    /// Runs of these names.
    Runs { replaced: Vec<String> },
}

impl Work {
    /// Writes the run and waits until it is on disk.
    pub fn write(self) -> io::Result<Written> {
        let (mut receipts, of) = match self.task {
            Task::Seal { receipts, up_to } => (receipts, Origin::Active { up_to }),
            Task::Merge { runs, forget } => {
                let mut receipts = Vec::new();
                for run in &runs {
                    run.read_all(&mut receipts)?;
                }
                if let Some(forget) = forget {
                    forget.apply(&mut receipts);
                }
                let replaced = runs.into_iter().map(|run| run.name).collect();
                (receipts, Origin::Runs { replaced })
            }
        };
        let run = Run::write(
            &*self.storage,
            &mut receipts,
            self.ordinal,
            self.after,
            self.up_to,
        )?;
        Ok(Written { run, of })
    }
}

impl Forget {
    /// Drops what neither the count nor the age nor the events keep.
    fn apply(&self, receipts: &mut Vec<Receipt>) {
        let excess = receipts.len().saturating_sub(self.keep);
        if excess == 0 {
            return;
        }
        receipts.sort_unstable_by_key(|receipt| receipt.seq);
        let mut index = 0;
        receipts.retain(|receipt| {
            index += 1;
            index > excess
                || receipt.seq >= self.head_seq
                || receipt.at_nanos.saturating_add(RECEIPT_AGE_NANOS) > self.now
        });
    }
}
