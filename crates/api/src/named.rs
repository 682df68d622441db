//! Sandboxes as the named dialect shows them, with what keeps one awake.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Seconds of idleness after which a sandbox of this dialect falls asleep, when nobody says else.
pub const IDLE_SUSPEND_SECONDS_DEFAULT: i64 = 900;

/// Body of `POST /v1/sandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateNamedSandbox)]
pub struct CreateSandbox {
    /// The image to start from; left out, the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The template to start from; left out, `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// A snapshot whose files it starts with; its image and its template are the snapshot's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Variables of every process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Seconds of idleness until it is suspended; 0 is never, left out is 900.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0)]
    pub idle_suspend_seconds: Option<i64>,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NamedSandbox)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// Whether its processes stand still, or it has none.
    pub suspended: bool,
    /// The image it was made from.
    pub image: String,
    /// Seconds of idleness until it is suspended; 0 is never.
    pub idle_suspend_seconds: u64,
    /// When it was created, nanoseconds since 1970.
    pub created_at_unix_nanos: i64,
    /// How many sessions it has.
    pub sessions: u64,
}

/// One sandbox, as an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NamedSandboxAnswer)]
pub struct SandboxAnswer {
    /// It.
    pub sandbox: Sandbox,
}

/// Answer of `GET /v1/sandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NamedSandboxList)]
pub struct SandboxList {
    /// Ordered by creation, then id.
    pub sandboxes: Vec<Sandbox>,
}

/// Answer of `GET /v1/sandbox/{id}/activity`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxActivity)]
pub struct Activity {
    /// `starting`, `running`, `freezing`, `frozen`, `thawing`, `releasing`, `released`, `failed`
    /// or `deleting`.
    pub state: String,
    /// What keeps it awake.
    pub awake_because: Vec<AwakeBecause>,
    /// Whether it stands still because more lies on its disk than may; only a resume lets it go on for
    /// a while. Never with a `quota`.
    pub disk_full: bool,
    /// When it falls asleep if nothing happens any more; left out when it doesn't by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub sleeps_at: Option<String>,
}

/// One thing that keeps a sandbox awake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AwakeBecause {
    /// `attached`, `input`, `exec`, `ssh`, `service`, `files` or `hold`.
    pub kind: String,
    /// Of which session, call or hold.
    pub id: String,
    /// Since when.
    #[schema(format = DateTime)]
    pub since: String,
}

/// Body of `POST /v1/sandbox/{id}/holds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateHold {
    /// Who wants it awake, 1 to 128 characters.
    pub owner: String,
    /// For how long, 1 to 86400 seconds; hold it again to make it longer.
    #[schema(minimum = 1, maximum = 86400)]
    pub ttl_seconds: i64,
}

/// Answer of `POST /v1/sandbox/{id}/holds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedHold {
    /// Its id.
    pub id: String,
    /// When it ends by itself.
    #[schema(format = DateTime)]
    pub expires_at: String,
}

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// Its id.
    pub id: String,
    /// Who wants the sandbox awake.
    pub owner: String,
    /// When it was taken.
    #[schema(format = DateTime)]
    pub since: String,
    /// When it ends by itself.
    #[schema(format = DateTime)]
    pub expires_at: String,
}

/// Answer of `GET /v1/sandbox/{id}/holds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HoldList {
    /// Those that did not end, oldest first.
    pub holds: Vec<Hold>,
}
