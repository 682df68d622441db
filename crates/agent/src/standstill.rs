//! Whether the workload stands still, or is on its way there.
//!
//! ```text
//!   freeze  gate shut, noted ─► session.paused ─► processes stand still ─► output, one sync
//!   thaw    processes go on ─► gate open ─► session.resumed ─► note blanked
//! ```
//! While the gate is shut no attempt starts and no call changes anything. The note outlives a
//! supervisor: the next one finds the gate shut, goes on with the freeze, and never thaws by
//! itself.

use std::{
    cell::Cell,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::Path,
    rc::Rc,
};

use outlive_core::id::{Generation, SandboxId};
use tokio::sync::{Mutex, MutexGuard, Notify};

/// File of the note, in the state directory.
const NOTE: &str = "frozen";

/// The gate and its note.
#[derive(Debug)]
pub(crate) struct Standstill {
    /// Written in place: to make and remove a file is to wait for whoever syncs the same disk.
    note: File,
    /// What it begins with as long as the gate is shut: whose standstill it tells. Another
    /// runtime's says nothing.
    text: String,
    is_shut: Cell<bool>,
    is_complete: Cell<bool>,
    turns: Cell<u64>,
    turned: Notify,
    /// One freeze, thaw or release at a time.
    turn: Mutex<()>,
}

impl Standstill {
    /// As the supervisor before us left it.
    pub(crate) fn find(
        state: &Path,
        sandbox: &SandboxId,
        generation: Generation,
    ) -> io::Result<Rc<Self>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut note = options.open(state.join(NOTE))?;
        let text = format!("{sandbox} {}\n", generation.0);
        let mut found = Vec::new();
        note.read_to_end(&mut found)?;
        let is_shut = found.starts_with(text.as_bytes());
        Ok(Rc::new(Self {
            note,
            text,
            is_shut: Cell::new(is_shut),
            is_complete: Cell::new(false),
            turns: Cell::new(0),
            turned: Notify::new(),
            turn: Mutex::new(()),
        }))
    }

    /// Waits until nobody else freezes, thaws or releases.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Whether the gate is shut.
    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.get()
    }

    /// Whether the freeze behind the shut gate came to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_shut.get() && self.is_complete.get()
    }

    /// Shuts the gate, for supervisors to come too.
    pub(crate) fn shut(&self) -> io::Result<()> {
        self.note.write_all_at(self.text.as_bytes(), 0)?;
        self.set(true);
        Ok(())
    }

    /// The freeze came to its end.
    pub(crate) fn complete(&self) {
        self.is_complete.set(true);
    }

    /// Opens the gate for this supervisor; one to come finds it shut until [`Self::forget`].
    pub(crate) fn open(&self) {
        self.set(false);
    }

    /// Every session goes on: a supervisor to come finds the gate open.
    pub(crate) fn forget(&self) -> io::Result<()> {
        self.note.write_all_at(&vec![b' '; self.text.len()], 0)
    }

    /// How often the gate moved: a span of time with the same number was not interrupted.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.get()
    }

    /// Resolves when the gate is open.
    pub(crate) async fn opened(&self) {
        while self.is_shut() {
            self.turned.notified().await;
        }
    }

    fn set(&self, is_shut: bool) {
        self.is_complete.set(false);
        if self.is_shut.replace(is_shut) != is_shut {
            self.turns.set(self.turns.get() + 1);
            self.turned.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_outlives_its_supervisor_and_not_its_runtime() {
        let state = tempfile::tempdir().unwrap();
        let (one, other) = (SandboxId::from_bits(1), SandboxId::from_bits(2));
        let first = Generation::FIRST;
        let find = |sandbox: &SandboxId, generation| {
            Standstill::find(state.path(), sandbox, generation).unwrap()
        };
        let standstill = find(&one, first);
        assert!(!standstill.is_shut());
        standstill.shut().unwrap();
        standstill.complete();
        let next = find(&one, first);
        assert!(next.is_shut() && !next.is_complete());
        assert!(!find(&one, first.next()).is_shut());
        assert!(
            !find(&other, first).is_shut(),
            "a copied disk is not frozen"
        );
        next.open();
        assert!(find(&one, first).is_shut(), "a thaw that was cut short");
        next.forget().unwrap();
        assert!(!find(&one, first).is_shut());
        find(&one, first.next()).shut().unwrap();
        assert!(find(&one, first.next()).is_shut() && !find(&one, first).is_shut());
    }
}
