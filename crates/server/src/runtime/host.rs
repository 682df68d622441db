//! What this host can do for sandboxes, as the agent's probe found it out by trying.

use std::collections::BTreeMap;

use outlive_api::{
    launch::{IdRange, IsolationTier, RuntimeKind, User},
    network::NetworkMode,
};
use outlive_core::spec::Who;

use super::RuntimeError;
use crate::sandboxes::{
    config::{Resources, SandboxConfig},
    network::{Needs, needs},
};

/// A host that can do more now than it could then is not looked at again.
const LOOKED_WHEN: &str = "so it was when the server started: start it again if that has changed";

/// The answers of `outlive-agent probe`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Host {
    answers: BTreeMap<String, String>,
    /// What is off, one sentence each.
    pub(super) off: Vec<String>,
}

impl Host {
    /// Reads the probe's `key=value` lines.
    pub(super) fn parse(text: &str) -> Self {
        let mut host = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match key {
                "off" => host.off.push(value.to_owned()),
                _ => drop(host.answers.insert(key.to_owned(), value.to_owned())),
            }
        }
        host
    }

    /// Why the host can't do this; `None` where it can.
    fn lacks(&self, key: &str) -> Option<&str> {
        match self.answers.get(key) {
            Some(answer) => answer.strip_prefix("no:").map(str::trim),
            None => Some("nothing is known of it"),
        }
    }

    /// Whether it is known that sandboxes can't be kept apart here.
    pub(super) fn cannot_isolate(&self) -> bool {
        let is = |key: &str, wanted: fn(&str) -> bool| {
            self.answers.get(key).is_some_and(|answer| wanted(answer))
        };
        // An ordinary user's server has to enter a namespace before it is a server.
        is("isolation", |tier| tier != "nested") || is("userns", |ids| ids.starts_with("enter:"))
    }

    /// Whether sandboxes can have a network of their own here.
    pub(super) fn bridges(&self) -> bool {
        self.lacks("bridge").is_none()
    }

    /// What quotas hold what lies in the data folder: `btrfs ID` or `project`.
    pub(super) fn quotas(&self) -> Option<&str> {
        let answer = self.answers.get("disk_quota")?;
        (!answer.starts_with("no:")).then_some(answer)
    }

    /// Refuses what runtimes that show the host as it is can't give here, or anywhere.
    pub(super) fn admit_host(
        &self,
        kind: RuntimeKind,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let name = kind.name();
        if let (RuntimeKind::TwoUid, Some(why)) = (kind, self.lacks("two_uid")) {
            return Err(RuntimeError::Limits(format!(
                "runtime `{name}` can't be had on this host: {why}; use another with --runtime"
            )));
        }
        let has_it = config.network.as_ref().is_none_or(|network| {
            let plain = matches!(network.mode, None | Some(NetworkMode::Host));
            let everything = network.policy.is_none() || needs(network) == Needs::Everything;
            plain && network.egress.is_none() && everything
        });
        if !has_it {
            return Err(RuntimeError::Limits(format!(
                "runtime `{name}` has the host's network and can't take it away; use the mode host"
            )));
        }
        let resources = config.resources.as_ref();
        if resources.is_some_and(|asked| asked.disk.is_some()) {
            return Err(RuntimeError::Limits(format!(
                "resources.disk can't be enforced in runtime `{name}`, which writes anywhere; \
                 leave it out"
            )));
        }
        if config.user.is_some() {
            let whom = match kind {
                RuntimeKind::TwoUid => "a user of the sandbox's own",
                RuntimeKind::Namespace | RuntimeKind::Process => "the server's own user",
            };
            return Err(RuntimeError::Limits(format!(
                "runtime `{name}` runs everything as {whom}; leave user out"
            )));
        }
        Ok(())
    }

    /// What is left without namespaces.
    pub(super) fn next_best(&self) -> RuntimeKind {
        match self.lacks("two_uid") {
            None => RuntimeKind::TwoUid,
            Some(_) => RuntimeKind::Process,
        }
    }

    /// What is off in this tier, before anything was launched.
    pub(super) fn off_in(&self, tier: IsolationTier) -> Vec<String> {
        let weaker = tier.weaker().iter().map(|sentence| (*sentence).to_owned());
        let known = weaker.filter(|sentence| !self.off.contains(sentence));
        known.chain(self.off.iter().cloned()).collect()
    }

    /// The network of a sandbox in nested namespaces.
    pub(super) fn network(&self, config: &SandboxConfig) -> NetworkMode {
        let asked = config.network.as_ref().and_then(|network| network.mode);
        match asked {
            Some(mode) => mode,
            None if self.bridges() => NetworkMode::Bridge,
            None => NetworkMode::None,
        }
    }

    /// Refuses what nested namespaces can't give here.
    pub(super) fn admit(&self, config: &SandboxConfig) -> Result<(), RuntimeError> {
        self.admit_limits(config)?;
        // A network that can't be had reaches nothing, so nothing but that is given all the same.
        let bridge = config
            .network
            .as_ref()
            .is_some_and(|network| needs(network) != Needs::Nothing);
        match self.lacks("bridge") {
            Some(why) if bridge => Err(RuntimeError::Limits(format!(
                "network `bridge` and its rules can't be had on this host: {why}; use the mode \
                 none or host, or see `outlive doctor`; {LOOKED_WHEN}"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses limits that can't be enforced here.
    pub(super) fn admit_limits(&self, config: &SandboxConfig) -> Result<(), RuntimeError> {
        let none = Resources::default();
        let asked = config.resources.as_ref().unwrap_or(&none);
        for (name, is_asked) in [
            ("memory", asked.memory.is_some()),
            ("cpu", asked.cpu.is_some()),
            ("pids", asked.pids.is_some()),
        ] {
            if let (true, Some(why)) = (is_asked, self.lacks(&format!("cgroup.{name}"))) {
                return Err(RuntimeError::Limits(format!(
                    "resources.{name} can't be enforced on this host: {why}; leave it out, or \
                     see `outlive doctor`; {LOOKED_WHEN}"
                )));
            }
        }
        Ok(())
    }
}

/// Refuses users that there is no id for.
pub(super) fn admit_user(user: &User, shared: Option<IdRange>) -> Result<(), RuntimeError> {
    let is_root = |who: &Who| *who == Who::Id(0) || *who == Who::Name("root".to_owned());
    let all_root = is_root(&user.user) && user.group.as_ref().is_none_or(is_root);
    match shared {
        Some(ids) if ids.workload_count() == 1 && !all_root => Err(RuntimeError::Limits(format!(
            "user {user} can't be had: sandboxes of this server have one id, root's; install \
             newuidmap and have /etc/subuid and /etc/subgid grant the server's user 65536 ids, or \
             leave user out"
        ))),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use outlive_api::network::Network;

    use super::*;

    const PROBE: &str = "isolation=nested\ncgroup.memory=v1 /sys/fs/cgroup/memory\n\
                         cgroup.pids=no: not delegated to us\nbridge=no: running `nft`: not found\n\
                         off=limit of pids: no controller to enforce it\n";

    fn asking(change: impl FnOnce(&mut SandboxConfig)) -> SandboxConfig {
        let mut config = SandboxConfig::default();
        change(&mut config);
        config
    }

    #[test]
    fn a_limit_that_nobody_enforces_is_refused_with_its_reason() {
        let host = Host::parse(PROBE);
        let limited = |resources| asking(|config| config.resources = Some(resources));
        host.admit(&limited(Resources {
            memory: Some("64Mi".to_owned()),
            ..Resources::default()
        }))
        .unwrap();
        let refused = host.admit(&limited(Resources {
            pids: Some(7),
            ..Resources::default()
        }));
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("resources.pids"), "{message}");
        assert!(message.contains("not delegated to us"), "{message}");
        assert_eq!(host.off, ["limit of pids: no controller to enforce it"]);
    }

    #[test]
    fn the_default_network_is_what_the_host_can() {
        let host = Host::parse(PROBE);
        let nothing_asked = SandboxConfig::default();
        host.admit(&nothing_asked).unwrap();
        assert_eq!(host.network(&nothing_asked), NetworkMode::None);
        let bridge = asking(|config| {
            config.network = Some(Network {
                mode: Some(NetworkMode::Bridge),
                ..Network::default()
            });
        });
        let message = host.admit(&bridge).unwrap_err().to_string();
        assert!(message.contains("not found"), "{message}");
        assert!(message.contains("start it again"), "{message}");
        let able = Host::parse("bridge=ok\n");
        able.admit(&bridge).unwrap();
        assert_eq!(able.network(&nothing_asked), NetworkMode::Bridge);
    }

    #[test]
    fn who_has_one_id_can_only_be_root() {
        let one = IdRange::of_uid_map("0 1000 1\n");
        let many = IdRange::of_uid_map("0 1000 1\n1 100000 65536\n");
        let admitted = |text, ids| admit_user(&User::parse(text).unwrap(), ids);
        for root in ["root", "0", "0:root"] {
            admitted(root, one).unwrap();
        }
        for other in ["user", "1000", "root:audio"] {
            let message = admitted(other, one).unwrap_err().to_string();
            assert!(message.contains("/etc/subuid"), "{message}");
            admitted(other, many).unwrap();
            admitted(other, None).unwrap();
        }
    }

    #[test]
    fn an_ordinary_users_server_has_to_enter_its_namespace_first() {
        let host = |userns: &str| Host::parse(&format!("isolation=nested\nuserns={userns}\n"));
        assert!(host("enter: 65537 ids").cannot_isolate());
        assert!(!host("65537 ids").cannot_isolate());
        assert!(!host("root").cannot_isolate());
    }

    #[test]
    fn without_namespaces_two_users_are_better_than_one() {
        let host = |two_uid: &str| Host::parse(&format!("two_uid={two_uid}\n"));
        assert_eq!(host("ok").next_best(), RuntimeKind::TwoUid);
        assert_eq!(host("no: needs root").next_best(), RuntimeKind::Process);
        assert_eq!(Host::default().next_best(), RuntimeKind::Process);
        let off = host("ok").off_in(IsolationTier::TwoUid);
        assert_eq!(off, IsolationTier::TwoUid.weaker());
    }

    #[test]
    fn a_host_of_which_nothing_is_known_promises_nothing() {
        let host = Host::default();
        assert!(!host.cannot_isolate());
        assert_eq!(host.network(&SandboxConfig::default()), NetworkMode::None);
    }
}
