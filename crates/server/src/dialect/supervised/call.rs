//! Where a request points to: its caller, its sandbox, its session.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use outlive_api::{
    agent::{Outcome, Request, SessionView},
    error::{Action, ApiError, ErrorCode},
    keys::Role,
    session::Session,
};
use outlive_core::{
    id::{SandboxId, SessionId},
    session::{self as core, Rejection},
};

use super::Supervised;
use crate::{
    http::reply::{Failure, session_error},
    sessions::{CallError, Caller, SandboxHandle},
};

/// A request about a sandbox's sessions.
#[derive(Debug)]
pub(super) struct InSandbox {
    pub(super) caller: Caller,
    pub(super) sandbox: Arc<dyn SandboxHandle>,
}

/// A request about one session.
#[derive(Debug)]
pub(super) struct InSession {
    pub(super) caller: Caller,
    pub(super) sandbox: Arc<dyn SandboxHandle>,
    pub(super) session: SessionId,
}

impl FromRequestParts<Arc<Supervised>> for InSandbox {
    type Rejection = Failure;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<Supervised>,
    ) -> Result<Self, Failure> {
        let caller =
            parts.extensions.get::<Caller>().cloned().ok_or_else(|| {
                ApiError::new(ErrorCode::Unauthorized, "a valid API key is needed")
            })?;
        let id = path_param(parts, state, "id").await?;
        // What can't be an id can't be a sandbox.
        let id = SandboxId::parse(&id)
            .map_err(|_| ApiError::new(ErrorCode::NotFound, "sandbox not found"))?;
        match state.sandboxes.find(&caller, &id).await {
            Ok(sandbox) => Ok(Self { caller, sandbox }),
            Err(error) => Err(session_error(Action::GetSession, error).into()),
        }
    }
}

impl FromRequestParts<Arc<Supervised>> for InSession {
    type Rejection = Failure;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<Supervised>,
    ) -> Result<Self, Failure> {
        let InSandbox { caller, sandbox } = InSandbox::from_request_parts(parts, state).await?;
        let context = path_param(parts, state, "ctx_id").await?;
        let session = if context.is_empty() {
            let id = path_param(parts, state, "session_id").await?;
            // A context is no session here: it has an address of its own.
            SessionId::parse(&id)
                .ok()
                .filter(|session| session.context().is_none())
                .ok_or_else(|| ApiError::from(Rejection::NotFound))?
        } else {
            SessionId::parse_context(&context)
                .map_err(|_| ApiError::new(ErrorCode::ContextNotFound, "context not found"))?
        };
        Ok(Self {
            caller,
            sandbox,
            session,
        })
    }
}

pub(super) async fn path_param(
    parts: &mut Parts,
    state: &Arc<Supervised>,
    name: &str,
) -> Result<String, Failure> {
    let params = RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|_| ApiError::new(ErrorCode::NotFound, "no such address"))?;
    let value = params.iter().find(|(key, _)| *key == name);
    Ok(value.map_or_else(String::new, |(_, value)| value.to_owned()))
}

/// Refuses callers that may only read.
pub(super) fn may_write(caller: &Caller) -> Result<(), ApiError> {
    match caller.role {
        Role::Admin | Role::Member => Ok(()),
        Role::ReadOnly => Err(ApiError::new(
            ErrorCode::Forbidden,
            "this key may only read",
        )),
    }
}

impl InSession {
    /// The session's state; never wakes the sandbox.
    pub(super) async fn view(&self, action: Action) -> Result<SessionView, ApiError> {
        let view = self.sandbox.view(&self.session).await;
        view.map_err(|error| session_error(action, error))
    }

    /// Asks for a change; wakes the sandbox.
    pub(super) async fn call(&self, action: Action, request: Request) -> Result<Outcome, ApiError> {
        call(&self.caller, &*self.sandbox, action, request).await
    }
}

/// Asks for a change; wakes the sandbox.
pub(super) async fn call(
    caller: &Caller,
    sandbox: &dyn SandboxHandle,
    action: Action,
    request: Request,
) -> Result<Outcome, ApiError> {
    may_write(caller)?;
    let answer = ask(sandbox, request).await;
    answer.map_err(|error| session_error(action, error))
}

/// Asks for a change; an answer is a success.
pub(super) async fn ask(
    sandbox: &dyn SandboxHandle,
    request: Request,
) -> Result<Outcome, CallError> {
    match sandbox.call(request).await? {
        Outcome::Rejected(rejection) => Err(CallError::Rejected(rejection)),
        Outcome::Failed { message } => Err(CallError::Failed { message }),
        outcome => Ok(outcome),
    }
}

/// A session's state.
pub(super) fn restore(action: Action, view: &SessionView) -> Result<core::Session, ApiError> {
    core::Session::restore(&view.checkpoint)
        .map_err(|error| ApiError::new(action.failed(), error.to_string()))
}

/// A session for the client.
pub(super) fn show(action: Action, view: &SessionView) -> Result<Session, ApiError> {
    Session::try_from(view).map_err(|error| ApiError::new(action.failed(), error.to_string()))
}

/// An answer that a call of this kind never has.
pub(super) fn unexpected(action: Action, outcome: &Outcome) -> ApiError {
    tracing::error!(
        ?outcome,
        ?action,
        "the supervisor answered another question"
    );
    ApiError::new(action.failed(), "the supervisor gave no usable answer")
}
