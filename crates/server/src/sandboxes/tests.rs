//! Lifecycles against a fake host, with a server that is killed at every step of them.
//!
//! A server is a tokio runtime of its own here: killing it drops every task where it stands. The
//! host, the store's file and the fakes stay.

mod isolation;
mod snapshots;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use outlive_api::{
    agent::Request,
    launch::{Copied, IsolationTier},
};
use outlive_core::{
    id::{Generation, SandboxId, SessionId, SnapshotId},
    sandbox::{Desired, Observed, ReleaseWhy},
    session::Rejection,
};
use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Engine, NewSandbox, Sandbox,
    config::{ConfigChange, SandboxConfig},
};
use crate::{
    agents::{
        keeper::Keeper,
        tests::{create, session},
    },
    clock,
    config::TenantLimits,
    runtime::{
        Capabilities, Disk, Progress, Restore, RestoreError, Runtime, RuntimeError, RuntimeFuture,
        Start, Started, Usage, Whose,
        fake::{FakeHost, FakeRuntime},
    },
    sessions::{CallError, SandboxHandle},
    store::{
        Inserted, KeyHash, KeyRecord, Owner, SandboxFilter, SandboxPage, SandboxRecord,
        SnapshotInserted, SnapshotRecord, SnapshotState, SnapshotStore, Store, StoreError,
        StoreFuture, sqlite::SqliteStore,
    },
};

/// Counts the steps of a server and stops it for good at one of them.
#[derive(Debug)]
struct Crash {
    left: AtomicUsize,
    reached: Notify,
    /// So many changes the store still takes before it refuses some.
    puts_spared: AtomicU32,
    /// So many changes the store refuses then.
    puts_refused: AtomicU32,
    /// What was asked of the sandbox that was written last, and what of it is on the disk.
    noted: Mutex<Option<Desired>>,
    synced: Mutex<Option<Desired>>,
    /// So often the host can't be looked at from now on.
    looks_refused: AtomicU32,
    /// So many sweeps fail from now on.
    sweeps_refused: AtomicU32,
}

impl Crash {
    fn at(step: usize) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(step),
            reached: Notify::new(),
            puts_spared: AtomicU32::new(0),
            puts_refused: AtomicU32::new(0),
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
}

fn refuses(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    })
    .is_ok()
}

/// A store or a backend with a crash before and after every change.
#[derive(Debug)]
struct Fragile<T> {
    inner: T,
    crash: Arc<Crash>,
}

impl Store for Fragile<SqliteStore> {
    fn insert_sandbox<'a>(
        &'a self,
        record: &'a SandboxRecord,
        owned_max: u32,
    ) -> StoreFuture<'a, Inserted> {
        Box::pin(async move {
            self.crash.step().await;
            let done = self.inner.insert_sandbox(record, owned_max).await;
            self.crash.step().await;
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
        Box::pin(async move {
            self.crash.step().await;
            let done = self.inner.remove_sandbox(id).await;
            self.crash.step().await;
            done
        })
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

    fn revoke_key<'a>(
        &'a self,
        id: &'a str,
        at: outlive_core::time::Timestamp,
    ) -> StoreFuture<'a, Option<KeyHash>> {
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
        Box::pin(async move {
            self.crash.step().await;
            let done = self.inner.insert_snapshot(record, owned_max).await;
            self.crash.step().await;
            done
        })
    }

    fn update_snapshot<'a>(&'a self, record: &'a SnapshotRecord) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.crash.step().await;
            let done = self.inner.update_snapshot(record).await;
            self.crash.step().await;
            done
        })
    }

    fn remove_snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.crash.step().await;
            let done = self.inner.remove_snapshot(id).await;
            self.crash.step().await;
            done
        })
    }

    fn snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, Option<SnapshotRecord>> {
        self.inner.snapshot(id)
    }

    fn all_snapshots(&self) -> StoreFuture<'_, Vec<SnapshotRecord>> {
        self.inner.all_snapshots()
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
        Box::pin(async move {
            self.crash.step().await;
            let started = self.inner.start(start).await;
            self.crash.step().await;
            started
        })
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
    ) -> RuntimeFuture<'a, Copied> {
        Box::pin(async move {
            self.crash.step().await;
            let copied = self.inner.copy(from, to, progress).await;
            self.crash.step().await;
            copied
        })
    }

    fn usage<'a>(&'a self, sandbox: &'a SandboxId, entries_max: u64) -> RuntimeFuture<'a, Usage> {
        self.inner.usage(sandbox, entries_max)
    }

    fn restore<'a>(
        &'a self,
        restore: Restore<'a>,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Copied, RestoreError>> {
        Box::pin(async move {
            self.crash.step().await;
            let restored = self.inner.restore(restore, progress).await;
            self.crash.step().await;
            restored
        })
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

/// One life of a server.
struct Server {
    runtime: tokio::runtime::Runtime,
    engine: Engine,
    crash: Arc<Crash>,
}

impl Server {
    fn start(host: &Arc<FakeHost>, crash: Arc<Crash>) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(2);
        Self::start_on(runtime, host, crash)
    }

    fn start_on(
        mut runtime: tokio::runtime::Builder,
        host: &Arc<FakeHost>,
        crash: Arc<Crash>,
    ) -> Self {
        let runtime = runtime.enable_all().build().unwrap();
        let store = runtime
            .block_on(SqliteStore::open(&host.dir().join("outlive.db")))
            .unwrap();
        let engine = Engine::new(
            Arc::new(Fragile {
                inner: store,
                crash: Arc::clone(&crash),
            }),
            Arc::new(Fragile {
                inner: FakeRuntime(Arc::clone(host)),
                crash: Arc::clone(&crash),
            }),
            host.places().clone(),
            TaskTracker::new(),
            CancellationToken::new(),
            TenantLimits {
                sandboxes_max: 4,
                snapshots_max: 3,
                ..TenantLimits::default()
            },
        );
        runtime.block_on(engine.take_up()).unwrap();
        Self {
            runtime,
            engine,
            crash,
        }
    }

    fn sound(host: &Arc<FakeHost>) -> Self {
        Self::start(host, Crash::at(usize::MAX))
    }

    /// One whose time a story can hold.
    fn alone(host: &Arc<FakeHost>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread();
        Self::start_on(runtime, host, Crash::at(usize::MAX))
    }

    /// Runs a story to its end, or to the crash.
    fn run<T>(&self, story: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async {
            tokio::select! {
                told = story => Some(told),
                () = self.crash.reached.notified() => None,
            }
        })
    }

    fn kill(self) {
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }

    fn settle(&self) -> Vec<Arc<Sandbox>> {
        self.runtime.block_on(async {
            let tidying = &self.engine.shared.tidying;
            tidying.close();
            tidying.wait().await;
            let mut left = Vec::new();
            for sandbox in self.engine.all() {
                if sandbox.settled().await {
                    left.push(sandbox);
                }
            }
            left
        })
    }
}

/// A host whose fakes run on a runtime of their own.
struct Stage {
    host: Arc<FakeHost>,
    _tasks: tokio::runtime::Runtime,
}

impl Stage {
    fn set() -> Self {
        let tasks = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self {
            host: FakeHost::new(tasks.handle().clone()),
            _tasks: tasks,
        }
    }

    /// Nothing runs, lies about or is remembered that the others don't know of.
    fn check(&self, server: &Server, at: &str) {
        self.check_snapshots(server, at);
        let sandboxes = server.settle();
        let mut known = Vec::new();
        for sandbox in &sandboxes {
            let record = sandbox.record();
            let lives = self.host.live().contains(&record.id);
            match record.state.desired {
                Desired::Running | Desired::Frozen => {
                    assert!(lives, "{at}: {record:?} has no runtime");
                }
                Desired::Released => assert!(!lives, "{at}: {record:?} still runs"),
                Desired::Deleted => panic!("{at}: {record:?} is left"),
            }
            known.push(record.id.clone());
        }
        known.sort();
        assert_eq!(self.host.disks(), known, "{at}: disks");
        for live in self.host.live() {
            assert!(known.contains(&live), "{at}: {live} is an orphan");
        }
    }
}

impl Stage {
    /// Every snapshot is whole and has its files.
    fn check_snapshots(&self, server: &Server, at: &str) {
        server.settle();
        let store = &server.engine.shared.store;
        let records = server.runtime.block_on(store.all_snapshots()).unwrap();
        let mut known = Vec::new();
        for record in records {
            assert_eq!(record.state, SnapshotState::Ready, "{at}: {record:?}");
            known.push(record.id);
        }
        known.sort();
        let mut found = self.host.snapshots();
        found.sort();
        assert_eq!(found, known, "{at}: snapshots");
    }
}

fn new_sandbox() -> NewSandbox {
    NewSandbox {
        owner: Owner::parse("acme").unwrap(),
        template: "default".to_owned(),
        config: SandboxConfig {
            env_vars: BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            ..SandboxConfig::default()
        },
        isolation: None,
    }
}

/// Kills the server at every step of a story, starts another, and looks for what is left over.
fn killed_at_every_step<T, F: Future<Output = T>>(story: impl Fn(Engine) -> F) -> usize {
    killed_at_every_step_on(|engine, _host| story(engine), |_stage, _server, _at| {})
}

/// The same for a story about a host, of which something else must hold, too.
fn killed_at_every_step_on<T, F: Future<Output = T>>(
    story: impl Fn(Engine, Arc<FakeHost>) -> F,
    check: impl Fn(&Stage, &Server, &str),
) -> usize {
    for step in 0..1000 {
        let stage = Stage::set();
        let first = Server::start(&stage.host, Crash::at(step));
        let telling = story(first.engine.clone(), Arc::clone(&stage.host));
        let told = first.run(telling).is_some();
        first.kill();
        let second = Server::sound(&stage.host);
        stage.check(&second, &format!("killed at step {step}"));
        check(&stage, &second, &format!("killed at step {step}"));
        for snapshot in stage.host.snapshots() {
            let deleting = second.engine.delete_snapshot("acme", &snapshot);
            second.runtime.block_on(deleting).unwrap();
        }
        // Whatever was left can be removed.
        for sandbox in second.settle() {
            second.runtime.block_on(sandbox.delete()).unwrap();
        }
        stage.check(&second, &format!("removed after step {step}"));
        assert_eq!(stage.host.disks(), vec![]);
        second.kill();
        if told {
            return step;
        }
    }
    panic!("the story never ends");
}

#[test]
fn a_server_killed_while_it_creates_leaves_no_orphan() {
    let steps = killed_at_every_step(|engine| async move {
        engine.create(new_sandbox()).await.unwrap();
    });
    assert!(steps >= 7, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_deletes_leaves_no_trace() {
    let steps = killed_at_every_step(|engine| async move {
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        sandbox.delete().await.unwrap();
    });
    assert!(steps >= 15, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_pauses_and_resumes_loses_no_sandbox() {
    let steps = killed_at_every_step(|engine| async move {
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        sandbox.resume().await.unwrap();
    });
    assert!(steps >= 20, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_freezes_and_thaws_loses_no_runtime() {
    let steps = killed_at_every_step(|engine| async move {
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        sandbox.suspend().await.unwrap();
        sandbox.resume().await.unwrap();
        sandbox.suspend().await.unwrap();
        sandbox.pause().await.unwrap();
    });
    assert!(steps >= 25, "{steps} steps");
}

#[test]
fn what_was_asked_for_is_on_the_disk_when_it_is_answered() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    let on_disk = || *server.crash.synced.lock().unwrap();
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        for _ in 0..3 {
            sandbox.suspend().await.unwrap();
            assert_eq!(on_disk(), Some(Desired::Frozen));
            sandbox.resume().await.unwrap();
            assert_eq!(on_disk(), Some(Desired::Running));
        }
        sandbox.pause().await.unwrap();
        assert_eq!(on_disk(), Some(Desired::Released));
    });
    server.kill();
}

#[test]
fn a_frozen_sandbox_is_read_as_it_stands_and_woken_by_what_changes_it() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        let session = SessionId::from_bits(7);
        let signal = Request::Signal {
            session: session.clone(),
            expected: None,
            signal: 15,
        };
        sandbox.suspend().await.unwrap();
        assert!(agent.is_frozen());
        assert_eq!(sandbox.record().state.observed, Observed::Frozen);
        // Reading never wakes.
        assert_eq!(sandbox.list().await.unwrap(), vec![]);
        sandbox.view(&session).await.unwrap_err();
        assert!(agent.is_frozen());
        sandbox.call(signal).await.unwrap();
        assert!(!agent.is_frozen());
        assert_eq!(sandbox.record().state.generation, Generation::FIRST);
        sandbox.suspend().await.unwrap();
        // A second one changes nothing.
        sandbox.suspend().await.unwrap();
    });
    let id = server.settle()[0].record().id.clone();
    server.kill();
    // The next server leaves it asleep.
    let server = Server::sound(&stage.host);
    let sandbox = server.settle().pop().unwrap();
    assert_eq!(sandbox.record().state.observed, Observed::Frozen);
    assert!(stage.host.agent(&id).unwrap().is_frozen());
    server.kill();
}

// A supervisor that hung held up every look at its sessions, though their files could answer.
#[test]
fn a_supervisor_that_does_not_answer_holds_a_look_up_for_ten_seconds() {
    let stage = Stage::set();
    let server = Server::alone(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        sandbox.call(create()).await.unwrap();
        assert_eq!(sandbox.list().await.unwrap().len(), 1);
        agent.hang();
        tokio::time::pause();
        let from = tokio::time::Instant::now();
        // This supervisor has a session that no file knows.
        assert_eq!(sandbox.list().await.unwrap(), vec![]);
        assert_eq!(from.elapsed().as_secs(), 10);
        let error = sandbox.view(&session()).await.unwrap_err();
        assert!(
            matches!(error, CallError::Rejected(Rejection::NotFound)),
            "{error:?}"
        );
        assert_eq!(from.elapsed().as_secs(), 20);
    });
    server.kill();
}

#[test]
fn a_workload_that_can_t_be_frozen_goes_on_and_the_caller_is_told_why() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        agent.refuse_freezes(1);
        let error = sandbox.suspend().await.unwrap_err();
        assert!(
            matches!(&error, CallError::Unavailable { message, .. } if message.contains("told not to freeze")),
            "{error:?}"
        );
        assert_eq!(sandbox.record().state.observed, Observed::Running);
        assert!(!agent.is_frozen());
        sandbox.suspend().await.unwrap();
    });
    server.kill();
}

#[test]
fn a_server_killed_while_it_forks_leaves_a_whole_copy_or_none() {
    let steps = killed_at_every_step(|engine| async move {
        let source = engine.create(new_sandbox()).await.unwrap();
        let (progress, _) = watch::channel(Copied::default());
        let fork = engine
            .fork(&source, ConfigChange::default(), progress)
            .await;
        fork.unwrap().resume().await.unwrap();
    });
    assert!(steps >= 15, "{steps} steps");
}

#[test]
fn a_fork_is_a_sandbox_of_its_own_and_its_source_goes_on() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let mut new = new_sandbox();
        (new.config.ttl, new.config.hard_ttl) = (Some(1000), Some(2000));
        let source = server.engine.create(new).await.unwrap();
        let (progress, _) = watch::channel(Copied::default());
        let change = ConfigChange {
            hard_ttl: Some(60),
            ..ConfigChange::default()
        };
        let fork = server.engine.fork(&source, change, progress).await.unwrap();
        let agent = stage.host.agent(&source.record().id).unwrap();
        assert!(!agent.is_frozen());
        assert_eq!(source.record().state.observed, Observed::Running);
        let child = fork.record();
        assert_eq!(child.state.observed, Observed::Released);
        assert_eq!(child.state.generation, Generation::FIRST);
        assert_eq!(child.config.env_vars["A"], "1");
        // Deadlines are not inherited.
        assert_eq!((child.config.ttl, child.state.expires_at), (None, None));
        let left = child.state.hard_expires_at.unwrap().since(clock::now());
        assert!(left <= Duration::from_mins(1), "{left:?}");
        // A source that sleeps is not woken for it.
        source.suspend().await.unwrap();
        let (progress, _) = watch::channel(Copied::default());
        let change = ConfigChange::default();
        server.engine.fork(&source, change, progress).await.unwrap();
        assert!(agent.is_frozen());
        assert_eq!(source.record().state.observed, Observed::Frozen);
    });
    server.kill();
}

#[test]
fn a_frozen_runtime_that_is_lost_waits_for_a_call() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.suspend().await.unwrap();
        stage.host.kill(&sandbox.record().id);
        sandbox.reaches(Generation::FIRST, Observed::Released).await;
        assert_eq!(sandbox.record().state.why, Some(ReleaseWhy::RuntimeLost));
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.generation, Generation(2));
    });
    server.kill();
}

#[test]
fn nobody_there_and_it_sleeps_somebody_there_and_it_does_not() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let mut new = new_sandbox();
        new.config.idle.freeze_after_seconds = Some(1);
        let sandbox = server.engine.create(new).await.unwrap();
        let attached = sandbox.attach(&SessionId::from_bits(1));
        let (doing, sleeps_at) = sandbox.wakefulness();
        assert_eq!(doing.len(), 1);
        assert_eq!(sleeps_at, None);
        drop(attached);
        let left = clock::now();
        let (doing, sleeps_at) = sandbox.wakefulness();
        assert_eq!(doing, vec![]);
        assert!(sleeps_at.unwrap() <= left + Duration::from_secs(1));
        sandbox.reaches(Generation::FIRST, Observed::Frozen).await;
        assert!(clock::now() >= sleeps_at.unwrap());
        // Polling keeps nobody awake, and a call wakes it for another while.
        sandbox.list().await.unwrap();
        assert_eq!(sandbox.record().state.observed, Observed::Frozen);
        sandbox.wake().await.unwrap();
        assert_eq!(sandbox.record().state.observed, Observed::Running);
        sandbox.reaches(Generation::FIRST, Observed::Frozen).await;
    });
    server.kill();
}

#[test]
fn a_running_sandbox_is_taken_over_with_its_generation() {
    let stage = Stage::set();
    let first = Server::sound(&stage.host);
    let sandbox = first
        .run(first.engine.create(new_sandbox()))
        .unwrap()
        .unwrap();
    let id = sandbox.record().id.clone();
    first.kill();
    let second = Server::sound(&stage.host);
    let sandbox = second.settle().pop().unwrap();
    assert_eq!(sandbox.record().state.observed, Observed::Running);
    assert_eq!(sandbox.record().state.generation, Generation::FIRST);
    assert_eq!(stage.host.starts(), vec![(id.clone(), Generation::FIRST)]);
    assert_eq!(stage.host.agent(&id).unwrap().env()["A"], "1");
    second.kill();
}

#[test]
fn a_workload_survives_a_store_that_fails_and_a_host_that_can_t_be_looked_at() {
    let stage = Stage::set();
    let first = Server::sound(&stage.host);
    let sandbox = first
        .run(first.engine.create(new_sandbox()))
        .unwrap()
        .unwrap();
    let id = sandbox.record().id.clone();
    first.kill();
    let crash = Crash::at(usize::MAX);
    crash.puts_refused.store(2, Ordering::SeqCst);
    crash.looks_refused.store(2, Ordering::SeqCst);
    let second = Server::start(&stage.host, Arc::clone(&crash));
    let sandbox = second.settle().pop().unwrap();
    second.run(async {
        // It answers before the store does.
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.generation, Generation::FIRST);
    });
    assert_eq!(stage.host.starts(), vec![(id, Generation::FIRST)]);
    second.kill();
}

#[test]
fn a_runtime_that_answers_is_kept_although_the_store_does_not_hear_of_it() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        // Nothing is started before the store knows of it.
        server.crash.puts_refused.store(1, Ordering::SeqCst);
        sandbox.resume().await.unwrap_err();
        assert_eq!(stage.host.starts().len(), 1);
        // What is started stays, whether the store hears of it or not.
        server.crash.puts_spared.store(1, Ordering::SeqCst);
        server.crash.puts_refused.store(2, Ordering::SeqCst);
        sandbox.resume().await.unwrap();
        assert_eq!(stage.host.starts().len(), 2);
        sandbox.call(Request::Health).await.unwrap();
    });
    server.kill();
}

#[test]
fn nothing_is_called_gone_before_it_is_swept_up() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        server.crash.sweeps_refused.store(2, Ordering::SeqCst);
        sandbox.pause().await.unwrap_err();
        assert_eq!(sandbox.record().state.observed, Observed::Releasing);
        // It is finished without being asked for again.
        sandbox.reaches(Generation::FIRST, Observed::Released).await;
        sandbox.resume().await.unwrap();

        let id = sandbox.record().id.clone();
        server.crash.sweeps_refused.store(2, Ordering::SeqCst);
        stage.host.kill(&id);
        sandbox.reaches(Generation(3), Observed::Running).await;

        server.crash.sweeps_refused.store(1, Ordering::SeqCst);
        sandbox.delete().await.unwrap_err();
        assert!(!sandbox.settled_gone().await);
    });
    assert_eq!(stage.host.disks(), vec![]);
    server.kill();
}

#[test]
fn a_runtime_that_keeps_dying_young_waits_before_it_is_started_again() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let id = sandbox.record().id.clone();
        stage.host.kill(&id);
        sandbox.reaches(Generation(2), Observed::Running).await;
        stage.host.kill(&id);
        // The second death is seen before the third generation is begun.
        sandbox.reaches(Generation(2), Observed::Starting).await;
        sandbox.reaches(Generation(3), Observed::Running).await;
    });
    server.kill();
}

#[test]
fn generations_rise_by_one_with_each_resume() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        for generation in 1..4 {
            let record = sandbox.record();
            assert_eq!(record.state.generation, Generation(generation));
            assert_eq!(record.state.observed, Observed::Running);
            sandbox.pause().await.unwrap();
            assert_eq!(sandbox.record().state.observed, Observed::Released);
            assert_eq!(stage.host.live(), vec![]);
            // A second pause changes nothing, a second resume neither.
            sandbox.pause().await.unwrap();
            sandbox.resume().await.unwrap();
            sandbox.resume().await.unwrap();
        }
    });
    server.kill();
}

#[test]
fn a_runtime_that_died_is_replaced_at_once() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let id = sandbox.record().id.clone();
        stage.host.kill(&id);
        sandbox.reaches(Generation(2), Observed::Running).await;
        // And so is one that died while no server looked.
    });
    let id = server.settle()[0].record().id.clone();
    server.kill();
    stage.host.kill(&id);
    let server = Server::sound(&stage.host);
    let sandbox = server.settle().pop().unwrap();
    assert_eq!(sandbox.record().state.generation, Generation(3));
    stage.check(&server, "after the death");
    server.kill();
}

#[test]
fn a_call_wakes_a_sandbox_unless_it_may_not() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        // Reading never wakes.
        assert_eq!(sandbox.list().await.unwrap(), vec![]);
        assert_eq!(sandbox.record().state.observed, Observed::Released);
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.generation, Generation(2));

        let change = ConfigChange {
            auto_resume: Some(false),
            ..ConfigChange::default()
        };
        sandbox.configure(change).await.unwrap();
        sandbox.call(Request::Health).await.unwrap();
        sandbox.pause().await.unwrap();
        let refused = sandbox.call(Request::Health).await.unwrap_err();
        assert!(
            matches!(refused, CallError::Unavailable { .. }),
            "{refused:?}"
        );
        assert_eq!(sandbox.record().state.observed, Observed::Released);
        sandbox.resume().await.unwrap();
        sandbox.call(Request::Health).await.unwrap();
    });
    server.kill();
}

#[test]
fn a_hundred_calls_at_once_wake_a_sandbox_once() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        let calls = (0..100).map(|_| sandbox.call(Request::Health));
        for answer in futures_util::future::join_all(calls).await {
            answer.unwrap();
        }
        assert_eq!(sandbox.record().state.generation, Generation(2));
        assert_eq!(stage.host.starts().len(), 2);
    });
    server.kill();
}

#[test]
fn a_sandbox_that_does_not_start_leaves_no_trace() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        stage.host.fail_starts(1);
        let error = server.engine.create(new_sandbox()).await.unwrap_err();
        assert!(matches!(error, CallError::ResumeFailed { .. }), "{error:?}");
    });
    stage.check(&server, "after the failure");
    assert_eq!(stage.host.disks(), vec![]);
    server.kill();
}

#[test]
fn a_wake_that_fails_is_told_and_the_next_one_tries_again() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        stage.host.fail_starts(1);
        let error = sandbox.call(Request::Health).await.unwrap_err();
        assert!(matches!(error, CallError::ResumeFailed { .. }), "{error:?}");
        assert_eq!(sandbox.record().state.observed, Observed::Failed);
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.observed, Observed::Running);
    });
    server.kill();
}

#[test]
fn ttl_pauses_and_hard_ttl_deletes() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let mut new = new_sandbox();
        new.config.ttl = Some(1);
        let sandbox = server.engine.create(new).await.unwrap();
        let due = sandbox.record().state.expires_at.unwrap();
        sandbox.reaches(Generation::FIRST, Observed::Released).await;
        let late = clock::now().since(due);
        assert!(
            clock::now() >= due && late < Duration::from_millis(900),
            "{late:?}"
        );
        assert_eq!(stage.host.live(), vec![]);
        // Resumed, its time counts anew (case I8).
        sandbox.resume().await.unwrap();
        assert!(sandbox.record().state.expires_at.unwrap() > due);

        let change = ConfigChange {
            ttl: Some(0),
            hard_ttl: Some(1),
            ..ConfigChange::default()
        };
        sandbox.configure(change).await.unwrap();
        assert_eq!(sandbox.record().state.expires_at, None);
        assert!(!sandbox.settled_gone().await);
    });
    assert_eq!(stage.host.disks(), vec![]);
    assert_eq!(stage.host.live(), vec![]);
    server.kill();
}

#[test]
fn a_tenant_has_as_many_as_it_may_and_sees_its_own_only() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let first = server.engine.create(new_sandbox()).await.unwrap();
        for _ in 0..3 {
            server.engine.create(new_sandbox()).await.unwrap();
        }
        let error = server.engine.create(new_sandbox()).await.unwrap_err();
        assert!(
            matches!(error, CallError::QuotaExceeded { .. }),
            "{error:?}"
        );
        let id = first.record().id.clone();
        server.engine.get("acme", &id).unwrap();
        assert_eq!(
            server.engine.get("other", &id).unwrap_err(),
            CallError::NoSandbox
        );
        first.delete().await.unwrap();
        assert_eq!(
            server.engine.get("acme", &id).unwrap_err(),
            CallError::NoSandbox
        );
        assert_eq!(first.delete().await.unwrap_err(), CallError::NoSandbox);
        server.engine.create(new_sandbox()).await.unwrap();
    });
    server.kill();
}

// A session that was created in the moment of the deletion met a runtime that was gone, and its
// client read "try again" for ever.
#[test]
fn calls_that_meet_a_deletion_are_told_that_there_is_no_sandbox() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        for round in 0..20 {
            let sandbox = server.engine.create(new_sandbox()).await.unwrap();
            let calls = (0..8).map(|_| sandbox.call(create()));
            let lists = (0..8).map(|_| sandbox.list());
            let (created, listed, deleted) = tokio::join!(
                futures_util::future::join_all(calls),
                futures_util::future::join_all(lists),
                sandbox.delete(),
            );
            deleted.unwrap();
            let failed = created.into_iter().filter_map(Result::err);
            for error in failed.chain(listed.into_iter().filter_map(Result::err)) {
                assert_eq!(error, CallError::NoSandbox, "round {round}");
            }
        }
    });
    server.kill();
}
