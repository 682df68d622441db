//! The sandbox calls of the supervised dialect: `/api/v1/sandboxes`.

mod asked;
mod shown;

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use outlive_api::{
    error::{Action, ApiError, ErrorCode},
    network::AskedNetwork,
    sandbox::{
        self as wire, CreateSandbox, ForkSandbox, ForkedSandbox, Message, PausedSandbox,
        RefreshSandbox, RefreshedSandbox, ResumedSandbox, SandboxStatus, SandboxStatusAnswer,
        UpdateSandbox,
    },
    time,
};
use outlive_core::id::SandboxId;

pub(super) use self::shown::status_of;
pub(crate) use self::{
    asked::{checked, owner, snapshot_of},
    shown::image_of,
};
use self::{
    asked::{number, wanted},
    shown::{created, deadline, full, network_of, page, runtime_id},
};
use super::{
    Engine, Sandbox,
    config::{ConfigChange, check, check_seconds},
    network,
    snapshot_rest::{self, copying},
};
use crate::{
    catalog::Catalog,
    http::{
        extract::{OptionalGatewayBody as Body, PathId, Query},
        reply::{Data, Failure, session_error},
    },
    limits::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX},
    runtime::Progress,
    sessions::{CallError, Caller},
    store::SandboxFilter,
};

/// The routes, to be mounted at `/api/v1/sandboxes`.
pub(crate) fn router() -> Router<Engine> {
    let later = ["services", "files", "mounts", "logs", "events", "metrics"];
    let router = Router::new()
        .route("/", post(create).get(list))
        .route("/{id}", get(show).put(update).delete(delete))
        .route("/{id}/status", get(status))
        .route("/{id}/pause", post(pause))
        .route("/{id}/resume", post(resume))
        .route("/{id}/refresh", post(refresh))
        .route("/{id}/fork", post(fork))
        .route("/{id}/network", get(show_network).put(change_network))
        .merge(snapshot_rest::of_sandboxes());
    later.into_iter().fold(router, |router, name| {
        router
            .route(&format!("/{{id}}/{name}"), any(not_yet))
            .route(&format!("/{{id}}/{name}/{{*rest}}"), any(not_yet))
    })
}

type Answer = Result<Response, Failure>;

async fn create(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    Extension(catalog): Extension<Arc<Catalog>>,
    headers: HeaderMap,
    Body(asked): Body<CreateSandbox>,
) -> Answer {
    if let Some(snapshot) = snapshot_of(&engine, &caller, asked.snapshot_id.as_deref()).await? {
        // It keeps its image, and nobody removes it meanwhile.
        let new = checked(&engine, &catalog, &caller, asked, Some(snapshot.record())).await?;
        let total = snapshot.record().bytes;
        let (progress, seen) = Progress::new(Some(total));
        let work = async move {
            let sandbox = engine.create_from(new, snapshot, progress).await?;
            Ok(created(&sandbox.record()))
        };
        return copying(&headers, StatusCode::CREATED, Box::pin(work), seen).await;
    }
    // Until the store knows of the sandbox, which then keeps its image.
    let _image_stays = catalog.hold().await;
    let new = checked(&engine, &catalog, &caller, asked, None).await?;
    let sandbox = engine.create(new).await?;
    Ok(success(StatusCode::CREATED, created(&sandbox.record())))
}

async fn list(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    query: Query,
) -> Answer {
    let limit = number("limit", query.get("limit"), LIST_LIMIT_DEFAULT.into())?;
    if !(1..=u64::from(LIST_LIMIT_MAX)).contains(&limit) {
        return Err(ApiError::bad_request(format!("limit must be 1 to {LIST_LIMIT_MAX}")).into());
    }
    let offset = number("offset", query.get("offset"), 0)?;
    let observed = wanted(query.get("status"), query.get("paused"))?;
    if observed.is_empty() {
        return Ok(success(StatusCode::OK, page(&[], false)));
    }
    let filter = SandboxFilter {
        observed,
        template: query.get("template_id").map(str::to_owned),
        ..SandboxFilter::default()
    };
    let limit = u32::try_from(limit).unwrap_or(LIST_LIMIT_MAX);
    let found = engine.page(&owner(&caller)?, filter, limit, offset).await?;
    let end = offset.saturating_add(found.records.len() as u64);
    Ok(success(
        StatusCode::OK,
        page(&found.records, end < found.total),
    ))
}

async fn show(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    Ok(success(StatusCode::OK, full(&engine, &sandbox.record())))
}

async fn update(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    Body(asked): Body<UpdateSandbox>,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    let change = check(asked.config.unwrap_or_default())?;
    configure(&engine, &sandbox, change).await?;
    Ok(success(StatusCode::OK, full(&engine, &sandbox.record())))
}

/// Changes what is not refused, and has it hold at once where that can be.
async fn configure(
    engine: &Engine,
    sandbox: &Sandbox,
    change: ConfigChange,
) -> Result<(), CallError> {
    let mut wanted = sandbox.record().config.clone();
    change.clone().apply(&mut wanted);
    engine.admit(&wanted)?;
    sandbox.configure(change).await
}

async fn show_network(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    Ok(success(
        StatusCode::OK,
        network_of(&engine, &sandbox.record()),
    ))
}

async fn change_network(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    Body(asked): Body<AskedNetwork>,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    let change = ConfigChange {
        network: Some(network::check(asked)?),
        ..ConfigChange::default()
    };
    configure(&engine, &sandbox, change).await?;
    Ok(success(
        StatusCode::OK,
        network_of(&engine, &sandbox.record()),
    ))
}

/// One client accepts only 202, another only 200, and the rest either: the User-Agent tells.
async fn delete(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    headers: HeaderMap,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    sandbox.delete().await?;
    let python = headers
        .get(header::USER_AGENT)
        .is_some_and(|agent| agent.as_bytes().starts_with(b"python-httpx/"));
    let status = if python {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    Ok(success(
        status,
        Message {
            message: "sandbox deleted".to_owned(),
        },
    ))
}

async fn status(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Answer {
    let record = find(&engine, &caller, &id)?.record();
    let runtime_id = runtime_id(&record);
    Ok(success(
        StatusCode::OK,
        SandboxStatusAnswer {
            sandbox_id: record.id.to_string(),
            template_id: record.template.clone(),
            team_id: record.owner.to_string(),
            user_id: record.owner.to_string(),
            status: status_of(record.state.observed),
            state: record.state.observed.word().to_owned(),
            pod_name: runtime_id.clone(),
            runtime_id,
            claimed_at: time::text(record.state.claimed_at),
            created_at: time::text(record.created_at),
            expires_at: deadline(record.state.expires_at),
            hard_expires_at: deadline(record.state.hard_expires_at),
        },
    ))
}

async fn pause(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    sandbox.pause().await?;
    Ok(success(
        StatusCode::OK,
        PausedSandbox {
            sandbox_id: id,
            paused: true,
            status: Some(SandboxStatus::Paused),
        },
    ))
}

async fn resume(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    sandbox.resume().await?;
    Ok(success(
        StatusCode::OK,
        ResumedSandbox {
            sandbox_id: id,
            resumed: true,
        },
    ))
}

async fn fork(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    headers: HeaderMap,
    Body(asked): Body<ForkSandbox>,
) -> Answer {
    let source = find(&engine, &caller, &id)?;
    let asked = asked.config.unwrap_or_default();
    let change = check(wire::SandboxConfig {
        ttl: asked.ttl,
        hard_ttl: asked.hard_ttl,
        ..wire::SandboxConfig::default()
    })?;
    let (progress, seen) = Progress::new(None);
    let work = async move {
        let child = engine.fork(&source, change, progress).await?;
        Ok(ForkedSandbox {
            source_sandbox_id: id,
            sandbox: full(&engine, &child.record()),
        })
    };
    copying(&headers, StatusCode::CREATED, Box::pin(work), seen).await
}

async fn refresh(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
    Body(asked): Body<RefreshSandbox>,
) -> Answer {
    let sandbox = find(&engine, &caller, &id)?;
    let duration = asked
        .duration
        .map(|seconds| check_seconds("duration", seconds))
        .transpose()?
        .filter(|seconds| *seconds > 0);
    sandbox.refresh(duration).await?;
    let record = sandbox.record();
    Ok(success(
        StatusCode::OK,
        RefreshedSandbox {
            sandbox_id: id,
            expires_at: deadline(record.state.expires_at),
            hard_expires_at: deadline(record.state.hard_expires_at),
        },
    ))
}

fn success<T: serde::Serialize>(status: StatusCode, data: T) -> Response {
    Data(status, data).into_response()
}

/// What a failed call of a sandbox is to clients of the sandbox calls.
impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        if let CallError::Failed { message } = error {
            return Self(ApiError::new(ErrorCode::InternalError, message));
        }
        // No session is named by these calls, so the action shows only in `Failed`.
        Self(session_error(Action::GetSession, error))
    }
}

async fn not_yet() -> Failure {
    ApiError::not_implemented("this call").into()
}

pub(super) fn find(engine: &Engine, caller: &Caller, id: &str) -> Result<Arc<Sandbox>, Failure> {
    let id = SandboxId::parse(id)
        .map_err(|_| ApiError::new(ErrorCode::NotFound, "sandbox not found"))?;
    Ok(engine.get(&caller.owner, &id)?)
}
