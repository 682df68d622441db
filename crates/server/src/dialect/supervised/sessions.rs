//! Sessions themselves: list, create, get, update, delete.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use outlive_api::{
    agent::{Outcome, Request},
    error::{Action, ApiError, ErrorEnvelope, Success},
    session::{Deleted, Session, SessionList},
    spec::SessionSpec,
};
use outlive_core::{
    event::Created,
    id::SessionId,
    spec::{self, check_idempotency_key},
};

use super::{
    Supervised,
    call::{InSandbox, InSession, call, restore, show, unexpected},
};
use crate::http::{
    extract::{SessionBody, header_text},
    reply::{Data, Failure, ok},
};

/// All sessions of a sandbox. Never wakes it.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/sessions",
    operation_id = "listSessions",
    tag = "sessions",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<SessionList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn list(at: InSandbox) -> Result<Data<SessionList>, Failure> {
    let action = Action::GetSession;
    let views = at.sandbox.list().await;
    let views = views.map_err(|error| crate::http::reply::session_error(action, error))?;
    let mut sessions = Vec::with_capacity(views.len());
    for view in &views {
        let session = restore(action, view)?;
        if session.kind().is_none() {
            sessions.push(Session::new(&session, view.into()));
        }
    }
    Ok(ok(SessionList { sessions }))
}

/// Creates a session and starts its first attempt. With an `Idempotency-Key`, a retry of the
/// same creation answers 200 with the session that exists.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/sessions",
    operation_id = "createSession",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a retry safe; at most 255 characters"),
    ),
    request_body = SessionSpec,
    responses(
        (status = 201, description = "Created", body = Success<Session>),
        (status = 200, description = "Created before with the same key", body = Success<Session>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn create(
    at: InSandbox,
    headers: HeaderMap,
    SessionBody(spec): SessionBody<SessionSpec>,
) -> Result<Data<Session>, Failure> {
    let action = Action::CreateSession;
    let key = header_text(&headers, "idempotency-key")?.unwrap_or_default();
    let created = Created {
        spec: validate(spec)?,
        idempotency_key: check_idempotency_key(&key).map_err(ApiError::from)?,
        handle: None,
        kind: None,
    };
    let request = Request::Create {
        session: fresh_id()?,
        created: Box::new(created),
    };
    match call(&at.caller, &*at.sandbox, action, request).await? {
        Outcome::Session(view) => Ok(Data(StatusCode::CREATED, show(action, &view)?)),
        Outcome::Existing(view) => Ok(ok(show(action, &view)?)),
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

/// One session. Never wakes the sandbox.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}",
    operation_id = "getSession",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    responses(
        (status = 200, body = Success<Session>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn get(at: InSession) -> Result<Data<Session>, Failure> {
    let view = at.view(Action::GetSession).await?;
    Ok(ok(show(Action::GetSession, &view)?))
}

/// Replaces the whole specification: fields left out go back to their defaults. A change of
/// command, environment, streams or readiness replaces the attempt that runs.
#[utoipa::path(
    put,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}",
    operation_id = "updateSession",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    request_body = SessionSpec,
    responses(
        (status = 200, body = Success<Session>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn update(
    at: InSession,
    SessionBody(spec): SessionBody<SessionSpec>,
) -> Result<Data<Session>, Failure> {
    let request = Request::Update {
        session: at.session.clone(),
        spec: Box::new(validate(spec)?),
    };
    changed(&at, Action::UpdateSession, request).await.map(ok)
}

/// Ends the attempt that runs, and removes the session and its journal.
#[utoipa::path(
    delete,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}",
    operation_id = "deleteSession",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    responses(
        (status = 200, body = Success<Deleted>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn delete(
    State(state): State<Arc<Supervised>>,
    at: InSession,
) -> Result<Data<Deleted>, Failure> {
    let action = Action::DeleteSession;
    let request = Request::Delete(at.session.clone());
    match at.call(action, request).await? {
        Outcome::Done => {
            state.feeds.forget(at.sandbox.id(), &at.session);
            Ok(ok(Deleted { deleted: true }))
        }
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

/// Asks for a change that answers with the session.
pub(super) async fn changed(
    at: &InSession,
    action: Action,
    request: Request,
) -> Result<Session, Failure> {
    match at.call(action, request).await? {
        Outcome::Session(view) | Outcome::Existing(view) => Ok(show(action, &view)?),
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

fn validate(spec: SessionSpec) -> Result<spec::SessionSpec, ApiError> {
    let raw = spec::RawSpec::from(spec);
    raw.validate().map_err(ApiError::from)
}

/// 44 random bits in one sandbox of at most 4096 sessions: that two meet is once in four billion
/// creations, and then the supervisor refuses the second.
fn fresh_id() -> Result<SessionId, ApiError> {
    let bits = getrandom::u64().map_err(|error| {
        let message = format!("no random id: {error}");
        ApiError::new(Action::CreateSession.failed(), message)
    })?;
    Ok(SessionId::from_bits(bits))
}
