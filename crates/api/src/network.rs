//! What a sandbox reaches, as JSON.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;
use utoipa::ToSchema;

use crate::policy::{NetworkPolicy, PolicyMode};

/// A network as a client asks for it: in our words, or in those of the vendor's clients. Which,
/// `mode` tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AskedNetwork {
    /// `none`, `host`, `bridge`, or no mode.
    Ours(Network),
    /// `allow-all`, `block-all`.
    Vendors(Box<NetworkPolicy>),
}

impl Default for AskedNetwork {
    fn default() -> Self {
        Self::Ours(Network::default())
    }
}

impl<'de> Deserialize<'de> for AskedNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let mode = value.get("mode").and_then(Value::as_str);
        // Told apart first, so that an error is about what was meant.
        let read = if mode.is_some_and(PolicyMode::is_named) {
            serde_json::from_value(value).map(Self::Vendors)
        } else {
            serde_json::from_value(value).map(Self::Ours)
        };
        read.map_err(D::Error::custom)
    }
}

impl From<AskedNetwork> for Network {
    fn from(asked: AskedNetwork) -> Self {
        match asked {
            AskedNetwork::Ours(network) => network,
            AskedNetwork::Vendors(policy) => Self {
                policy: Some(policy),
                ..Self::default()
            },
        }
    }
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// How it is connected; left out, `bridge` where the host can, else `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<NetworkMode>,
    /// What a `bridge` lets through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// The same in the words of the vendor's clients, instead of `egress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Box<NetworkPolicy>>,
    /// How the runtime that runs is connected, where that is not `mode` until the next start.
    /// Shown only: in a request it means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(read_only)]
    pub in_force: Option<NetworkMode>,
}

/// How a sandbox is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetworkMode {
    /// It reaches itself.
    None,
    /// It has the host's network.
    Host,
    /// It has an address of its own, and reaches what `egress` says: never the host itself, nor
    /// another sandbox.
    Bridge,
}

/// What a sandbox with mode `bridge` reaches.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    /// What holds where no rule does; left out, `allow`.
    #[serde(default)]
    pub default: EgressDefault,
    /// What is reached whatever the default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<EgressRule>,
}

/// What holds where no rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EgressDefault {
    /// Everything is reached.
    #[default]
    Allow,
    /// Nothing is.
    Deny,
}

/// Addresses that are reached, and ports of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressRule {
    /// An IPv4 network such as `192.0.2.0/24`, or one address.
    pub cidr: String,
    /// Ports of TCP and UDP; none is everything, other protocols too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Ports>,
}

/// A port, or the first and last of many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Ports {
    /// One.
    One(u16),
    /// Such as `8000-8999`.
    Range(String),
}

impl Ports {
    /// First and last; `None` when the text names no ports.
    pub fn bounds(&self) -> Option<(u16, u16)> {
        let (first, last) = match self {
            Self::One(port) => (*port, *port),
            Self::Range(text) => match text.split_once('-') {
                Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
                None => (text.parse().ok()?, text.parse().ok()?),
            },
        };
        (first > 0 && first <= last).then_some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AskedNetwork, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_mode_tells_whose_words_they_are() {
        for ours in [
            "{}",
            r#"{"mode": "bridge"}"#,
            r#"{"egress": {"default": "deny"}}"#,
            r#"{"policy": {"mode": "allow-all"}}"#,
        ] {
            let network = read(ours).expect(ours);
            assert!(matches!(network, AskedNetwork::Ours(_)), "{ours}");
        }
        let theirs = r#"{"mode": "block-all", "egress": {"trafficRules": [
            {"action": "allow", "cidrs": ["192.0.2.0/24"], "ports": [{"port": 443}]}]}}"#;
        assert!(matches!(read(theirs), Ok(AskedNetwork::Vendors(_))));
    }

    #[test]
    fn an_error_is_about_what_was_meant() {
        let error = read(r#"{"mode": "block-all", "egress": {"default": "deny"}}"#).unwrap_err();
        assert!(error.contains("trafficRules"), "{error}");
        let error = read(r#"{"mode": "elsewhere"}"#).unwrap_err();
        assert!(error.contains("`bridge`"), "{error}");
    }
}
