//! Figures for operators, in the text format of Prometheus.
//!
//! What happens is counted where it happens; what is (sandboxes by state, sessions by phase,
//! journals on disk) is asked for when somebody looks, and never wakes anything.

use std::{
    fmt::Write as _,
    sync::{Arc, atomic::AtomicI64},
    time::Duration,
};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
    routing::get,
};
use outlive_api::error::{ApiError, ErrorCode};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use tokio::time::{Instant, timeout};

use crate::{
    http::reply::Failure,
    sessions::{Census, Sandboxes},
};

/// How long the sandboxes may take to be counted.
const CENSUS_MAX: Duration = Duration::from_secs(5);

/// Seconds: from a read in memory to a stop that waits for its grace.
const LATENCY_BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0,
];

/// What an HTTP call is counted by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    /// The route, with names in place of ids.
    route: String,
    status: u16,
}

/// Every figure that is counted where it happens.
#[derive(Debug)]
pub struct Metrics {
    /// Streams, WebSockets and pages that are open.
    pub attachments: Gauge<i64, AtomicI64>,
    calls: Family<CallLabels, Histogram, fn() -> Histogram>,
    registry: Registry,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("outlive");
        let attachments = Gauge::default();
        registry.register(
            "attachments",
            "Streams, WebSockets and pages that are open",
            attachments.clone(),
        );
        let latency: fn() -> Histogram = || Histogram::new(LATENCY_BUCKETS);
        let calls = Family::new_with_constructor(latency);
        registry.register(
            "http_call_seconds",
            "Time from a request to the head of its answer",
            calls.clone(),
        );
        Self {
            attachments,
            calls,
            registry,
        }
    }
}

/// What `/metrics` looks at.
#[derive(Debug, Clone)]
struct Looked {
    metrics: Arc<Metrics>,
    sandboxes: Arc<dyn Sandboxes>,
}

/// `/metrics`.
pub(crate) fn router<S: Clone + Send + Sync + 'static>(
    metrics: Arc<Metrics>,
    sandboxes: Arc<dyn Sandboxes>,
) -> Router<S> {
    Router::new()
        .route("/metrics", get(show))
        .with_state(Looked { metrics, sandboxes })
}

/// Counts calls; layer it inside the router, where the route is known.
pub(crate) async fn count_calls(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let method = method_label(request.method());
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    let labels = CallLabels {
        method,
        route,
        status: response.status().as_u16(),
    };
    let seconds = began.elapsed().as_secs_f64();
    metrics.calls.get_or_create(&labels).observe(seconds);
    response
}

/// A caller may name a method as it pleases; each would be a series of its own.
fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = [
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE",
    ];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("other")
}

async fn show(State(looked): State<Looked>) -> Response {
    let census = match timeout(CENSUS_MAX, looked.sandboxes.census()).await {
        Ok(Ok(census)) => census,
        Ok(Err(error)) => {
            tracing::warn!(%error, "the sandboxes can't be counted");
            Census::default()
        }
        Err(_elapsed) => {
            tracing::warn!("the sandboxes took too long to be counted");
            Census::default()
        }
    };
    let mut text = String::new();
    let written = encode_census(&census, &mut text)
        .and_then(|()| encode(&mut text, &looked.metrics.registry));
    if written.is_err() {
        let error = ApiError::new(ErrorCode::InternalError, "figures can't be written");
        return Failure(error).into_response();
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let kind = HeaderValue::from_static(kind);
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

fn encode_census(census: &Census, out: &mut String) -> std::fmt::Result {
    gauge(out, "sandboxes", "Sandboxes by state")?;
    for (state, count) in &census.sandboxes {
        writeln!(out, "outlive_sandboxes{{state=\"{state}\"}} {count}")?;
    }
    gauge(out, "sessions", "Sessions of running sandboxes by phase")?;
    for (phase, count) in &census.sessions {
        writeln!(out, "outlive_sessions{{phase=\"{phase}\"}} {count}")?;
    }
    let health = &census.health;
    for (name, help, value) in [
        ("supervisor_attempts", "Attempts started", health.attempts),
        ("supervisor_restarts", "Restarts by policy", health.restarts),
        (
            "journal_bytes",
            "Bytes of all journals on disk",
            health.journal_bytes,
        ),
        ("journal_syncs", "Syncs of journals", health.syncs),
        (
            "journal_sync_microseconds",
            "Time spent in them",
            health.sync_us,
        ),
        (
            "journals_damaged",
            "Journals that were damaged when opened",
            health.damaged,
        ),
        (
            "supervisor_starts",
            "Supervisors that keepers started",
            health.supervisor_starts,
        ),
    ] {
        // Sums over supervisors that come and go: gauges, although most of them rise.
        gauge(out, name, help)?;
        writeln!(out, "outlive_{name} {value}")?;
    }
    Ok(())
}

fn gauge(out: &mut String, name: &str, help: &str) -> std::fmt::Result {
    writeln!(out, "# HELP outlive_{name} {help}.")?;
    writeln!(out, "# TYPE outlive_{name} gauge")
}
