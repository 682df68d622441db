//! A host for tests: keepers are real processes, supervisors are fakes that speak the link, and
//! the directories are real. It outlives the servers that use it.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use outlive_api::launch::Copied;
use outlive_core::id::{Generation, SandboxId};
use outlive_testkit::fake_agent::FakeAgent;
use tokio::runtime::Handle;

use super::{Capabilities, Disk, Places, Progress, Runtime, RuntimeError, RuntimeFuture, Start};
use crate::agents::{keeper::Keeper, tests::FakeKeeper};

/// See the module.
#[derive(Debug)]
pub(crate) struct FakeHost {
    dir: tempfile::TempDir,
    places: Places,
    /// Where the fakes run: not the server's runtime, which dies with it.
    tasks: Handle,
    live: Mutex<HashMap<SandboxId, Live>>,
    starts: Mutex<Vec<(SandboxId, Generation)>>,
    /// So many starts fail from now on.
    failing: AtomicU32,
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
            starts: Mutex::default(),
            failing: AtomicU32::new(0),
        })
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
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

    fn lives(&self) -> MutexGuard<'_, HashMap<SandboxId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>, start: &Start<'_>) -> Result<Keeper, RuntimeError> {
        let failing = self
            .failing
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if failing.is_ok() {
            return Err(RuntimeError::Limits("told to fail".to_owned()));
        }
        let place = self.places.of(start.sandbox);
        if !place.dir().is_dir() {
            return Err(RuntimeError::Limits("there is no disk".to_owned()));
        }
        let state = place.state();
        fs::create_dir_all(&state).unwrap();
        let id = start.sandbox.clone();
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
        Ok(Keeper::find(&state).unwrap().unwrap())
    }
}

/// The host as a server sees it.
#[derive(Debug, Clone)]
pub(crate) struct FakeRuntime(pub(crate) Arc<FakeHost>);

impl Runtime for FakeRuntime {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            runtime: "fake",
            isolation: "none",
            journal_protected: false,
            off: Vec::new(),
        }
    }

    fn provision<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        fs::create_dir_all(self.0.places.of(sandbox).dir()).unwrap();
        Box::pin(std::future::ready(Ok(())))
    }

    fn start<'a>(&'a self, start: Start<'a>) -> RuntimeFuture<'a, Keeper> {
        Box::pin(async move { self.0.begin(&start) })
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
        _progress: &'a Progress,
    ) -> RuntimeFuture<'a, Copied> {
        let frozen = self
            .0
            .agent(from.sandbox)
            .is_none_or(|agent| agent.is_frozen());
        assert!(frozen, "a disk is copied while somebody writes to it");
        let marker = self.0.places.of(to.sandbox).dir().join("copied-from");
        fs::write(marker, from.sandbox.as_str()).unwrap();
        Box::pin(std::future::ready(Ok(Copied::default())))
    }

    fn delete<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        match fs::remove_dir_all(self.0.places.of(sandbox).dir()) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
