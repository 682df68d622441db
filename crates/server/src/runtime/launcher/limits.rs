//! The limits of launched sandboxes, and how they change while those run.
//!
//! What a launch was told says what is in force: it is written once the groups have it.

use outlive_api::launch::{LaunchConfig, Limited, Quota, RuntimeKind};
use outlive_core::id::SandboxId;
use outlive_journal::replace_path;

use super::{
    LauncherRuntime, file,
    program::{launcher_failed, passing_log},
    told::{encoded, launched, limits, newest, quota},
};
use crate::{
    limits::{LIMIT_MAX, SWEEP_MAX},
    runtime::{Place, RuntimeError, quota::is_counted},
    sandboxes::config::SandboxConfig,
};

impl LauncherRuntime {
    /// Removes groups of sandboxes that nobody sweeps any more.
    pub(super) async fn tidy_groups(&self) -> Result<(), RuntimeError> {
        let log = passing_log()?;
        self.agent.run("tidy-groups", &[], &log, SWEEP_MAX).await?;
        Ok(())
    }

    /// Has a sandbox that was launched be limited as it should.
    pub(super) async fn change_limits(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let limited = self.limited(launched(&place)?, config)?;
        self.confine(&place, &limited).await
    }

    /// Has the groups of a launch have these limits, then notes that they do.
    async fn confine(&self, place: &Place, launched: &LaunchConfig) -> Result<(), RuntimeError> {
        let message = encoded(launched)?;
        let kept = place.launch_config();
        let log = passing_log()?;
        let answer = self.agent.run("limit", &message, &log, LIMIT_MAX).await?;
        match minicbor::decode(&answer) {
            Ok(Limited::Done) => replace_path(&kept, &message).map_err(file("writing", &kept)),
            Ok(Limited::Refused(failure)) => Err(RuntimeError::NotNow(failure)),
            Err(error) => Err(launcher_failed(
                &format!("its answer is unreadable: {error}"),
                &log,
            )),
        }
    }

    /// The same, where the launch says anything else.
    pub(super) async fn catch_up_limits(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let Some(launched) = newest(&place)? else {
            return Ok(());
        };
        let limited = self.limited(launched.clone(), config)?;
        // A limit goes when quotas are turned off.
        let bytes = limited.quota.and_then(|quota| quota.bytes_max);
        let is_lost = is_counted(place.dir())
            && bytes.is_some_and(|bytes| !self.quotas.are_in_force(&place, bytes));
        if limited == launched && !is_lost {
            return Ok(());
        }
        self.confine(&place, &limited).await
    }

    /// What a launch becomes.
    fn limited(
        &self,
        mut launched: LaunchConfig,
        config: &SandboxConfig,
    ) -> Result<LaunchConfig, RuntimeError> {
        launched.limits = limits(config)?;
        launched.quota = self.quota_of(launched.runtime, config)?;
        Ok(launched)
    }

    /// What the file system of the data folder sees to, for this configuration.
    pub(super) fn quota_of(
        &self,
        kind: RuntimeKind,
        config: &SandboxConfig,
    ) -> Result<Option<Quota>, RuntimeError> {
        if kind == RuntimeKind::Namespace && self.quotas.are_on() {
            quota(config).map(Some)
        } else {
            Ok(None)
        }
    }
}
