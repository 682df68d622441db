//! What keeps a sandbox awake, and holds: requests to keep it so for a while.

use std::time::Duration;

use axum::{Extension, Json, extract::State, http::StatusCode};
use outlive_api::{
    error::{ApiError, BareErrorEnvelope, ErrorCode},
    named::{Activity, AwakeBecause, CreateHold, CreatedHold, Hold as HoldBody, HoldList},
    time,
};
use outlive_core::sandbox::Hold;

use super::{find, refused};
use crate::{
    clock,
    http::{
        extract::{PathId, PathIds, SessionBody},
        reply::Failure,
    },
    limits::{HOLD_SECONDS_MAX, NAME_BYTES_MAX},
    sandboxes::Engine,
    sessions::Caller,
};

/// What keeps the sandbox awake, and when it falls asleep. Never wakes it.
#[utoipa::path(
    get,
    path = "/v1/sandbox/{id}/activity",
    operation_id = "getSandboxActivity",
    tag = "named sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "What goes on", body = Activity),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn show(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Json<Activity>, Failure> {
    let sandbox = find(&engine, &caller, &id)?;
    let record = sandbox.record();
    let (doing, sleeps_at) = sandbox.wakefulness();
    let awake_because = doing.into_iter().map(|doing| AwakeBecause {
        kind: doing.kind.word().to_owned(),
        id: doing.id,
        since: time::text(doing.since),
    });
    Ok(Json(Activity {
        state: record.state.observed.word().to_owned(),
        awake_because: awake_because.collect(),
        sleeps_at: sleeps_at.map(time::text),
        disk_full: record.state.known.disk_full,
    }))
}

/// Keeps the sandbox from falling asleep for a while. Does not wake it.
#[utoipa::path(
    post,
    path = "/v1/sandbox/{id}/holds",
    operation_id = "holdSandbox",
    tag = "named sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = CreateHold,
    responses(
        (status = 201, description = "It is held", body = CreatedHold),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn hold(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    SessionBody(asked): SessionBody<CreateHold>,
) -> Result<(StatusCode, Json<CreatedHold>), Failure> {
    let sandbox = find(&engine, &caller, &id)?;
    if !(1..=NAME_BYTES_MAX).contains(&asked.owner.len()) {
        let message = format!("owner must be 1 to {NAME_BYTES_MAX} bytes");
        return Err(ApiError::invalid(message).into());
    }
    let seconds = u64::try_from(asked.ttl_seconds)
        .ok()
        .filter(|seconds| (1..=HOLD_SECONDS_MAX).contains(seconds))
        .ok_or_else(|| ApiError::invalid(format!("ttl_seconds must be 1 to {HOLD_SECONDS_MAX}")))?;
    let bits = getrandom::u64()
        .map_err(|error| ApiError::new(ErrorCode::InternalError, error.to_string()))?;
    let now = clock::now();
    let hold = Hold {
        id: format!("hold-{bits:016x}"),
        owner: asked.owner,
        since: now,
        expires_at: now + Duration::from_secs(seconds),
    };
    let created = CreatedHold {
        id: hold.id.clone(),
        expires_at: time::text(hold.expires_at),
    };
    sandbox.hold(hold).await.map_err(refused)?;
    Ok((StatusCode::CREATED, Json(created)))
}

/// The holds that did not end. Never wakes the sandbox.
#[utoipa::path(
    get,
    path = "/v1/sandbox/{id}/holds",
    operation_id = "listSandboxHolds",
    tag = "named sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "Those that did not end", body = HoldList),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn list_holds(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Json<HoldList>, Failure> {
    let record = find(&engine, &caller, &id)?.record();
    let now = clock::now();
    let holds = record.state.holds.iter();
    let holds = holds
        .filter(|hold| hold.expires_at > now)
        .map(|hold| HoldBody {
            id: hold.id.clone(),
            owner: hold.owner.clone(),
            since: time::text(hold.since),
            expires_at: time::text(hold.expires_at),
        });
    Ok(Json(HoldList {
        holds: holds.collect(),
    }))
}

/// Ends a hold.
#[utoipa::path(
    delete,
    path = "/v1/sandbox/{id}/holds/{hold_id}",
    operation_id = "dropSandboxHold",
    tag = "named sandboxes",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("hold_id" = String, Path, description = "The hold"),
    ),
    responses(
        (status = 200, description = "It ended", body = Object),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn drop_hold(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathIds(id, hold): PathIds,
) -> Result<Json<serde_json::Value>, Failure> {
    let sandbox = find(&engine, &caller, &id)?;
    sandbox.drop_hold(&hold).await.map_err(refused)?;
    Ok(Json(serde_json::json!({ "deleted": true })))
}
