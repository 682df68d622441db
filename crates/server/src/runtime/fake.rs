//! A host for tests: keepers are real processes, supervisors are fakes that speak the link, and
//! the directories are real. It outlives the servers that use it.

mod gate;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use futures_util::future::BoxFuture;
use outlive_api::{
    launch::{Copied, IsolationTier, LaunchFailure, Limits},
    network::Network,
};
use outlive_core::id::{Generation, SandboxId, SnapshotId};
use outlive_testkit::fake_agent::FakeAgent;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use self::gate::Gate;
use super::{
    Capabilities, Disk, Places, Progress, Restore, RestoreError, Runtime, RuntimeError,
    RuntimeFuture, Start, Started, Whose,
    tier::enough,
    usage::{Usage, usage},
};
use crate::{
    agents::{keeper::Keeper, tests::FakeKeeper},
    sandboxes::config::{SandboxConfig, bytes_of},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct FakeHost {
    dir: tempfile::TempDir,
    places: Places,
    /// Where the fakes run: not the server's runtime, which dies with it.
    tasks: Handle,
    live: Mutex<HashMap<SandboxId, Live>>,
    /// How far it keeps processes apart.
    tier: Mutex<IsolationTier>,
    /// What every newest start was told of that.
    told: Mutex<HashMap<SandboxId, IsolationTier>>,
    starts: Mutex<Vec<(SandboxId, Generation)>>,
    /// What runtimes are, apart from their starts.
    in_force: Mutex<HashMap<SandboxId, InForce>>,
    /// In the middle of every change of that.
    pub(crate) changes: Gate,
    /// Whether limits of runtimes can't be changed.
    limits_fixed: AtomicBool,
    /// So many starts fail from now on.
    failing: AtomicU32,
    /// So many copies fail from now on.
    copies_failing: AtomicU32,
    /// In the middle of every copy.
    pub(crate) copies: Gate,
}

/// What a runtime is. A change reads all of it and replaces all of it, as that of a real one does.
#[derive(Debug, Clone, Default)]
struct InForce {
    /// How much memory it may have, in bytes.
    memory: Option<u64>,
    network: Option<Network>,
}

#[derive(Debug)]
struct Live {
    keeper: FakeKeeper,
    agent: Arc<FakeAgent>,
}

impl FakeHost {
    pub(crate) fn new(tasks: Handle) -> Arc<Self> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sandboxes")).unwrap();
        Arc::new(Self {
            places: Places::new(dir.path()),
            dir,
            tasks,
            live: Mutex::default(),
            tier: Mutex::new(IsolationTier::Nested),
            told: Mutex::default(),
            starts: Mutex::default(),
            in_force: Mutex::default(),
            changes: Gate::open(),
            limits_fixed: AtomicBool::new(false),
            failing: AtomicU32::new(0),
            copies_failing: AtomicU32::new(0),
            copies: Gate::open(),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the server takes for its disk.
    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// From now on there is no room on the server's disk.
    pub(crate) fn fill_disk(&self) {
        // The file system of processes has no free block.
        std::os::unix::fs::symlink("/proc", self.disk()).unwrap();
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Runtimes that live.
    pub(crate) fn live(&self) -> Vec<SandboxId> {
        self.lives().keys().cloned().collect()
    }

    /// Sandboxes that have a directory.
    pub(crate) fn disks(&self) -> Vec<SandboxId> {
        let mut found: Vec<_> = fs::read_dir(self.dir.path().join("sandboxes"))
            .unwrap()
            .map(|entry| SandboxId::parse(entry.unwrap().file_name().to_str().unwrap()).unwrap())
            .collect();
        found.sort();
        found
    }

    /// Snapshots that have a directory.
    pub(crate) fn snapshots(&self) -> Vec<SnapshotId> {
        match fs::read_dir(self.dir.path().join("snapshots")) {
            Ok(found) => found
                .map(|entry| SnapshotId::parse(entry.unwrap().file_name().to_str().unwrap()))
                .collect::<Result<_, _>>()
                .unwrap(),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
                Vec::new()
            }
        }
    }

    /// What the workload wrote to a disk.
    pub(crate) fn text(&self, whose: Whose<'_>) -> String {
        let path = self.places.of_disk(whose).dir().join("text");
        fs::read_to_string(path).unwrap_or_default()
    }

    /// The workload writes.
    pub(crate) fn write(&self, sandbox: &SandboxId, text: &str) {
        fs::write(self.places.of(sandbox).dir().join("text"), text).unwrap();
    }

    pub(crate) fn fail_copies(&self, count: u32) {
        self.copies_failing.store(count, Ordering::SeqCst);
    }

    /// Copies what was written, in a while if that is told.
    async fn copy_text(
        &self,
        from: Whose<'_>,
        to: Whose<'_>,
        progress: &Progress,
        give_up: &CancellationToken,
    ) -> Result<Copied, RuntimeError> {
        let failing = |left: u32| left.checked_sub(1);
        let fails = self
            .copies_failing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, failing);
        if fails.is_ok() {
            return Err(RuntimeError::Limits("told not to copy".to_owned()));
        }
        let text = self.text(from);
        let copied = Copied {
            files: 1,
            bytes: text.len() as u64,
            ..Copied::default()
        };
        if progress.lacks_total() {
            progress.learn_total(copied.bytes);
        }
        progress.reached(Copied {
            bytes: copied.bytes / 2,
            ..copied.clone()
        });
        if give_up
            .run_until_cancelled(self.copies.pass())
            .await
            .is_none()
        {
            return Err(RuntimeError::GivenUp);
        }
        fs::write(self.places.of_disk(to).dir().join("text"), text).unwrap();
        Ok(copied)
    }

    /// Every start there was.
    pub(crate) fn starts(&self) -> Vec<(SandboxId, Generation)> {
        self.starts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The supervisor of a live runtime.
    pub(crate) fn agent(&self, sandbox: &SandboxId) -> Option<Arc<FakeAgent>> {
        self.lives()
            .get(sandbox)
            .map(|live| Arc::clone(&live.agent))
    }

    /// Kills a keeper, and with it its runtime.
    pub(crate) fn kill(&self, sandbox: &SandboxId) {
        let mut live = self.lives().remove(sandbox).unwrap();
        live.keeper.kill();
    }

    pub(crate) fn fail_starts(&self, count: u32) {
        self.failing.store(count, Ordering::SeqCst);
    }

    /// From now on it keeps processes apart this far.
    pub(crate) fn reach(&self, tier: IsolationTier) {
        *self.tier.lock().unwrap() = tier;
    }

    /// From now on no limit of a runtime can be changed, or again.
    pub(crate) fn fix_limits(&self, fixed: bool) {
        self.limits_fixed.store(fixed, Ordering::SeqCst);
    }

    /// How much memory a runtime may have.
    pub(crate) fn memory(&self, sandbox: &SandboxId) -> Option<u64> {
        self.in_force(sandbox).memory
    }

    /// What a runtime reaches.
    pub(crate) fn network(&self, sandbox: &SandboxId) -> Option<Network> {
        self.in_force(sandbox).network
    }

    fn in_force(&self, sandbox: &SandboxId) -> InForce {
        let in_force = self.in_force.lock().unwrap();
        in_force.get(sandbox).cloned().unwrap_or_default()
    }

    async fn change(&self, sandbox: &SandboxId, change: impl FnOnce(&mut InForce)) {
        let mut all = self.in_force(sandbox);
        self.changes.pass().await;
        change(&mut all);
        self.in_force.lock().unwrap().insert(sandbox.clone(), all);
    }

    fn lives(&self) -> MutexGuard<'_, HashMap<SandboxId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, start: &Start<'_>) -> Result<Started, RuntimeError> {
        let failing = self
            .failing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if failing.is_ok() {
            return Err(RuntimeError::Limits("told to fail".to_owned()));
        }
        let tier = *self.tier.lock().unwrap();
        enough(start.made, tier)?;
        let place = self.places.of(start.sandbox);
        if !place.dir().is_dir() {
            return Err(RuntimeError::Limits("there is no disk".to_owned()));
        }
        let state = place.state();
        fs::create_dir_all(&state).unwrap();
        let id = start.sandbox.clone();
        self.told.lock().unwrap().insert(id.clone(), tier);
        let in_force = InForce {
            memory: asked_memory(start.config),
            network: start.config.network.clone(),
        };
        self.in_force.lock().unwrap().insert(id.clone(), in_force);
        assert!(
            !self.lives().contains_key(&id),
            "two runtimes of one sandbox"
        );
        let keeper = FakeKeeper::start(&state);
        let agent = {
            let _inside = self.tasks.enter();
            Arc::new(FakeAgent::listen(&state, id.clone(), start.generation).unwrap())
        };
        self.starts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((id.clone(), start.generation));
        let live = Live {
            keeper,
            agent: Arc::clone(&agent),
        };
        self.lives().insert(id.clone(), live);
        let host = Arc::downgrade(self);
        self.tasks.spawn(async move {
            agent.released().await;
            if let Some(host) = host.upgrade() {
                host.lives().remove(&id);
            }
        });
        Ok(Started {
            keeper: Keeper::find(&state).unwrap().unwrap(),
            tier,
        })
    }
}

/// How much memory a sandbox is to have, in bytes.
pub(crate) fn asked_memory(config: &SandboxConfig) -> Option<u64> {
    bytes_of(config.resources.as_ref()?.memory.as_ref()?)
}

/// The host as a server sees it.
#[derive(Debug, Clone)]
pub(crate) struct FakeRuntime(pub(crate) Arc<FakeHost>);

impl Runtime for FakeRuntime {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            runtime: "fake",
            isolation: self.0.tier.lock().unwrap().name(),
            journal_protected: false,
            disk_limit: Some("checked"),
            off: Vec::new(),
        }
    }

    fn provision<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()> {
        fs::create_dir_all(self.0.places.of_disk(whose).dir()).unwrap();
        Box::pin(std::future::ready(Ok(())))
    }

    fn told(&self, sandbox: &SandboxId) -> Result<Option<IsolationTier>, RuntimeError> {
        Ok(self.0.told.lock().unwrap().get(sandbox).copied())
    }

    fn start<'a>(&'a self, start: Start<'a>) -> RuntimeFuture<'a, Started> {
        Box::pin(async move { self.0.begin(&start) })
    }

    fn limit<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            if self.0.limits_fixed.load(Ordering::SeqCst) {
                return Err(RuntimeError::NotNow(LaunchFailure {
                    step: "limiting memory".to_owned(),
                    message: "told not to".to_owned(),
                    unsupported: false,
                }));
            }
            let memory = asked_memory(config);
            self.0.change(sandbox, |all| all.memory = memory).await;
            Ok(())
        })
    }

    fn reach<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            let network = config.network.clone();
            self.0.change(sandbox, |all| all.network = network).await;
            Ok(())
        })
    }

    fn limits(&self, sandbox: &SandboxId) -> Result<Option<Limits>, RuntimeError> {
        Ok(Some(Limits {
            memory_bytes_max: self.0.memory(sandbox),
            ..Limits::default()
        }))
    }

    fn catch_up<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            if self.0.network(sandbox) != config.network {
                self.reach(sandbox, config).await?;
            }
            if self.0.memory(sandbox) != asked_memory(config) {
                self.limit(sandbox, config).await?;
            }
            Ok(())
        })
    }

    fn running<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, Option<Keeper>> {
        let found = Keeper::find(&self.0.places.of(sandbox).state()).unwrap();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn release<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        match fs::remove_file(self.0.places.of(sandbox).state().join("keeper.pid")) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn copy<'a>(
        &'a self,
        from: Disk<'a>,
        to: Disk<'a>,
        progress: &'a Progress,
        give_up: &'a CancellationToken,
    ) -> RuntimeFuture<'a, Copied> {
        if let Whose::Sandbox(source) = from.whose {
            let agent = self.0.agent(source);
            let frozen = agent.is_none_or(|agent| agent.is_frozen());
            assert!(frozen, "a disk is copied while somebody writes to it");
        }
        Box::pin(self.0.copy_text(from.whose, to.whose, progress, give_up))
    }

    fn usage<'a>(&'a self, sandbox: &'a SandboxId, entries_max: u64) -> RuntimeFuture<'a, Usage> {
        let used = usage(&self.0.places.of(sandbox).disk(), entries_max).unwrap();
        Box::pin(std::future::ready(Ok(used)))
    }

    fn restore<'a>(
        &'a self,
        restore: Restore<'a>,
        progress: &'a Progress,
        give_up: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Copied, RestoreError>> {
        let sandbox = restore.sandbox.0;
        assert!(
            self.0.agent(sandbox).is_none(),
            "a disk is put back under its runtime"
        );
        Box::pin(async move {
            let from = Whose::Snapshot(restore.snapshot.0);
            let copied = self
                .0
                .copy_text(from, Whose::Sandbox(sandbox), progress, give_up);
            copied.await.map_err(RestoreError::Untouched)
        })
    }

    fn delete<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()> {
        match fs::remove_dir_all(self.0.places.of_disk(whose).dir()) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
