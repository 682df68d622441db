//! What a sandbox reaches, in the words of the vendor's clients.
//!
//! The names are the vendor's, so they are written as theirs are: `trafficRules`, `endPort`. What
//! this server can't enforce is here too, so that it is refused by name and not overlooked.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// What a sandbox reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkPolicy {
    /// What holds where no rule does.
    pub mode: PolicyMode,
    /// Rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<PolicyEgress>,
    /// Secrets to be put into what is sent; refused when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub credential_bindings: Option<Vec<Value>>,
}

/// What holds where no rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyMode {
    /// Everything is reached.
    AllowAll,
    /// Nothing is.
    BlockAll,
}

impl PolicyMode {
    /// Whether a text is one of these modes.
    pub fn is_named(text: &str) -> bool {
        matches!(text, "allow-all" | "block-all")
    }
}

/// Rules of a [`NetworkPolicy`]: `trafficRules`, or lists that count in one mode each.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyEgress {
    /// The first that matches counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_rules: Option<Vec<TrafficRule>>,
    /// With `block-all`: networks that are reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_cidrs: Option<Vec<String>>,
    /// With `block-all`: names that are reached; refused when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_domains: Option<Vec<String>>,
    /// With `block-all`: ports that are reached, of those networks where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_ports: Option<Vec<PortSpec>>,
    /// With `allow-all`: networks that are not reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_cidrs: Option<Vec<String>>,
    /// With `allow-all`: names that are not reached; refused when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_domains: Option<Vec<String>>,
    /// With `allow-all`: ports that are not reached, of whatever network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_ports: Option<Vec<PortSpec>>,
    /// Secrets for some destinations; refused when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub credential_rules: Option<Vec<Value>>,
    /// Rules about requests; refused when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub protocol_rules: Option<Vec<Value>>,
    /// A proxy for everything; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub proxy: Option<Value>,
}

/// One rule about traffic: what it says nothing of matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficRule {
    /// Whatever its author calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What becomes of traffic that matches.
    pub action: TrafficAction,
    /// IPv4 networks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidrs: Option<Vec<String>>,
    /// Names; refused when there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domains: Option<Vec<String>>,
    /// Ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PortSpec>>,
    /// What is spoken; refused when there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocols: Option<Vec<String>>,
}

/// What becomes of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TrafficAction {
    /// It passes.
    Allow,
    /// It is refused.
    Deny,
}

/// A port, or some in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PortSpec {
    /// The first.
    #[schema(minimum = 1, maximum = 65535)]
    pub port: i32,
    /// The last; left out, the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 65535)]
    pub end_port: Option<i32>,
    /// `tcp` or `udp`; left out, both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}
