//! Contexts: one command, or an interpreter that is given chunks of code.
//!
//! ```text
//!  POST ─► spec ─► session of the engine, id `ses-ctx-…`, for its clients `ctx-…`
//!  wait, exec ─► watch ─► journal files, up to the tail ─► capture ─► answer
//!  ws ─────────► watch ─► text frames
//!  interpreter ◄── frame: chunk and nonce        ──► marker: begin, end, ready
//! ```
//! A context is a session of another kind: its output is journalled byte by byte, it outlives
//! its clients, this server and the supervisor, and `…/contexts/{ctx_id}/session` has it as the
//! session calls have theirs. The supervised calls don't know it, nor do these know sessions.
//!
//! Where a chunk of code ends is said by the interpreter itself, on each of its streams (see
//! [`marker`]); a foreign interpreter says it by its prompt.

mod call;
mod capture;
mod exec;
mod interpreter;
mod manage;
mod marker;
mod show;
mod spec;
mod talk;
mod turns;
mod view;
mod watch;
mod ws;

use std::sync::Arc;

use axum::routing::{get, post, put};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::turns::Turns;
use super::{Supervised, control, page, sessions, sse};

/// The routes under `/api/v1/sandboxes/{id}/contexts`, with their descriptions.
pub(super) fn routes() -> OpenApiRouter<Arc<Supervised>> {
    OpenApiRouter::new()
        .routes(routes!(manage::list, manage::create))
        .routes(routes!(manage::get, manage::delete))
        .routes(routes!(talk::restart))
        .routes(routes!(talk::input))
        .routes(routes!(talk::exec))
        .routes(routes!(talk::resize))
        .routes(routes!(talk::signal))
        .routes(routes!(ws::attach))
        .merge(session())
}

/// Where the engine's own view of a context is.
pub(crate) const SESSION: &str = "/api/v1/sandboxes/{id}/contexts/{ctx_id}/session";

/// What of a session can be asked of a context, behind [`SESSION`]: the same calls with the same
/// answers, so that its output can be had byte by byte and from any kept number on.
fn session() -> OpenApiRouter<Arc<Supervised>> {
    let at = |rest: &str| format!("{SESSION}{rest}");
    OpenApiRouter::new()
        .route(&at(""), get(sessions::get).delete(sessions::delete))
        .route(&at("/desired-state"), put(control::set_desired_state))
        .route(&at("/attempts"), get(control::list_attempts))
        .route(&at("/inputs"), post(control::write_input))
        .route(&at("/signals"), post(control::send_signal))
        .route(&at("/terminal"), put(control::resize_terminal))
        .route(&at("/events"), get(page::list_events))
        .route(&at("/events/stream"), get(sse::stream_events))
        .route(&at("/ws"), get(super::ws::attach))
}
