//! Replacing the agent under running sandboxes: `/v1/upgrade`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which sandboxes get which agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct UpgradeSandboxes {
    /// Absolute path of an `outlive-agent` on the server's machine; the server's own without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Ids of sandboxes, of any owner; every running one without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<Vec<String>>,
}

/// What became of each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpgradedSandboxes {
    /// One for each sandbox, in the order of their ids.
    pub sandboxes: Vec<UpgradedSandbox>,
}

/// What became of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpgradedSandbox {
    /// Its id.
    pub sandbox_id: String,
    /// Whether keeper and supervisor run the new agent. The sandbox's processes go on either way.
    pub upgraded: bool,
    /// Version of the supervisor that answers now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// Why it was not upgraded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
