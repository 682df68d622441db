//! The sandboxes of this server: who they are, what runs them, how they change.
//!
//! What a sandbox is and what happens to it is decided by [`outlive_core::sandbox`]. Every sandbox
//! is owned by one task ([`task`]) with a mailbox. It writes what it is about to do into the
//! store, does it, and writes what came of it; the task of the next server goes on from there. Others see a published snapshot and hold a [`Sandbox`], which answers reads by itself
//! and asks the task only when something must change.

pub(crate) mod activity;
pub(crate) mod config;
pub(crate) mod disk;
mod fork;
mod handle;
pub(crate) mod network;
pub(crate) mod rest;
pub(crate) mod snapshot_rest;
mod snapshots;
mod task;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use outlive_api::{launch::IsolationTier, network::NetworkMode, sandbox::Disk};
use outlive_core::{
    id::SandboxId,
    sandbox::{Desired, Observed, Sandbox as State},
};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::handle::{Sandbox, Snapshot};
use self::{
    activity::Activity, config::SandboxConfig, disk::Enforced, snapshots::Uses, task::Task,
};
use crate::{
    agents::tails::Tails,
    clock,
    config::TenantLimits,
    limits::{IDS_TRIED_MAX, SANDBOX_MAILBOX_MAX},
    reserve::Reserve,
    runtime::{Capabilities, Places, Runtime},
    sessions::{Answer, CallError, Caller, Census, SandboxHandle, Sandboxes},
    store::{
        Inserted, Owner, SandboxFilter, SandboxPage, SandboxRecord, SnapshotState, Store,
        StoreError,
    },
};

/// How many host id ranges there are (`outlive_api::launch::IdRange`).
const SLOTS: u16 = 28_672;

/// What all sandboxes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) places: Places,
    pub(crate) tasks: TaskTracker,
    /// The server is going; sandboxes stay.
    pub(crate) stop: CancellationToken,
    pub(crate) tenant: TenantLimits,
    /// Space for a full disk.
    pub(crate) reserve: Arc<Reserve>,
    /// Who uses snapshots.
    uses: Arc<Uses>,
    /// A snapshot was made: the next that expires may be another.
    expiry_moved: Notify,
    /// What is done about the snapshots of a server before.
    tidying: TaskTracker,
    sandboxes: RwLock<HashMap<SandboxId, Arc<Sandbox>>>,
    /// Those whose disk is still copied: nobody sees them yet.
    unfinished: Mutex<BTreeSet<SandboxId>>,
}

/// All sandboxes of this server.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    shared: Arc<Shared>,
}

/// What a creation asks for.
#[derive(Debug)]
pub(crate) struct NewSandbox {
    pub(crate) owner: Owner,
    pub(crate) template: String,
    pub(crate) config: SandboxConfig,
    /// The least that its processes are kept apart; nothing for what this server has.
    pub(crate) isolation: Option<IsolationTier>,
}

impl Engine {
    /// With these parts, and no sandboxes yet.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
        places: Places,
        tasks: TaskTracker,
        stop: CancellationToken,
        tenant: TenantLimits,
        reserve: Arc<Reserve>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                store,
                runtime,
                places,
                tasks,
                stop,
                tenant,
                reserve,
                uses: Arc::default(),
                expiry_moved: Notify::new(),
                tidying: TaskTracker::new(),
                sandboxes: RwLock::new(HashMap::new()),
                unfinished: Mutex::default(),
            }),
        }
    }

    /// Takes up the sandboxes of the server before: finds live agents, finishes what was begun.
    /// Returns once every sandbox has a task; they settle on their own.
    pub(crate) async fn take_up(&self) -> Result<usize, StoreError> {
        let records = self.shared.store.all_sandboxes().await?;
        let mut snapshots = self.shared.store.all_snapshots().await?;
        let count = records.len();
        for mut record in records {
            record.isolation = self.isolation_of(&record);
            self.adopt(record, None);
        }
        snapshots.retain(|snapshot| snapshot.state != SnapshotState::Ready);
        let tidying = self.clone().tidy_snapshots(snapshots);
        self.shared.tidying.spawn(tidying);
        self.shared.tasks.spawn(self.clone().expire_snapshots());
        Ok(count)
    }

    /// How far its processes were kept apart. A server that was killed at its first start, or was
    /// older than this question, stored nothing: what the launch was told says it.
    fn isolation_of(&self, record: &SandboxRecord) -> Option<IsolationTier> {
        if record.isolation.is_some() {
            return record.isolation;
        }
        self.shared.runtime.told(&record.id).unwrap_or_else(|error| {
            tracing::error!(sandbox = %record.id, %error, "how far a sandbox was kept apart can't be read; it is started with the strongest isolation or not at all");
            Some(IsolationTier::Nested)
        })
    }

    /// Makes a sandbox; returns once its supervisor answers.
    pub(crate) async fn create(&self, new: NewSandbox) -> Result<Arc<Sandbox>, CallError> {
        self.admit(&new.config)?;
        self.shared.reserve.admit()?;
        let state = State::create(clock::now(), &new.config.policy());
        let record = self.insert(new, state).await?;
        let (reply, answer) = oneshot::channel();
        let sandbox = self.adopt(record, Some(reply));
        match answer.await {
            Ok(Ok(())) => Ok(sandbox),
            Ok(Err(error)) => Err(error),
            Err(_gone) => Err(going_away()),
        }
    }

    /// Refuses what this host can't give, before anything is made.
    pub(crate) fn admit(&self, config: &SandboxConfig) -> Result<(), CallError> {
        let admitted = self.shared.runtime.admit(config);
        admitted.map_err(|error| CallError::Unsupported {
            message: error.to_string(),
        })
    }

    /// The network that a sandbox has, or would have.
    pub(crate) fn network(
        &self,
        config: &SandboxConfig,
        made: Option<IsolationTier>,
    ) -> NetworkMode {
        self.shared.runtime.network(config, made)
    }

    /// How the runtime of a sandbox is connected, where it has one and that is known.
    pub(crate) fn connected(&self, record: &SandboxRecord) -> Option<NetworkMode> {
        match record.state.observed {
            Observed::Running | Observed::Freezing | Observed::Frozen | Observed::Thawing => {}
            Observed::Starting
            | Observed::Releasing
            | Observed::Released
            | Observed::Failed
            | Observed::Deleting => return None,
        }
        let connected = self.shared.runtime.connected(&record.id);
        connected.unwrap_or_else(|error| {
            tracing::error!(sandbox = %record.id, %error, "how a sandbox is connected can't be read");
            None
        })
    }

    /// A new row. One that is to be deleted has yet to become a sandbox.
    async fn insert(&self, new: NewSandbox, state: State) -> Result<SandboxRecord, CallError> {
        let is_unfinished = state.desired == Desired::Deleted;
        let now = clock::now();
        let mut record = SandboxRecord {
            id: SandboxId::from_bits(0),
            owner: new.owner,
            template: new.template,
            state,
            slot: 0,
            isolation: new.isolation,
            created_at: now,
            updated_at: now,
            config: new.config,
        };
        for _ in 0..IDS_TRIED_MAX {
            let bits = random()?;
            record.id = SandboxId::from_bits(bits);
            record.slot = u16::try_from((bits >> 12) % u64::from(SLOTS)).unwrap_or(0);
            if is_unfinished {
                self.shared.unfinished().insert(record.id.clone());
            }
            let inserted = self
                .shared
                .store
                .insert_sandbox(&record, self.shared.tenant.sandboxes_max);
            let inserted = inserted.await;
            if is_unfinished && !matches!(inserted, Ok(Inserted::Yes)) {
                self.shared.unfinished().remove(&record.id);
            }
            match inserted.map_err(|error| store_failed(&error))? {
                Inserted::Yes => return Ok(record),
                Inserted::Collision => {}
                Inserted::OverQuota => {
                    return Err(CallError::QuotaExceeded {
                        message: format!(
                            "the tenant has {} sandboxes, the most it may have",
                            self.shared.tenant.sandboxes_max
                        ),
                    });
                }
            }
        }
        Err(CallError::Failed {
            message: "no free range of host ids was found".to_owned(),
        })
    }

    /// Gives a sandbox its task.
    fn adopt(&self, record: SandboxRecord, created: Option<task::Reply>) -> Arc<Sandbox> {
        let (mailbox, commands) = mpsc::channel(SANDBOX_MAILBOX_MAX);
        let (publish, snapshot) = watch::channel(Snapshot {
            record: Arc::new(record.clone()),
            agent: None,
        });
        let tails = Arc::new(Tails::default());
        let activity = Arc::new(Activity::default());
        let sandbox = Arc::new(Sandbox::new(
            &record,
            mailbox,
            snapshot,
            Arc::clone(&tails),
            Arc::clone(&activity),
            self.shared.places.of(&record.id),
            Arc::clone(&self.shared.reserve),
        ));
        self.shared
            .sandboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(record.id.clone(), Arc::clone(&sandbox));
        self.shared.unfinished().remove(&record.id);
        let shared = Arc::clone(&self.shared);
        let task = Task::new(shared, record, publish, tails, activity, commands);
        self.shared.tasks.spawn(task.run(created));
        sandbox
    }

    /// A sandbox of this owner.
    pub(crate) fn get(&self, owner: &str, id: &SandboxId) -> Result<Arc<Sandbox>, CallError> {
        self.shared
            .sandbox(id)
            .filter(|sandbox| sandbox.owner().as_str() == owner)
            .ok_or(CallError::NoSandbox)
    }

    /// All of them, of every owner.
    pub(crate) fn all(&self) -> Vec<Arc<Sandbox>> {
        self.shared
            .sandboxes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }

    /// How full its disk may be and is; nothing without a limit.
    pub(crate) fn disk(&self, record: &SandboxRecord) -> Option<Disk> {
        record.config.resources.as_ref()?.disk.as_ref()?;
        let enforced = Enforced::on(self, record);
        let sandbox = self.shared.sandbox(&record.id);
        disk::shown(record, sandbox.as_ref().map(|one| one.gauge()), enforced)
    }

    /// Whether its supervisor is there and says nothing.
    pub(crate) fn is_silent(&self, id: &SandboxId) -> bool {
        let agent = self.shared.sandbox(id).and_then(|one| one.agent());
        agent.is_some_and(|agent| agent.is_silent())
    }

    /// What the backend can do.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.shared.runtime.capabilities()
    }

    /// Whether the disk of the data folder is full.
    pub(crate) fn is_disk_full(&self) -> bool {
        self.shared.reserve.is_full()
    }

    /// Fails when the store can't be used.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        self.shared.store.check().await
    }

    /// One page of an owner's sandboxes.
    pub(crate) async fn page(
        &self,
        owner: &Owner,
        mut filter: SandboxFilter,
        limit: u32,
        offset: u64,
    ) -> Result<SandboxPage, CallError> {
        filter.hidden = self.shared.unfinished().iter().cloned().collect();
        let page = self
            .shared
            .store
            .page_sandboxes(owner, &filter, limit, offset);
        let mut page = page.await.map_err(|error| store_failed(&error))?;
        let sandboxes = &self.shared.sandboxes;
        let sandboxes = sandboxes.read().unwrap_or_else(PoisonError::into_inner);
        for record in &mut page.records {
            let live = sandboxes.get(&record.id).map(|sandbox| sandbox.record());
            // The store hears a moment later that one stands still, or goes on.
            if let Some(live) = live.filter(|live| record.state.only_moves(&live.state)) {
                *record = SandboxRecord::clone(&live);
            }
        }
        Ok(page)
    }
}

impl Shared {
    fn sandbox(&self, id: &SandboxId) -> Option<Arc<Sandbox>> {
        let sandboxes = self.sandboxes.read();
        let sandboxes = sandboxes.unwrap_or_else(PoisonError::into_inner);
        sandboxes.get(id).cloned()
    }

    fn unfinished(&self) -> MutexGuard<'_, BTreeSet<SandboxId>> {
        // Whole at every point where a holder could have panicked.
        self.unfinished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, id: &SandboxId) {
        self.sandboxes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(id);
    }
}

impl Sandboxes for Engine {
    fn find<'a>(
        &'a self,
        caller: &'a Caller,
        sandbox: &'a SandboxId,
    ) -> Answer<'a, Arc<dyn SandboxHandle>> {
        Box::pin(async move {
            let found = self.get(&caller.owner, sandbox)?;
            Ok(found as Arc<dyn SandboxHandle>)
        })
    }

    fn census(&self) -> Answer<'_, Census> {
        Box::pin(async move {
            let all = self.all();
            let mut census = Census::default();
            // All at once, so that the slowest few don't hide the others.
            let mut counts: FuturesUnordered<_> = all.iter().map(|one| one.count()).collect();
            while let Some(count) = counts.next().await {
                census.join(&count);
            }
            Ok(census)
        })
    }
}

fn seconds(count: u64) -> std::time::Duration {
    std::time::Duration::from_secs(count)
}

fn random() -> Result<u64, CallError> {
    getrandom::u64().map_err(|error| CallError::Failed {
        message: format!("the system gives no random numbers: {error}"),
    })
}

fn store_failed(error: &StoreError) -> CallError {
    tracing::error!(%error, "the store failed");
    match error {
        StoreError::Full(full) => CallError::DiskFull {
            message: full.to_string(),
        },
        _ => CallError::Failed {
            message: "the server's store failed".to_owned(),
        },
    }
}

fn going_away() -> CallError {
    CallError::Unavailable {
        message: "the server is going away".to_owned(),
        retry_after: seconds(1),
    }
}
