//! A store and a host with a crash before and after every change, and with changes that they
//! refuse.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use outlive_api::launch::{Copied, IsolationTier, Limits};
use outlive_core::{
    id::{SandboxId, SnapshotId},
    sandbox::Desired,
    time::Timestamp,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    agents::keeper::Keeper,
    runtime::{
        Capabilities, Disk, Progress, Restore, RestoreError, Runtime, RuntimeError, RuntimeFuture,
        Start, Started, Usage, Whose, fake::FakeRuntime,
    },
    sandboxes::config::SandboxConfig,
    store::{
        Inserted, KeyHash, KeyRecord, Owner, SandboxFilter, SandboxPage, SandboxRecord,
        SnapshotInserted, SnapshotRecord, SnapshotStore, Store, StoreError, StoreFuture,
        sqlite::SqliteStore,
    },
};

/// Counts the steps of a server and stops it for good at one of them.
#[derive(Debug)]
pub(super) struct Crash {
    left: AtomicUsize,
    pub(super) reached: Notify,
    /// So many changes the store still takes before it refuses some.
    pub(super) puts_spared: AtomicU32,
    /// So many changes the store refuses then.
    pub(super) puts_refused: AtomicU32,
    /// How often a sandbox that is there was written.
    pub(super) notes: AtomicUsize,
    /// What was asked of the sandbox that was written last, and what of it is on the disk.
    noted: Mutex<Option<Desired>>,
    pub(super) synced: Mutex<Option<Desired>>,
    /// So often the host can't be looked at from now on.
    pub(super) looks_refused: AtomicU32,
    /// So many sweeps fail from now on.
    pub(super) sweeps_refused: AtomicU32,
}

impl Crash {
    pub(super) fn at(step: usize) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(step),
            reached: Notify::new(),
            puts_spared: AtomicU32::new(0),
            puts_refused: AtomicU32::new(0),
            notes: AtomicUsize::new(0),
            noted: Mutex::new(None),
            synced: Mutex::new(None),
            looks_refused: AtomicU32::new(0),
            sweeps_refused: AtomicU32::new(0),
        })
    }

    /// Between two steps: most go on, one never returns.
    async fn step(&self) {
        let left = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if left.is_err() {
            self.reached.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// A change with a step before and after it.
    async fn around<T>(&self, change: impl Future<Output = T>) -> T {
        self.step().await;
        let done = change.await;
        self.step().await;
        done
    }
}

fn refuses(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    })
    .is_ok()
}

/// A store or a backend with a crash before and after every change.
#[derive(Debug)]
pub(super) struct Fragile<T> {
    pub(super) inner: T,
    pub(super) crash: Arc<Crash>,
}

impl Store for Fragile<SqliteStore> {
    fn insert_sandbox<'a>(
        &'a self,
        record: &'a SandboxRecord,
        owned_max: u32,
    ) -> StoreFuture<'a, Inserted> {
        Box::pin(async move {
            let inserting = self.inner.insert_sandbox(record, owned_max);
            let done = self.crash.around(inserting).await;
            *self.crash.noted.lock().unwrap() = Some(record.state.desired);
            done
        })
    }

    fn note_sandbox<'a>(&'a self, record: &'a SandboxRecord) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.crash.step().await;
            if !refuses(&self.crash.puts_spared) && refuses(&self.crash.puts_refused) {
                return Err(StoreError::Database(sqlx::Error::PoolClosed));
            }
            let done = self.inner.note_sandbox(record).await;
            self.crash.notes.fetch_add(1, Ordering::SeqCst);
            *self.crash.noted.lock().unwrap() = Some(record.state.desired);
            self.crash.step().await;
            done
        })
    }

    fn sync_sandboxes(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let noted = *self.crash.noted.lock().unwrap();
            let done = self.inner.sync_sandboxes().await;
            *self.crash.synced.lock().unwrap() = noted;
            self.crash.step().await;
            done
        })
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> StoreFuture<'a, ()> {
        Box::pin(self.crash.around(self.inner.remove_sandbox(id)))
    }

    fn all_sandboxes(&self) -> StoreFuture<'_, Vec<SandboxRecord>> {
        self.inner.all_sandboxes()
    }

    fn page_sandboxes<'a>(
        &'a self,
        owner: &'a Owner,
        filter: &'a SandboxFilter,
        limit: u32,
        offset: u64,
    ) -> StoreFuture<'a, SandboxPage> {
        self.inner.page_sandboxes(owner, filter, limit, offset)
    }

    fn insert_key<'a>(&'a self, key: &'a KeyRecord) -> StoreFuture<'a, ()> {
        self.inner.insert_key(key)
    }

    fn key_by_hash<'a>(&'a self, hash: &'a KeyHash) -> StoreFuture<'a, Option<KeyRecord>> {
        self.inner.key_by_hash(hash)
    }

    fn all_keys(&self) -> StoreFuture<'_, Vec<KeyRecord>> {
        self.inner.all_keys()
    }

    fn revoke_key<'a>(&'a self, id: &'a str, at: Timestamp) -> StoreFuture<'a, Option<KeyHash>> {
        self.inner.revoke_key(id, at)
    }

    fn check(&self) -> StoreFuture<'_, ()> {
        self.inner.check()
    }
}

impl SnapshotStore for Fragile<SqliteStore> {
    fn insert_snapshot<'a>(
        &'a self,
        record: &'a SnapshotRecord,
        owned_max: u32,
    ) -> StoreFuture<'a, SnapshotInserted> {
        Box::pin(
            self.crash
                .around(self.inner.insert_snapshot(record, owned_max)),
        )
    }

    fn update_snapshot<'a>(&'a self, record: &'a SnapshotRecord) -> StoreFuture<'a, ()> {
        Box::pin(self.crash.around(self.inner.update_snapshot(record)))
    }

    fn remove_snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, ()> {
        Box::pin(self.crash.around(self.inner.remove_snapshot(id)))
    }

    fn snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, Option<SnapshotRecord>> {
        self.inner.snapshot(id)
    }

    fn all_snapshots(&self) -> StoreFuture<'_, Vec<SnapshotRecord>> {
        self.inner.all_snapshots()
    }

    fn expired_snapshots(&self, now: Timestamp) -> StoreFuture<'_, Vec<SnapshotRecord>> {
        self.inner.expired_snapshots(now)
    }

    fn next_expiry(&self, now: Timestamp) -> StoreFuture<'_, Option<Timestamp>> {
        self.inner.next_expiry(now)
    }

    fn snapshots_of<'a>(
        &'a self,
        owner: &'a Owner,
        sandbox: Option<&'a SandboxId>,
    ) -> StoreFuture<'a, Vec<SnapshotRecord>> {
        self.inner.snapshots_of(owner, sandbox)
    }
}

impl Runtime for Fragile<FakeRuntime> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn provision<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            self.inner.provision(whose).await?;
            self.crash.step().await;
            Ok(())
        })
    }

    fn told(&self, sandbox: &SandboxId) -> Result<Option<IsolationTier>, RuntimeError> {
        self.inner.told(sandbox)
    }

    fn start<'a>(&'a self, start: Start<'a>) -> RuntimeFuture<'a, Started> {
        Box::pin(self.crash.around(self.inner.start(start)))
    }

    fn limit<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(self.crash.around(self.inner.limit(sandbox, config)))
    }

    fn reach<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(self.crash.around(self.inner.reach(sandbox, config)))
    }

    fn limits(&self, sandbox: &SandboxId) -> Result<Option<Limits>, RuntimeError> {
        self.inner.limits(sandbox)
    }

    fn catch_up<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        self.inner.catch_up(sandbox, config)
    }

    fn running<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, Option<Keeper>> {
        if refuses(&self.crash.looks_refused) {
            let refused = RuntimeError::Limits("told not to look".to_owned());
            return Box::pin(std::future::ready(Err(refused)));
        }
        self.inner.running(sandbox)
    }

    fn release<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            self.crash.step().await;
            if refuses(&self.crash.sweeps_refused) {
                return Err(RuntimeError::Limits("told not to sweep".to_owned()));
            }
            self.inner.release(sandbox).await?;
            self.crash.step().await;
            Ok(())
        })
    }

    fn copy<'a>(
        &'a self,
        from: Disk<'a>,
        to: Disk<'a>,
        progress: &'a Progress,
        give_up: &'a CancellationToken,
    ) -> RuntimeFuture<'a, Copied> {
        Box::pin(
            self.crash
                .around(self.inner.copy(from, to, progress, give_up)),
        )
    }

    fn usage<'a>(&'a self, sandbox: &'a SandboxId, entries_max: u64) -> RuntimeFuture<'a, Usage> {
        self.inner.usage(sandbox, entries_max)
    }

    fn restore<'a>(
        &'a self,
        restore: Restore<'a>,
        progress: &'a Progress,
        give_up: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Copied, RestoreError>> {
        Box::pin(
            self.crash
                .around(self.inner.restore(restore, progress, give_up)),
        )
    }

    fn delete<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            self.crash.step().await;
            self.inner.delete(whose).await?;
            self.crash.step().await;
            Ok(())
        })
    }
}
