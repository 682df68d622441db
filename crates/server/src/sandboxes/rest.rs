//! The sandbox calls of the supervised dialect: `/api/v1/sandboxes`.

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
    launch::Copied,
    network::{AskedNetwork, Network, NetworkMode},
    policy::NetworkPolicy,
    sandbox::{
        self as wire, CreateSandbox, CreatedSandbox, ForkSandbox, ForkedSandbox, Message,
        PausedSandbox, RefreshSandbox, RefreshedSandbox, ResumedSandbox, RuntimeInfo,
        Sandbox as SandboxAnswer, SandboxList, SandboxStatus, SandboxStatusAnswer, SandboxSummary,
        UpdateSandbox,
    },
    time,
};
use outlive_core::{id::SandboxId, sandbox::Observed, time::Timestamp};

use tokio::sync::watch;

use super::{
    Engine, NewSandbox, Sandbox,
    config::{ConfigChange, check, check_seconds},
    network,
    snapshot_rest::{self, copying, image_name},
    snapshots::SnapshotUse,
};
use crate::{
    catalog::{Below, Catalog},
    http::{
        extract::{OptionalGatewayBody as Body, PathId, Query},
        reply::{Data, Failure, session_error},
    },
    limits::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX},
    runtime::backend_of,
    sessions::{CallError, Caller},
    store::{Owner, SandboxFilter, SandboxRecord, SnapshotRecord},
};

/// The image a sandbox was made from.
pub(crate) fn image_of(record: &SandboxRecord) -> String {
    image_name(record.config.image.as_ref()).to_owned()
}

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
        let (progress, seen) = watch::channel(Copied::default());
        let work = async move {
            let sandbox = engine.create_from(new, snapshot, progress).await?;
            Ok(created(&sandbox.record()))
        };
        return copying(
            &headers,
            StatusCode::CREATED,
            Box::pin(work),
            seen,
            Some(total),
        )
        .await;
    }
    // Until the store knows of the sandbox, which then keeps its image.
    let _image_stays = catalog.hold().await;
    let new = checked(&engine, &catalog, &caller, asked, None).await?;
    let sandbox = engine.create(new).await?;
    Ok(success(StatusCode::CREATED, created(&sandbox.record())))
}

fn created(record: &SandboxRecord) -> CreatedSandbox {
    let runtime_id = runtime_id(record);
    CreatedSandbox {
        sandbox_id: record.id.to_string(),
        status: status_of(record.state.observed),
        template: record.template.clone(),
        pod_name: runtime_id.clone(),
        runtime_id,
    }
}

/// The snapshot that a creation names; an empty text is none.
pub(crate) async fn snapshot_of(
    engine: &Engine,
    caller: &Caller,
    id: Option<&str>,
) -> Result<Option<SnapshotUse>, Failure> {
    let Some(id) = id.filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let id = snapshot_rest::parsed(id)?;
    Ok(Some(engine.use_snapshot(&caller.owner, &id).await?))
}

/// What a creation asks for, checked; `snapshot` is what it starts with.
pub(crate) async fn checked(
    engine: &Engine,
    catalog: &Catalog,
    caller: &Caller,
    asked: CreateSandbox,
    snapshot: Option<&SnapshotRecord>,
) -> Result<NewSandbox, ApiError> {
    let mut template = asked.template.unwrap_or_default().trim().to_owned();
    if let (true, Some(snapshot)) = (template.is_empty(), snapshot) {
        template.clone_from(&snapshot.template);
    }
    if template.is_empty() {
        return Err(bad("template is required"));
    }
    if asked.mounts.is_some_and(|mounts| !mounts.is_empty()) {
        return Err(later("mounts"));
    }
    let below = snapshot.map_or(Below::Chosen, |snapshot| {
        Below::Snapshot(snapshot.image.clone())
    });
    let config = catalog
        .config(&template, asked.config.unwrap_or_default(), below)
        .await?;
    if config.image.is_some() && engine.capabilities().runtime == "process" {
        return Err(bad(
            "runtime `process` shows the host's own files: it knows no image but `host`",
        ));
    }
    Ok(NewSandbox {
        owner: owner(caller)?,
        template,
        config,
        isolation: None,
    })
}

async fn list(
    State(engine): State<Engine>,
    Extension(caller): Extension<Caller>,
    query: Query,
) -> Answer {
    let limit = number("limit", query.get("limit"), LIST_LIMIT_DEFAULT.into())?;
    if !(1..=u64::from(LIST_LIMIT_MAX)).contains(&limit) {
        return Err(bad(format!("limit must be 1 to {LIST_LIMIT_MAX}")).into());
    }
    let offset = number("offset", query.get("offset"), 0)?;
    let observed = wanted(query.get("status"), query.get("paused"))?;
    if observed.is_empty() {
        return Ok(success(StatusCode::OK, page(&[], false)));
    }
    let filter = SandboxFilter {
        observed,
        template: query.get("template_id").map(str::to_owned),
    };
    let limit = u32::try_from(limit).unwrap_or(LIST_LIMIT_MAX);
    let found = engine
        .page(&owner(&caller)?, &filter, limit, offset)
        .await?;
    let end = offset.saturating_add(found.records.len() as u64);
    Ok(success(
        StatusCode::OK,
        page(&found.records, end < found.total),
    ))
}

fn page(records: &[SandboxRecord], has_more: bool) -> SandboxList {
    SandboxList {
        sandboxes: records.iter().map(summary).collect(),
        count: records.len() as u64,
        has_more,
    }
}

/// The states that both filters let through.
fn wanted(status: Option<&str>, paused: Option<&str>) -> Result<Vec<Observed>, ApiError> {
    if let Some(status) = status
        && !Observed::ALL
            .iter()
            .any(|one| status_of(*one).as_str() == status)
    {
        return Err(bad(
            "status must be starting, running, paused, terminating or failed",
        ));
    }
    let paused = match paused {
        None => None,
        Some("true" | "1") => Some(true),
        Some("false" | "0") => Some(false),
        Some(_) => return Err(bad("paused must be true or false")),
    };
    Ok(Observed::ALL
        .iter()
        .copied()
        .filter(|one| status.is_none_or(|status| status_of(*one).as_str() == status))
        .filter(|one| paused.is_none_or(|paused| (*one == Observed::Released) == paused))
        .collect())
}

fn number(name: &str, text: Option<&str>, default: u64) -> Result<u64, ApiError> {
    match text {
        None => Ok(default),
        Some(text) => text
            .parse::<u64>()
            .ok()
            .filter(|number| i64::try_from(*number).is_ok())
            .ok_or_else(|| bad(format!("{name} must be a whole number of 0 or more"))),
    }
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
    let reaches = change.network.is_some();
    let mut wanted = sandbox.record().config.clone();
    change.clone().apply(&mut wanted);
    engine.admit(&wanted)?;
    sandbox.configure(change).await?;
    if reaches {
        engine.reach(sandbox).await?;
    }
    Ok(())
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

/// In the words of the vendor's clients, who send back what they were shown: nothing else is in it.
fn network_of(engine: &Engine, record: &SandboxRecord) -> NetworkPolicy {
    let connected = engine.network(&record.config, record.isolation);
    network::policy_of(record.config.network.as_ref(), connected)
}

/// The network in our words, with the mode that holds.
fn shown_network(engine: &Engine, record: &SandboxRecord) -> Network {
    let mode = engine.network(&record.config, record.isolation);
    let asked = record.config.network.clone().unwrap_or_default();
    Network {
        mode: Some(mode),
        egress: (mode == NetworkMode::Bridge && asked.policy.is_none())
            .then(|| asked.egress.unwrap_or_default()),
        policy: asked.policy,
    }
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
    let (progress, seen) = watch::channel(Copied::default());
    let work = async move {
        let child = engine.fork(&source, change, progress).await?;
        Ok(ForkedSandbox {
            source_sandbox_id: id,
            sandbox: full(&engine, &child.record()),
        })
    };
    copying(&headers, StatusCode::CREATED, Box::pin(work), seen, None).await
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
    later("this call").into()
}

fn later(what: &str) -> ApiError {
    ApiError::new(
        ErrorCode::NotImplemented,
        format!("{what} can't be used yet"),
    )
}

pub(super) fn bad(message: impl Into<std::borrow::Cow<'static, str>>) -> ApiError {
    ApiError::new(ErrorCode::BadRequest, message)
}

pub(super) fn find(engine: &Engine, caller: &Caller, id: &str) -> Result<Arc<Sandbox>, Failure> {
    let id = SandboxId::parse(id)
        .map_err(|_| ApiError::new(ErrorCode::NotFound, "sandbox not found"))?;
    Ok(engine.get(&caller.owner, &id)?)
}

pub(crate) fn owner(caller: &Caller) -> Result<Owner, ApiError> {
    Owner::parse(&caller.owner)
        .ok_or_else(|| ApiError::new(ErrorCode::InternalError, "the key's owner is unreadable"))
}

pub(super) fn status_of(observed: Observed) -> SandboxStatus {
    match observed {
        Observed::Starting => SandboxStatus::Starting,
        // Whoever waits for a new generation must not wait for one that only stands still.
        Observed::Running
        | Observed::Freezing
        | Observed::Frozen
        | Observed::Thawing
        | Observed::Releasing => SandboxStatus::Running,
        Observed::Released => SandboxStatus::Paused,
        Observed::Failed => SandboxStatus::Failed,
        Observed::Deleting => SandboxStatus::Terminating,
    }
}

fn runtime_id(record: &SandboxRecord) -> String {
    format!("{}-g{}", record.id, record.state.generation.0)
}

fn deadline(at: Option<Timestamp>) -> String {
    at.map_or_else(|| time::NOT_SET.to_owned(), time::text)
}

fn summary(record: &SandboxRecord) -> SandboxSummary {
    SandboxSummary {
        id: record.id.to_string(),
        template_id: record.template.clone(),
        status: status_of(record.state.observed),
        paused: record.state.observed == Observed::Released,
        runtime_generation: record.state.generation.0,
        created_at: time::text(record.created_at),
        updated_at: time::text(record.updated_at),
        expires_at: deadline(record.state.expires_at),
        hard_expires_at: deadline(record.state.hard_expires_at),
    }
}

/// What it had when it ran last, and has at least when it runs again.
fn runtime_of(engine: &Engine, record: &SandboxRecord) -> RuntimeInfo {
    let (kind, isolation) = if let Some(tier) = record.isolation {
        (backend_of(tier), tier.name())
    } else {
        let usual = engine.capabilities();
        (usual.runtime, usual.isolation)
    };
    RuntimeInfo {
        kind: kind.to_owned(),
        isolation: isolation.to_owned(),
    }
}

fn full(engine: &Engine, record: &SandboxRecord) -> SandboxAnswer {
    let runtime_id = runtime_id(record);
    SandboxAnswer {
        summary: summary(record),
        team_id: record.owner.to_string(),
        auto_resume: record.config.auto_resume,
        pod_name: runtime_id.clone(),
        runtime_id,
        claimed_at: time::text(record.state.claimed_at),
        resources: record.config.resources.clone().map(Into::into),
        network: Some(shown_network(engine, record)),
        image: Some(image_of(record)),
        disk: engine.disk(record),
        runtime: Some(runtime_of(engine, record)),
    }
}
