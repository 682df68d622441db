//! Descriptions of calls whose handlers live elsewhere. The functions are never called: they are
//! what the descriptions hang on.
#![expect(dead_code, reason = "only the descriptions are used")]

use outlive_api::{
    error::{ErrorEnvelope, Success},
    image::{Image, ImageFormat, ImageLine, ImageList, PullImage, RemovedImage},
    keys::{CreateKey, CreatedKey, KeyList},
    network::AskedNetwork,
    policy::NetworkPolicy,
    sandbox::{
        CreateSandbox, CreatedSandbox, ForkSandbox, ForkedSandbox, Health, Message, Metadata,
        PausedSandbox, RefreshSandbox, RefreshedSandbox, ResumedSandbox, Sandbox, SandboxList,
        SandboxStatusAnswer, UpdateSandbox,
    },
    session::Deleted,
    snapshot::{CopyLine, CreateSnapshot, RestoreSandbox, RestoredSandbox, Snapshot, SnapshotList},
    upgrade::{UpgradeSandboxes, UpgradedSandboxes},
};

/// Makes a sandbox from a template, or with the files of a snapshot; the latter is followed with
/// `Accept: application/x-ndjson`, one `CopyLine` a line.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes",
    operation_id = "createSandbox",
    tag = "sandboxes",
    request_body = CreateSandbox,
    responses(
        (status = 200, description = "Followed", body = CopyLine<CreatedSandbox>, content_type = "application/x-ndjson"),
        (status = 201, description = "Created", body = Success<CreatedSandbox>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn create_sandbox() {}

/// The sandboxes of the caller, oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes",
    operation_id = "listSandboxes",
    tag = "sandboxes",
    params(
        ("status" = Option<String>, Query, description = "Only those in this state"),
        ("template_id" = Option<String>, Query, description = "Only those of this template"),
        ("paused" = Option<bool>, Query, description = "Only those that are paused, or are not"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 200, description = "Default 50"),
        ("offset" = Option<u64>, Query, minimum = 0, description = "Default 0"),
    ),
    responses(
        (status = 200, body = Success<SandboxList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn list_sandboxes() {}

/// One sandbox. Never wakes it.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}",
    operation_id = "getSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<Sandbox>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn get_sandbox() {}

/// Changes settings; what is left out stays. Limits hold at once; one that can't be had while the
/// sandbox runs, since more is in use or none was asked for at its start, is a `conflict` with the
/// reason `limit_not_now`, and nothing is changed.
#[utoipa::path(
    put,
    path = "/api/v1/sandboxes/{id}",
    operation_id = "updateSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = UpdateSandbox,
    responses(
        (status = 200, body = Success<Sandbox>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn update_sandbox() {}

/// What the sandbox reaches, in the words of the vendor's clients; in ours, and how it is connected,
/// the sandbox itself shows it. Never wakes it.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/network",
    operation_id = "getSandboxNetwork",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<NetworkPolicy>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn get_network() {}

/// Changes what the sandbox reaches. Rules hold at once, for open connections too, and a network
/// of its own is taken away at once (`none`). Every other change of the mode holds from the next
/// start on, and no more is reached until then; the sandbox shows `network.in_force` meanwhile.
#[utoipa::path(
    put,
    path = "/api/v1/sandboxes/{id}/network",
    operation_id = "updateSandboxNetwork",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = AskedNetwork,
    responses(
        (status = 200, body = Success<NetworkPolicy>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn update_network() {}

/// Ends everything in the sandbox and removes it.
#[utoipa::path(
    delete,
    path = "/api/v1/sandboxes/{id}",
    operation_id = "deleteSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "Deleted", body = Success<Message>),
        (status = 202, description = "Deleted, for clients that expect this status", body = Success<Message>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn delete_sandbox() {}

/// The state of a sandbox. Never wakes it.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/status",
    operation_id = "getSandboxStatus",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<SandboxStatusAnswer>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn sandbox_status() {}

/// Ends the runtime; disk and journals stay.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/pause",
    operation_id = "pauseSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<PausedSandbox>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn pause_sandbox() {}

/// Starts the next runtime of a paused sandbox.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/resume",
    operation_id = "resumeSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<ResumedSandbox>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn resume_sandbox() {}

/// Makes another sandbox with the files of this one, as of one instant, and nothing else of it:
/// no sessions, other ids. It is paused until it is needed. Never wakes the source. With
/// `Accept: application/x-ndjson` the answer is one `CopyLine` a line, and the last one says how
/// it ended.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/fork",
    operation_id = "forkSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<ForkSandbox>,
    responses(
        (status = 200, description = "Followed", body = CopyLine<ForkedSandbox>, content_type = "application/x-ndjson"),
        (status = 201, body = Success<ForkedSandbox>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn fork_sandbox() {}

/// Keeps the files of the sandbox as of one instant: it stands still while they are copied, and
/// is never woken. Followed as a fork is.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/snapshots",
    operation_id = "createSandboxSnapshot",
    tag = "snapshots",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<CreateSnapshot>,
    responses(
        (status = 200, description = "Followed", body = CopyLine<Snapshot>, content_type = "application/x-ndjson"),
        (status = 201, body = Success<Snapshot>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn create_snapshot() {}

/// The snapshots of a sandbox.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/snapshots",
    operation_id = "listSandboxSnapshots",
    tag = "snapshots",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<SnapshotList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn list_sandbox_snapshots() {}

/// Puts the sandbox's files back to those of a snapshot that lies over the same image. What runs
/// is ended for it and runs again afterwards, as the next generation; what stands still or is
/// paused is paused afterwards. Sessions and their events stay. Followed as a fork is.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/rootfs/restore",
    operation_id = "restoreSandbox",
    tag = "snapshots",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = RestoreSandbox,
    responses(
        (status = 200, content(
            (Success<RestoredSandbox> = "application/json"),
            (CopyLine<RestoredSandbox> = "application/x-ndjson"),
        )),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn restore_sandbox() {}

/// All snapshots of the caller, oldest first, also those whose sandbox is gone.
#[utoipa::path(
    get,
    path = "/api/v1/sandbox-rootfs-snapshots",
    operation_id = "listSnapshots",
    tag = "snapshots",
    responses(
        (status = 200, body = Success<SnapshotList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn list_snapshots() {}

/// One snapshot.
#[utoipa::path(
    get,
    path = "/api/v1/sandbox-rootfs-snapshots/{snapshot_id}",
    operation_id = "getSnapshot",
    tag = "snapshots",
    params(("snapshot_id" = String, Path, description = "The snapshot")),
    responses(
        (status = 200, body = Success<Snapshot>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn get_snapshot() {}

/// Deletes a snapshot; 409 while a sandbox is being made from it or put back to it.
#[utoipa::path(
    delete,
    path = "/api/v1/sandbox-rootfs-snapshots/{snapshot_id}",
    operation_id = "deleteSnapshot",
    tag = "snapshots",
    params(("snapshot_id" = String, Path, description = "The snapshot")),
    responses(
        (status = 200, body = Success<Deleted>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn delete_snapshot() {}

/// Moves the time at which the sandbox is paused.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/refresh",
    operation_id = "refreshSandbox",
    tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = Option<RefreshSandbox>,
    responses(
        (status = 200, body = Success<RefreshedSandbox>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn refresh_sandbox() {}

/// Makes a key. The answer is the only one that shows it.
#[utoipa::path(
    post,
    path = "/v1/keys",
    operation_id = "createKey",
    tag = "keys",
    request_body = CreateKey,
    responses(
        (status = 201, description = "Created", body = Success<CreatedKey>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn create_key() {}

/// All keys that are not revoked.
#[utoipa::path(
    get,
    path = "/v1/keys",
    operation_id = "listKeys",
    tag = "keys",
    responses(
        (status = 200, body = Success<KeyList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn list_keys() {}

/// Revokes a key; its open streams end.
#[utoipa::path(
    delete,
    path = "/v1/keys/{id}",
    operation_id = "revokeKey",
    tag = "keys",
    params(("id" = String, Path, description = "The key")),
    responses(
        (status = 200, body = Success<Deleted>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn revoke_key() {}

/// Starts keeper and supervisor of running sandboxes anew from another agent, under the processes
/// that go on.
#[utoipa::path(
    post,
    path = "/v1/upgrade",
    operation_id = "upgradeSandboxes",
    tag = "server",
    request_body = UpgradeSandboxes,
    responses(
        (status = 200, description = "What became of each", body = Success<UpgradedSandboxes>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn upgrade_sandboxes() {}

/// How to talk to this server.
#[utoipa::path(
    get,
    path = "/metadata",
    operation_id = "getMetadata",
    tag = "server",
    responses(
        (status = 200, body = Success<Metadata>),
    ),
    security(()),
)]
pub(super) fn metadata() {}

/// What this server can do here.
#[utoipa::path(
    get,
    path = "/healthz",
    operation_id = "getHealth",
    tag = "server",
    responses(
        (status = 200, body = Health),
    ),
    security(()),
)]
pub(super) fn healthz() {}

/// Whether the server can work.
#[utoipa::path(
    get,
    path = "/readyz",
    operation_id = "getReady",
    tag = "server",
    responses(
        (status = 200, description = "It can; `disk_full` when nothing that takes space can be done"),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
    security(()),
)]
pub(super) fn readyz() {}

/// Figures in the text format of Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "getMetrics",
    tag = "server",
    responses(
        (status = 200, body = String, content_type = "application/openmetrics-text"),
    ),
    security(()),
)]
pub(super) fn metrics() {}

/// The images of the server; `host` is always there.
#[utoipa::path(
    get,
    path = "/v1/images",
    operation_id = "listImages",
    tag = "images",
    responses(
        (status = 200, body = Success<ImageList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn list_images() {}

/// Takes an image in from an archive. With `Accept: application/x-ndjson` the answer is one
/// `ImageLine` a line, and the last one says how it ended.
#[utoipa::path(
    post,
    path = "/v1/images",
    operation_id = "importImage",
    tag = "images",
    params(
        ("name" = String, Query, description = "`name:tag`; a name that is taken moves to the new image"),
        ("format" = Option<ImageFormat>, Query, description = "Default `auto`"),
    ),
    request_body(content = String, content_type = "application/octet-stream", description = "A tar, plain, gzip or zstd"),
    responses(
        (status = 200, description = "Followed", body = ImageLine, content_type = "application/x-ndjson"),
        (status = 201, description = "Taken in", body = Success<Image>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn import_image() {}

/// Takes an image in from a registry. Followed as an import is.
#[utoipa::path(
    post,
    path = "/v1/images/pull",
    operation_id = "pullImage",
    tag = "images",
    request_body = PullImage,
    responses(
        (status = 200, description = "Followed", body = ImageLine, content_type = "application/x-ndjson"),
        (status = 201, description = "Taken in", body = Success<Image>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn pull_image() {}

/// Removes an image that no sandbox uses; 409 says how many do.
#[utoipa::path(
    delete,
    path = "/v1/images/{name}",
    operation_id = "removeImage",
    tag = "images",
    params(("name" = String, Path, description = "`name:tag`, slashes included")),
    responses(
        (status = 200, body = Success<RemovedImage>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) fn remove_image() {}
