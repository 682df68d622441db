//! Answers: data in the success envelope, errors in the failure envelope.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use outlive_api::error::{Action, ApiError, ErrorCode, Success};
use serde::Serialize;

use super::descriptors;
use crate::sessions::CallError;

/// Data with a status.
#[derive(Debug)]
pub struct Data<T>(pub StatusCode, pub T);

/// Data with status 200.
pub const fn ok<T>(data: T) -> Data<T> {
    Data(StatusCode::OK, data)
}

impl<T: Serialize> IntoResponse for Data<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&Success::new(self.1)) {
            Ok(body) => json_response(self.0, body),
            Err(error) => {
                let message = format!("answer can't be written: {error}");
                Failure(ApiError::new(ErrorCode::InternalError, message)).into_response()
            }
        }
    }
}

/// An error on its way out.
#[derive(Debug)]
pub struct Failure(pub ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let error = descriptors::blame(self.0);
        let status =
            StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() && error.code != ErrorCode::NotImplemented {
            tracing::warn!(code = error.code.as_str(), message = %error.message, "call failed");
        }
        // The envelope holds text and JSON values only, which always can be written.
        let body = serde_json::to_vec(&error.envelope()).unwrap_or_default();
        let mut response = json_response(status, body);
        if let Some(seconds) = error.retry_after_seconds {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(Told(error.clone()));
        if error.code == ErrorCode::Unauthorized {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What a response says went wrong, for the dialect that wraps it in its own envelope.
#[derive(Debug, Clone)]
struct Told(ApiError);

/// Puts errors into the envelope of the named and environment dialects, whoever refused.
pub(crate) async fn bare_errors(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(Told(error)) = response.extensions_mut().remove::<Told>() {
        // The envelope holds text and JSON values only, which always can be written.
        let body = serde_json::to_vec(&error.bare_envelope()).unwrap_or_default();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(body);
    }
    response
}

fn json_response(status: StatusCode, body: Vec<u8>) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// What a client sees of a failed call of a session.
pub fn session_error(action: Action, error: CallError) -> ApiError {
    let message = error.to_string();
    match error {
        CallError::NoSandbox | CallError::NoHold => ApiError::new(ErrorCode::NotFound, message),
        CallError::NoSnapshot => ApiError::new(ErrorCode::SnapshotNotFound, message),
        CallError::Conflict { reason, .. } => ApiError::new(ErrorCode::Conflict, message)
            .with_details(serde_json::json!({ "reason": reason })),
        CallError::Rejected(rejection) => rejection.into(),
        CallError::Unavailable { retry_after, .. } => {
            let seconds = u32::try_from(retry_after.as_secs())
                .unwrap_or(u32::MAX)
                .max(1);
            ApiError::new(ErrorCode::Unavailable, message).with_retry_after(seconds)
        }
        CallError::ResumeFailed { .. } => ApiError::new(ErrorCode::SandboxResumeFailed, message),
        CallError::Reserved { holder } => ApiError::new(ErrorCode::Conflict, message)
            .with_details(serde_json::json!({ "holder": holder })),
        CallError::Unsupported { .. } => ApiError::new(ErrorCode::Unsupported, message),
        CallError::DiskFull { .. } => ApiError::new(ErrorCode::DiskFull, message),
        CallError::QuotaExceeded { .. } => ApiError::new(ErrorCode::QuotaExceeded, message),
        CallError::Failed { .. } => ApiError::new(action.failed(), message),
    }
}
