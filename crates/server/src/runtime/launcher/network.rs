//! The networks of launched sandboxes: which one each has, and their rules.

use std::io;

use outlive_api::{
    launch::{RuntimeKind, TidyConfig},
    network::NetworkMode,
};
use outlive_core::id::SandboxId;
use outlive_journal::replace_path;

use super::{
    LauncherRuntime, file,
    program::{launcher_failed, open_log, passing_log},
    told::{egress, encoded, newest, path_text},
};
use crate::{
    limits::{EGRESS_MAX, SWEEP_MAX},
    runtime::RuntimeError,
    sandboxes::config::SandboxConfig,
};

impl LauncherRuntime {
    pub(super) fn network_of(&self, kind: RuntimeKind, config: &SandboxConfig) -> NetworkMode {
        match kind {
            RuntimeKind::Namespace => self.able.network(config),
            RuntimeKind::Process | RuntimeKind::TwoUid => NetworkMode::Host,
        }
    }

    /// Removes rules of networks that belong to no sandbox any more, and writes those anew that
    /// belong to one that runs.
    pub(super) async fn tidy_networks(&self) -> Result<(), RuntimeError> {
        if !self.able.bridges() {
            return Ok(()); // Nothing was made here that could be left.
        }
        let message = encoded(&TidyConfig {
            sandboxes: path_text(self.places.root())?,
        })?;
        let log = passing_log().map_err(|error| RuntimeError::Launcher {
            message: error.to_string(),
        })?;
        match self.agent.run("tidy", &message, &log, SWEEP_MAX).await {
            Ok(_said) => Ok(()),
            Err(error) => Err(launcher_failed(&error.to_string(), log)),
        }
    }

    /// Changes the rules of a sandbox that was launched with some.
    pub(super) async fn change_egress(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let kept = place.launch_config();
        let mut launched = newest(&place)?
            .ok_or_else(|| file("reading", &kept)(io::Error::from(io::ErrorKind::NotFound)))?;
        let Some(way_out) = &mut launched.way_out else {
            return Ok(()); // It runs with another network; the next generation has this one.
        };
        way_out.egress = egress(config)?;
        let message = encoded(&launched)?;
        replace_path(&kept, &message).map_err(file("writing", &kept))?;
        let path = place.egress_log();
        let log = open_log(&path)?;
        log.set_len(0).map_err(file("clearing", &path))?;
        match self.agent.run("egress", &message, &log, EGRESS_MAX).await {
            Ok(_said) => Ok(()),
            Err(error) => Err(launcher_failed(&error.to_string(), log)),
        }
    }
}
