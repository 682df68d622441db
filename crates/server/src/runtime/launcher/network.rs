//! The networks of launched sandboxes: which one each has, and their rules.

use std::sync::{MutexGuard, PoisonError};

use outlive_api::{
    launch::{
        Egress, HoldConfig, LaunchConfig, Link, NetworkMode as LaunchNetwork, RuntimeKind, Verdict,
        WayOut,
    },
    network::NetworkMode,
};
use outlive_core::id::SandboxId;
use outlive_journal::replace_path;

use super::{
    LauncherRuntime, file,
    program::{Kept, open_log, passing_log},
    told::{egress, encoded, launched, newest, path_text},
};
use crate::{
    limits::{EGRESS_MAX, SWEEP_MAX},
    runtime::{Place, RuntimeError},
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
    /// belong to one that runs. What all networks share is there from now on, if we make any.
    pub(super) async fn tidy_networks(&self) -> Result<(), RuntimeError> {
        if !self.able.bridges() {
            return Ok(()); // Nothing was made here that could be left.
        }
        let message = encoded(&HoldConfig {
            sandboxes: path_text(self.places.root())?,
        })?;
        let log = passing_log()?;
        let ready = HoldConfig::READY;
        let held = self.agent.keep("hold", &message, &ready, &log, SWEEP_MAX);
        let held = held.await?;
        match self.kind() {
            RuntimeKind::Namespace => *self.held() = Some(held),
            RuntimeKind::Process | RuntimeKind::TwoUid => drop(held),
        }
        Ok(())
    }

    /// What all networks share goes, where nobody has one.
    pub(super) async fn leave_networks(&self) -> Result<(), RuntimeError> {
        let held = self.held().take();
        match held {
            Some(held) => held.end(SWEEP_MAX).await,
            None => Ok(()),
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Kept>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a sandbox that was launched with a link of its own reach what it should.
    pub(super) async fn change_egress(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        match self.changed(launched(&place)?, config)? {
            Some(changed) => self.rule(&place, &changed).await,
            None => Ok(()), // It runs with another network; the next generation has this one.
        }
    }

    /// The same, where the launch says anything else.
    pub(super) async fn catch_up_egress(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let Some(launched) = newest(&place)? else {
            return Ok(());
        };
        match self.changed(launched.clone(), config)? {
            Some(changed) if changed.way_out != launched.way_out => {
                self.rule(&place, &changed).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Notes what a launch has become, then has its rules be that.
    async fn rule(&self, place: &Place, launched: &LaunchConfig) -> Result<(), RuntimeError> {
        let message = encoded(launched)?;
        let kept = place.launch_config();
        replace_path(&kept, &message).map_err(file("writing", &kept))?;
        let path = place.egress_log();
        let log = open_log(&path)?;
        log.set_len(0).map_err(file("clearing", &path))?;
        self.agent.run("egress", &message, &log, EGRESS_MAX).await?;
        Ok(())
    }

    /// What a launch with a link becomes; nothing for one without.
    fn changed(
        &self,
        mut launched: LaunchConfig,
        config: &SandboxConfig,
    ) -> Result<Option<LaunchConfig>, RuntimeError> {
        let mode = self.network_of(launched.runtime, config);
        let Some(way_out) = launched.way_out.take() else {
            return Ok(None);
        };
        launched.way_out = Some(redirected(way_out, mode, egress(config)?));
        Ok(Some(launched))
    }

    /// How the newest launch is connected.
    pub(super) fn connected_now(
        &self,
        sandbox: &SandboxId,
    ) -> Result<Option<NetworkMode>, RuntimeError> {
        let launched = newest(&self.places.of(sandbox))?;
        Ok(launched.as_ref().map(connected))
    }
}

/// A link of a sandbox whose network is to be of this mode. Never looser than what was asked, nor
/// than it was until the mode comes about.
fn redirected(way_out: WayOut, mode: NetworkMode, asked: Egress) -> WayOut {
    let (egress, link) = match mode {
        NetworkMode::Bridge => (asked, Link::Open),
        // An agent of an older version knows no link that is cut.
        NetworkMode::None => (NOTHING, Link::Cut),
        // The host's network can only be had from the start.
        NetworkMode::Host => return way_out,
    };
    WayOut {
        egress,
        link,
        ..way_out
    }
}

/// Nothing is reached.
const NOTHING: Egress = Egress {
    default: Verdict::Deny,
    rules: Vec::new(),
};

/// How a runtime is connected that was launched like this.
fn connected(launched: &LaunchConfig) -> NetworkMode {
    match (launched.network, &launched.way_out) {
        (LaunchNetwork::Host, _) => NetworkMode::Host,
        (LaunchNetwork::Bridge, Some(way_out)) if way_out.link == Link::Open => NetworkMode::Bridge,
        (LaunchNetwork::None | LaunchNetwork::Bridge, _) => NetworkMode::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sandbox that reached nothing used to reach everything once its network was taken away.
    #[test]
    fn a_link_is_never_looser_than_it_was_until_another_mode_comes_about() {
        let only = |default| Egress {
            default,
            rules: Vec::new(),
        };
        let way_out = |default, link| WayOut {
            pool: "10.201.0.0/16".parse().unwrap(),
            preferred: 5,
            egress: only(default),
            link,
        };
        let cut = way_out(Verdict::Deny, Link::Cut);
        for (default, link) in [
            (Verdict::Allow, Link::Open),
            (Verdict::Deny, Link::Open),
            (Verdict::Deny, Link::Cut),
        ] {
            let before = way_out(default, link);
            // Neither mode has rules, so nothing is asked: everything would be reached.
            let none = redirected(before.clone(), NetworkMode::None, Egress::default());
            assert_eq!(none, cut);
            let host = redirected(before.clone(), NetworkMode::Host, Egress::default());
            assert_eq!(host, before);
            for asked in [Verdict::Allow, Verdict::Deny] {
                let bridge = redirected(before.clone(), NetworkMode::Bridge, only(asked));
                assert_eq!(bridge, way_out(asked, Link::Open));
            }
        }
    }
}
