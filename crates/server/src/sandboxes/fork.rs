//! Forks: another sandbox with the files of this one, and nothing else of it.
//!
//! ```text
//!   record, to be deleted ─► directory ─► copy of the disk ─► record, released ─► its task
//! ```
//! Until the copy is whole the store says that it is to be deleted: a server that is killed
//! meanwhile leaves something that the next one removes. The sessions of the source lie in its
//! state directory, which is not copied; ids, tokens and the machine's name are the child's own.

use std::sync::Arc;

use outlive_core::sandbox::{Desired, Observed, Sandbox as State};

use super::{
    Engine, NewSandbox, Sandbox, config::ConfigChange, going_away, store_failed, task::CopyTo,
};
use crate::{clock, runtime::Progress, sessions::CallError};

impl Engine {
    /// Makes a released sandbox with the source's files and settings. Its deadlines are those of
    /// `change` only. Never wakes the source.
    ///
    /// It comes to its end also when nobody waits for it any more: half a fork would keep its
    /// place until the next server removes it.
    pub(crate) async fn fork(
        &self,
        source: &Arc<Sandbox>,
        change: ConfigChange,
        progress: Progress,
    ) -> Result<Arc<Sandbox>, CallError> {
        let (engine, source) = (self.clone(), Arc::clone(source));
        let forking = async move { engine.fork_now(&source, change, progress).await };
        let forked = self.shared.tasks.spawn(forking).await;
        forked.unwrap_or_else(|_ended| Err(going_away()))
    }

    async fn fork_now(
        &self,
        source: &Sandbox,
        change: ConfigChange,
        progress: Progress,
    ) -> Result<Arc<Sandbox>, CallError> {
        let parent = source.record();
        let mut config = parent.config.clone();
        (config.ttl, config.hard_ttl) = (None, None);
        change.apply(&mut config);
        self.admit(&config)?;
        let new = NewSandbox {
            owner: parent.owner.clone(),
            template: parent.template.clone(),
            config,
        };
        let mut unfinished = State::create_released(clock::now(), &new.config.policy());
        unfinished.desired = Desired::Deleted;
        unfinished.observed = Observed::Deleting;
        let mut record = self.insert(new, unfinished).await?;
        let mut forked = self.copy_disk(source, &record, progress).await;
        if forked.is_ok() {
            let unfinished = record.state.clone();
            record.state = State::create_released(clock::now(), &record.config.policy());
            let stored = self.shared.store.update_sandbox(&record).await;
            if let Err(error) = stored {
                record.state = unfinished;
                forked = Err(store_failed(&error));
            }
        }
        // One that was not finished removes itself.
        let child = self.adopt(record, None);
        forked.map(|()| child)
    }

    async fn copy_disk(
        &self,
        source: &Sandbox,
        child: &crate::store::SandboxRecord,
        progress: Progress,
    ) -> Result<(), CallError> {
        let provisioned = self.shared.runtime.provision(&child.id).await;
        provisioned.map_err(|error| CallError::Failed {
            message: error.to_string(),
        })?;
        let to = CopyTo {
            sandbox: child.id.clone(),
            slot: child.slot,
            progress,
        };
        source.copy(to).await
    }
}
