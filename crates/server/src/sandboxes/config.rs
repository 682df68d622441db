//! What a sandbox was asked to be: variables, deadlines, limits. Checked once, kept as text in
//! the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use outlive_api::{
    error::{ApiError, ErrorCode},
    network::Network,
    sandbox as wire,
};
use outlive_core::sandbox::{AutoResume, Holds, Policy};
use outlive_core::spec::User;
use serde::{Deserialize, Serialize};

use super::network;
use crate::{
    images::UsedImage,
    limits::{DISK_BYTES_MIN, ENV_BYTES_MAX, MEMORY_BYTES_MIN, TTL_SECONDS_MAX},
};

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

/// When a sandbox falls asleep by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IdleRule {
    /// Frozen so many seconds after the last thing that counts; never when not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) freeze_after_seconds: Option<u64>,
    /// What counts.
    pub(crate) counts: BTreeSet<IdleKind>,
}

/// What may keep a sandbox awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IdleKind {
    /// A client follows a session, or waits for it.
    Attached,
    /// A session says something.
    Output,
    /// A client types, signals or changes a session.
    Input,
    /// A command that was started through us runs for its caller.
    Exec,
    /// An SSH connection is open.
    Ssh,
    /// Traffic of a service.
    Service,
    /// A file is read or written.
    Files,
    /// Any process of a session lives, quiet or not.
    Process,
    /// A client asked for it; see `holds`.
    Hold,
}

impl IdleKind {
    /// Every one of them.
    pub(crate) const ALL: [Self; 9] = [
        Self::Attached,
        Self::Output,
        Self::Input,
        Self::Exec,
        Self::Ssh,
        Self::Service,
        Self::Files,
        Self::Process,
        Self::Hold,
    ];

    /// The word for it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Output => "output",
            Self::Input => "input",
            Self::Exec => "exec",
            Self::Ssh => "ssh",
            Self::Service => "service",
            Self::Files => "files",
            Self::Process => "process",
            Self::Hold => "hold",
        }
    }
}

impl Default for IdleRule {
    /// Every dialect counts the same; a quiet process that nobody is attached to does not.
    fn default() -> Self {
        Self {
            freeze_after_seconds: None,
            counts: IdleKind::ALL
                .into_iter()
                .filter(|kind| *kind != IdleKind::Process)
                .collect(),
        }
    }
}

impl IdleRule {
    /// Whether a kind keeps the sandbox awake.
    pub(crate) fn counts(&self, kind: IdleKind) -> bool {
        self.counts.contains(&kind)
    }
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

/// Checks what a client asks for.
pub(crate) fn check(asked: wire::SandboxConfig) -> Result<ConfigChange, ApiError> {
    if asked.webhook.is_some_and(|value| !value.is_null()) {
        return Err(not_implemented("webhooks"));
    }
    if asked.image.is_some() {
        return Err(bad(
            "the image of a sandbox can't be changed; make another sandbox",
        ));
    }
    if asked.services.is_some_and(|services| !services.is_empty()) {
        return Err(not_implemented("services"));
    }
    Ok(ConfigChange {
        env_vars: asked.env_vars.map(check_env).transpose()?,
        ttl: asked.ttl.map(|ttl| check_seconds("ttl", ttl)).transpose()?,
        hard_ttl: asked
            .hard_ttl
            .map(|ttl| check_seconds("hard_ttl", ttl))
            .transpose()?,
        auto_resume: asked.auto_resume,
        resources: asked.resources.map(check_resources).transpose()?,
        network: asked.network.map(network::check).transpose()?,
        user: asked.user.map(|user| check_user(&user)).transpose()?,
        idle: asked.idle.map(check_idle).transpose()?,
    })
}

fn check_idle(asked: wire::IdleRule) -> Result<IdleRule, ApiError> {
    let rule = IdleRule::default();
    let counts = match asked.counts {
        None => rule.counts,
        Some(words) => words
            .iter()
            .map(|word| idle_kind(word))
            .collect::<Result<_, _>>()?,
    };
    let after = asked
        .freeze_after_seconds
        .map(|seconds| check_seconds("idle.freeze_after_seconds", seconds))
        .transpose()?;
    Ok(IdleRule {
        freeze_after_seconds: after.filter(|seconds| *seconds > 0),
        counts,
    })
}

fn idle_kind(word: &str) -> Result<IdleKind, ApiError> {
    let found = IdleKind::ALL.into_iter().find(|kind| kind.word() == word);
    found.ok_or_else(|| {
        let known: Vec<_> = IdleKind::ALL.iter().map(|kind| kind.word()).collect();
        bad(format!(
            "idle.counts: {word:?} is none of {}",
            known.join(", ")
        ))
    })
}

/// Whole seconds, bounded.
pub(crate) fn check_seconds(name: &str, seconds: i64) -> Result<u64, ApiError> {
    u64::try_from(seconds)
        .ok()
        .filter(|seconds| *seconds <= TTL_SECONDS_MAX)
        .ok_or_else(|| bad(format!("{name} must be 0 to {TTL_SECONDS_MAX} seconds")))
}

fn check_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ApiError> {
    let mut bytes = 0_usize;
    for (name, value) in &env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(bad(
                "env_vars: a name is empty or holds '=', or a name or value holds a NUL",
            ));
        }
        bytes = bytes.saturating_add(name.len() + value.len());
    }
    if bytes > ENV_BYTES_MAX {
        return Err(bad(format!(
            "env_vars hold more than {ENV_BYTES_MAX} bytes"
        )));
    }
    Ok(env)
}

fn check_resources(asked: wire::Resources) -> Result<Resources, ApiError> {
    let quantity = |name: &str, text: Option<String>, read: fn(&str) -> Option<u64>| match text {
        Some(text) if read(&text).is_none_or(|value| value == 0) => Err(bad(format!(
            "resources.{name} is not a quantity such as 512Mi or 0.5"
        ))),
        text => Ok(text),
    };
    let pids = match asked.pids {
        Some(pids) => Some(
            u64::try_from(pids)
                .ok()
                .filter(|pids| (1..=u64::from(u32::MAX)).contains(pids))
                .ok_or_else(|| bad("resources.pids must be 1 or more"))?,
        ),
        None => None,
    };
    let disk = quantity("disk", asked.disk, bytes_of)?;
    if disk
        .as_deref()
        .and_then(bytes_of)
        .is_some_and(|bytes| bytes < DISK_BYTES_MIN)
    {
        return Err(bad("resources.disk must be 1Mi or more"));
    }
    let memory = asked.memory.as_deref().and_then(bytes_of);
    if memory.is_some_and(|bytes| (1..MEMORY_BYTES_MIN).contains(&bytes)) {
        return Err(bad(format!(
            "resources.memory is bytes unless a unit such as Mi follows, and {} MiB at least: with \
             less hardly any program starts",
            MEMORY_BYTES_MIN >> 20
        )));
    }
    Ok(Resources {
        memory: quantity("memory", asked.memory, bytes_of)?,
        cpu: quantity("cpu", asked.cpu, millicores_of)?,
        pids,
        disk,
    })
}

/// `uid`, `uid:gid` or names.
fn check_user(text: &str) -> Result<String, ApiError> {
    match User::parse(text) {
        Ok(user) => Ok(user.to_string()),
        Err(problem) => Err(bad(format!("user {problem}"))),
    }
}

fn bad(message: impl Into<std::borrow::Cow<'static, str>>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

fn not_implemented(what: &str) -> ApiError {
    ApiError::new(
        ErrorCode::NotImplemented,
        format!("{what} can't be used yet"),
    )
}

/// Bytes of a quantity such as `512Mi`, `2G` or `1048576`.
pub(crate) fn bytes_of(quantity: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let text = quantity.trim();
    let (digits, unit) = UNITS
        .iter()
        .find_map(|(name, factor)| text.strip_suffix(name).map(|digits| (digits, *factor)))
        .unwrap_or((text, 1));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Thousandths of a core of a quantity such as `0.5`, `2` or `500m`.
pub(crate) fn millicores_of(quantity: &str) -> Option<u64> {
    let text = quantity.trim();
    if let Some(milli) = text.strip_suffix('m') {
        let plain = !milli.is_empty() && milli.bytes().all(|b| b.is_ascii_digit());
        return plain.then(|| milli.parse().ok()).flatten();
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(part)
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

    #[test]
    fn a_memory_in_which_nothing_starts_is_refused_with_the_least() {
        let limited = |memory: &str| {
            let memory = Some(memory.to_owned());
            check_resources(wire::Resources {
                memory,
                ..wire::Resources::default()
            })
        };
        limited("4Mi").unwrap();
        for little in ["1", "512", "4095Ki"] {
            let message = limited(little).unwrap_err().message;
            assert!(message.contains("4 MiB at least"), "{message}");
        }
    }

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        assert_eq!(bytes_of("512Mi"), Some(512 << 20));
        assert_eq!(bytes_of("2G"), Some(2_000_000_000));
        assert_eq!(bytes_of("1048576"), Some(1 << 20));
        for bad in ["", "Mi", "-1Mi", "1.5Gi", "99999999999999Ti", "1 Mi", "+1"] {
            assert_eq!(bytes_of(bad), None, "{bad}");
        }
        assert_eq!(millicores_of("0.5"), Some(500));
        assert_eq!(millicores_of("2"), Some(2000));
        assert_eq!(millicores_of("250m"), Some(250));
        for bad in ["", "m", "-1", "0.0001", "1e3", ".5"] {
            assert_eq!(millicores_of(bad), None, "{bad}");
        }
    }
}
