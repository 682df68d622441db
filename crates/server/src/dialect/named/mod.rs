//! The named dialect: `/v1/sandbox`. So far its sandboxes, which fall asleep and wake; its
//! sessions come later.

mod activity;
mod sandboxes;

use std::sync::Arc;

use axum::{Router, middleware::from_fn};
use outlive_api::error::{ApiError, ErrorCode};
use outlive_core::id::SandboxId;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    http::reply::{Failure, bare_errors, session_error},
    sandboxes::{Engine, Sandbox},
    sessions::{CallError, Caller},
};

/// The routes with their description.
pub(crate) fn routes() -> OpenApiRouter<Engine> {
    OpenApiRouter::new()
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::show, sandboxes::delete))
        .routes(routes!(sandboxes::suspend))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(activity::show))
        .routes(routes!(activity::hold, activity::list_holds))
        .routes(routes!(activity::drop_hold))
}

/// The routes; [`with_bare_errors`] goes around them and whatever guards them.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(engine: Engine) -> Router<S> {
    let (router, _description) = routes().split_for_parts();
    router.with_state(engine)
}

/// The layer that puts every error below it into this dialect's envelope.
pub(crate) fn with_bare_errors<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router.layer(from_fn(bare_errors))
}

fn find(engine: &Engine, caller: &Caller, id: &str) -> Result<Arc<Sandbox>, Failure> {
    let id = SandboxId::parse(id).map_err(|_| not_found())?;
    let found = engine.get(&caller.owner, &id);
    found.map_err(|_| not_found().into())
}

fn not_found() -> ApiError {
    ApiError::new(ErrorCode::SandboxNotFound, "sandbox not found")
}

/// What a failed call of a sandbox is in this dialect.
fn refused(error: CallError) -> Failure {
    let message = error.to_string();
    Failure(match error {
        CallError::NoSandbox => not_found(),
        CallError::ResumeFailed { .. } => ApiError::new(ErrorCode::SandboxFailed, message),
        CallError::Failed { .. } => ApiError::new(ErrorCode::InternalError, message),
        other => session_error(outlive_api::error::Action::GetSession, other),
    })
}
