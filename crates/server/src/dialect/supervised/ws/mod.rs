//! A WebSocket attachment: events out, input, signals and sizes in.

mod connection;
pub(super) mod frame;
pub(super) mod handshake;
pub(super) mod order;
pub(super) mod reading;
mod requests;
pub(super) mod writer;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::HeaderValue,
    response::Response,
};
use bytes::Bytes;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use outlive_api::error::{Action, ApiError, ErrorCode, ErrorEnvelope};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use self::connection::Connection;
pub(super) use self::connection::{closed, pings};
use super::{
    Supervised,
    call::{InSession, may_write},
    cursor,
    follow::Follower,
    source::Format,
    sse::{awake, state_for, until},
};
use crate::http::{
    extract::Query,
    reply::{Failure, session_error},
    stall::StallIo,
};

/// Attaches to the session: the server sends `ServerMessage`s, the client `ClientMessage`s.
/// Closing never ends the session's input and never stops it. Wakes the sandbox.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/sessions/{session_id}/ws",
    operation_id = "attachSession",
    tag = "sessions",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("session_id" = String, Path, description = "The session"),
        ("after" = Option<u64>, Query, description = "Send events after this one; left out, from the earliest that is kept"),
        ("until" = Option<String>, Query, description = "`exit`: close once the attempt is over"),
        ("hold" = Option<bool>, Query, description = "`false`: don't keep the sandbox from falling asleep"),
    ),
    responses(
        (status = 101, description = "Messages follow, as text: `ServerMessage` from here, `ClientMessage` from there"),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn attach(
    State(state): State<Arc<Supervised>>,
    at: InSession,
    query: Query,
    mut request: Request,
) -> Result<Response, Failure> {
    let action = Action::AttachSession;
    let accept = handshake::check(request.method(), request.headers())?;
    let given = cursor::given(&query, request.headers())?;
    let until = until(&query)?;
    // Known before anything is woken for it.
    let session = state_for(&at, action, until).await?;
    let attachment = state
        .feeds
        .attach(action, &*at.sandbox, &at.session, &state.metrics)
        .await?;
    let cursor = cursor::resolve(given, &attachment.tail().borrow())?;
    let awake = awake(&at, &query)?;
    if may_write(&at.caller).is_ok() {
        let woken = at.sandbox.wake().await;
        woken.map_err(|error| session_error(action, error))?;
    }
    let connection = Connection {
        follower: Follower::new(
            attachment,
            Format::WebSocket,
            until,
            cursor,
            session.as_ref(),
        ),
        stop: state.stop.clone(),
        at,
        awake,
    };
    Ok(switch(&state, &mut request, accept, connection)?)
}

/// What is talked over a WebSocket.
pub(super) trait Talk: Send + 'static {
    /// Talks until the connection ends. `early` was read together with the handshake.
    fn run<R, W>(self, reader: R, writer: W, early: Bytes) -> impl Future<Output = ()> + Send
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send;
}

impl Talk for Connection {
    async fn run<R, W>(self, reader: R, writer: W, early: Bytes)
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        Self::run(self, reader, writer, early).await;
    }
}

/// Answers the handshake, and talks once the connection has switched.
pub(super) fn switch(
    state: &Supervised,
    request: &mut Request,
    accept: HeaderValue,
    talk: impl Talk,
) -> Result<Response, ApiError> {
    let upgrade = request
        .extensions_mut()
        .remove::<OnUpgrade>()
        .ok_or_else(|| {
            ApiError::new(ErrorCode::StreamUnavailable, "the connection can't switch")
        })?;
    state.connections.spawn(async move {
        match upgrade.await {
            Ok(upgraded) => serve(talk, upgraded).await,
            Err(error) => tracing::debug!(%error, "a WebSocket was given up before it began"),
        }
    });
    Ok(handshake::answer(accept))
}

/// On the bare socket where it can be had: its writes then are watched here alone.
async fn serve(talk: impl Talk, upgraded: Upgraded) {
    type Accepted = TokioIo<StallIo<TcpStream>>;
    match upgraded.downcast::<Accepted>() {
        Ok(parts) => {
            let (reader, writer) = parts.io.into_inner().into_inner().into_split();
            talk.run(reader, writer, parts.read_buf).await;
        }
        Err(upgraded) => {
            let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
            talk.run(reader, writer, Bytes::new()).await;
        }
    }
}
