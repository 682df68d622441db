//! Counters of a supervisor, for metrics.

use std::cell::Cell;

/// What was counted since the supervisor started.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    attempts: Cell<u64>,
    restarts: Cell<u64>,
    damaged: Cell<u64>,
}

impl Figures {
    pub(crate) fn count_attempt(&self) {
        self.attempts.set(self.attempts.get() + 1);
    }

    pub(crate) fn count_restart(&self) {
        self.restarts.set(self.restarts.get() + 1);
    }

    pub(crate) fn count_damaged(&self) {
        self.damaged.set(self.damaged.get() + 1);
    }

    /// Attempts started.
    pub(crate) fn attempts(&self) -> u64 {
        self.attempts.get()
    }

    /// Of those, restarts by policy.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.get()
    }

    /// Sessions whose journal was damaged when it was opened.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged.get()
    }
}
