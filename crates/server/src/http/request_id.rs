//! `X-Request-Id`: the caller's own if it is sane, else a new one; on every answer.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use tracing::Instrument as _;

/// The header.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

const REQUEST_ID_BYTES_MAX: usize = 128;

/// Layer this around all routes: `axum::middleware::from_fn(request_id)`.
pub async fn request_id(mut request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(REQUEST_ID)
        .filter(|value| is_sane(value))
        .cloned()
        .unwrap_or_else(new_id);
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
    );
    let mut response = next.run(request).instrument(span).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn is_sane(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.:/".contains(b))
}

fn new_id() -> HeaderValue {
    HeaderValue::try_from(uuid::Uuid::now_v7().to_string())
        .unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}
