//! Another configuration: stored first, then made so where a runtime runs.
//!
//! One change at a time: each reads what the launch was told, and replaces all of it.

use outlive_core::sandbox::{Desired, Input};
use tokio::time::Instant;

use super::{OnDisk, Task, perform::failed, refused};
use crate::{
    clock, runtime::RuntimeError, sandboxes::config::ConfigChange, sessions::CallError,
    store::SandboxRecord,
};

impl Task {
    pub(super) async fn configure(&mut self, change: ConfigChange) -> Result<(), CallError> {
        if self.record.state.desired == Desired::Deleted {
            return Err(CallError::NoSandbox);
        }
        let env_changed = change.env_vars.is_some();
        let limits_changed = change.resources.is_some();
        let network_changed = change.network.is_some();
        let record = self.changed(change)?;
        self.save(&record, OnDisk::First).await?;
        let before = std::mem::replace(&mut self.record, record);
        if limits_changed && self.agent.is_some() {
            self.limit(before).await?;
        }
        self.publish_now();
        if network_changed && self.agent.is_some() {
            let (id, runtime) = (&self.record.id, &self.shared.runtime);
            let reached = runtime.reach(id, &self.record.config).await;
            reached.map_err(|error| failed(&error))?;
        }
        if let (true, Some(agent)) = (env_changed, self.agent.clone()) {
            self.tell_env(&agent).await?;
        }
        Ok(())
    }

    fn changed(&self, change: ConfigChange) -> Result<SandboxRecord, CallError> {
        let (soft, hard) = (change.ttl.is_some(), change.hard_ttl.is_some());
        let mut record = self.record.clone();
        change.apply(&mut record.config);
        let now = clock::now();
        let policy = record.config.policy();
        for (changed, input) in [(soft, Input::TtlChanged), (hard, Input::HardTtlChanged)] {
            if changed {
                let decision = record.state.decide(&policy, now, &input).map_err(refused)?;
                record.state = decision.next;
            }
        }
        record.updated_at = now.max(record.updated_at);
        Ok(record)
    }

    /// Has the runtime be limited as it should now; what can't be had is asked for no longer.
    async fn limit(&mut self, before: SandboxRecord) -> Result<(), CallError> {
        let (id, runtime) = (&self.record.id, &self.shared.runtime);
        let Err(error) = runtime.limit(id, &self.record.config).await else {
            return Ok(());
        };
        if !matches!(error, RuntimeError::NotNow(_))
            && let Err(error) = runtime.limit(id, &before.config).await
        {
            tracing::error!(sandbox = %id, %error, "the limits of a sandbox are unknown");
        }
        self.record = before.clone();
        // What fails here is stored a little later.
        self.save(&before, OnDisk::First).await?;
        Err(match error {
            RuntimeError::NotNow(_) => CallError::Conflict {
                reason: "limit_not_now",
                message: error.to_string(),
            },
            other => failed(&other),
        })
    }

    /// A server that was killed may have stored a change and not made it.
    pub(super) async fn catch_up(&mut self) {
        let (id, runtime) = (&self.record.id, &self.shared.runtime);
        let caught_up = runtime.catch_up(id, &self.record.config).await;
        let Err(error) = caught_up else {
            return;
        };
        tracing::error!(sandbox = %id, %error, "a sandbox is not what it was last asked to be");
        // Nobody was told that it is: what is shown is what holds.
        if let (RuntimeError::NotNow(_), Ok(Some(limits))) = (&error, runtime.limits(id)) {
            let asked = self.record.config.resources.take().unwrap_or_default();
            self.record.config.resources = Some(asked.with(limits));
            self.unsaved = Some(Instant::now());
        }
    }
}
