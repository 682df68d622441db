//! What a sandbox was asked to be: variables, deadlines, limits. Checked once, kept as text in
//! the store.

mod check;
mod idle;
mod quantity;

use std::{collections::BTreeMap, time::Duration};

use outlive_api::{launch::Limits, network::Network, sandbox as wire};
use outlive_core::sandbox::{AutoResume, Holds, Policy};
use serde::{Deserialize, Serialize};

pub(crate) use self::{
    check::{check, check_seconds},
    idle::{IdleKind, IdleRule},
    quantity::{bytes_of, millicores_of},
};
use crate::images::UsedImage;

/// The configuration of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SandboxConfig {
    /// Variables for every attempt.
    pub(crate) env_vars: BTreeMap<String, String>,
    /// Paused this many seconds after the last refresh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl: Option<u64>,
    /// Deleted this many seconds after its creation or last refresh of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hard_ttl: Option<u64>,
    /// Whether calls wake it.
    pub(crate) auto_resume: bool,
    /// What its workload may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resources: Option<Resources>,
    /// What it reaches; the backend's default when not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<Network>,
    /// Whom its commands run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// What its root is made of; nothing for the image `host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<UsedImage>,
    /// When it falls asleep.
    pub(crate) idle: IdleRule,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        Self {
            env_vars: BTreeMap::new(),
            ttl: None,
            hard_ttl: None,
            auto_resume: true,
            resources: None,
            network: None,
            user: None,
            idle: IdleRule::default(),
            image: None,
        }
    }
}

/// Limits of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resources {
    /// Such as `512Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<String>,
    /// Cores, such as `0.5` or `500m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<String>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pids: Option<u64>,
    /// Such as `2Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<String>,
}

impl Resources {
    /// These, with limits that hold in the place of those that were asked for.
    pub(crate) fn with(self, limits: Limits) -> Self {
        Self {
            memory: limits.memory_bytes_max.map(|bytes| bytes.to_string()),
            cpu: limits.cpu_millis_max.map(|millis| format!("{millis}m")),
            pids: limits.pids_max.map(u64::from),
            disk: self.disk,
        }
    }
}

impl From<Resources> for wire::Resources {
    fn from(resources: Resources) -> Self {
        Self {
            memory: resources.memory,
            cpu: resources.cpu,
            pids: resources.pids.and_then(|pids| i64::try_from(pids).ok()),
            disk: resources.disk,
        }
    }
}

impl SandboxConfig {
    /// What it does by itself.
    pub(crate) fn policy(&self) -> Policy {
        let seconds = |count: Option<u64>| count.map(Duration::from_secs);
        Policy {
            ttl: seconds(self.ttl),
            hard_ttl: seconds(self.hard_ttl),
            auto_resume: if self.auto_resume {
                AutoResume::Yes
            } else {
                AutoResume::No
            },
            freeze_after_idle: seconds(self.idle.freeze_after_seconds),
            holds: if self.idle.counts(IdleKind::Hold) {
                Holds::Count
            } else {
                Holds::DontCount
            },
        }
    }

    /// Variables of every attempt: the image's, and above them the sandbox's own.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let mut env = match &self.image {
            Some(image) => image.settings.env.clone(),
            None => BTreeMap::new(),
        };
        env.extend(self.env_vars.clone());
        env
    }

    /// The form in the store.
    pub(crate) fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Back from the store.
    pub(crate) fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

/// What an update changes; what is not named stays.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct ConfigChange {
    pub(crate) env_vars: Option<BTreeMap<String, String>>,
    /// 0 turns it off.
    pub(crate) ttl: Option<u64>,
    /// 0 turns it off.
    pub(crate) hard_ttl: Option<u64>,
    pub(crate) auto_resume: Option<bool>,
    pub(crate) resources: Option<Resources>,
    pub(crate) network: Option<Network>,
    pub(crate) user: Option<String>,
    pub(crate) idle: Option<IdleRule>,
}

impl ConfigChange {
    /// This change, and what `below` says where this one says nothing.
    pub(crate) fn over(self, below: Self) -> Self {
        let env_vars = match (below.env_vars, self.env_vars) {
            (Some(mut env), Some(own)) => {
                env.extend(own);
                Some(env)
            }
            (below, own) => own.or(below),
        };
        let resources = match (below.resources, self.resources) {
            (Some(below), Some(own)) => Some(Resources {
                memory: own.memory.or(below.memory),
                cpu: own.cpu.or(below.cpu),
                pids: own.pids.or(below.pids),
                disk: own.disk.or(below.disk),
            }),
            (below, own) => own.or(below),
        };
        Self {
            env_vars,
            ttl: self.ttl.or(below.ttl),
            hard_ttl: self.hard_ttl.or(below.hard_ttl),
            auto_resume: self.auto_resume.or(below.auto_resume),
            resources,
            network: self.network.or(below.network),
            user: self.user.or(below.user),
            idle: self.idle.or(below.idle),
        }
    }

    /// Applies everything but the deadlines, which belong to the record.
    pub(crate) fn apply(self, config: &mut SandboxConfig) {
        if let Some(env_vars) = self.env_vars {
            config.env_vars = env_vars;
        }
        if let Some(ttl) = self.ttl {
            config.ttl = (ttl > 0).then_some(ttl);
        }
        if let Some(ttl) = self.hard_ttl {
            config.hard_ttl = (ttl > 0).then_some(ttl);
        }
        if let Some(auto_resume) = self.auto_resume {
            config.auto_resume = auto_resume;
        }
        config.resources = self.resources.or_else(|| config.resources.take());
        config.network = self.network.or_else(|| config.network.take());
        config.user = self.user.or_else(|| config.user.take());
        if let Some(idle) = self.idle {
            config.idle = idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_more_than_its_template_and_leaves_the_rest() {
        let env = |pairs: &[(&str, &str)]| {
            let pairs = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            Some(pairs.collect::<BTreeMap<_, _>>())
        };
        let template = ConfigChange {
            env_vars: env(&[("A", "template"), ("B", "template")]),
            ttl: Some(60),
            resources: Some(Resources {
                memory: Some("1Gi".to_owned()),
                pids: Some(64),
                ..Resources::default()
            }),
            ..ConfigChange::default()
        };
        let request = ConfigChange {
            env_vars: env(&[("B", "request")]),
            ttl: Some(0),
            resources: Some(Resources {
                memory: Some("2Gi".to_owned()),
                ..Resources::default()
            }),
            ..ConfigChange::default()
        };
        let mut config = SandboxConfig::default();
        request.over(template).apply(&mut config);
        assert_eq!(
            Some(config.env_vars),
            env(&[("A", "template"), ("B", "request")])
        );
        assert_eq!(config.ttl, None);
        let resources = config.resources.unwrap();
        assert_eq!(resources.memory.as_deref(), Some("2Gi"));
        assert_eq!(resources.pids, Some(64));
    }
}
