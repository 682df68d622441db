//! What of each journal may be read, told to whoever watches.
//!
//! A [`Tail`] is one session's published window. The pump thread that commits output and the
//! driver that appends facts both move it; the links that watch hear of it. A move costs two
//! atomic stores and, for the first move since a watcher last looked, one push onto the watcher's
//! list: a flood of moves becomes one message, a lone move is told at once.
//!
//! ```text
//!   pump, drivers ── Tail::move_to ──► Watcher.queue ──► link: Moved, Gone
//! ```

use std::{
    collections::{HashMap, hash_map::Entry},
    mem,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use outlive_core::id::SessionId;
use tokio::{sync::Notify, time::timeout};

use crate::limits::WATCHERS_MAX;

/// The windows of all sessions and those who watch them.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    tails: RwLock<HashMap<SessionId, Arc<Tail>>>,
    watchers: Arc<RwLock<Watchers>>,
}

type Watchers = [Option<Arc<Queue>>; WATCHERS_MAX];

/// The published window of one session's journal.
#[derive(Debug)]
pub(crate) struct Tail {
    session: SessionId,
    earliest: AtomicU64,
    latest: AtomicU64,
    gone: AtomicBool,
    /// One bit for each watcher that has this tail in its queue.
    queued: AtomicU32,
    watchers: Arc<RwLock<Watchers>>,
}

#[derive(Debug, Default)]
struct Queue {
    moved: Mutex<Vec<Arc<Tail>>>,
    notify: Notify,
    /// Something other than output is in it.
    hurry: Notify,
}

/// What a window moved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// Output, of which more may follow at once.
    Output,
    /// Anything else.
    Fact,
}

/// One reader of moves. Leaves when dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    slot: usize,
    queue: Arc<Queue>,
    watchers: Arc<RwLock<Watchers>>,
}

/// As many links watch as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many links watch")]
pub(crate) struct TooManyWatchers;

/// What happened to a session's window since the watcher last looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Move {
    /// Events `earliest..=latest` may be read.
    Moved {
        /// Whose.
        session: SessionId,
        /// First retained; `latest + 1` when none is.
        earliest: u64,
        /// Last published.
        latest: u64,
    },
    /// The session was deleted.
    Gone(SessionId),
}

impl Tails {
    /// Adds the window of a session, or moves it when it was added before.
    pub(crate) fn add(&self, session: SessionId, earliest: u64, latest: u64) -> Arc<Tail> {
        if let Some(tail) = self.find(&session) {
            tail.move_to(earliest, latest, News::Fact);
            return tail;
        }
        let tail = Arc::new(Tail {
            session,
            earliest: AtomicU64::new(earliest),
            latest: AtomicU64::new(latest),
            gone: AtomicBool::new(false),
            queued: AtomicU32::new(0),
            watchers: Arc::clone(&self.watchers),
        });
        self.tails
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(tail.session.clone(), Arc::clone(&tail));
        tail.tell(News::Fact);
        tail
    }

    fn find(&self, session: &SessionId) -> Option<Arc<Tail>> {
        let tails = self.tails.read().unwrap_or_else(PoisonError::into_inner);
        tails.get(session).cloned()
    }

    /// Says that the session is gone, once and for ever.
    pub(crate) fn remove(&self, tail: &Arc<Tail>) {
        {
            let mut tails = self.tails.write().unwrap_or_else(PoisonError::into_inner);
            // Another session may have its name by now.
            if let Entry::Occupied(found) = tails.entry(tail.session.clone())
                && Arc::ptr_eq(found.get(), tail)
            {
                found.remove();
            }
        }
        tail.gone.store(true, Ordering::Release);
        tail.tell(News::Fact);
    }

    /// Starts to watch: every session that exists is reported as moved first.
    pub(crate) fn watch(&self) -> Result<Watcher, TooManyWatchers> {
        let queue = Arc::new(Queue::default());
        let mut watchers = self
            .watchers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let slot = watchers
            .iter()
            .position(Option::is_none)
            .ok_or(TooManyWatchers)?;
        if let Some(free) = watchers.get_mut(slot) {
            *free = Some(Arc::clone(&queue));
        }
        drop(watchers);
        for tail in self
            .tails
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
        {
            tail.tell_one(slot, &queue, News::Fact);
        }
        Ok(Watcher {
            slot,
            queue,
            watchers: Arc::clone(&self.watchers),
        })
    }
}

impl Tail {
    /// Last published event.
    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }

    /// First retained event.
    pub(crate) fn earliest(&self) -> u64 {
        self.earliest.load(Ordering::Acquire)
    }

    /// Publishes a window. Values never go back: a late caller changes nothing.
    pub(crate) fn move_to(self: &Arc<Self>, earliest: u64, latest: u64, news: News) {
        let before = self.earliest.fetch_max(earliest, Ordering::AcqRel);
        let was = self.latest.fetch_max(latest, Ordering::AcqRel);
        if before < earliest || was < latest {
            self.tell(news);
        }
    }

    fn tell(self: &Arc<Self>, news: News) {
        let watchers = self.watchers.read().unwrap_or_else(PoisonError::into_inner);
        for (slot, queue) in watchers.iter().enumerate() {
            if let Some(queue) = queue {
                self.tell_one(slot, queue, news);
            }
        }
    }

    fn tell_one(self: &Arc<Self>, slot: usize, queue: &Queue, news: News) {
        let bit = 1_u32 << slot;
        if self.queued.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            queue
                .moved
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Arc::clone(self));
            queue.notify.notify_one();
        }
        if news == News::Fact {
            queue.hurry.notify_one();
        }
    }
}

impl Watcher {
    /// Waits for moves and takes all of them; each session appears once.
    pub(crate) async fn next(&self) -> Vec<Move> {
        loop {
            let moves = self.take();
            if !moves.is_empty() {
                return moves;
            }
            self.queue.notify.notified().await;
        }
    }

    /// Lets output gather for this long, or until something else happens.
    pub(crate) async fn rest(&self, pause: Duration) {
        // A call left over from what was taken already only makes one rest shorter.
        drop(timeout(pause, self.queue.hurry.notified()).await);
    }

    /// The moves so far.
    pub(crate) fn take(&self) -> Vec<Move> {
        let moved = mem::take(
            &mut *self
                .queue
                .moved
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        moved.into_iter().map(|tail| self.look(&tail)).collect()
    }

    fn look(&self, tail: &Tail) -> Move {
        // The bit goes first: a move after it queues the tail again, so nothing is missed.
        tail.queued.fetch_and(!(1 << self.slot), Ordering::AcqRel);
        if tail.gone.load(Ordering::Acquire) {
            return Move::Gone(tail.session.clone());
        }
        Move::Moved {
            session: tail.session.clone(),
            earliest: tail.earliest(),
            latest: tail.latest(),
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut watchers = self
            .watchers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = watchers.get_mut(self.slot) {
            *slot = None;
        }
        // Whoever watches next from this slot must find no bit of ours: it waits for the lock.
        for tail in mem::take(
            &mut *self
                .queue
                .moved
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        ) {
            tail.queued.fetch_and(!(1 << self.slot), Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn session(n: u64) -> SessionId {
        SessionId::from_bits(n)
    }

    fn moved(n: u64, earliest: u64, latest: u64) -> Move {
        Move::Moved {
            session: session(n),
            earliest,
            latest,
        }
    }

    #[test]
    fn a_session_that_is_named_before_it_is_open_is_named_once() {
        let tails = Tails::default();
        let early = tails.add(session(1), 0, 0);
        let watcher = tails.watch().unwrap();
        let moved = |earliest, latest| Move::Moved {
            session: session(1),
            earliest,
            latest,
        };
        assert_eq!(watcher.take(), vec![moved(0, 0)]);
        let opened = tails.add(session(1), 3, 9);
        assert!(Arc::ptr_eq(&early, &opened));
        assert_eq!(watcher.take(), vec![moved(3, 9)]);
    }

    #[test]
    fn a_flood_of_moves_is_told_once() {
        let tails = Tails::default();
        let tail = tails.add(session(1), 1, 0);
        let watcher = tails.watch().unwrap();
        assert_eq!(watcher.take(), [moved(1, 1, 0)]);
        for latest in 1..=1000 {
            tail.move_to(1, latest, News::Output);
        }
        assert_eq!(watcher.take(), [moved(1, 1, 1000)]);
        tail.move_to(1, 900, News::Output);
        assert_eq!(watcher.take(), []);
        tail.move_to(500, 1000, News::Output);
        assert_eq!(watcher.take(), [moved(1, 500, 1000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_rest_lets_output_gather_and_ends_with_anything_else() {
        let tails = Tails::default();
        let tail = tails.add(session(1), 1, 0);
        let watcher = tails.watch().unwrap();
        watcher.rest(Duration::ZERO).await;
        assert_eq!(watcher.take(), [moved(1, 1, 0)]);
        let hour = Duration::from_hours(1);
        let begun = Instant::now();
        tail.move_to(1, 1, News::Output);
        tail.move_to(1, 2, News::Output);
        watcher.rest(hour).await;
        assert_eq!(begun.elapsed(), hour);
        assert_eq!(watcher.take(), [moved(1, 1, 2)]);
        // Its news is told with the output before it.
        tail.move_to(1, 3, News::Output);
        tail.move_to(1, 4, News::Fact);
        watcher.rest(hour).await;
        assert_eq!(begun.elapsed(), hour);
        assert_eq!(watcher.take(), [moved(1, 1, 4)]);
        tails.remove(&tail);
        watcher.rest(hour).await;
        assert_eq!(begun.elapsed(), hour);
    }

    #[test]
    fn a_watcher_that_leaves_hides_nothing_from_the_next_one() {
        let tails = Tails::default();
        let tail = tails.add(session(1), 1, 0);
        let first = tails.watch().unwrap();
        tail.move_to(1, 7, News::Output);
        drop(first);
        let second = tails.watch().unwrap();
        assert_eq!(second.take(), [moved(1, 1, 7)]);
        tails.remove(&tail);
        assert_eq!(second.take(), [Move::Gone(session(1))]);
        assert_eq!(tails.watch().unwrap().take(), []);
    }
}
