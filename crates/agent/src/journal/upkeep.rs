//! What keeps a journal in order beside its events: syncs, files that go, receipts of sealed
//! segments, and its end.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use outlive_core::{session::Session, spec, time::Timestamp};
use outlive_journal::{AppendError, SyncPoint, limits::RECEIPTS_ACTIVE_MAX};

use super::{JournalError, SessionJournal, Shared, retention_of};
use crate::{
    limits::MAINTENANCE_PAUSE,
    log,
    sync::{Durable, Prepared},
    tails::News,
};

impl SessionJournal {
    /// When [`SessionJournal::maintain`] is due.
    pub(crate) fn next_maintenance(&self) -> Option<Timestamp> {
        self.lock().maintain_at
    }

    /// Moves the head by age, seals what is idle, settles receipts.
    pub(crate) fn maintain(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        if state.is_removed {
            return Ok(());
        }
        let now = self.shared.around.clock.now();
        let due = state.appender.maintain(now.unix_nanos())?;
        // A head that is due moves within a second: one timer a second at most.
        state.maintain_at =
            due.map(|due| Timestamp::from_unix_nanos(due).max(now + MAINTENANCE_PAUSE));
        self.appended(&mut state, News::Fact);
        Ok(())
    }

    /// Changes how much is kept, at once.
    pub(crate) fn set_retention(&self, retention: spec::Retention) -> Result<(), JournalError> {
        let mut state = self.lock();
        let now = self.shared.around.clock.now().unix_nanos();
        state.appender.set_retention(now, retention_of(retention))?;
        state.maintain_at = Some(self.shared.around.clock.now());
        self.appended(&mut state, News::Fact);
        Ok(())
    }

    /// Ends the journal in order: opening it on another boot jumps over no numbers. It is synced
    /// with the next lazy ones.
    pub(crate) fn seal(&self, session: &Session) -> Result<(), JournalError> {
        let mut state = self.lock();
        let now = self.shared.around.clock.now().unix_nanos();
        state.appender.put_checkpoint(now, &session.checkpoint())?;
        state.appender.seal(now)?;
        self.ask_for_sync();
        Ok(())
    }

    /// Removes the files; whoever reads one may read on.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.lock().is_removed = true;
        self.shared.around.tails.remove(&self.shared.tail);
        match std::fs::remove_dir_all(&self.shared.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }
}

impl Durable for Shared {
    fn sync(&self) -> io::Result<usize> {
        // What comes from here on asks again.
        self.is_sync_asked.store(false, Ordering::Release);
        let mut count = 0;
        while let Some((point, epoch)) = self.sync_point()? {
            if let Err(error) = point.sync() {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.lock().appender.sync_failed(error);
                return Err(copy);
            }
            count += point.sync_count();
            // Another runtime's appender may have come meanwhile: it has a point of its own.
            if self.synced(&point, epoch) {
                break;
            }
        }
        if count > 0 {
            self.tidy_or_warn();
        }
        Ok(count)
    }

    fn prepare(self: Arc<Self>) -> io::Result<Option<Prepared>> {
        self.is_sync_asked.store(false, Ordering::Release);
        let Some((point, epoch)) = self.sync_point()? else {
            return Ok(None);
        };
        Ok(Some(Box::new(move |outcome| match outcome {
            Ok(()) => {
                if self.synced(&point, epoch) {
                    self.tidy_or_warn();
                }
            }
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.lock().appender.sync_failed(copy);
            }
        })))
    }
}

impl Shared {
    /// What has to be synced now, and by which appender's count.
    fn sync_point(&self) -> io::Result<Option<(SyncPoint, u64)>> {
        let mut state = self.lock();
        if state.is_removed {
            return Ok(None);
        }
        match state.appender.sync_point() {
            Ok(point) => Ok(point.map(|point| (point, state.epoch))),
            // Output that is half in the journal waits for space, and so does what follows.
            Err(AppendError::Full) => Err(io::ErrorKind::StorageFull.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Everything up to the point is on disk; `false` when it says nothing about this appender.
    fn synced(&self, point: &SyncPoint, epoch: u64) -> bool {
        let mut state = self.lock();
        if state.epoch != epoch {
            return false;
        }
        state.appender.synced(point);
        self.publish(&state, News::Fact);
        true
    }

    fn tidy_or_warn(&self) {
        if let Err(error) = self.tidy() {
            // Nothing is lost: the next sync tries again, and until then no file goes.
            log::warn(format_args!("{}: {error}", self.path.display()));
        }
    }

    /// Puts receipts of sealed segments away, and removes files that nobody needs.
    fn tidy(&self) -> io::Result<()> {
        let (sealed, resumed, last, earliest) = {
            let state = self.lock();
            if state.is_removed {
                return Ok(());
            }
            let (earliest, _) = state.appender.window();
            (
                state.appender.sealed_up_to(),
                state.appender.resumes_after(),
                state.appender.last_seq(),
                earliest,
            )
        };
        let covered = self.seal_receipts(sealed, last, earliest)?;
        let covered = {
            let mut receipts = self.receipts();
            receipts.note_none(resumed)?;
            covered.max(receipts.covered_up_to())
        };
        let garbage = {
            let mut state = self.lock();
            if state.is_removed {
                return Ok(());
            }
            // A file goes only when the receipts of its events are on disk elsewhere.
            state.appender.pin_after(covered);
            state.appender.take_garbage()
        };
        garbage.map_or(Ok(()), |garbage| garbage.remove())
    }

    /// Writes receipts of sealed segments as a run; returns up to where they are safe.
    pub(super) fn seal_receipts(&self, sealed: u64, last: u64, earliest: u64) -> io::Result<u64> {
        let now = self.around.clock.now().unix_nanos();
        let seal = {
            let mut receipts = self.receipts();
            if receipts.is_seal_due(sealed) {
                let is_crowded = receipts.active_count() >= RECEIPTS_ACTIVE_MAX;
                receipts.begin_seal(if is_crowded { last } else { sealed })?
            } else {
                None
            }
        };
        // The disk is waited for without the receipts: inputs look for theirs meanwhile.
        if let Some(seal) = seal {
            let written = seal.write();
            self.receipts().finish(written, now, earliest)?;
        }
        let merge = self.receipts().begin_merge(now, earliest);
        if let Some(merge) = merge {
            let written = merge.write();
            self.receipts().finish(written, now, earliest)?;
        }
        Ok(self.receipts().covered_up_to())
    }
}
