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
mod spec;
mod talk;
mod turns;
mod view;
mod watch;

use std::sync::Arc;

use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::turns::Turns;
use super::Supervised;

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
}
