//! Contexts themselves: list, create, get, delete.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode};
use outlive_api::{
    agent::{Outcome, Request},
    context::{Context, ContextList, ContextOutput, CreateContextRequest},
    error::{Action, ApiError, ErrorCode, ErrorEnvelope, Success},
    session::Deleted,
};
use outlive_core::{
    event::{AttemptEnd, Body, Created, Kind},
    id::SessionId,
    session::{EofMode, Phase, Session},
};
use tokio::time::timeout;

use super::{
    super::{
        Supervised,
        call::{InSandbox, restore, unexpected},
    },
    call::{InContext, call, context_error, not_found},
    capture::Capture,
    exec,
    spec::{Plan, Wait, plan},
    view::{finish, has_terminal, show},
    watch::{Said, Watch},
};
use crate::{
    http::{
        extract::SessionBody,
        reply::{Data, Failure, ok},
    },
    limits::{CONTEXT_WAIT_MAX, CONTEXTS_SWEPT_MAX},
};

/// All contexts of a sandbox, without their output. Never wakes it.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/contexts",
    operation_id = "listContexts",
    tag = "contexts",
    params(("id" = String, Path, description = "The sandbox")),
    responses(
        (status = 200, body = Success<ContextList>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn list(at: InSandbox) -> Result<Data<ContextList>, Failure> {
    let contexts = sessions(&at, Action::GetContext).await?;
    let contexts = contexts.iter().filter_map(show).collect();
    Ok(ok(ContextList { contexts }))
}

/// Creates a context. A command runs at once; with `wait_until_done` the answer has its output
/// and exit code. An interpreter is ready when the answer comes.
#[utoipa::path(
    post,
    path = "/api/v1/sandboxes/{id}/contexts",
    operation_id = "createContext",
    tag = "contexts",
    params(("id" = String, Path, description = "The sandbox")),
    request_body = CreateContextRequest,
    responses(
        (status = 201, description = "Created", body = Success<Context>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn create(
    State(state): State<Arc<Supervised>>,
    at: InSandbox,
    SessionBody(request): SessionBody<CreateContextRequest>,
) -> Result<Data<Context>, Failure> {
    let Plan {
        created,
        input,
        wait,
    } = plan(request)?;
    let (session, made) = make(&at, created).await?;
    let at = InContext {
        state,
        caller: at.caller,
        sandbox: at.sandbox,
        session,
    };
    refuse_failed_start(&at, &made).await?;
    let output = match made.kind() {
        Some(Kind::Interpreter { .. }) => first_chunk(&at, &made, input, wait).await?,
        Some(Kind::Command) | None => match wait {
            Wait::UntilDone => run(&at, &made).await?,
            Wait::No => ContextOutput::default(),
        },
    };
    let now = at.now(Action::CreateContext).await?;
    let mut context = show(&now).ok_or_else(not_found)?;
    merge(&mut context, output);
    Ok(Data(StatusCode::CREATED, context))
}

/// One context; a command that has ended with its output. Never wakes the sandbox.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}",
    operation_id = "getContext",
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
pub(super) async fn get(at: InContext) -> Result<Data<Context>, Failure> {
    let action = Action::GetContext;
    let session = at.now(action).await?;
    let mut context = show(&session).ok_or_else(not_found)?;
    let ended = session
        .attempt()
        .is_some_and(|attempt| attempt.end.is_some());
    if ended && session.kind() == Some(&Kind::Command) {
        let output = until_exit(&at, action, &session, Some(0)).await?;
        merge(&mut context, output);
    }
    Ok(ok(context))
}

/// Ends its process with everything that it started, and removes the context and its output.
#[utoipa::path(
    delete,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}",
    operation_id = "deleteContext",
    tag = "contexts",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("ctx_id" = String, Path, description = "The context"),
    ),
    responses(
        (status = 200, body = Success<Deleted>),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn delete(at: InContext) -> Result<Data<Deleted>, Failure> {
    remove(&at, Action::DeleteContext).await?;
    Ok(ok(Deleted { deleted: true }))
}

async fn remove(at: &InContext, action: Action) -> Result<(), ApiError> {
    let request = Request::Delete(at.session.clone());
    match at.call(action, request).await? {
        Outcome::Done => {
            at.state.feeds.forget(at.sandbox.id(), &at.session);
            Ok(())
        }
        outcome => Err(unexpected(action, &outcome)),
    }
}

/// The sessions that are contexts.
async fn sessions(at: &InSandbox, action: Action) -> Result<Vec<Session>, ApiError> {
    let views = at.sandbox.list().await;
    let views = views.map_err(|error| context_error(action, error))?;
    let mut sessions = Vec::new();
    for view in &views {
        let session = restore(action, view)?;
        if session.kind().is_some() {
            sessions.push(session);
        }
    }
    Ok(sessions)
}

/// Makes the session. A sandbox that has as many as it may gets rid of commands that are over.
async fn make(at: &InSandbox, created: Created) -> Result<(SessionId, Session), ApiError> {
    let action = Action::CreateContext;
    let mut swept = false;
    loop {
        let bits = getrandom::u64()
            .map_err(|error| ApiError::new(action.failed(), format!("no random id: {error}")))?;
        let session = SessionId::context_from_bits(bits);
        let request = Request::Create {
            session: session.clone(),
            created: Box::new(created.clone()),
        };
        match call(&at.caller, &*at.sandbox, action, request).await {
            Ok(Outcome::Session(view)) => return Ok((session, restore(action, &view)?)),
            Ok(outcome) => return Err(unexpected(action, &outcome)),
            Err(error) if error.code == ErrorCode::QuotaExceeded && !swept => {
                swept = sweep(at).await?;
                if !swept {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Deletes the oldest commands that are over; whether there was one.
async fn sweep(at: &InSandbox) -> Result<bool, ApiError> {
    let action = Action::CreateContext;
    let mut any = false;
    let over = sessions(at, action).await?.into_iter().filter(|session| {
        session.kind() == Some(&Kind::Command)
            && matches!(session.phase(), Phase::Exited | Phase::Stopped)
    });
    for session in over.take(CONTEXTS_SWEPT_MAX) {
        let request = Request::Delete(session.id().clone());
        match call(&at.caller, &*at.sandbox, action, request).await {
            Ok(_) => any = true,
            Err(error) if error.code == ErrorCode::ContextNotFound => any = true,
            Err(error) => return Err(error),
        }
    }
    Ok(any)
}

/// A command that can't be started is the caller's mistake, and leaves no context.
async fn refuse_failed_start(at: &InContext, made: &Session) -> Result<(), ApiError> {
    let end = made.attempt().and_then(|attempt| attempt.end.as_ref());
    let Some(AttemptEnd::StartFailed { message }) = end else {
        return Ok(());
    };
    let error = ApiError {
        status: 400,
        ..ApiError::new(ErrorCode::CreateFailed, message.clone())
    };
    remove(at, Action::CreateContext).await?;
    Err(error)
}

/// Runs a command to its end: it sees end of input at once.
async fn run(at: &InContext, made: &Session) -> Result<ContextOutput, ApiError> {
    let action = Action::CreateContext;
    let attempt = made.attempt_id();
    let closed = at
        .write(action, attempt, Vec::new(), Some(EofMode::Character))
        .await;
    match closed {
        Ok(_) => {}
        // It ended already, or reads keys and knows no end of input.
        Err(error)
            if matches!(
                error.code,
                ErrorCode::ProcessFinished | ErrorCode::ProcessNotRunning | ErrorCode::Conflict
            ) => {}
        Err(error) => return Err(error),
    }
    until_exit(at, action, made, Some(0)).await
}

/// What the newest attempt writes from `cursor` on, and how it ends.
pub(super) async fn until_exit(
    at: &InContext,
    action: Action,
    session: &Session,
    cursor: Option<u64>,
) -> Result<ContextOutput, ApiError> {
    let number = session.attempt().map_or(0, |attempt| attempt.number);
    let watch = Watch::start(at, action, cursor).await?;
    let mut watch = watch.while_there_is_room(at);
    let mut capture = Capture::default();
    let following = async {
        loop {
            let told = watch.next().await;
            for told in told.map_err(|ended| ended.into_error(action))? {
                match told.said {
                    Said::Lost => capture.lost(),
                    Said::Output(stream, bytes) if told.attempt == number => {
                        capture.push(stream, &bytes);
                    }
                    Said::Event(Body::AttemptExited(end)) if told.attempt == number => {
                        return Ok(end);
                    }
                    Said::Output(..) | Said::Event(_) => {}
                }
            }
        }
    };
    let end = timeout(CONTEXT_WAIT_MAX, following)
        .await
        .unwrap_or_else(|_elapsed| Err(exec::waited_too_long()))?;
    let mut output = capture.finish(has_terminal(session));
    finish(&mut output, &end);
    Ok(output)
}

/// Waits until an interpreter is ready, and gives it its first chunk.
async fn first_chunk(
    at: &InContext,
    made: &Session,
    input: Option<String>,
    wait: Wait,
) -> Result<ContextOutput, ApiError> {
    let action = Action::CreateContext;
    if let Err(error) = until_ready(at, action, made).await {
        remove(at, action).await?;
        return Err(error);
    }
    match (input, wait) {
        (None, _) => Ok(ContextOutput::default()),
        (Some(input), Wait::UntilDone) => exec::chunk(at, action, made, &input).await,
        (Some(input), Wait::No) => {
            exec::begin(at, action, made, &input).await?;
            Ok(ContextOutput::default())
        }
    }
}

/// Waits until the newest attempt is ready.
pub(super) async fn until_ready(
    at: &InContext,
    action: Action,
    session: &Session,
) -> Result<(), ApiError> {
    let number = session.attempt().map_or(0, |attempt| attempt.number);
    let watch = Watch::start(at, action, Some(0)).await?;
    let mut watch = watch.while_there_is_room(at);
    let mut capture = Capture::default();
    loop {
        let told = watch.next().await;
        for told in told.map_err(|ended| ended.into_error(action))? {
            match told.said {
                Said::Event(Body::SessionReady) if told.attempt == number => return Ok(()),
                Said::Output(stream, bytes) if told.attempt == number => {
                    capture.push(stream, &bytes);
                }
                Said::Event(Body::AttemptExited(end)) if told.attempt == number => {
                    let words = capture.last_words();
                    let reason = end.reason();
                    return Err(ApiError {
                        status: 400,
                        ..ApiError::new(
                            action.failed(),
                            format!("the interpreter did not become ready ({reason}): {words}"),
                        )
                    });
                }
                Said::Output(..) | Said::Event(_) | Said::Lost => {}
            }
        }
    }
}

/// What was captured beside what the session's state says of the end.
fn merge(context: &mut Context, output: ContextOutput) {
    let end = std::mem::take(&mut context.output);
    context.output = ContextOutput {
        exit_code: output.exit_code.or(end.exit_code),
        state: output.state.or(end.state),
        signal: output.signal.or(end.signal),
        ..output
    };
}
