//! The supervised dialect: sessions of a sandbox, their events, and attachments to them.
//!
//! ```text
//!  POST PUT DELETE ─► call ─────────────────► SandboxHandle::call   wakes
//!  GET list, one, attempts ─────────────────► view, list            never wakes
//!  GET events ─► page ──┐
//!  GET stream ─► SSE ───┼─► follow ─► feed ─► source ─► journal files, up to the tail
//!  GET ws ─────► WS ────┘       one ring of encoded events a session, shared by its followers
//! ```
//! Nothing here waits for an attachment: a follower reads at its own speed, and a socket that
//! takes nothing for long is closed.

mod call;
mod contexts;
mod control;
mod cursor;
mod feed;
mod filter;
mod follow;
mod page;
mod sessions;
mod source;
mod sse;
#[cfg(test)]
pub(crate) mod tests;
mod ws;

use std::sync::Arc;

use axum::Router;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(crate) use self::contexts::SESSION as CONTEXT_SESSION;
use self::feed::Feeds;
use crate::{metrics::Metrics, sessions::Sandboxes};

/// What the handlers of this dialect share.
#[derive(Debug)]
pub struct Supervised {
    sandboxes: Arc<dyn Sandboxes>,
    metrics: Arc<Metrics>,
    /// The server is going: streams end.
    stop: CancellationToken,
    /// Open WebSockets run here, so that the server can wait for them.
    connections: TaskTracker,
    feeds: Feeds,
    turns: contexts::Turns,
}

impl Supervised {
    /// The dialect over these sandboxes. `stop` ends all streams; `connections` runs those that
    /// outlive their request.
    pub fn new(
        sandboxes: Arc<dyn Sandboxes>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
        connections: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self {
            sandboxes,
            metrics,
            stop,
            connections,
            feeds: Feeds::default(),
            turns: contexts::Turns::default(),
        })
    }
}

/// The routes under `/api/v1/sandboxes/{id}/sessions` and `…/contexts`, with their descriptions. Every request
/// must carry a [`crate::sessions::Caller`] in its extensions.
pub fn routes() -> OpenApiRouter<Arc<Supervised>> {
    OpenApiRouter::new()
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::get, sessions::update, sessions::delete))
        .routes(routes!(control::set_desired_state))
        .routes(routes!(control::list_attempts, control::create_attempt))
        .routes(routes!(control::write_input))
        .routes(routes!(control::send_signal))
        .routes(routes!(control::resize_terminal))
        .routes(routes!(page::list_events))
        .routes(routes!(sse::stream_events))
        .routes(routes!(ws::attach))
        .merge(contexts::routes())
}

/// The same as a router that can be merged into any other.
pub fn router<S: Clone + Send + Sync + 'static>(supervised: Arc<Supervised>) -> Router<S> {
    routes().split_for_parts().0.with_state(supervised)
}
