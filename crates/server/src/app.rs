//! All routes and the layers around them.
//!
//! ```text
//!  request id ► panics ► ─┬─ /healthz /readyz /metadata            no key
//!                         └─ head ► key ► role ► rate ─┬─ /api/v1/sandboxes, …/sessions, …-snapshots
//!                                                      ├─ /v1/sandbox
//!                                                      └─ /v1/keys, /v1/images, /v1/upgrade
//! ```

use std::{any::Any, collections::BTreeMap, sync::Arc};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::State,
    http::Response,
    middleware::{from_fn, from_fn_with_state},
    response::IntoResponse,
    routing::get,
};
use outlive_api::{
    error::{ApiError, ErrorCode},
    sandbox::{Health, Metadata},
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    auth::{Auth, require_key},
    catalog::Catalog,
    dialect::{
        named,
        supervised::{self, Supervised},
    },
    http::{
        head::bounded_head,
        reply::{Failure, ok},
        request_id::request_id,
    },
    images::rest as images_rest,
    keys::{self, Keys},
    metrics::{self, Metrics, count_calls},
    openapi,
    sandboxes::{Engine, rest, snapshot_rest},
    upgrade::{self, Upgrades},
};

/// All routes of a server.
pub(crate) fn app(
    engine: Engine,
    auth: Arc<Auth>,
    keys: Keys,
    supervised: Arc<Supervised>,
    metrics: Arc<Metrics>,
    upgrades: Upgrades,
    catalog: Catalog,
) -> Router {
    let images = catalog.library();
    let catalog = Extension(Arc::new(catalog));
    let keyed = Router::new()
        .nest(
            "/api/v1/sandboxes",
            rest::router()
                .with_state(engine.clone())
                .layer(catalog.clone()),
        )
        .nest(
            "/api/v1/sandbox-rootfs-snapshots",
            snapshot_rest::router().with_state(engine.clone()),
        )
        .nest("/v1/images", images_rest::router().with_state(images))
        .merge(supervised::router(supervised))
        .nest("/v1/keys", keys::router().with_state(keys))
        .nest("/v1/upgrade", upgrade::router().with_state(upgrades))
        .layer(from_fn_with_state(Arc::clone(&auth), require_key))
        .layer(from_fn(bounded_head));
    let named: Router<Engine> = named::router(engine.clone())
        .layer(catalog)
        .layer(from_fn_with_state(auth, require_key))
        .layer(from_fn(bounded_head));
    Router::new()
        .merge(keyed)
        .merge(named::with_bare_errors(named))
        .merge(openapi::router())
        .merge(metrics::router(
            Arc::clone(&metrics),
            Arc::new(engine.clone()),
        ))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metadata", get(metadata))
        .route_layer(from_fn_with_state(metrics, count_calls))
        .fallback(unknown)
        .method_not_allowed_fallback(not_allowed)
        .with_state(engine)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(request_id))
}

async fn healthz(State(engine): State<Engine>) -> impl IntoResponse {
    let capabilities = engine.capabilities();
    Json(Health {
        status: "ok".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        isolation: capabilities.isolation.to_owned(),
        journal_protected: capabilities.journal_protected,
        capabilities: BTreeMap::from([
            ("runtime".to_owned(), capabilities.runtime.into()),
            ("pause".to_owned(), true.into()),
            ("freeze".to_owned(), true.into()),
            ("fork".to_owned(), true.into()),
            ("snapshots".to_owned(), true.into()),
            ("disk_limit".to_owned(), capabilities.disk_limit.into()),
            ("off".to_owned(), capabilities.off.into()),
        ]),
    })
}

async fn readyz(State(engine): State<Engine>) -> axum::response::Response {
    match engine.check().await {
        Ok(()) if engine.is_disk_full() => {
            Json(serde_json::json!({ "status": "ready", "disk_full": true })).into_response()
        }
        Ok(()) => Json(serde_json::json!({ "status": "ready" })).into_response(),
        Err(error) => {
            tracing::error!(%error, "the store failed");
            Failure(
                ApiError::new(ErrorCode::Unavailable, "the server's store failed")
                    .with_retry_after(1),
            )
            .into_response()
        }
    }
}

async fn metadata() -> impl IntoResponse {
    ok(Metadata {
        gateway_mode: "direct".to_owned(),
        service: "outlive".to_owned(),
    })
}

async fn unknown() -> Failure {
    ApiError::new(ErrorCode::NotFound, "no such address").into()
}

async fn not_allowed() -> Failure {
    ApiError::new(
        ErrorCode::MethodNotAllowed,
        "the address does not take this method",
    )
    .into()
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the layer gives the reason away"
)]
fn panicked(reason: Box<dyn Any + Send + 'static>) -> Response<Body> {
    let text = reason
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| reason.downcast_ref::<&str>().copied())
        .unwrap_or("no text");
    tracing::error!(panic = text, "a handler panicked");
    Failure(ApiError::new(
        ErrorCode::InternalError,
        "the server has a fault",
    ))
    .into_response()
}
