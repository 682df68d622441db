//! The limits of launched sandboxes, and how they change while those run.
//!
//! What a launch was told says what is in force: it is written once the groups have it.

use std::io;

use outlive_api::launch::Limited;
use outlive_core::id::SandboxId;
use outlive_journal::replace_path;

use super::{
    LauncherRuntime, file,
    program::{launcher_failed, passing_log},
    told::{encoded, limits, newest},
};
use crate::{limits::LIMIT_MAX, runtime::RuntimeError, sandboxes::config::SandboxConfig};

impl LauncherRuntime {
    /// Has a sandbox that was launched be limited as it should.
    pub(super) async fn change_limits(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let kept = place.launch_config();
        let mut launched = newest(&place)?
            .ok_or_else(|| file("reading", &kept)(io::Error::from(io::ErrorKind::NotFound)))?;
        launched.limits = limits(config)?;
        let message = encoded(&launched)?;
        let log = passing_log().map_err(|error| RuntimeError::Launcher {
            message: error.to_string(),
        })?;
        let answer = match self.agent.run("limit", &message, &log, LIMIT_MAX).await {
            Ok(answer) => answer,
            Err(error) => return Err(launcher_failed(&error.to_string(), log)),
        };
        match minicbor::decode(&answer) {
            Ok(Limited::Done) => replace_path(&kept, &message).map_err(file("writing", &kept)),
            Ok(Limited::Refused(failure)) => Err(RuntimeError::NotNow(failure)),
            Err(error) => Err(launcher_failed(
                &format!("its answer is unreadable: {error}"),
                log,
            )),
        }
    }

    /// The same, where the launch says anything else.
    pub(super) async fn catch_up_limits(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        match newest(&self.places.of(sandbox))? {
            Some(launched) if launched.limits != limits(config)? => {
                self.change_limits(sandbox, config).await
            }
            Some(_) | None => Ok(()),
        }
    }
}
