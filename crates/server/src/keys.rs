//! API keys over HTTP: `/v1/keys`, for admins.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::State,
    http::StatusCode,
    routing::{delete, post},
};
use outlive_api::{
    error::{ApiError, ErrorCode},
    keys::{CreateKey, CreatedKey, Key, KeyList},
    time,
};

use crate::{
    auth::{Auth, IssueError, admins_only},
    clock,
    http::{
        extract::{GatewayBody, PathId},
        reply::{Data, Failure, ok},
    },
    limits::{NAME_BYTES_MAX, OWNER_BYTES_MAX},
    sessions::Caller,
    store::{KeyRecord, Owner, Store, StoreError},
};

/// What the key calls need.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) auth: Arc<Auth>,
    pub(crate) store: Arc<dyn Store>,
}

/// The routes, to be mounted at `/v1/keys`.
pub(crate) fn router() -> Router<Keys> {
    Router::new()
        .route("/", post(create).get(list))
        .route("/{id}", delete(revoke))
}

async fn create(
    State(keys): State<Keys>,
    Extension(caller): Extension<Caller>,
    GatewayBody(asked): GatewayBody<CreateKey>,
) -> Result<Data<CreatedKey>, Failure> {
    admins_only(&caller, "only admins may use keys")?;
    let owner = Owner::parse(&asked.owner).ok_or_else(|| {
        ApiError::bad_request(format!(
            "owner must be 1 to {OWNER_BYTES_MAX} characters of A-Z a-z 0-9 . _ @ -"
        ))
    })?;
    let name = asked.name.unwrap_or_default();
    if name.len() > NAME_BYTES_MAX {
        return Err(
            ApiError::bad_request(format!("name is longer than {NAME_BYTES_MAX} bytes")).into(),
        );
    }
    let expires_at = asked
        .expires_at
        .map(|text| {
            time::parse(&text)
                .map_err(|_| ApiError::bad_request("expires_at is not an RFC 3339 time"))
        })
        .transpose()?;
    if expires_at.is_some_and(|at| at <= clock::now()) {
        return Err(ApiError::bad_request("expires_at has passed").into());
    }
    let issued = keys.auth.issue(owner, asked.role, name, expires_at).await;
    let (record, key) = issued.map_err(|error| match error {
        IssueError::Store(error) => store_failed(&error),
        IssueError::Random(error) => ApiError::new(ErrorCode::InternalError, error.to_string()),
    })?;
    tracing::info!(key = %record.id, owner = %record.owner, by = %caller.key_id, "a key was made");
    Ok(Data(StatusCode::CREATED, CreatedKey { id: record.id, key }))
}

async fn list(
    State(keys): State<Keys>,
    Extension(caller): Extension<Caller>,
) -> Result<Data<KeyList>, Failure> {
    admins_only(&caller, "only admins may use keys")?;
    let all = keys
        .store
        .all_keys()
        .await
        .map_err(|error| store_failed(&error))?;
    let keys = all
        .into_iter()
        .filter(|key| key.revoked_at.is_none())
        .map(shown)
        .collect();
    Ok(ok(KeyList { keys }))
}

async fn revoke(
    State(keys): State<Keys>,
    Extension(caller): Extension<Caller>,
    PathId(id): PathId,
) -> Result<Data<serde_json::Value>, Failure> {
    admins_only(&caller, "only admins may use keys")?;
    let known = keys
        .auth
        .revoke(&id)
        .await
        .map_err(|error| store_failed(&error))?;
    if !known {
        return Err(ApiError::new(ErrorCode::NotFound, "key not found").into());
    }
    tracing::info!(key = %id, by = %caller.key_id, "a key was revoked");
    Ok(ok(serde_json::json!({ "deleted": true })))
}

fn shown(key: KeyRecord) -> Key {
    Key {
        id: key.id,
        owner: key.owner.to_string(),
        role: key.role,
        name: Some(key.name).filter(|name| !name.is_empty()),
        created_at: time::text(key.created_at),
        expires_at: key.expires_at.map(time::text),
    }
}

fn store_failed(error: &StoreError) -> ApiError {
    tracing::error!(%error, "the store failed");
    if let StoreError::Full(full) = error {
        return ApiError::new(ErrorCode::DiskFull, full.to_string());
    }
    ApiError::new(ErrorCode::InternalError, "the server's store failed")
}
