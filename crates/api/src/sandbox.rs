//! Sandboxes as JSON, and the requests about them.

use std::{collections::BTreeMap, ops::Not};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::network::{AskedNetwork, Network};

/// State of a sandbox as the supervised dialect shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxStatus {
    /// Its runtime is being made.
    Starting,
    /// It takes calls.
    Running,
    /// Its runtime is gone, its disk and journals are kept.
    Paused,
    /// It is being deleted.
    Terminating,
    /// It can't be used.
    Failed,
}

impl SandboxStatus {
    /// The text on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Terminating => "terminating",
            Self::Failed => "failed",
        }
    }
}

/// Body of `POST /sandboxes`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CreateSandbox {
    /// The template to start from; with `snapshot_id`, left out is that of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// A snapshot whose files it starts with, over the image that the snapshot was made on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<SandboxConfig>,
    /// Volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<Vec<Mount>>,
}

/// Settings of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SandboxConfig {
    /// Variables of every process started from now on; an empty map clears them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// Limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Seconds until it is paused; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub ttl: Option<i64>,
    /// Seconds until it is deleted; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub hard_ttl: Option<i64>,
    /// How it is connected, and what it reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<AskedNetwork>,
    /// Where to report events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub webhook: Option<Value>,
    /// Whether a call wakes it; default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    pub services: Option<Vec<Value>>,
    /// The user that commands run as. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The image it is made from, instead of its template's; only when it is made. Not in the
    /// vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When it falls asleep by itself. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleRule>,
}

/// When a sandbox falls asleep by itself: its processes stand still, and go on where they stood
/// when anybody needs them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct IdleRule {
    /// So many seconds after the last thing that counts; 0 or left out is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub freeze_after_seconds: Option<i64>,
    /// What counts, of `attached`, `output`, `input`, `exec`, `ssh`, `service`, `files`,
    /// `process`, `hold`; left out is all but `process`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Vec<String>>,
}

/// Limits of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Resources {
    /// `512Mi`, `2Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Cores, `0.5`. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Processes. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub pids: Option<i64>,
    /// `2Gi`. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

/// A volume to bind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Mount {
    /// The volume.
    pub sandboxvolume_id: String,
    /// Where.
    pub mount_point: String,
}

/// Answer of `POST /sandboxes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedSandbox {
    /// Its id.
    pub sandbox_id: String,
    /// Its state.
    pub status: SandboxStatus,
    /// The template it started from.
    pub template: String,
    /// Identity of the runtime, for the vendor's older clients.
    pub pod_name: String,
    /// Identity of the runtime, for the vendor's newer clients.
    pub runtime_id: String,
}

/// A sandbox in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxSummary {
    /// Its id.
    pub id: String,
    /// The template it started from.
    pub template_id: String,
    /// Its state.
    pub status: SandboxStatus,
    /// Whether the state is `paused`.
    pub paused: bool,
    /// The same as `…/activity` tells it: `frozen` where its processes stand still while `status`
    /// is `running`. Not in the vendor's API.
    pub state: String,
    /// Number of its runtime.
    pub runtime_generation: u64,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// When it is paused; `0001-01-01T00:00:00Z` is never.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// When it is deleted; `0001-01-01T00:00:00Z` is never.
    #[schema(format = DateTime)]
    pub hard_expires_at: String,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// What a list shows of it.
    #[serde(flatten)]
    pub summary: SandboxSummary,
    /// Its owner.
    pub team_id: String,
    /// Whether a call wakes it.
    pub auto_resume: bool,
    /// Identity of the runtime, for the vendor's older clients.
    pub pod_name: String,
    /// Identity of the runtime, for the vendor's newer clients.
    pub runtime_id: String,
    /// When its owner got it.
    #[schema(format = DateTime)]
    pub claimed_at: String,
    /// Limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// How it is connected, and what it reaches; `mode` is the one that holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The image it was made from: `host`, or `name:tag`. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// How full its disk may be and is; left out without a limit. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// The kind of runtime and how well it isolates. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeInfo>,
}

/// The disk of a sandbox: what its workload wrote, `/tmp` included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Most that may lie on it.
    pub limit: String,
    /// What lay on it when it was measured last, or as its file system tells; left out before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Whether that is more than may be. Where it is `checked`, the sandbox then stands still; with a
    /// `quota` it goes on and can write nothing, and this comes of a limit that was lowered.
    pub full: bool,
    /// `quota`: its file system lets nobody write more. `checked`: it is measured now and then, so
    /// that more may lie on it for a moment.
    pub enforced_by: String,
}

/// What runs a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RuntimeInfo {
    /// `namespace`, `process`.
    pub kind: String,
    /// `nested`, `two-uid`, `none`.
    pub isolation: String,
    /// Its supervisor says nothing, and calls end with 503 until it does again; left out else.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub silent: bool,
}

/// A page of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    /// Ordered by creation, then id.
    pub sandboxes: Vec<SandboxSummary>,
    /// How many are in this page.
    pub count: u64,
    /// Whether more follow.
    pub has_more: bool,
}

/// Body of `PUT /sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct UpdateSandbox {
    /// What to change; fields left out stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<SandboxConfig>,
}

/// Answer of `GET …/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxStatusAnswer {
    /// Its id.
    pub sandbox_id: String,
    /// The template it started from.
    pub template_id: String,
    /// Its owner.
    pub team_id: String,
    /// Its owner.
    pub user_id: String,
    /// Its state.
    pub status: SandboxStatus,
    /// The same as `…/activity` tells it. Not in the vendor's API.
    pub state: String,
    /// Identity of the runtime, for the vendor's older clients.
    pub pod_name: String,
    /// Identity of the runtime, for the vendor's newer clients.
    pub runtime_id: String,
    /// When its owner got it.
    #[schema(format = DateTime)]
    pub claimed_at: String,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it is paused.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// When it is deleted.
    #[schema(format = DateTime)]
    pub hard_expires_at: String,
}

/// Answer of `DELETE /sandboxes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Message {
    /// In words.
    pub message: String,
}

/// Answer of `POST …/pause`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PausedSandbox {
    /// Its id.
    pub sandbox_id: String,
    /// Always true.
    pub paused: bool,
    /// Its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SandboxStatus>,
}

/// Answer of `POST …/resume`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResumedSandbox {
    /// Its id.
    pub sandbox_id: String,
    /// Always true.
    pub resumed: bool,
}

/// Body of `POST …/fork`; may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ForkSandbox {
    /// What differs from the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ForkConfig>,
}

/// What of a fork differs from its source.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ForkConfig {
    /// Seconds until it is paused, from its resume on; left out or 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub ttl: Option<i64>,
    /// Seconds until it is deleted; left out or 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = Int32, minimum = 0)]
    pub hard_ttl: Option<i64>,
}

/// Answer of `POST …/fork`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkedSandbox {
    /// Where the files come from.
    pub source_sandbox_id: String,
    /// The new sandbox, paused.
    pub sandbox: Sandbox,
}

/// Body of `POST …/refresh`; may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct RefreshSandbox {
    /// Seconds from now; left out, the sandbox's `ttl`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub duration: Option<i64>,
}

/// Answer of `POST …/refresh`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefreshedSandbox {
    /// Its id.
    pub sandbox_id: String,
    /// When it is paused.
    #[schema(format = DateTime)]
    pub expires_at: String,
    /// When it is deleted.
    #[schema(format = DateTime)]
    pub hard_expires_at: String,
}

/// Answer of `GET /metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metadata {
    /// Always `direct`.
    pub gateway_mode: String,
    /// Who answers.
    pub service: String,
}

/// Answer of `GET /healthz`, without an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
    /// Of this build.
    pub version: String,
    /// `nested`, `two-uid`, `none`.
    pub isolation: String,
    /// Whether a workload is kept away from its journal.
    pub journal_protected: bool,
    /// What this host can do.
    #[schema(value_type = Object)]
    pub capabilities: BTreeMap<String, Value>,
}
