//! The snapshot calls of the supervised dialect, and the answers of calls that copy a disk.

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use outlive_api::{
    error::{ApiError, ErrorCode},
    session::Deleted,
    snapshot::{CopyLine, CreateSnapshot, RestoreSandbox, RestoredSandbox, Snapshot, SnapshotList},
    time,
};
use outlive_core::{id::SnapshotId, time::Timestamp};
use serde::Serialize;
use tokio::sync::watch;

use super::{
    Engine,
    rest::{find, owner, status_of},
    snapshots::NewSnapshot,
};
use crate::{
    clock,
    http::{
        extract::{GatewayBody, OptionalGatewayBody, PathId},
        lines,
        reply::{Data, Failure, ok},
    },
    images::{HOST, UsedImage},
    limits::{DESCRIPTION_BYTES_MAX, NAME_BYTES_MAX},
    runtime::{Copying, Progress},
    sessions::{CallError, Caller},
    store::SnapshotRecord,
};

/// The routes below `/api/v1/sandboxes`.
pub(crate) fn of_sandboxes() -> Router<Engine> {
    Router::new()
        .route("/{id}/snapshots", post(create).get(list_of_sandbox))
        .route("/{id}/rootfs/restore", post(restore))
}

/// The routes, to be mounted at `/api/v1/sandbox-rootfs-snapshots`.
pub(crate) fn router() -> Router<Engine> {
    Router::new()
        .route("/", get(list))
        .route("/{snapshot_id}", get(show).delete(delete))
}

type Answer = Result<Response, Failure>;

async fn create(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    headers: HeaderMap,
    OptionalGatewayBody(asked): OptionalGatewayBody<CreateSnapshot>,
) -> Answer {
    let source = find(&engine, &caller, &id)?;
    let new = checked(asked)?;
    let (progress, seen) = Progress::new(None);
    let work = async move {
        let made = engine.snapshot(&source, new, progress).await?;
        Ok(shown(made))
    };
    copying(&headers, StatusCode::CREATED, work, seen).await
}

fn checked(asked: CreateSnapshot) -> Result<NewSnapshot, ApiError> {
    let name = asked.name.filter(|name| !name.is_empty());
    if let Some(name) = &name
        && (name.len() > NAME_BYTES_MAX || name.contains(char::is_control))
    {
        return Err(ApiError::bad_request(format!(
            "name must be 1 to {NAME_BYTES_MAX} bytes without control characters"
        )));
    }
    let description = asked.description.filter(|text| !text.is_empty());
    if let Some(description) = &description
        && (description.len() > DESCRIPTION_BYTES_MAX || description.contains('\0'))
    {
        return Err(ApiError::bad_request(format!(
            "description must be at most {DESCRIPTION_BYTES_MAX} bytes without NUL"
        )));
    }
    Ok(NewSnapshot {
        name,
        description,
        expires_at: expiry(asked.expires_at.as_deref().unwrap_or_default())?,
    })
}

/// The vendor's clients send the first moment of year 1 for "never".
fn expiry(text: &str) -> Result<Option<Timestamp>, ApiError> {
    if text.is_empty() || text.starts_with("0001-01-01T00:00:00") {
        return Ok(None);
    }
    let at = time::parse(text).map_err(|_| {
        ApiError::bad_request("expires_at must be a time such as 2030-01-31T12:00:00Z")
    })?;
    if at <= clock::now() {
        return Err(ApiError::bad_request("expires_at has passed already"));
    }
    Ok(Some(at))
}

async fn list_of_sandbox(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Data<SnapshotList>, Failure> {
    let sandbox = find(&engine, &caller, &id)?.record();
    let found = engine.snapshots(&sandbox.owner, Some(&sandbox.id)).await?;
    Ok(ok(listed(found)))
}

async fn list(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
) -> Result<Data<SnapshotList>, Failure> {
    let found = engine.snapshots(&owner(&caller)?, None).await?;
    Ok(ok(listed(found)))
}

async fn show(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Data<Snapshot>, Failure> {
    let found = engine.find_snapshot(&caller.owner, &parsed(&id)?).await?;
    Ok(ok(shown(found)))
}

async fn delete(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Data<Deleted>, Failure> {
    engine.delete_snapshot(&caller.owner, &parsed(&id)?).await?;
    Ok(ok(Deleted { deleted: true }))
}

async fn restore(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    headers: HeaderMap,
    GatewayBody(asked): GatewayBody<RestoreSandbox>,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    let snapshot_id = parsed(&asked.snapshot_id)?;
    let snapshot = engine.use_snapshot(&caller.owner, &snapshot_id).await?;
    let total = snapshot.record().bytes;
    let (progress, seen) = Progress::new(Some(total));
    let work = async move {
        engine.restore(&sandbox, snapshot, progress).await?;
        Ok(RestoredSandbox {
            sandbox_id: id,
            snapshot_id: snapshot_id.to_string(),
            status: status_of(sandbox.record().state.observed),
        })
    };
    copying(&headers, StatusCode::OK, work, seen).await
}

/// The answer of a call that copies a disk; line by line for those who ask for that.
pub(super) async fn copying<T: Serialize + Send + 'static>(
    headers: &HeaderMap,
    status: StatusCode,
    work: impl Future<Output = Result<T, CallError>> + Send + 'static,
    seen: watch::Receiver<Copying>,
) -> Answer {
    if !lines::are_wanted(headers) {
        return Ok(Data(status, work.await?).into_response());
    }
    let progress = |copying: &Copying| {
        let bytes = copying.copied.bytes;
        CopyLine::Progress {
            files: copying.copied.files,
            bytes,
            // Measured in blocks, or while the disk was another one: never less than there is.
            bytes_total: copying.bytes_total.map(|total| total.max(bytes)),
        }
    };
    Ok(lines::answer(Box::pin(work), seen, progress, last_line))
}

fn last_line<T>(done: Result<T, CallError>) -> CopyLine<T> {
    match done {
        Ok(result) => CopyLine::Done { result },
        Err(error) => {
            let Failure(error) = error.into();
            if error.status >= 500 {
                tracing::warn!(code = error.code.as_str(), message = %error.message, "call failed");
            }
            CopyLine::Error {
                error: error.envelope().error,
            }
        }
    }
}

/// What can't name a snapshot names none.
pub(crate) fn parsed(id: &str) -> Result<SnapshotId, ApiError> {
    SnapshotId::parse(id)
        .map_err(|_| ApiError::new(ErrorCode::SnapshotNotFound, "snapshot not found"))
}

fn listed(found: Vec<SnapshotRecord>) -> SnapshotList {
    let snapshots: Vec<_> = found.into_iter().map(shown).collect();
    SnapshotList {
        count: snapshots.len() as u64,
        snapshots,
    }
}

fn shown(record: SnapshotRecord) -> Snapshot {
    Snapshot {
        id: record.id.to_string(),
        sandbox_id: record.sandbox.to_string(),
        name: record.name,
        description: record.description,
        created_at: time::text(record.created_at),
        expires_at: record.expires_at.map(time::text),
        template_id: record.template,
        image: image_name(record.image.as_ref()).to_owned(),
        files: record.files,
        size_bytes: record.bytes,
    }
}

/// The image that files lie over.
pub(super) fn image_name(image: Option<&UsedImage>) -> &str {
    image.map_or(HOST, |image| &image.name)
}
