//! Snapshots of sandboxes as JSON, the requests about them, and the progress of a copy.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{error::ErrorBody, sandbox::SandboxStatus};

/// Body of `POST /sandboxes/{id}/snapshots`; may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CreateSnapshot {
    /// A name that no other snapshot of the tenant has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When it is deleted; left out or `0001-01-01T00:00:00Z` is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

/// A snapshot: the files of a sandbox as of one instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxSnapshot)]
pub struct Snapshot {
    /// Its id.
    pub id: String,
    /// The sandbox whose files they are; it may be gone.
    pub sandbox_id: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When it was asked for.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// The template of the sandbox. Not in the vendor's API.
    pub template_id: String,
    /// The image below the files: `host`, or `name:tag`. Not in the vendor's API.
    pub image: String,
    /// How many files the sandbox had changed. Not in the vendor's API.
    pub files: u64,
    /// Their bytes, without holes. Not in the vendor's API.
    pub size_bytes: u64,
}

/// Snapshots of a sandbox or of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = SandboxSnapshotList)]
pub struct SnapshotList {
    /// Ordered by creation, then id.
    pub snapshots: Vec<Snapshot>,
    /// How many there are.
    pub count: u64,
}

/// Body of `POST /sandboxes/{id}/rootfs/restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoreSandbox {
    /// The snapshot whose files it gets.
    pub snapshot_id: String,
}

/// Answer of `POST /sandboxes/{id}/rootfs/restore`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoredSandbox {
    /// The sandbox.
    pub sandbox_id: String,
    /// The snapshot whose files it has now.
    pub snapshot_id: String,
    /// `running` when it ran before, else `paused`.
    pub status: SandboxStatus,
}

/// One line of a call that copies a disk and is followed (`Accept: application/x-ndjson`). The
/// last one is `done` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CopyLine<T> {
    /// How far it is.
    Progress {
        /// Files so far.
        files: u64,
        /// Their bytes, without holes.
        bytes: u64,
        /// Of so many, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_total: Option<u64>,
    },
    /// It is done.
    Done {
        /// What the call answers when it is not followed.
        result: T,
    },
    /// It is not done.
    Error {
        /// Why.
        error: ErrorBody,
    },
}
