//! Figures for operators, in Prometheus' text format.
//!
//! What happens is counted where it happens; what is (sessions by phase, journals on disk) is
//! asked for when somebody looks.

use std::sync::atomic::AtomicI64;

use prometheus_client::metrics::gauge::Gauge;

/// Every figure of the server.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Streams, WebSockets and pages that are open.
    pub attachments: Gauge<i64, AtomicI64>,
}
