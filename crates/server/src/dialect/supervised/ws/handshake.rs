//! The opening of a WebSocket: what the client must send, and our answer.

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::Response,
};
use outlive_api::error::{ApiError, ErrorCode};
use sha1::{Digest as _, Sha1};

/// The constant of RFC 6455.
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Checks the request and gives the value of `Sec-WebSocket-Accept`.
pub(in super::super) fn check(
    method: &Method,
    headers: &HeaderMap,
) -> Result<HeaderValue, ApiError> {
    let upgrade = *method == Method::GET
        && has_token(headers, header::CONNECTION, "upgrade")
        && has_token(headers, header::UPGRADE, "websocket");
    if !upgrade {
        return Err(ApiError::invalid("this address speaks WebSocket only"));
    }
    if headers
        .get(header::SEC_WEBSOCKET_VERSION)
        .map(HeaderValue::as_bytes)
        != Some(b"13")
    {
        return Err(ApiError::invalid("Sec-WebSocket-Version must be 13"));
    }
    let key = headers
        .get(header::SEC_WEBSOCKET_KEY)
        .ok_or_else(|| ApiError::invalid("Sec-WebSocket-Key is required"))?;
    check_origin(headers)?;
    let digest = Sha1::new()
        .chain_update(key.as_bytes())
        .chain_update(ACCEPT_GUID)
        .finalize();
    HeaderValue::try_from(base64_simd::STANDARD.encode_to_string(digest))
        .map_err(|_| ApiError::invalid("Sec-WebSocket-Key can't be answered"))
}

/// A browser names the page's origin; only our own may attach. Other programs name none.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let same = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.split_once("://"))
        .is_some_and(|(_, authority)| Some(authority) == host);
    if same {
        Ok(())
    } else {
        Err(ApiError::new(
            ErrorCode::Forbidden,
            "WebSockets from another origin are not allowed",
        ))
    }
}

/// The answer that switches protocols.
pub(in super::super) fn answer(accept: HeaderValue) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    response
}

fn has_token(headers: &HeaderMap, name: header::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|part| part.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let base = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("host", "outlive.test:7070"),
        ];
        let mut out = HeaderMap::new();
        for (name, value) in base.iter().chain(pairs) {
            out.insert(*name, HeaderValue::from_static(value));
        }
        out
    }

    #[test]
    fn the_sample_of_the_rfc_is_accepted() {
        let accept = check(&Method::GET, &headers(&[])).unwrap();
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn only_our_own_pages_may_attach() {
        let own = headers(&[("origin", "https://outlive.test:7070")]);
        check(&Method::GET, &own).unwrap();
        for origin in ["https://evil.test", "null", "http://outlive.test"] {
            let error = check(&Method::GET, &headers(&[("origin", origin)])).unwrap_err();
            assert_eq!(error.status, 403, "{origin}");
        }
    }

    #[test]
    fn anything_else_is_an_invalid_request() {
        check(&Method::POST, &headers(&[])).unwrap_err();
        for pair in [
            ("upgrade", "h2c"),
            ("connection", "close"),
            ("sec-websocket-version", "8"),
        ] {
            let error = check(&Method::GET, &headers(&[pair])).unwrap_err();
            assert_eq!(error.status, 400, "{pair:?}");
        }
    }
}
