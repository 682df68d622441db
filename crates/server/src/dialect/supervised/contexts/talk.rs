//! What a context is told: input, chunks, sizes, signals, a new start.

use outlive_api::{
    agent::{Outcome, Request},
    context::{
        Context, ContextInputRequest, ContextOutput, ResizeContextRequest, SignalContextRequest,
        Signaled, Written,
    },
    error::{Action, ApiError, ErrorEnvelope, Success},
    limits::INPUT_BYTES_MAX,
    session::{ResizeRequest, Resized, SignalRequest},
};
use outlive_core::{
    event::Kind,
    session::{EofMode, ReplaceCurrent},
};

use super::{
    super::{
        call::{restore, unexpected},
        control::{parse_resize, parse_signal},
    },
    call::{InContext, not_found},
    exec,
    manage::{until_exit, until_ready},
    view::show,
};
use crate::http::{
    extract::SessionBody,
    reply::{Data, Failure, ok},
};

/// Starts its process anew, ending the one that runs.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}/restart",
    operation_id = "restartContext",
    tag = "contexts",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("ctx_id" = String, Path, description = "The context"),
    ),
    responses(
        (status = 200, body = Success<Context>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn restart(at: InContext) -> Result<Data<Context>, Failure> {
    let action = Action::RestartContext;
    let request = Request::NewAttempt {
        session: at.session.clone(),
        replace: ReplaceCurrent::Yes,
    };
    let session = match at.call(action, request).await? {
        Outcome::Session(view) => restore(action, &view)?,
        outcome => return Err(unexpected(action, &outcome).into()),
    };
    if matches!(session.kind(), Some(Kind::Interpreter { .. })) {
        until_ready(&at, action, &session).await?;
    }
    let now = at.now(action).await?;
    Ok(ok(show(&now).ok_or_else(not_found)?))
}

/// Writes to its input, exactly what is given.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}/input",
    operation_id = "writeContextInput",
    tag = "contexts",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("ctx_id" = String, Path, description = "The context"),
    ),
    request_body = ContextInputRequest,
    responses(
        (status = 200, body = Success<Written>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn input(
    at: InContext,
    SessionBody(body): SessionBody<ContextInputRequest>,
) -> Result<Data<Written>, Failure> {
    let data = checked(body.data)?;
    at.write(Action::WriteContext, None, data, None).await?;
    Ok(ok(Written { written: true }))
}

/// Gives an interpreter a chunk of code and answers when it is done. A command gets the data and
/// the end of input, and the answer comes when it has ended.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}/exec",
    operation_id = "execContext",
    tag = "contexts",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("ctx_id" = String, Path, description = "The context"),
    ),
    request_body = ContextInputRequest,
    responses(
        (status = 200, body = Success<ContextOutput>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn exec(
    at: InContext,
    SessionBody(body): SessionBody<ContextInputRequest>,
) -> Result<Data<ContextOutput>, Failure> {
    let action = Action::ExecContext;
    if body.data.is_empty() {
        return Err(ApiError::invalid("data is required").into());
    }
    let session = at.now(action).await?;
    if matches!(session.kind(), Some(Kind::Interpreter { .. })) {
        let output = exec::chunk(&at, action, &session, &body.data).await?;
        return Ok(ok(output));
    }
    let tail = at.sandbox.tail(&at.session).await;
    let tail = tail.map_err(|error| super::call::context_error(action, error))?;
    let before = tail.borrow().latest;
    let data = checked(body.data)?;
    at.write(action, session.attempt_id(), data, Some(EofMode::Character))
        .await?;
    let output = until_exit(&at, action, &session, Some(before)).await?;
    Ok(ok(output))
}

/// Sets the size of its terminal.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}/resize",
    operation_id = "resizeContext",
    tag = "contexts",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("ctx_id" = String, Path, description = "The context"),
    ),
    request_body = ResizeContextRequest,
    responses(
        (status = 200, body = Success<Resized>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn resize(
    at: InContext,
    SessionBody(body): SessionBody<ResizeContextRequest>,
) -> Result<Data<Resized>, Failure> {
    let action = Action::ResizeContext;
    let size = ResizeRequest {
        rows: body.rows,
        cols: body.cols,
        expected_attempt_id: None,
    };
    let request = parse_resize(&at.session, &size)?;
    match at.call(action, request).await? {
        Outcome::Done => Ok(ok(Resized { resized: true })),
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

/// Signals its process; on a terminal `INT` and `QUIT` reach what is in the foreground.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}/signal",
    operation_id = "signalContext",
    tag = "contexts",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("ctx_id" = String, Path, description = "The context"),
    ),
    request_body = SignalContextRequest,
    responses(
        (status = 200, body = Success<Signaled>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn signal(
    at: InContext,
    SessionBody(body): SessionBody<SignalContextRequest>,
) -> Result<Data<Signaled>, Failure> {
    let action = Action::SignalContext;
    let signal = SignalRequest {
        signal: body.signal,
        expected_attempt_id: None,
    };
    let request = parse_signal(&at.session, &signal)?;
    match at.call(action, request).await? {
        Outcome::Done => Ok(ok(Signaled { signaled: true })),
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

/// Input that is small enough and something at all.
fn checked(data: String) -> Result<Vec<u8>, ApiError> {
    if data.is_empty() {
        return Err(ApiError::invalid("data is required"));
    }
    if data.len() > INPUT_BYTES_MAX {
        return Err(ApiError::too_large(format!(
            "input is larger than {INPUT_BYTES_MAX} bytes"
        )));
    }
    Ok(data.into_bytes())
}
