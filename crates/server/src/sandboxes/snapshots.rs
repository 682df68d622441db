//! Snapshots: the files of a sandbox as of one instant, kept for themselves.
//!
//! ```text
//!   record, making ─► directory ─► copy of the disk ─► record, ready ─► record, deleting ─► (no trace)
//! ```
//! Only what is ready is seen. A server that is killed in between leaves a record that says so,
//! and the next one removes it with whatever it has. A snapshot keeps its image, as a sandbox
//! does, and nothing refers to its source, which may go.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlive_core::{
    id::{SandboxId, SnapshotId},
    time::Timestamp,
};

use super::{
    Engine, Sandbox,
    fork::failed,
    random,
    snapshot_rest::image_name,
    store_failed,
    task::{CopyTo, RestoreTo, Target},
};
use crate::{
    clock,
    limits::{DEADLINE_SLEEP_MAX, EXPIRY_RETRY, IDS_TRIED_MAX},
    runtime::{Progress, Whose},
    sessions::CallError,
    store::{Owner, SandboxRecord, SnapshotInserted, SnapshotRecord, SnapshotState},
};

/// What a new snapshot is asked to be.
#[derive(Debug, Default)]
pub(crate) struct NewSnapshot {
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) expires_at: Option<Timestamp>,
}

/// Who uses snapshots right now.
#[derive(Debug, Default)]
pub(super) struct Uses(Mutex<HashMap<SnapshotId, Use>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// So many copy it.
    Copied(usize),
    /// It is being removed.
    Removed,
}

impl Uses {
    fn get(&self) -> MutexGuard<'_, HashMap<SnapshotId, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing when it is being removed.
    fn copy(self: &Arc<Self>, id: &SnapshotId) -> Option<InUse> {
        match self.get().entry(id.clone()).or_insert(Use::Copied(0)) {
            Use::Copied(count) => *count += 1,
            Use::Removed => return None,
        }
        Some(self.guard(id))
    }

    /// Nothing while anybody uses it.
    fn remove(self: &Arc<Self>, id: &SnapshotId) -> Option<InUse> {
        let mut uses = self.get();
        if uses.contains_key(id) {
            return None;
        }
        uses.insert(id.clone(), Use::Removed);
        drop(uses);
        Some(self.guard(id))
    }

    fn guard(self: &Arc<Self>, id: &SnapshotId) -> InUse {
        InUse {
            all: Arc::clone(self),
            id: id.clone(),
        }
    }
}

/// Counts as a use for as long as it is kept.
#[derive(Debug)]
struct InUse {
    all: Arc<Uses>,
    id: SnapshotId,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut uses = self.all.get();
        match uses.get_mut(&self.id) {
            Some(Use::Copied(count)) if *count > 1 => *count -= 1,
            Some(Use::Copied(_) | Use::Removed) | None => {
                uses.remove(&self.id);
            }
        }
    }
}

/// A snapshot that is not removed as long as this is kept.
#[derive(Debug)]
pub(crate) struct SnapshotUse {
    record: SnapshotRecord,
    _used: InUse,
}

impl SnapshotUse {
    /// What the store says of it.
    pub(crate) const fn record(&self) -> &SnapshotRecord {
        &self.record
    }
}

impl Engine {
    /// Takes a snapshot of a sandbox as it is at one instant. Never wakes it.
    pub(crate) async fn snapshot(
        &self,
        source: &Arc<Sandbox>,
        new: NewSnapshot,
        progress: Progress,
    ) -> Result<SnapshotRecord, CallError> {
        let (engine, source) = (self.clone(), Arc::clone(source));
        self.to_its_end(async move { engine.snapshot_now(&source, new, progress).await })
            .await
    }

    /// An owner's snapshots, of one sandbox or of all.
    pub(crate) async fn snapshots(
        &self,
        owner: &Owner,
        sandbox: Option<&SandboxId>,
    ) -> Result<Vec<SnapshotRecord>, CallError> {
        let found = self.shared.store.snapshots_of(owner, sandbox).await;
        let mut found = found.map_err(|error| store_failed(&error))?;
        let now = clock::now();
        found.retain(|snapshot| !snapshot.has_expired(now));
        Ok(found)
    }

    /// A snapshot of this owner.
    pub(crate) async fn find_snapshot(
        &self,
        owner: &str,
        id: &SnapshotId,
    ) -> Result<SnapshotRecord, CallError> {
        let found = self.owned_snapshot(owner, id).await?;
        Some(found)
            .filter(|found| found.state == SnapshotState::Ready)
            .filter(|found| !found.has_expired(clock::now()))
            .ok_or(CallError::NoSnapshot)
    }

    /// A snapshot of this owner that stays as long as what is given back is kept.
    pub(crate) async fn use_snapshot(
        &self,
        owner: &str,
        id: &SnapshotId,
    ) -> Result<SnapshotUse, CallError> {
        // Used first and looked at then, so that nobody removes it in between.
        let used = self.shared.uses.copy(id).ok_or(CallError::NoSnapshot)?;
        Ok(SnapshotUse {
            record: self.find_snapshot(owner, id).await?,
            _used: used,
        })
    }

    /// Removes a snapshot that nobody uses.
    pub(crate) async fn delete_snapshot(
        &self,
        owner: &str,
        id: &SnapshotId,
    ) -> Result<(), CallError> {
        let found = self.owned_snapshot(owner, id).await?;
        if found.has_expired(clock::now()) {
            return Err(CallError::NoSnapshot);
        }
        self.delete_unused(owner, id).await
    }

    async fn delete_unused(&self, owner: &str, id: &SnapshotId) -> Result<(), CallError> {
        let removed = self.shared.uses.remove(id).ok_or_else(snapshot_in_use)?;
        let record = self.owned_snapshot(owner, id).await?;
        let restores =
            |sandbox: &Arc<Sandbox>| sandbox.record().state.restoring.as_ref() == Some(id);
        if record.state == SnapshotState::Making || self.all().iter().any(restores) {
            return Err(snapshot_in_use());
        }
        let engine = self.clone();
        self.to_its_end(async move {
            let _removed = removed;
            engine.remove_snapshot(record).await
        })
        .await
    }

    /// Puts a sandbox's disk back to what a snapshot holds. What runs is ended for it and runs
    /// again afterwards; what rests is not started.
    pub(crate) async fn restore(
        &self,
        sandbox: &Arc<Sandbox>,
        snapshot: SnapshotUse,
        progress: Progress,
    ) -> Result<(), CallError> {
        self.shared.reserve.admit()?;
        let record = sandbox.record();
        let (own, below) = (record.config.image.as_ref(), snapshot.record.image.as_ref());
        if own.map(|image| &image.layers) != below.map(|image| &image.layers) {
            return Err(CallError::Conflict {
                reason: "other_image",
                message: format!(
                    "the snapshot's files lie over image {}, and the sandbox is made from {}; \
                     make a sandbox from the snapshot instead",
                    image_name(below),
                    image_name(own),
                ),
            });
        }
        let sandbox = Arc::clone(sandbox);
        self.to_its_end(async move {
            let to = RestoreTo {
                snapshot: snapshot.record.id.clone(),
                progress,
            };
            sandbox.restore(to).await
        })
        .await
    }

    async fn owned_snapshot(
        &self,
        owner: &str,
        id: &SnapshotId,
    ) -> Result<SnapshotRecord, CallError> {
        let found = self.shared.store.snapshot(id).await;
        found
            .map_err(|error| store_failed(&error))?
            .filter(|found| found.owner.as_str() == owner)
            .ok_or(CallError::NoSnapshot)
    }

    async fn snapshot_now(
        &self,
        source: &Sandbox,
        new: NewSnapshot,
        progress: Progress,
    ) -> Result<SnapshotRecord, CallError> {
        self.shared.reserve.admit()?;
        let mut record = self.insert_snapshot(&source.record(), new).await?;
        let seen = progress.subscribe();
        let to = CopyTo {
            target: Target::Snapshot(record.id.clone()),
            slot: record.slot,
            progress,
        };
        let copied = match self.provision(Whose::Snapshot(&record.id)).await {
            // A source that goes meanwhile keeps its image up to the end of this.
            Ok(()) => source.copy(to).await,
            Err(error) => Err(error),
        };
        let made = match copied {
            Ok(()) => {
                let copied = seen.borrow().copied.clone();
                (record.files, record.bytes) = (copied.files, copied.bytes);
                record.state = SnapshotState::Ready;
                let stored = self.shared.store.update_snapshot(&record).await;
                stored.map_err(|error| store_failed(&error))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            let id = record.id.clone();
            if let Err(left) = self.remove_snapshot(record).await {
                tracing::error!(snapshot = %id, error = %left, "half a snapshot is left until the next start");
            }
            return Err(error);
        }
        if record.expires_at.is_some() {
            self.shared.expiry_moved.notify_one();
        }
        Ok(record)
    }

    async fn insert_snapshot(
        &self,
        source: &SandboxRecord,
        new: NewSnapshot,
    ) -> Result<SnapshotRecord, CallError> {
        let mut record = SnapshotRecord {
            id: SnapshotId::from_bits(0),
            owner: source.owner.clone(),
            name: new.name,
            description: new.description,
            sandbox: source.id.clone(),
            template: source.template.clone(),
            image: source.config.image.clone(),
            slot: source.slot,
            state: SnapshotState::Making,
            files: 0,
            bytes: 0,
            created_at: clock::now(),
            expires_at: new.expires_at,
        };
        let owned_max = self.shared.tenant.snapshots_max;
        for _ in 0..IDS_TRIED_MAX {
            record.id = SnapshotId::from_bits(random()?);
            let inserted = self.shared.store.insert_snapshot(&record, owned_max).await;
            match inserted.map_err(|error| store_failed(&error))? {
                SnapshotInserted::Yes => return Ok(record),
                SnapshotInserted::Collision => {}
                SnapshotInserted::NameTaken => {
                    return Err(CallError::Conflict {
                        reason: "name_taken",
                        message: "another snapshot of yours has this name; take another name, or \
                                  delete that one"
                            .to_owned(),
                    });
                }
                SnapshotInserted::OverQuota => {
                    return Err(CallError::QuotaExceeded {
                        message: format!(
                            "the tenant has {owned_max} snapshots, the most it may have"
                        ),
                    });
                }
            }
        }
        Err(CallError::Failed {
            message: "no free id of a snapshot was found".to_owned(),
        })
    }

    /// Nobody sees it from the first step on, and the record goes last.
    async fn remove_snapshot(&self, mut record: SnapshotRecord) -> Result<(), CallError> {
        self.shared.reserve.make_room();
        record.state = SnapshotState::Deleting;
        let stored = self.shared.store.update_snapshot(&record).await;
        stored.map_err(|error| store_failed(&error))?;
        let deleted = self
            .shared
            .runtime
            .delete(Whose::Snapshot(&record.id))
            .await;
        deleted.map_err(|error| failed(&error))?;
        let removed = self.shared.store.remove_snapshot(&record.id).await;
        removed.map_err(|error| store_failed(&error))?;
        self.shared.reserve.refill();
        Ok(())
    }

    /// Removes what a server before was making or removing.
    pub(super) async fn tidy_snapshots(self, unfinished: Vec<SnapshotRecord>) {
        for record in unfinished {
            let id = record.id.clone();
            if let Err(error) = self.remove_snapshot(record).await {
                tracing::error!(snapshot = %id, %error, "half a snapshot is left until the next start");
            }
        }
    }

    /// Removes snapshots whose time has come, until the server goes.
    pub(super) async fn expire_snapshots(self) {
        loop {
            let pause = match self.expire_due().await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::error!(%error, "snapshots can't be looked at; tried again");
                    EXPIRY_RETRY
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shared.expiry_moved.notified() => {}
                () = self.shared.stop.cancelled() => return,
            }
        }
    }

    /// Tells when to look again.
    async fn expire_due(&self) -> Result<Duration, CallError> {
        let now = clock::now();
        let failed = |error| store_failed(&error);
        let store = &self.shared.store;
        let next = store.next_expiry(now).await.map_err(failed)?;
        let mut pause = DEADLINE_SLEEP_MAX;
        if let Some(at) = next {
            pause = pause.min(at.since(now));
        }
        for snapshot in store.expired_snapshots(now).await.map_err(failed)? {
            let owner = snapshot.owner.as_str();
            if let Err(error) = self.delete_unused(owner, &snapshot.id).await {
                tracing::warn!(snapshot = %snapshot.id, %error, "a snapshot whose time has come stays for now");
                pause = pause.min(EXPIRY_RETRY);
            }
        }
        Ok(pause)
    }
}

fn snapshot_in_use() -> CallError {
    CallError::Conflict {
        reason: "snapshot_in_use",
        message: "a sandbox is being made from the snapshot or put back to it, or it is being \
                  made or deleted; try again when that is over"
            .to_owned(),
    }
}
