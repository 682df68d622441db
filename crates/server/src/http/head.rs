//! Bounds of what a request says before its body. The library that reads requests has bounds of its
//! own, whose answers have neither words nor a number; ours are met first wherever it lets us.

use axum::{
    extract::Request,
    http::{HeaderMap, Uri},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use outlive_api::error::ApiError;

use super::{reply::Failure, request_id::REQUEST_ID};
use crate::limits::{ADDRESS_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX};

/// Layer this around everything but request ids and what puts errors into an envelope.
pub(crate) async fn bounded_head(request: Request, next: Next) -> Response {
    match check(request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => Failure(error).into_response(),
    }
}

fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let address = uri.path_and_query().map_or("", |address| address.as_str());
    if address.len() > ADDRESS_BYTES_MAX {
        let message = format!("the address is longer than {ADDRESS_BYTES_MAX} bytes");
        return Err(ApiError {
            status: 414,
            ..ApiError::bad_request(message)
        });
    }
    // The request's number may be ours.
    let given = headers.iter().filter(|(name, _)| *name != REQUEST_ID);
    let (count, bytes) = given.fold((0, 0), |(count, bytes), (name, value)| {
        (count + 1, bytes + name.as_str().len() + value.len())
    });
    if count > HEADERS_MAX || bytes > HEADERS_BYTES_MAX {
        let message =
            format!("more than {HEADERS_MAX} headers, or {HEADERS_BYTES_MAX} bytes of them");
        return Err(ApiError {
            status: 431,
            ..ApiError::bad_request(message)
        });
    }
    Ok(())
}
