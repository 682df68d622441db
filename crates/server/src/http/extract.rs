//! What a request carries, or the envelope that says what is wrong with it.

use std::ops::Deref;

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Request},
    http::{HeaderMap, header, request::Parts},
};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use outlive_api::{
    error::{ApiError, ErrorCode},
    limits::BODY_BYTES_MAX,
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::reply::Failure;
use crate::limits::{BODY_BYTES_DISCARDED_MAX, BODY_STALL_MAX};

/// A JSON body of a session call.
#[derive(Debug)]
pub struct SessionBody<T>(pub T);

/// A JSON body of a session call that may be empty.
#[derive(Debug)]
pub struct OptionalSessionBody<T>(pub T);

/// A JSON body of a sandbox call. Its errors are `bad_request`, but for one that is too large.
#[derive(Debug)]
pub struct GatewayBody<T>(pub T);

/// A JSON body of a sandbox call that may be empty.
#[derive(Debug)]
pub struct OptionalGatewayBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for SessionBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        required(request, ErrorCode::InvalidRequest).await.map(Self)
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for GatewayBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        required(request, ErrorCode::BadRequest).await.map(Self)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalSessionBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        optional(request, ErrorCode::InvalidRequest).await.map(Self)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalGatewayBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Failure> {
        optional(request, ErrorCode::BadRequest).await.map(Self)
    }
}

async fn required<T: DeserializeOwned>(request: Request, code: ErrorCode) -> Result<T, Failure> {
    let body = read(request, code).await?;
    if body.is_empty() {
        return Err(ApiError::new(code, "request body is required").into());
    }
    parse(&body, code)
}

async fn optional<T: DeserializeOwned + Default>(
    request: Request,
    code: ErrorCode,
) -> Result<T, Failure> {
    let body = read(request, code).await?;
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    parse(&body, code)
}

/// A body that is too large is read on for a while and thrown away: a client that is still
/// sending when the connection closes never sees the answer.
async fn read(request: Request, code: ErrorCode) -> Result<Bytes, Failure> {
    let announced = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut too_large_already = announced.is_some_and(|bytes| bytes > BODY_BYTES_MAX);
    let mut body = request.into_body();
    let (mut out, mut discarded) = (BytesMut::new(), 0);
    loop {
        let next = timeout(BODY_STALL_MAX, body.frame()).await;
        let Some(frame) = next.map_err(|_elapsed| stalled(code))? else {
            break;
        };
        let frame = frame.map_err(|_| ApiError::new(code, "request body can't be read"))?;
        let Ok(data) = frame.into_data() else {
            continue; // Trailers say nothing to us.
        };
        too_large_already |= out.len() + data.len() > BODY_BYTES_MAX;
        if too_large_already {
            out = BytesMut::new();
            discarded += data.len();
            if discarded > BODY_BYTES_DISCARDED_MAX {
                break;
            }
        } else {
            out.extend_from_slice(&data);
        }
    }
    if too_large_already {
        return Err(too_large());
    }
    Ok(out.freeze())
}

fn stalled(code: ErrorCode) -> Failure {
    Failure(ApiError {
        status: 408,
        ..ApiError::new(code, "the request body stopped coming")
    })
}

/// The same for every call, whatever its other errors are called.
fn too_large() -> Failure {
    let message = format!("request body is larger than {BODY_BYTES_MAX} bytes");
    Failure(ApiError {
        status: 413,
        ..ApiError::invalid(message)
    })
}

fn parse<T: DeserializeOwned>(body: &[u8], code: ErrorCode) -> Result<T, Failure> {
    // Our shapes would also be read from arrays, field by field; no client means that.
    if body
        .trim_ascii_start()
        .first()
        .is_some_and(|byte| *byte == b'[')
    {
        return Err(ApiError::new(code, "invalid request body: not an object").into());
    }
    serde_json::from_slice(body)
        .map_err(|error| ApiError::new(code, format!("invalid request body: {error}")).into())
}

/// The query of a request as pairs, in order. An unreadable query is `invalid_request`.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// From pairs.
    pub const fn new(pairs: Vec<(String, String)>) -> Self {
        Self(pairs)
    }

    /// The first value of `name` that is not empty: an empty value counts as not given.
    pub fn get<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// All values of `name` that are not empty.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// A whole number of at least `min` and at most `max`.
    pub fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        self.get(name)
            .map(|text| number(name, text, min, max))
            .transpose()
    }
}

/// A whole number of at least `min` and at most `max`, else `invalid_request`.
pub fn number(name: &str, text: &str, min: u64, max: u64) -> Result<u64, ApiError> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|value| digits && (min..=max).contains(value))
        .ok_or_else(|| {
            let bound = if max == u64::MAX {
                format!("of at least {min}")
            } else {
                format!("from {min} to {max}")
            };
            ApiError::invalid(format!("{name} must be an integer {bound}"))
        })
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map(|pairs| Self(pairs.0))
            .map_err(|_| ApiError::invalid("query can't be read").into())
    }
}

/// The `id` of an address; what can't be read as text names nothing.
#[derive(Debug)]
pub struct PathId(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        axum::extract::Path::<String>::from_request_parts(parts, state)
            .await
            .map(|id| Self(id.0))
            .map_err(|_| ApiError::new(ErrorCode::NotFound, "no such address").into())
    }
}

/// The two ids of an address, outer first; what can't be read as text names nothing.
#[derive(Debug)]
pub struct PathIds(pub String, pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathIds {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        axum::extract::Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map(|ids| Self(ids.0.0, ids.0.1))
            .map_err(|_| ApiError::new(ErrorCode::NotFound, "no such address").into())
    }
}

/// The header's value as trimmed text; `None` when it is absent or empty.
pub fn header_text(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| ApiError::invalid(format!("{name} is not text")))?
        .trim();
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

impl<T> Deref for SessionBody<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
