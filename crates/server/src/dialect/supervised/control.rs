//! What a session is told: its desired state, attempts, input, signals, the terminal's size.

use axum::http::StatusCode;
use outlive_api::{
    agent::{Outcome, Request, Write},
    error::{Action, ApiError, ErrorEnvelope, Success},
    event::UnknownText,
    limits::{INPUT_BYTES_MAX, INPUT_ID_CHARS_MAX},
    session::{
        Accepted, AttemptList, CreateAttemptRequest, DesiredStateRequest, EofMode, InputRequest,
        InputResponse, ResizeRequest, Resized, Session, SignalRequest,
    },
    signal,
};
use outlive_core::{
    id::{AttemptId, SessionId},
    session::{self as core, ReplaceCurrent},
};

use super::{
    call::{InSession, unexpected},
    sessions::changed,
};
use crate::http::{
    extract::{OptionalSessionBody, Query, SessionBody},
    reply::{Data, Failure, ok},
};

/// Starts or stops the session; answers when it is over.
#[utoipa::path(
    put,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/desired-state",
    operation_id = "setSessionDesiredState",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    request_body = DesiredStateRequest,
    responses(
        (status = 200, body = Success<Session>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn set_desired_state(
    at: InSession,
    SessionBody(body): SessionBody<DesiredStateRequest>,
) -> Result<Data<Session>, Failure> {
    let request = Request::SetDesiredState {
        session: at.session.clone(),
        state: body.state.into(),
    };
    changed(&at, Action::SetSessionDesiredState, request)
        .await
        .map(ok)
}

/// The session's attempts and how they ended: the newest 64. Never wakes.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/attempts",
    operation_id = "listSessionAttempts",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    responses(
        (status = 200, body = Success<AttemptList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn list_attempts(at: InSession) -> Result<Data<AttemptList>, Failure> {
    let action = Action::GetSession;
    let view = at.view(action).await?;
    let session = core::Session::restore(&view.checkpoint)
        .map_err(|error| ApiError::new(action.failed(), error.to_string()))?;
    Ok(ok(AttemptList::new(&session)))
}

/// Starts a new attempt; with `replace_current` it first ends the one that runs.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/attempts",
    operation_id = "createSessionAttempt",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    request_body = Option<CreateAttemptRequest>,
    responses(
        (status = 201, description = "Started", body = Success<Session>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn create_attempt(
    at: InSession,
    OptionalSessionBody(body): OptionalSessionBody<CreateAttemptRequest>,
) -> Result<Data<Session>, Failure> {
    let replace = match body.replace_current {
        Some(true) => ReplaceCurrent::Yes,
        Some(false) | None => ReplaceCurrent::No,
    };
    let request = Request::NewAttempt {
        session: at.session.clone(),
        replace,
    };
    let session = changed(&at, Action::CreateSessionAttempt, request).await?;
    Ok(Data(StatusCode::CREATED, session))
}

/// Writes to the attempt that runs. A retry with the same `input_id` writes once.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/inputs",
    operation_id = "writeSessionInput",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
        ("durable" = Option<bool>, Query, description = "Answer after the receipt is on disk"),
    ),
    request_body = InputRequest,
    responses(
        (status = 202, description = "Accepted", body = Success<InputResponse>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn write_input(
    at: InSession,
    query: Query,
    SessionBody(body): SessionBody<InputRequest>,
) -> Result<Data<InputResponse>, Failure> {
    let action = Action::WriteSessionInput;
    let durable = match query.get("durable") {
        None | Some("false" | "0") => false,
        Some("true" | "1") => true,
        Some(_) => return Err(ApiError::invalid("durable must be true or false").into()),
    };
    let write = parse_input(&at.session, body, durable)?;
    let input_id = write.input_id.clone();
    let request = Request::Write {
        session: at.session.clone(),
        write,
    };
    match at.call(action, request).await? {
        Outcome::Written {
            attempt,
            duplicate,
            applied_unknown,
        } => Ok(Data(
            StatusCode::ACCEPTED,
            InputResponse {
                input_id,
                attempt_id: attempt.to_string(),
                accepted: true,
                duplicate,
                applied: applied_unknown.then_some(UnknownText::Unknown),
            },
        )),
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

/// Signals the attempt that runs.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/signals",
    operation_id = "sendSessionSignal",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    request_body = SignalRequest,
    responses(
        (status = 202, description = "Sent", body = Success<Accepted>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn send_signal(
    at: InSession,
    SessionBody(body): SessionBody<SignalRequest>,
) -> Result<Data<Accepted>, Failure> {
    let action = Action::SignalSession;
    let request = parse_signal(&at.session, &body)?;
    match at.call(action, request).await? {
        Outcome::Done => Ok(Data(StatusCode::ACCEPTED, Accepted { accepted: true })),
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

/// Sets the size of the terminal.
#[utoipa::path(
    put,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/terminal",
    operation_id = "resizeSessionTerminal",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
    ),
    request_body = ResizeRequest,
    responses(
        (status = 200, body = Success<Resized>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn resize_terminal(
    at: InSession,
    SessionBody(body): SessionBody<ResizeRequest>,
) -> Result<Data<Resized>, Failure> {
    let action = Action::ResizeSessionTerminal;
    let request = parse_resize(&at.session, &body)?;
    match at.call(action, request).await? {
        Outcome::Done => Ok(ok(Resized { resized: true })),
        outcome => Err(unexpected(action, &outcome).into()),
    }
}

/// Checks an input, of either transport.
pub(super) fn parse_input(
    session: &SessionId,
    body: InputRequest,
    durable: bool,
) -> Result<Write, ApiError> {
    let input_id = body.input_id.trim();
    if input_id.is_empty() {
        return Err(ApiError::invalid("input_id is required"));
    }
    if input_id.chars().count() > INPUT_ID_CHARS_MAX {
        return Err(ApiError::invalid(format!(
            "input_id is longer than {INPUT_ID_CHARS_MAX} characters"
        )));
    }
    let text = body.data_base64.unwrap_or_default();
    let data = base64_simd::STANDARD
        .decode_to_vec(text.as_bytes())
        .map_err(|_| ApiError::invalid("data_base64 is not standard base64"))?;
    if data.len() > INPUT_BYTES_MAX {
        return Err(ApiError::too_large(format!(
            "input is larger than {INPUT_BYTES_MAX} bytes"
        )));
    }
    let eof = (body.eof == Some(true)).then(|| body.eof_mode.unwrap_or(EofMode::Character).into());
    if data.is_empty() && eof.is_none() {
        return Err(ApiError::invalid("data_base64 or eof is required"));
    }
    Ok(Write {
        expected: expected(session, body.expected_attempt_id.as_deref()),
        input_id: input_id.to_owned(),
        data,
        eof,
        durable,
    })
}

/// Checks a signal, of either transport.
pub(super) fn parse_signal(session: &SessionId, body: &SignalRequest) -> Result<Request, ApiError> {
    Ok(Request::Signal {
        session: session.clone(),
        expected: expected(session, body.expected_attempt_id.as_deref()),
        signal: signal::parse(&body.signal)
            .map_err(|error| ApiError::invalid(error.to_string()))?,
    })
}

/// Checks a size, of either transport.
pub(super) fn parse_resize(session: &SessionId, body: &ResizeRequest) -> Result<Request, ApiError> {
    let side = |name: &str, value: i64| {
        u16::try_from(value)
            .ok()
            .filter(|value| *value > 0)
            .ok_or_else(|| ApiError::invalid(format!("{name} must be from 1 to 65535")))
    };
    Ok(Request::Resize {
        session: session.clone(),
        expected: expected(session, body.expected_attempt_id.as_deref()),
        rows: side("rows", body.rows)?,
        cols: side("cols", body.cols)?,
    })
}

/// The attempt that the caller means. A text that can't be an attempt's id stands for an attempt
/// that this session never has: a mismatch, not a malformed request.
fn expected(session: &SessionId, text: Option<&str>) -> Option<AttemptId> {
    let text = text.map(str::trim).filter(|text| !text.is_empty())?;
    Some(AttemptId::parse(text).unwrap_or_else(|_| AttemptId::derive(session, 0)))
}
