//! The threads that wait for the disk, so that nothing else does.
//!
//! ```text
//!   urgent (class A, `durable`) ─► at once, one fdatasync for all requests of one journal
//!   lazy   (class B)            ─► all journals that have any, 200 ms after the first
//!   together (a freeze)         ─► all lazy ones now: many of them by one sync of the file system
//! ```
//! Threads start when they are first needed and a second one only while the first is busy, so an
//! idle supervisor has none of the disk's latency and few of its threads.

use std::{
    collections::{HashMap, VecDeque},
    fmt, fs, io, mem,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    clock,
    limits::{GROUP_SYNC_WAIT, SYNC_THREADS_MAX, SYNCS_ONE_BY_ONE_MAX},
    log,
};

/// Something that can be made durable from any thread.
pub(crate) trait Durable: Send + Sync + 'static {
    /// Makes everything appended so far durable; how many syncs of the disk it took.
    fn sync(&self) -> io::Result<usize>;

    /// Notes what is there now, for one sync of the whole file system to cover; `None` when
    /// everything is durable.
    fn prepare(self: Arc<Self>) -> io::Result<Option<Prepared>>;
}

/// Takes the outcome of the sync that covers what was noted.
pub(crate) type Prepared = Box<dyn FnOnce(&io::Result<()>)>;

/// The queue in front of the sync threads.
#[derive(Clone)]
pub(crate) struct Syncer {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// A turn of the lazy ones is over.
    lazy_over: Condvar,
}

/// As long as it lives, the lazy ones wait.
#[derive(Debug)]
pub(crate) struct Hold(Syncer);

/// Who waits for a sync.
type Waiting = Vec<oneshot::Sender<io::Result<()>>>;

#[derive(Default)]
struct State {
    /// What somebody waits for, each once.
    urgent: VecDeque<Arc<dyn Durable>>,
    /// Who waits for each of them, by [`address`].
    waiting: HashMap<usize, Waiting>,
    lazy: Vec<Arc<dyn Durable>>,
    /// When the lazy ones are due, on the monotonic clock.
    lazy_due: Duration,
    threads: usize,
    idle: usize,
    /// A thread waits for the lazy ones to fall due.
    timing: bool,
    /// Turns of the lazy ones that are under way.
    lazy_turns: usize,
    /// Somebody will have them synced together.
    holds: usize,
    /// Nobody needs anything on disk any more.
    is_retired: bool,
    /// Callers sync by themselves: virtual time must not pass while another thread works.
    #[cfg(test)]
    is_inline: bool,
    syncs: u64,
    spent: Duration,
}

impl fmt::Debug for Syncer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Syncer").finish_non_exhaustive()
    }
}

impl Syncer {
    /// Without any thread yet.
    pub(crate) fn new() -> Self {
        let shared = Shared {
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            lazy_over: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Without threads at all.
    #[cfg(test)]
    pub(crate) fn inline() -> Self {
        let syncer = Self::new();
        syncer.shared.lock().is_inline = true;
        syncer
    }

    /// Makes what `durable` has now durable.
    pub(crate) async fn sync(&self, durable: Arc<dyn Durable>) -> io::Result<()> {
        if self.shared.lock().is_retired {
            return Ok(());
        }
        #[cfg(test)]
        if self.shared.lock().is_inline {
            return self.shared.time(&durable);
        }
        let (done, result) = oneshot::channel();
        {
            let mut state = self.shared.lock();
            let waiting = state.waiting.entry(address(&durable)).or_default();
            waiting.push(done);
            if waiting.len() == 1 {
                state.urgent.push_back(durable);
            }
            self.provide_thread(&mut state)?;
        }
        self.shared.work.notify_one();
        result
            .await
            .map_err(|_| io::Error::other("the sync threads have ended"))?
    }

    /// Makes what `durable` has now durable within [`GROUP_SYNC_WAIT`]. The caller asks once
    /// until it was synced.
    pub(crate) fn sync_lazily(&self, durable: Arc<dyn Durable>) -> io::Result<()> {
        let mut state = self.shared.lock();
        if state.is_retired {
            return Ok(());
        }
        if state.lazy.is_empty() {
            state.lazy_due = clock::monotonic() + GROUP_SYNC_WAIT;
        }
        state.lazy.push(durable);
        // Whoever holds them wakes a thread, or syncs them itself.
        if state.timing || state.holds > 0 {
            return Ok(());
        }
        self.provide_thread(&mut state)?;
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Nothing is synced from here on, since everything is about to be removed.
    pub(crate) fn retire(&self) {
        let mut state = self.shared.lock();
        state.is_retired = true;
        state.lazy.clear();
    }

    /// Leaves the lazy ones alone until the answer is dropped.
    pub(crate) fn hold(&self) -> Hold {
        self.shared.lock().holds += 1;
        Hold(self.clone())
    }

    /// Makes all lazy ones durable now, with a number of syncs that does not grow with theirs.
    /// All of them lie in the file system of `directory`.
    pub(crate) async fn sync_together(&self, directory: &Path) -> io::Result<()> {
        #[cfg(test)]
        if self.shared.lock().is_inline {
            return self.shared.serve_together(directory);
        }
        if self.shared.lock().has_no_lazy_one() {
            return Ok(());
        }
        let (shared, directory) = (Arc::clone(&self.shared), directory.to_owned());
        tokio::task::spawn_blocking(move || shared.serve_together(&directory))
            .await
            .map_err(io::Error::other)?
    }

    /// Syncs so far and the time spent in them.
    pub(crate) fn figures(&self) -> (u64, Duration) {
        let state = self.shared.lock();
        (state.syncs, state.spent)
    }

    fn provide_thread(&self, state: &mut State) -> io::Result<()> {
        if state.idle > 0 || state.threads >= SYNC_THREADS_MAX {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let started = thread::Builder::new()
            .name("sync".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || shared.serve());
        match started {
            Ok(_) => {
                state.threads += 1;
                Ok(())
            }
            // With at least one thread the work is only slower.
            Err(_) if state.threads > 0 => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl State {
    /// Whether every lazy one is durable already.
    fn has_no_lazy_one(&self) -> bool {
        self.lazy.is_empty() && self.lazy_turns == 0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(durable) = state.urgent.pop_front() {
                let waiting = state.waiting.remove(&address(&durable));
                drop(state);
                let result = self.time(&durable);
                for done in waiting.unwrap_or_default() {
                    let result = match &result {
                        Ok(()) => Ok(()),
                        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
                    };
                    // A caller that went away doesn't matter: the bytes are on disk.
                    drop(done.send(result));
                }
                state = self.lock();
            } else if !state.lazy.is_empty() && !state.timing && state.holds == 0 {
                state = self.serve_lazy(state);
            } else {
                state.idle += 1;
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }

    /// Waits until the lazy ones are due, and serves what becomes urgent meanwhile first.
    fn serve_lazy<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.timing = true;
        state.idle += 1;
        let left = state.lazy_due.saturating_sub(clock::monotonic());
        let (mut state, waited) = self
            .work
            .wait_timeout_while(state, left, |state| state.urgent.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
        state.timing = false;
        if !waited.timed_out() || state.holds > 0 {
            return state;
        }
        let due = mem::take(&mut state.lazy);
        state.lazy_turns += 1;
        drop(state);
        for durable in due {
            if let Err(error) = self.time(&durable) {
                log::warn(format_args!("a journal could not be synced: {error}"));
            }
        }
        let mut state = self.lock();
        state.lazy_turns -= 1;
        self.lazy_over.notify_all();
        state
    }

    fn serve_together(&self, directory: &Path) -> io::Result<()> {
        // What a turn took before us is no longer in the list, and may not be on disk yet.
        let mut state = self
            .lazy_over
            .wait_while(self.lock(), |state| state.lazy_turns > 0)
            .unwrap_or_else(PoisonError::into_inner);
        let due = mem::take(&mut state.lazy);
        drop(state);
        if due.len() <= SYNCS_ONE_BY_ONE_MAX {
            return due.iter().try_for_each(|durable| self.time(durable));
        }
        let mut prepared = Vec::new();
        let mut failed = None;
        for durable in due {
            match durable.prepare() {
                Ok(one) => prepared.extend(one),
                Err(error) => failed = Some(error), // The others are synced all the same.
            }
        }
        if prepared.is_empty() {
            return failed.map_or(Ok(()), Err);
        }
        let (synced, spent) = clock::timed(|| {
            let directory = fs::File::open(directory)?;
            Ok(rustix::fs::syncfs(directory)?)
        });
        {
            let mut state = self.lock();
            state.syncs += 1;
            state.spent += spent;
        }
        for one in prepared {
            one(&synced);
        }
        failed.map_or(synced, Err)
    }

    fn time(&self, durable: &Arc<dyn Durable>) -> io::Result<()> {
        let (result, spent) = clock::timed(|| durable.sync());
        let mut state = self.lock();
        let count = result?;
        state.syncs += count as u64;
        if count > 0 {
            state.spent += spent;
        }
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.0.shared.lock();
        state.holds -= 1;
        if state.holds > 0 || state.lazy.is_empty() {
            return;
        }
        if let Err(error) = self.0.provide_thread(&mut state) {
            // The next one that asks tries again.
            log::warn(format_args!("journals wait for their sync: {error}"));
        }
        drop(state);
        self.0.shared.work.notify_one();
    }
}

/// Names what is kept alive by whoever asks: no two have the same.
fn address(durable: &Arc<dyn Durable>) -> usize {
    Arc::as_ptr(durable).addr()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Says when it was synced.
    struct Told(mpsc::Sender<()>);

    impl Durable for Told {
        fn sync(&self) -> io::Result<usize> {
            self.0.send(()).map_err(io::Error::other)?;
            Ok(1)
        }

        fn prepare(self: Arc<Self>) -> io::Result<Option<Prepared>> {
            let told = self.0.clone();
            Ok(Some(Box::new(move |_| told.send(()).unwrap())))
        }
    }

    /// Each of a hundred sessions that froze woke a thread, which found that it had to wait.
    #[test]
    fn what_is_held_wakes_nobody_and_is_synced_when_the_hold_ends() {
        let syncer = Syncer::new();
        let (told, synced) = mpsc::channel();
        let held = syncer.hold();
        for _ in 0..100 {
            let journal = Arc::new(Told(told.clone()));
            syncer.sync_lazily(journal).unwrap();
        }
        assert_eq!(syncer.shared.lock().threads, 0);
        drop(held);
        for _ in 0..100 {
            synced.recv_timeout(Duration::from_secs(30)).unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_synced_together_needs_no_other_sync() {
        let syncer = Syncer::new();
        let (told, synced) = mpsc::channel();
        let directory = tempfile::tempdir().unwrap();
        let held = syncer.hold();
        for _ in 0..100 {
            let journal = Arc::new(Told(told.clone()));
            syncer.sync_lazily(journal).unwrap();
        }
        for _ in 0..2 {
            syncer.sync_together(directory.path()).await.unwrap();
        }
        drop(held);
        assert_eq!(synced.try_iter().count(), 100);
        assert_eq!(syncer.figures().0, 1);
        assert_eq!(syncer.shared.lock().threads, 0);
    }
}
