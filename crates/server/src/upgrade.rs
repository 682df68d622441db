//! Replacing the agent under running sandboxes: `/v1/upgrade`, for admins.
//!
//! An admin's key may name any executable of the server's machine, and reaches the sandboxes of
//! every owner: whoever operates the server upgrades all of it.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{Extension, Router, extract::State, routing::post};
use futures_util::{StreamExt as _, stream};
use outlive_api::{
    error::{ApiError, ErrorCode},
    upgrade::{UpgradeSandboxes, UpgradedSandbox, UpgradedSandboxes},
};
use tokio::sync::Mutex;

use crate::{
    agents::upgrade::upgrade,
    auth::admins_only,
    http::{
        extract::OptionalGatewayBody,
        reply::{Data, Failure, ok},
    },
    limits::{AGENT_BYTES_MAX, UPGRADE_NAMES_MAX, UPGRADES_AT_ONCE},
    sandboxes::{Engine, Sandbox},
    sessions::Caller,
};

/// What the call needs.
#[derive(Debug, Clone)]
pub(crate) struct Upgrades {
    engine: Engine,
    /// The server's own agent.
    agent: PathBuf,
    /// One upgrade at a time: a second one would put its copy where the first one's lies.
    turn: Arc<Mutex<()>>,
}

impl Upgrades {
    /// Of these sandboxes; to this agent unless a request names another.
    pub(crate) fn new(engine: Engine, agent: PathBuf) -> Self {
        Self {
            engine,
            agent,
            turn: Arc::default(),
        }
    }

    fn named(&self, ids: Option<Vec<String>>) -> Result<Vec<Arc<Sandbox>>, ApiError> {
        let mut all = self.engine.all();
        all.sort_by_key(|sandbox| sandbox.record().id.to_string());
        let Some(ids) = ids else {
            all.retain(|sandbox| sandbox.agent().is_some());
            return Ok(all);
        };
        if ids.len() > UPGRADE_NAMES_MAX {
            return Err(ApiError::bad_request(format!(
                "more than {UPGRADE_NAMES_MAX} sandboxes"
            )));
        }
        let ids: std::collections::BTreeSet<_> = ids.into_iter().collect();
        all.retain(|sandbox| ids.contains(sandbox.record().id.as_str()));
        if all.len() == ids.len() {
            return Ok(all);
        }
        let unknown = ids
            .iter()
            .find(|id| !all.iter().any(|one| one.record().id.as_str() == **id));
        Err(ApiError::new(
            ErrorCode::NotFound,
            format!("sandbox not found: {}", unknown.map_or("", String::as_str)),
        ))
    }
}

/// The route, to be mounted at `/v1/upgrade`.
pub(crate) fn router() -> Router<Upgrades> {
    Router::new().route("/", post(upgrade_all))
}

async fn upgrade_all(
    State(upgrades): State<Upgrades>,
    Extension(caller): Extension<Caller>,
    OptionalGatewayBody(asked): OptionalGatewayBody<UpgradeSandboxes>,
) -> Result<Data<UpgradedSandboxes>, Failure> {
    admins_only(&caller, "only admins may upgrade")?;
    let executable = match asked.agent {
        Some(path) => PathBuf::from(path),
        None => upgrades.agent.clone(),
    };
    check(&executable)?;
    let sandboxes = upgrades.named(asked.sandboxes)?;
    tracing::info!(agent = %executable.display(), sandboxes = sandboxes.len(), by = %caller.key_id, "upgrading");
    let _turn = upgrades.turn.lock().await;
    let executable: Arc<Path> = executable.into();
    let mut done: Vec<_> = stream::iter(sandboxes)
        .map(|sandbox| one(sandbox, Arc::clone(&executable)))
        .buffer_unordered(UPGRADES_AT_ONCE)
        .collect()
        .await;
    done.sort_by(|one, other| one.sandbox_id.cmp(&other.sandbox_id));
    Ok(ok(UpgradedSandboxes { sandboxes: done }))
}

async fn one(sandbox: Arc<Sandbox>, executable: Arc<Path>) -> UpgradedSandbox {
    let sandbox_id = sandbox.record().id.to_string();
    let result = match sandbox.agent() {
        Some(agent) => upgrade(&agent, &sandbox.place().state(), &executable)
            .await
            .map_err(|error| error.to_string()),
        None => Err("it does not run; its next start takes the server's own agent".to_owned()),
    };
    let (build, reason) = match result {
        Ok(build) => (Some(build), None),
        Err(reason) => {
            tracing::warn!(sandbox = %sandbox_id, reason, "not upgraded");
            (None, Some(reason))
        }
    };
    UpgradedSandbox {
        sandbox_id,
        upgraded: build.is_some(),
        build,
        reason,
    }
}

/// Refuses what can't be an agent before any sandbox is touched.
fn check(executable: &Path) -> Result<(), ApiError> {
    let shown = executable.display();
    if !executable.is_absolute() {
        return Err(ApiError::bad_request(format!(
            "agent must be an absolute path: {shown}"
        )));
    }
    let unreadable = |error| ApiError::bad_request(format!("agent {shown}: {error}"));
    let about = fs::metadata(executable).map_err(unreadable)?;
    if !about.is_file() || about.len() > AGENT_BYTES_MAX {
        return Err(ApiError::bad_request(format!(
            "agent {shown}: not an executable file"
        )));
    }
    let mut magic = Vec::new();
    fs::File::open(executable)
        .and_then(|file| file.take(4).read_to_end(&mut magic))
        .map_err(unreadable)?;
    if magic != b"\x7fELF" {
        return Err(ApiError::bad_request(format!(
            "agent {shown}: not an ELF executable"
        )));
    }
    Ok(())
}
