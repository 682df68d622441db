//! Sandboxes: made, listed, put to sleep, woken, removed.

use std::sync::Arc;

use axum::{Extension, Json, extract::State, http::StatusCode};
use outlive_api::{
    error::{ApiError, BareErrorEnvelope},
    named::{
        CreateSandbox, IDLE_SUSPEND_SECONDS_DEFAULT, Sandbox as SandboxBody, SandboxAnswer,
        SandboxList,
    },
    sandbox as wire,
};
use outlive_core::sandbox::Observed;

use super::{find, refused};
use crate::{
    catalog::Catalog,
    http::{
        extract::{OptionalSessionBody, PathId},
        reply::Failure,
    },
    limits::LIST_LIMIT_MAX,
    runtime::Progress,
    sandboxes::{Engine, Sandbox, rest},
    sessions::Caller,
    store::SandboxFilter,
};

/// Makes a sandbox; answers once it runs.
#[utoipa::path(
    post,
    path = "/v1/sandbox",
    operation_id = "createNamedSandbox",
    tag = "named sandboxes",
    request_body = CreateSandbox,
    responses(
        (status = 201, description = "It runs", body = SandboxAnswer),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn create(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    Extension(catalog): Extension<Arc<Catalog>>,
    OptionalSessionBody(asked): OptionalSessionBody<CreateSandbox>,
) -> Result<(StatusCode, Json<SandboxAnswer>), Failure> {
    let idle = asked
        .idle_suspend_seconds
        .unwrap_or(IDLE_SUSPEND_SECONDS_DEFAULT);
    if idle < 0 {
        return Err(ApiError::invalid("idle_suspend_seconds must be 0 or more").into());
    }
    let new = wire::CreateSandbox {
        template: asked.template,
        config: Some(wire::SandboxConfig {
            env_vars: asked.env,
            image: asked.image,
            idle: Some(wire::IdleRule {
                freeze_after_seconds: Some(idle),
                counts: None,
            }),
            ..wire::SandboxConfig::default()
        }),
        ..wire::CreateSandbox::default()
    };
    let sandbox = make(&engine, &catalog, &caller, new, asked.snapshot_id).await?;
    let sandbox = body(&sandbox).await?;
    Ok((StatusCode::CREATED, Json(SandboxAnswer { sandbox })))
}

async fn make(
    engine: &Engine,
    catalog: &Catalog,
    caller: &Caller,
    mut new: wire::CreateSandbox,
    snapshot_id: Option<String>,
) -> Result<Arc<Sandbox>, Failure> {
    if let Some(snapshot) = rest::snapshot_of(engine, caller, snapshot_id.as_deref()).await? {
        let new = rest::checked(engine, catalog, caller, new, Some(snapshot.record()))
            .await
            .map_err(as_invalid)?;
        let progress = Progress::unseen();
        let made = engine.create_from(new, snapshot, progress).await;
        return made.map_err(refused);
    }
    new.template.get_or_insert_with(|| "default".to_owned());
    // Until the store knows of the sandbox, which then keeps its image.
    let _image_stays = catalog.hold().await;
    let new = rest::checked(engine, catalog, caller, new, None)
        .await
        .map_err(as_invalid)?;
    engine.create(new).await.map_err(refused)
}

/// This dialect has one code for what makes no sense.
fn as_invalid(mut error: ApiError) -> ApiError {
    use outlive_api::error::ErrorCode;
    if error.code == ErrorCode::BadRequest {
        error.code = ErrorCode::InvalidRequest;
    }
    error
}

/// All sandboxes of the caller's tenant. Never wakes one.
#[utoipa::path(
    get,
    path = "/v1/sandbox",
    operation_id = "listNamedSandboxes",
    tag = "named sandboxes",
    responses(
        (status = 200, description = "All of them", body = SandboxList),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn list(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<SandboxList>, Failure> {
    let owner = rest::owner(&caller)?;
    let mut sandboxes = Vec::new();
    let mut offset = 0;
    loop {
        let page = engine.page(&owner, SandboxFilter::default(), LIST_LIMIT_MAX, offset);
        let page = page.await.map_err(refused)?;
        offset += page.records.len() as u64;
        let is_last = page.records.is_empty() || offset >= page.total;
        for record in page.records {
            // One that is removed right now is not there any more.
            if let Ok(sandbox) = engine.get(owner.as_str(), &record.id) {
                sandboxes.push(body(&sandbox).await?);
            }
        }
        if is_last {
            return Ok(Json(SandboxList { sandboxes }));
        }
    }
}

/// One sandbox. Never wakes it.
#[utoipa::path(
    get,
    path = "/v1/sandbox/{id}",
    operation_id = "getNamedSandbox",
    tag = "named sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "It", body = SandboxAnswer),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn show(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Json<SandboxAnswer>, Failure> {
    answer(&*find(&engine, &caller, &id)?).await
}

/// Removes it with everything in it.
#[utoipa::path(
    delete,
    path = "/v1/sandbox/{id}",
    operation_id = "deleteNamedSandbox",
    tag = "named sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "It is gone", body = Object),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn delete(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Json<serde_json::Value>, Failure> {
    let sandbox = find(&engine, &caller, &id)?;
    sandbox.delete().await.map_err(refused)?;
    Ok(Json(serde_json::json!({ "deleted": true })))
}

/// Stops every process where it stands; answers once they do. A later attach, input, exec or
/// resume lets them go on: the same processes, the same terminals, the same line of events.
#[utoipa::path(
    post,
    path = "/v1/sandbox/{id}/suspend",
    operation_id = "suspendSandbox",
    tag = "named sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "It sleeps", body = SandboxAnswer),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn suspend(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Json<SandboxAnswer>, Failure> {
    let sandbox = find(&engine, &caller, &id)?;
    sandbox.suspend().await.map_err(refused)?;
    answer(&sandbox).await
}

/// Wakes it; answers once it runs.
#[utoipa::path(
    post,
    path = "/v1/sandbox/{id}/resume",
    operation_id = "resumeNamedSandbox",
    tag = "named sandboxes",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, description = "It runs", body = SandboxAnswer),
        (status = "default", description = "An error", body = BareErrorEnvelope),
    ),
)]
pub(super) async fn resume(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Json<SandboxAnswer>, Failure> {
    let sandbox = find(&engine, &caller, &id)?;
    sandbox.resume().await.map_err(refused)?;
    answer(&sandbox).await
}

async fn answer(sandbox: &Sandbox) -> Result<Json<SandboxAnswer>, Failure> {
    let sandbox = body(sandbox).await?;
    Ok(Json(SandboxAnswer { sandbox }))
}

async fn body(sandbox: &Sandbox) -> Result<SandboxBody, Failure> {
    let record = sandbox.record();
    Ok(SandboxBody {
        id: record.id.to_string(),
        suspended: is_suspended(record.state.observed),
        image: rest::image_of(&record),
        idle_suspend_seconds: record.config.idle.freeze_after_seconds.unwrap_or(0),
        created_at_unix_nanos: record.created_at.unix_nanos(),
        sessions: sandbox.session_count().await.map_err(refused)?,
    })
}

/// Whoever reads a sandbox as it falls asleep still sees it awake, and the other way round.
fn is_suspended(observed: Observed) -> bool {
    match observed {
        Observed::Frozen | Observed::Releasing | Observed::Released => true,
        Observed::Starting
        | Observed::Running
        | Observed::Freezing
        | Observed::Thawing
        | Observed::Failed
        | Observed::Deleting => false,
    }
}
