//! What the sandbox calls ask for, checked.

use outlive_api::{
    error::{ApiError, ErrorCode},
    sandbox::CreateSandbox,
};
use outlive_core::sandbox::Observed;

use super::shown::status_of;
use crate::{
    catalog::{Below, Catalog},
    http::reply::Failure,
    sandboxes::{Engine, NewSandbox, snapshot_rest, snapshots::SnapshotUse},
    sessions::Caller,
    store::{Owner, SnapshotRecord},
};

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
        return Err(ApiError::bad_request("template is required"));
    }
    if asked.mounts.is_some_and(|mounts| !mounts.is_empty()) {
        return Err(ApiError::not_implemented("mounts"));
    }
    let below = snapshot.map_or(Below::Chosen, |snapshot| {
        Below::Snapshot(snapshot.image.clone())
    });
    let config = catalog
        .config(&template, asked.config.unwrap_or_default(), below)
        .await?;
    if config.image.is_some() && engine.capabilities().runtime == "process" {
        return Err(ApiError::bad_request(
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

/// The states that both filters let through.
pub(super) fn wanted(
    status: Option<&str>,
    paused: Option<&str>,
) -> Result<Vec<Observed>, ApiError> {
    if let Some(status) = status
        && !Observed::ALL
            .iter()
            .any(|one| status_of(*one).as_str() == status)
    {
        return Err(ApiError::bad_request(
            "status must be starting, running, paused, terminating or failed",
        ));
    }
    let paused = match paused {
        None => None,
        Some("true" | "1") => Some(true),
        Some("false" | "0") => Some(false),
        Some(_) => return Err(ApiError::bad_request("paused must be true or false")),
    };
    Ok(Observed::ALL
        .iter()
        .copied()
        .filter(|one| status.is_none_or(|status| status_of(*one).as_str() == status))
        .filter(|one| paused.is_none_or(|paused| (*one == Observed::Released) == paused))
        .collect())
}

pub(super) fn number(name: &str, text: Option<&str>, default: u64) -> Result<u64, ApiError> {
    match text {
        None => Ok(default),
        Some(text) => text
            .parse::<u64>()
            .ok()
            .filter(|number| i64::try_from(*number).is_ok())
            .ok_or_else(|| {
                ApiError::bad_request(format!("{name} must be a whole number of 0 or more"))
            }),
    }
}

pub(crate) fn owner(caller: &Caller) -> Result<Owner, ApiError> {
    Owner::parse(&caller.owner)
        .ok_or_else(|| ApiError::new(ErrorCode::InternalError, "the key's owner is unreadable"))
}
