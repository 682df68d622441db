//! Where a request about a context points to, and what the engine's refusals mean for it.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts};
use outlive_api::{
    agent::{Outcome, Request, Write},
    error::{Action, ApiError, ErrorCode},
};
use outlive_core::{
    id::{AttemptId, SessionId},
    session::{EofMode, Phase, Rejection, Session},
};

use super::super::{
    Supervised,
    call::{InSandbox, ask, may_write, path_param, restore},
};
use crate::{
    http::reply::{Failure, session_error},
    sessions::{CallError, Caller, SandboxHandle},
};

/// A request about one context.
#[derive(Debug, Clone)]
pub(super) struct InContext {
    pub(super) state: Arc<Supervised>,
    pub(super) caller: Caller,
    pub(super) sandbox: Arc<dyn SandboxHandle>,
    pub(super) session: SessionId,
}

impl FromRequestParts<Arc<Supervised>> for InContext {
    type Rejection = Failure;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<Supervised>,
    ) -> Result<Self, Failure> {
        let InSandbox { caller, sandbox } = InSandbox::from_request_parts(parts, state).await?;
        let id = path_param(parts, state, "ctx_id").await?;
        let session = SessionId::parse_context(&id).map_err(|_| not_found())?;
        Ok(Self {
            state: Arc::clone(state),
            caller,
            sandbox,
            session,
        })
    }
}

impl InContext {
    /// Its state; never wakes the sandbox.
    pub(super) async fn now(&self, action: Action) -> Result<Session, ApiError> {
        let view = self.sandbox.view(&self.session).await;
        let view = view.map_err(|error| context_error(action, error))?;
        restore(action, &view)
    }

    /// Asks for a change; wakes the sandbox.
    pub(super) async fn call(&self, action: Action, request: Request) -> Result<Outcome, ApiError> {
        call(&self.caller, &*self.sandbox, action, request).await
    }

    /// Writes to its input, and closes it after that when `eof` says so.
    pub(super) async fn write(
        &self,
        action: Action,
        expected: Option<AttemptId>,
        data: Vec<u8>,
        eof: Option<EofMode>,
    ) -> Result<AttemptId, ApiError> {
        let write = Write {
            expected,
            input_id: nonce(action)?,
            data,
            eof,
            durable: false,
        };
        let session = self.session.clone();
        match self.call(action, Request::Write { session, write }).await? {
            Outcome::Written { attempt, .. } => Ok(attempt),
            outcome => Err(super::super::call::unexpected(action, &outcome)),
        }
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
    answer.map_err(|error| context_error(action, error))
}

/// What the engine says, in the words of contexts.
pub(super) fn context_error(action: Action, error: CallError) -> ApiError {
    let CallError::Rejected(rejection) = error else {
        return session_error(action, error);
    };
    match rejection {
        Rejection::NotFound | Rejection::Deleting => not_found(),
        Rejection::NotRunning {
            phase: phase @ (Phase::Exited | Phase::Failed | Phase::Stopped),
        } => ApiError::new(
            ErrorCode::ProcessFinished,
            format!("the context's process has ended ({})", phase.as_str()),
        ),
        Rejection::NotRunning { phase } => ApiError::new(
            ErrorCode::ProcessNotRunning,
            format!(
                "the context's process does not run now ({})",
                phase.as_str()
            ),
        ),
        Rejection::NoTerminal => ApiError::new(
            ErrorCode::PtyUnavailable,
            "the context has no terminal; create it with pty_size",
        ),
        other => {
            let error = ApiError::from(other);
            if error.code == ErrorCode::SessionConflict {
                ApiError {
                    code: ErrorCode::Conflict,
                    ..error
                }
            } else {
                error
            }
        }
    }
}

pub(super) fn not_found() -> ApiError {
    ApiError::new(ErrorCode::ContextNotFound, "context not found")
}

/// 128 random bits, for inputs and chunks.
pub(super) fn nonce(action: Action) -> Result<String, ApiError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|error| ApiError::new(action.failed(), format!("no random numbers: {error}")))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bits)))
}
