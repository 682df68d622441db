//! The published windows of a sandbox's journals, one watch channel a session.
//!
//! The object lives as long as the sandbox, across supervisors and generations: a stream that
//! follows a session keeps its receiver while the runtime is replaced under it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use outlive_core::id::SessionId;
use tokio::sync::watch;

use crate::{
    limits::SESSIONS_GONE_KEPT_MAX,
    sessions::{Life, Tail},
};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tails: HashMap<SessionId, watch::Sender<Tail>>,
    /// Sessions named since a new watch began; nothing while none is beginning.
    naming: Option<HashSet<SessionId>>,
    /// An answer from before must not bring these back.
    gone: Gone,
}

/// The sessions that were deleted last. Every move of a window asks for one, so none is looked
/// for among the others.
#[derive(Debug, Default)]
struct Gone {
    /// Each with its number in `order`.
    numbers: HashMap<SessionId, u64>,
    /// Oldest first; one that came back, or went again, is passed over.
    order: VecDeque<(u64, SessionId)>,
    last: u64,
}

impl Gone {
    fn remember(&mut self, session: &SessionId) {
        self.last += 1;
        self.numbers.insert(session.clone(), self.last);
        self.order.push_back((self.last, session.clone()));
        while self.order.len() > SESSIONS_GONE_KEPT_MAX {
            if let Some((number, oldest)) = self.order.pop_front()
                && self.numbers.get(&oldest) == Some(&number)
            {
                self.numbers.remove(&oldest);
            }
        }
    }

    fn contains(&self, session: &SessionId) -> bool {
        self.numbers.contains_key(session)
    }

    fn forget(&mut self, session: &SessionId) {
        self.numbers.remove(session);
    }
}

impl Tails {
    /// A new watch begins: the supervisor names every session that exists.
    pub(crate) fn begin(&self) {
        self.state().naming = Some(HashSet::new());
    }

    /// Every session that exists was named; the others were deleted meanwhile.
    pub(crate) fn named_all(&self) {
        let mut state = self.state();
        let Some(named) = state.naming.take() else {
            return;
        };
        let State { tails, gone, .. } = &mut *state;
        tails.retain(|session, tail| {
            let exists = named.contains(session);
            if !exists {
                delete(tail);
                gone.remember(session);
            }
            exists
        });
    }

    /// What an answer says of a journal's window. It may come late, so it says nothing about
    /// sessions that were deleted meanwhile.
    pub(crate) fn learn(&self, session: &SessionId, earliest: u64, latest: u64) {
        let mut state = self.state();
        if !state.gone.contains(session) {
            state.moved(session, earliest, latest);
        }
    }

    /// A journal's window moved. A late message never moves it back.
    pub(crate) fn moved(&self, session: &SessionId, earliest: u64, latest: u64) {
        let mut state = self.state();
        if let Some(named) = &mut state.naming {
            named.insert(session.clone());
        }
        state.gone.forget(session);
        state.moved(session, earliest, latest);
    }

    /// A session was deleted: its followers end.
    pub(crate) fn gone(&self, session: &SessionId) {
        let mut state = self.state();
        state.gone.remember(session);
        if let Some(tail) = state.tails.remove(session) {
            delete(&tail);
        }
    }

    /// The sandbox is deleted.
    pub(crate) fn all_gone(&self) {
        let mut state = self.state();
        let State { tails, gone, .. } = &mut *state;
        for (session, tail) in tails.drain() {
            gone.remember(&session);
            delete(&tail);
        }
    }

    /// Follows a session that is known.
    pub(crate) fn follow(&self, session: &SessionId) -> Option<watch::Receiver<Tail>> {
        self.state()
            .tails
            .get(session)
            .map(watch::Sender::subscribe)
    }

    /// The newest event that is known of a session; 0 when nothing is.
    pub(crate) fn latest(&self, session: &SessionId) -> u64 {
        let state = self.state();
        let tail = state.tails.get(session);
        tail.map_or(0, |tail| tail.borrow().latest)
    }

    /// All known sessions.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.state().tails.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves the maps whole, so a panic elsewhere does not spoil them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn moved(&mut self, session: &SessionId, earliest: u64, latest: u64) {
        if let Some(tail) = self.tails.get(session) {
            tail.send_if_modified(|tail| {
                let next = Tail {
                    earliest: tail.earliest.max(earliest),
                    latest: tail.latest.max(latest),
                    life: tail.life,
                };
                let changed = next != *tail;
                *tail = next;
                changed
            });
        } else {
            let (sender, _) = watch::channel(Tail {
                earliest,
                latest,
                life: Life::Present,
            });
            self.tails.insert(session.clone(), sender);
        }
    }
}

fn delete(tail: &watch::Sender<Tail>) {
    tail.send_modify(|tail| tail.life = Life::Deleted);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(n: u64) -> SessionId {
        SessionId::from_bits(n)
    }

    #[test]
    fn a_window_never_moves_back() {
        let tails = Tails::default();
        tails.moved(&session(1), 1, 10);
        let follower = tails.follow(&session(1)).unwrap();
        tails.moved(&session(1), 5, 8);
        tails.moved(&session(1), 2, 12);
        let tail = *follower.borrow();
        assert_eq!((tail.earliest, tail.latest), (5, 12));
    }

    #[test]
    fn followers_outlive_a_restart_and_end_with_the_session() {
        let tails = Tails::default();
        tails.moved(&session(1), 1, 10);
        tails.moved(&session(2), 1, 10);
        let one = tails.follow(&session(1)).unwrap();
        let two = tails.follow(&session(2)).unwrap();
        // Another supervisor names session 1 only: 2 was deleted while the link was down.
        tails.begin();
        tails.moved(&session(1), 1, 11);
        tails.named_all();
        assert_eq!(
            (one.borrow().latest, one.borrow().life),
            (11, Life::Present)
        );
        assert_eq!(two.borrow().life, Life::Deleted);
        assert!(tails.follow(&session(2)).is_none());
        tails.gone(&session(1));
        assert_eq!(one.borrow().life, Life::Deleted);
        // An answer from before comes late; a watch that names it again is another session.
        tails.learn(&session(1), 1, 12);
        tails.learn(&session(2), 1, 12);
        assert_eq!(tails.sessions(), vec![]);
        tails.moved(&session(1), 1, 1);
        assert_eq!(tails.sessions(), vec![session(1)]);
    }

    /// Every move of a window looked through the last thousand deletions, one by one.
    #[test]
    fn what_was_deleted_last_is_known_by_its_name() {
        let tails = Tails::default();
        // This one comes back, goes again, and is then as old as its last deletion.
        tails.gone(&session(0));
        tails.moved(&session(0), 1, 1);
        tails.gone(&session(0));
        let kept = SESSIONS_GONE_KEPT_MAX as u64;
        for n in 1..kept {
            tails.gone(&session(n));
        }
        tails.learn(&session(0), 1, 1);
        assert_eq!(tails.sessions(), vec![]);
        tails.gone(&session(kept));
        tails.learn(&session(0), 1, 1);
        assert_eq!(tails.sessions(), vec![session(0)]);
        let state = tails.state();
        assert_eq!(state.gone.order.len(), SESSIONS_GONE_KEPT_MAX);
        assert!(state.gone.numbers.len() <= SESSIONS_GONE_KEPT_MAX);
    }
}
