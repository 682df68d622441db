//! Lifecycles against a fake host, with a server that is killed at every step of them.
//!
//! A server is a tokio runtime of its own here: killing it drops every task where it stands. The
//! host, the store's file and the fakes stay.

mod crashes;
mod deletion;
mod forks;
mod fragile;
mod generations;
mod isolation;
mod lifetime;
mod limits;
mod sleep;
mod snapshots;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use outlive_api::{agent::Request, launch::IsolationTier};
use outlive_core::{
    id::{Generation, SnapshotId},
    sandbox::{Desired, Observed},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::fragile::{Crash, Fragile};
use super::{
    Engine, NewSandbox, Sandbox,
    config::{ConfigChange, SandboxConfig},
};
use crate::{
    clock,
    config::TenantLimits,
    reserve::Reserve,
    runtime::{
        Progress, Whose,
        fake::{FakeHost, FakeRuntime},
    },
    sessions::{CallError, SandboxHandle},
    store::{Owner, SandboxFilter, SnapshotRecord, SnapshotState, sqlite::SqliteStore},
};

/// One life of a server.
struct Server {
    runtime: tokio::runtime::Runtime,
    engine: Engine,
    crash: Arc<Crash>,
}

impl Server {
    /// On one thread, which does nothing outside of a story: who is killed neither goes on nor sees
    /// links of its own end, and a story can hold the time.
    fn start(host: &Arc<FakeHost>, crash: Arc<Crash>) -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
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
            Arc::new(Reserve::nothing_on(host.disk())),
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
