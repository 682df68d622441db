//! What a sandbox reaches, as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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

/// The network of a sandbox, as `GET …/network` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxNetwork {
    /// The sandbox.
    pub sandbox_id: String,
    /// How it is connected when it starts next; what runs changes its `egress` only.
    pub mode: NetworkMode,
    /// What a `bridge` lets through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
}
