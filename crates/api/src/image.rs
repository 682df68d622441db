//! Images as JSON, and the requests about them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ErrorBody;

/// What the bytes of an import are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ImageFormat {
    /// Told by what is in them.
    #[default]
    Auto,
    /// A tar of a root file system.
    Rootfs,
    /// A tar of an OCI image layout.
    Oci,
    /// What `docker save` writes.
    DockerArchive,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// `name:tag`; `host` is always there.
    pub name: String,
    /// SHA-256 of its configuration, or of the tar of a root file system; nothing for `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How many layers it is made of.
    pub layers: u64,
    /// Bytes of its files; layers that other images share are counted in each.
    pub size_bytes: u64,
    /// How many sandboxes use it, paused ones included.
    pub sandboxes: u64,
    /// How many snapshots need it.
    #[serde(default)]
    pub snapshots: u64,
    /// Where it came from: `host`, `rootfs`, `oci`, `docker-archive`, or a registry's reference.
    pub source: String,
    /// When it was taken in; nothing for `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    /// What was left out of it, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// All images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageList {
    /// `host` first, then by name.
    pub images: Vec<Image>,
}

/// Body of `POST /v1/images/pull`.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PullImage {
    /// As in `registry/repository:tag`; without a registry, Docker Hub.
    pub reference: String,
    /// The name it gets here; left out, the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether to speak HTTP without TLS; on loopback that needs no asking.
    #[serde(default)]
    pub insecure: bool,
    /// For a registry that wants to know who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// See `username`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
}

/// The password is in no log.
impl std::fmt::Debug for PullImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PullImage")
            .field("reference", &self.reference)
            .field("name", &self.name)
            .field("insecure", &self.insecure)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// What an import is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImageStep {
    /// Taking the upload.
    Receiving,
    /// Reading from a registry.
    Pulling,
    /// Writing files.
    Unpacking,
}

/// One line of an import that is followed (`Accept: application/x-ndjson`). The last one is
/// `done` or `error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageLine {
    /// How far it is.
    Progress {
        /// The step.
        step: ImageStep,
        /// Bytes in this step.
        bytes: u64,
        /// Of so many, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_total: Option<u64>,
        /// Files in this step.
        files: u64,
    },
    /// It is there.
    Done {
        /// The image.
        image: Image,
    },
    /// It is not there.
    Error {
        /// Why.
        error: ErrorBody,
    },
}

/// Answer of `DELETE /v1/images/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedImage {
    /// Its name.
    pub name: String,
    /// Always true.
    pub deleted: bool,
}
