//! Copies: another sandbox with the files of this one or of a snapshot, and nothing else of it.
//!
//! ```text
//!   record, to be deleted ─► directory ─► copy of the disk ─► record, released or starting ─► its task
//! ```
//! Until the copy is whole the store says that it is to be deleted: a server that is killed
//! meanwhile leaves something that the next one removes. The sessions of the source lie in its
//! state directory, which is not copied; ids, tokens and the machine's name are the child's own.

use std::sync::Arc;

use outlive_core::sandbox::{Desired, Observed, Sandbox as State};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Engine, NewSandbox, Sandbox,
    config::ConfigChange,
    going_away,
    snapshots::SnapshotUse,
    store_failed,
    task::{CopyTo, Target},
};
use crate::{
    clock,
    runtime::{Disk, Progress, RuntimeError, Whose},
    sessions::CallError,
    store::SandboxRecord,
};

impl Engine {
    /// Makes a released sandbox with the source's files and settings, kept apart no less. Its deadlines are those of
    /// `change` only. Never wakes the source.
    pub(crate) async fn fork(
        &self,
        source: &Arc<Sandbox>,
        change: ConfigChange,
        progress: Progress,
    ) -> Result<Arc<Sandbox>, CallError> {
        let (engine, source) = (self.clone(), Arc::clone(source));
        self.to_its_end(async move { engine.fork_now(&source, change, progress).await })
            .await
    }

    /// Makes a sandbox with the files of a snapshot; returns once its supervisor answers.
    pub(crate) async fn create_from(
        &self,
        new: NewSandbox,
        snapshot: SnapshotUse,
        progress: Progress,
    ) -> Result<Arc<Sandbox>, CallError> {
        let engine = self.clone();
        self.to_its_end(async move { engine.create_from_now(new, &snapshot, progress).await })
            .await
    }

    /// Does work that comes to its end also when nobody waits for it any more: half a copy would
    /// keep its place until the next server removes it.
    pub(super) async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, CallError>> + Send + 'static,
    ) -> Result<T, CallError> {
        let done = self.shared.tasks.spawn(work).await;
        done.unwrap_or_else(|_ended| Err(going_away()))
    }

    async fn fork_now(
        &self,
        source: &Sandbox,
        change: ConfigChange,
        progress: Progress,
    ) -> Result<Arc<Sandbox>, CallError> {
        self.shared.reserve.admit()?;
        let parent = source.record();
        let mut config = parent.config.clone();
        (config.ttl, config.hard_ttl) = (None, None);
        change.apply(&mut config);
        self.admit(&config)?;
        let child = self
            .insert_unfinished(NewSandbox {
                owner: parent.owner.clone(),
                template: parent.template.clone(),
                config,
                isolation: parent.isolation,
            })
            .await?;
        let to = CopyTo {
            target: Target::Sandbox(child.id.clone()),
            slot: child.slot,
            progress,
        };
        let copied = match self.provision(Whose::Sandbox(&child.id)).await {
            Ok(()) => source.copy(to).await,
            Err(error) => Err(error),
        };
        let state = State::create_released(clock::now(), &child.config.policy());
        let child = self.finish(child, copied, state).await?;
        Ok(self.adopt(child, None))
    }

    async fn create_from_now(
        &self,
        new: NewSandbox,
        snapshot: &SnapshotUse,
        progress: Progress,
    ) -> Result<Arc<Sandbox>, CallError> {
        self.admit(&new.config)?;
        self.shared.reserve.admit()?;
        let child = self.insert_unfinished(new).await?;
        let copied = self.copy_snapshot(snapshot, &child, &progress).await;
        let state = State::create(clock::now(), &child.config.policy());
        let child = self.finish(child, copied, state).await?;
        let (reply, answer) = oneshot::channel();
        let sandbox = self.adopt(child, Some(reply));
        answer.await.unwrap_or_else(|_gone| Err(going_away()))?;
        Ok(sandbox)
    }

    async fn copy_snapshot(
        &self,
        snapshot: &SnapshotUse,
        child: &SandboxRecord,
        progress: &Progress,
    ) -> Result<(), CallError> {
        let whose = Whose::Sandbox(&child.id);
        self.provision(whose).await?;
        let from = Disk {
            whose: Whose::Snapshot(&snapshot.record().id),
            slot: snapshot.record().slot,
        };
        let to = Disk {
            whose,
            slot: child.slot,
        };
        // Nobody deletes what nobody sees yet.
        let never = CancellationToken::new();
        let copied = self.shared.runtime.copy(from, to, progress, &never).await;
        let copied = copied.map_err(|error| self.shared.reserve.blame(failed(&error)))?;
        progress.reached(copied);
        Ok(())
    }

    /// A sandbox whose disk is about to be copied.
    async fn insert_unfinished(&self, new: NewSandbox) -> Result<SandboxRecord, CallError> {
        let mut unfinished = State::create_released(clock::now(), &new.config.policy());
        unfinished.desired = Desired::Deleted;
        unfinished.observed = Observed::Deleting;
        let record = self.insert(new, unfinished).await?;
        if let Err(error) = self.shared.store.sync_sandboxes().await {
            self.adopt(record, None); // It removes itself.
            return Err(store_failed(&error));
        }
        Ok(record)
    }

    /// Makes it what it is to be; one whose copy failed removes itself.
    async fn finish(
        &self,
        mut record: SandboxRecord,
        copied: Result<(), CallError>,
        state: State,
    ) -> Result<SandboxRecord, CallError> {
        let unfinished = std::mem::replace(&mut record.state, state);
        let finished = match copied {
            Ok(()) => {
                let stored = self.shared.store.update_sandbox(&record).await;
                stored.map_err(|error| store_failed(&error))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = finished {
            record.state = unfinished;
            self.adopt(record, None);
            return Err(error);
        }
        Ok(record)
    }

    pub(super) async fn provision(&self, whose: Whose<'_>) -> Result<(), CallError> {
        let provisioned = self.shared.runtime.provision(whose).await;
        provisioned.map_err(|error| self.shared.reserve.blame(failed(&error)))
    }
}

pub(super) fn failed(error: &RuntimeError) -> CallError {
    let message = error.to_string();
    match error {
        RuntimeError::TooDeep { .. } => CallError::Conflict {
            reason: "nested_too_deep",
            message,
        },
        RuntimeError::GivenUp => CallError::NoSandbox,
        _ => CallError::Failed { message },
    }
}
