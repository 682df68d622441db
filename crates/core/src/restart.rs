//! The restart window: how often a session was restarted lately, and how long to wait next.
//!
//! Two numbers come out of it. The *count* is how many restarts lie in the window; as many as
//! allowed there, and the session fails. The *exponent* doubles the delay; an attempt that stayed
//! ready long enough resets it, and only it: a program that gets ready and crashes in a loop must
//! still run into the limit. A start by hand forgets both.

use std::time::Duration;

use minicbor::{Decode, Encode};

use crate::{limits::RESTART_ENTRIES_MAX, spec::Restart, time::Timestamp};

/// Restarts of the recent past.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct RestartWindow {
    #[n(0)]
    entries: Vec<Entry>,
    #[n(1)]
    exponent: u32,
}

/// Some restarts that are counted as if they all happened at the newest of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
struct Entry {
    #[n(0)]
    at: Timestamp,
    #[n(1)]
    count: u32,
}

/// What a restart policy says after an exit that it wants to follow up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Restart after this delay.
    RestartAfter {
        /// Milliseconds.
        delay_ms: u32,
    },
    /// As many restarts as allowed lie in the window.
    LimitExceeded,
}

impl RestartWindow {
    /// What to do about an exit at `now`.
    pub fn verdict(&self, policy: &Restart, now: Timestamp) -> Verdict {
        let count = self.count(policy, now);
        if policy.restarts_max.is_some_and(|max| count >= max) {
            return Verdict::LimitExceeded;
        }
        let doublings = self.exponent.min(count);
        let delay_ms = u64::from(policy.backoff_ms_initial)
            .checked_shl(doublings.min(32))
            .unwrap_or(u64::MAX)
            .min(u64::from(policy.backoff_ms_max));
        Verdict::RestartAfter {
            delay_ms: u32::try_from(delay_ms).unwrap_or(policy.backoff_ms_max),
        }
    }

    /// Restarts in the window that ends at `now`.
    pub fn count(&self, policy: &Restart, now: Timestamp) -> u32 {
        let window = Duration::from_secs(u64::from(policy.window_seconds));
        self.entries
            .iter()
            .filter(|entry| now.since(entry.at) < window)
            .fold(0, |sum, entry| sum.saturating_add(entry.count))
    }

    /// A restart was scheduled.
    pub(crate) fn record(&mut self, policy: &Restart, at: Timestamp) {
        let window = Duration::from_secs(u64::from(policy.window_seconds));
        self.entries.retain(|entry| at.since(entry.at) < window);
        self.entries.push(Entry { at, count: 1 });
        if self.entries.len() > RESTART_ENTRIES_MAX {
            self.join_neighbours();
        }
        self.exponent = self.exponent.saturating_add(1);
    }

    /// The newest restart was scheduled and never came about: it doesn't count.
    pub(crate) fn take_back(&mut self) {
        if let Some(newest) = self.entries.last_mut() {
            newest.count = newest.count.saturating_sub(1);
            if newest.count == 0 {
                self.entries.pop();
            }
        }
        self.exponent = self.exponent.saturating_sub(1);
    }

    /// The attempt that ended had stayed ready for long.
    pub(crate) fn reset_exponent(&mut self) {
        self.exponent = 0;
    }

    /// Somebody started an attempt by hand.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Frozen time didn't pass for the session.
    pub(crate) fn shift(&mut self, by: Duration) {
        for entry in &mut self.entries {
            entry.at = entry.at + by;
        }
    }

    /// Halves the entries. A joined entry leaves the window with its newest restart, so joining
    /// can only make the limit stricter, never allow one restart too many.
    fn join_neighbours(&mut self) {
        self.entries = self
            .entries
            .chunks(2)
            .map(|pair| Entry {
                at: pair.iter().map(|entry| entry.at).max().unwrap_or_default(),
                count: pair
                    .iter()
                    .fold(0, |sum, entry| sum.saturating_add(entry.count)),
            })
            .collect();
    }
}
