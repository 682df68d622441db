//! What an attempt leaves behind: processes that outlive its first one. They live on until they end
//! by themselves, the session stops, is deleted or released, or there are too many.

use std::{cell::Cell, rc::Rc};

use outlive_core::limits::KILL_WAIT;
use tokio::time::{Instant, timeout_at};

use super::Driver;
use crate::{
    limits::{LEFTOVERS_ALL_MAX, LEFTOVERS_MAX},
    log,
    machine::{Attempt, Machine},
};

/// Ended attempts of one session of which something is left, the oldest first.
#[derive(Debug)]
pub(super) struct Leftovers<A> {
    trees: Vec<Rc<A>>,
    /// Those of all sessions, these included.
    all: Rc<Cell<usize>>,
}

impl<A: Attempt> Leftovers<A> {
    pub(super) fn new(all: &Rc<Cell<usize>>) -> Self {
        Self {
            trees: Vec::new(),
            all: Rc::clone(all),
        }
    }

    pub(super) fn push(&mut self, tree: Rc<A>) {
        self.trees.push(tree);
        self.all.set(self.all.get() + 1);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Rc<A>> {
        self.trees.iter()
    }

    /// Lets go of those that are gone meanwhile.
    fn sweep(&mut self) {
        let before = self.trees.len();
        self.trees.retain(|tree| {
            let is_left = tree.is_left();
            if !is_left {
                tree.release();
            }
            is_left
        });
        let gone = before - self.trees.len();
        self.all.set(self.all.get() - gone);
    }

    /// The oldest, when there are too many.
    fn excess(&self) -> impl Iterator<Item = &Rc<A>> {
        let own = self.trees.len().saturating_sub(LEFTOVERS_MAX);
        let among_all = usize::from(self.all.get() > LEFTOVERS_ALL_MAX);
        self.trees.iter().take(own.max(among_all))
    }
}

impl<A> Drop for Leftovers<A> {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.trees.len());
    }
}

impl<M: Machine> Driver<M> {
    /// The end of an attempt is in the journal, or can never get there: it is history.
    pub(super) fn let_go(&mut self, ended: Option<Rc<M::Attempt>>) {
        if let Some(attempt) = ended {
            let is_left = attempt.is_left();
            attempt.release();
            if is_left {
                self.leftovers.push(attempt);
            }
            self.sweep_leftovers();
        }
    }

    /// Forgets the trees that are gone meanwhile. Of too many the oldest is killed.
    pub(super) fn sweep_leftovers(&mut self) {
        self.leftovers.sweep();
        for attempt in self.leftovers.excess() {
            log::warn(format_args!(
                "{}: too many leftovers: killing some",
                self.id
            ));
            self.kill_leftover(attempt);
        }
    }

    pub(super) fn kill_leftover(&self, attempt: &M::Attempt) {
        if let Err(error) = attempt.kill() {
            log::warn(format_args!(
                "{}: leftovers could not be killed: {error}",
                self.id
            ));
        }
    }

    pub(super) async fn kill_leftovers(&mut self) {
        for attempt in self.leftovers.iter() {
            self.kill_leftover(attempt);
        }
        // Killed processes go within milliseconds; those that hang in the kernel are not waited
        // for any longer, but not forgotten either.
        let until = Instant::now() + KILL_WAIT / 50;
        for attempt in self.leftovers.iter() {
            if timeout_at(until, attempt.tree_gone()).await.is_err() {
                log::warn(format_args!("{}: a killed process is still there", self.id));
            }
        }
        self.sweep_leftovers();
    }

    /// Trees of ended attempts that an earlier supervisor left.
    pub(super) fn find_leftovers(&mut self) {
        for found in self.around.machine.leftovers(&self.journal, &self.id) {
            self.leftovers.push(Rc::new(found));
        }
        self.sweep_leftovers();
    }
}
