//! The limits of launched sandboxes, and how they change while those run.
//!
//! What a launch was told says what is in force: it is written once the groups have it.

use outlive_api::launch::{LaunchConfig, Limited, Limits};
use outlive_core::id::SandboxId;
use outlive_journal::replace_path;

use super::{
    LauncherRuntime, file,
    program::{launcher_failed, passing_log},
    told::{encoded, launched, limits, newest},
};
use crate::{
    limits::{LIMIT_MAX, SWEEP_MAX},
    runtime::{Place, RuntimeError},
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
        self.confine(&place, launched(&place)?, limits(config)?)
            .await
    }

    /// Has the groups of a launch have these limits, then notes that they do.
    async fn confine(
        &self,
        place: &Place,
        mut launched: LaunchConfig,
        limits: Limits,
    ) -> Result<(), RuntimeError> {
        launched.limits = limits;
        let message = encoded(&launched)?;
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
        let limits = limits(config)?;
        if launched.limits == limits {
            return Ok(());
        }
        self.confine(&place, launched, limits).await
    }
}
