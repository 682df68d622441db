//! What keeps a sandbox awake: things that are open, and when the last one ended.
//!
//! Whoever serves a client opens an [`Open`] for as long as it lasts, or marks a moment with
//! [`Activity::touch`]. Which kinds count is the sandbox's own [`IdleRule`]. Nothing is counted for
//! reads: polling keeps nobody awake.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outlive_core::time::Timestamp;
use tokio::sync::Notify;

use super::config::{IdleKind, IdleRule};
use crate::clock;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// What was found open, whose end somebody waits for.
    awaited: Option<u64>,
    next: u64,
    open: BTreeMap<u64, Doing>,
    /// When the last of each kind ended or happened.
    ended: BTreeMap<IdleKind, Timestamp>,
}

/// One thing that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doing {
    /// What it is.
    pub(crate) kind: IdleKind,
    /// Of which session, hold or request.
    pub(crate) id: String,
    /// Since when.
    pub(crate) since: Timestamp,
}

/// It goes on until this is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    activity: Arc<Activity>,
    number: u64,
}

impl Activity {
    /// Something begins.
    pub(crate) fn open(self: &Arc<Self>, kind: IdleKind, id: impl Into<String>) -> Open {
        let doing = Doing {
            kind,
            id: id.into(),
            since: clock::now(),
        };
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.open.insert(number, doing);
        drop(state);
        Open {
            activity: Arc::clone(self),
            number,
        }
    }

    /// Something happened at that moment.
    pub(crate) fn touch(&self, kind: IdleKind, at: Timestamp) {
        let mut state = self.state();
        let last = state.ended.entry(kind).or_insert(at);
        *last = (*last).max(at);
    }

    /// Returns when what [`Activity::quiet_since`] found open has ended. Whatever
    /// else happens only moves the time of sleep further away: who is woken too early looks again.
    pub(crate) async fn ended(&self) {
        self.ended.notified().await;
    }

    /// What goes on and counts.
    pub(crate) fn doing(&self, rule: &IdleRule) -> Vec<Doing> {
        let state = self.state();
        let counts = state.open.values().filter(|doing| rule.counts(doing.kind));
        counts.cloned().collect()
    }

    /// When the last thing that counts ended; nothing while one goes on. What never was ended at
    /// the beginning of time.
    pub(crate) fn quiet_since(&self, rule: &IdleRule) -> Option<Timestamp> {
        let mut state = self.state();
        let mut counts = state
            .open
            .iter()
            .filter(|(_, doing)| rule.counts(doing.kind));
        if let Some(number) = counts.next().map(|(number, _)| *number) {
            state.awaited = Some(number);
            return None;
        }
        let ends = state.ended.iter().filter(|(kind, _)| rule.counts(**kind));
        Some(ends.map(|(_, at)| *at).max().unwrap_or(Timestamp::EPOCH))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.activity.state();
        let ended = state.open.remove(&self.number);
        let awaited = state.awaited.take_if(|number| *number == self.number);
        drop(state);
        if let Some(doing) = ended {
            self.activity.touch(doing.kind, clock::now());
        }
        if awaited.is_some() {
            self.activity.ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn what_is_open_and_counts_keeps_it_awake_and_the_end_of_the_last_is_remembered() {
        let activity = Arc::new(Activity::default());
        let rule = IdleRule::default();
        assert_eq!(activity.quiet_since(&rule), Some(Timestamp::EPOCH));
        let one = activity.open(IdleKind::Attached, "ses-1");
        let other = activity.open(IdleKind::Exec, "ses-2");
        assert_eq!(activity.quiet_since(&rule), None);
        assert_eq!(activity.doing(&rule).len(), 2);
        drop(one);
        assert_eq!(activity.quiet_since(&rule), None);
        let before = clock::now();
        drop(other);
        assert!(activity.quiet_since(&rule).unwrap() >= before);
    }

    #[tokio::test]
    async fn the_end_is_told_of_what_was_found_open_and_of_nothing_else() {
        let activity = Arc::new(Activity::default());
        let rule = IdleRule::default();
        let attached = activity.open(IdleKind::Attached, "ses-1");
        assert_eq!(activity.quiet_since(&rule), None);
        // Calls come and go meanwhile: nobody is woken for them.
        drop(activity.open(IdleKind::Input, "call"));
        assert!(activity.ended().now_or_never().is_none());
        drop(attached);
        assert!(activity.ended().now_or_never().is_some());
        // Nobody waits for what nobody found.
        drop(activity.open(IdleKind::Input, "call"));
        assert!(activity.ended().now_or_never().is_none());
    }

    #[test]
    fn a_kind_that_does_not_count_is_not_seen() {
        let activity = Arc::new(Activity::default());
        let rule = IdleRule {
            counts: [IdleKind::Output].into(),
            ..IdleRule::default()
        };
        let _open = activity.open(IdleKind::Attached, "ses-1");
        activity.touch(IdleKind::Input, clock::now());
        assert_eq!(activity.quiet_since(&rule), Some(Timestamp::EPOCH));
        let at = Timestamp::from_unix_nanos(7);
        activity.touch(IdleKind::Output, at);
        // A report that comes late moves nothing back.
        activity.touch(IdleKind::Output, Timestamp::from_unix_nanos(3));
        assert_eq!(activity.quiet_since(&rule), Some(at));
    }
}
