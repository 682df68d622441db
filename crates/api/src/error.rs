//! The error table: every code a client can see, its status, and the envelope around it.

use std::borrow::Cow;

use outlive_core::{session::Rejection, spec::SpecError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// What the caller was doing: names the `<action>_failed` codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `POST /sessions`.
    CreateSession,
    /// `GET /sessions` and `GET /sessions/{sid}`.
    GetSession,
    /// `PUT /sessions/{sid}`.
    UpdateSession,
    /// `DELETE /sessions/{sid}`.
    DeleteSession,
    /// `PUT …/desired-state`.
    SetSessionDesiredState,
    /// `POST …/attempts`.
    CreateSessionAttempt,
    /// `POST …/inputs`.
    WriteSessionInput,
    /// `POST …/signals`.
    SignalSession,
    /// `PUT …/terminal`.
    ResizeSessionTerminal,
    /// `GET …/events`.
    ListSessionEvents,
    /// `GET …/events/stream`.
    StreamSessionEvents,
    /// `GET …/ws`.
    AttachSession,
    /// `POST /contexts`.
    CreateContext,
    /// `GET /contexts` and `GET /contexts/{cid}`.
    GetContext,
    /// `DELETE /contexts/{cid}`.
    DeleteContext,
    /// `POST …/restart`.
    RestartContext,
    /// `POST …/input`.
    WriteContext,
    /// `POST …/exec`.
    ExecContext,
    /// `POST …/resize`.
    ResizeContext,
    /// `POST …/signal`.
    SignalContext,
    /// `GET /contexts/{cid}/ws`.
    AttachContext,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)*) => {
        /// Every error code, as clients match on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The text on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The HTTP status it comes with, unless an error says otherwise.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }
        }
    };
}

codes! {
    /// A sandbox call makes no sense.
    BadRequest = "bad_request", 400;
    /// A session call makes no sense, or is too large (413).
    InvalidRequest = "invalid_request", 400;
    /// No key, or a wrong one.
    Unauthorized = "unauthorized", 401;
    /// The key's role is too small.
    Forbidden = "forbidden", 403;
    /// The tenant may not do this now.
    AdmissionRestricted = "admission_restricted", 403;
    /// No such sandbox, template or address.
    NotFound = "not_found", 404;
    /// No such sandbox, in the named dialect.
    SandboxNotFound = "sandbox_not_found", 404;
    /// No such snapshot.
    SnapshotNotFound = "snapshot_not_found", 404;
    /// No such session in this sandbox.
    SessionNotFound = "session_not_found", 404;
    /// No such context in this sandbox.
    ContextNotFound = "context_not_found", 404;
    /// The address exists, the method doesn't.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The chunk goes on, and the call does not wait for it any longer.
    ExecTimeout = "exec_timeout", 408;
    /// The context's process does not run now.
    ProcessNotRunning = "process_not_running", 409;
    /// The context has no terminal.
    PtyUnavailable = "pty_unavailable", 409;
    /// The sandbox is in another state, or reserved.
    Conflict = "conflict", 409;
    /// The sandbox is released and calls may not wake it, in the named dialect.
    SandboxSuspended = "sandbox_suspended", 409;
    /// The template is being made.
    TemplateNotReady = "template_not_ready", 409;
    /// The session is in another state, or the attempt is another.
    SessionConflict = "session_conflict", 409;
    /// The context's process ended.
    ProcessFinished = "process_finished", 410;
    /// Events after this cursor are no longer kept.
    EventCursorExpired = "event_cursor_expired", 410;
    /// This host can't give what was asked for.
    Unsupported = "unsupported", 422;
    /// The tenant has as much as it may have.
    QuotaExceeded = "quota_exceeded", 429;
    /// Too many sandboxes start at once.
    ClaimStartThrottled = "claim_start_throttled", 429;
    /// The attempt's input queue is full.
    InputBufferFull = "input_buffer_full", 429;
    /// Our own fault or the machine's.
    InternalError = "internal_error", 500;
    /// The event stream can't be opened.
    StreamUnavailable = "stream_unavailable", 500;
    /// Creating a session failed.
    CreateSessionFailed = "create_session_failed", 500;
    /// Reading a session failed.
    GetSessionFailed = "get_session_failed", 500;
    /// Updating a session failed.
    UpdateSessionFailed = "update_session_failed", 500;
    /// Deleting a session failed.
    DeleteSessionFailed = "delete_session_failed", 500;
    /// Starting or stopping a session failed.
    SetSessionDesiredStateFailed = "set_session_desired_state_failed", 500;
    /// Starting an attempt failed.
    CreateSessionAttemptFailed = "create_session_attempt_failed", 500;
    /// Writing input failed.
    WriteSessionInputFailed = "write_session_input_failed", 500;
    /// Sending a signal failed.
    SignalSessionFailed = "signal_session_failed", 500;
    /// Resizing a terminal failed.
    ResizeSessionTerminalFailed = "resize_session_terminal_failed", 500;
    /// Reading events failed.
    ListSessionEventsFailed = "list_session_events_failed", 500;
    /// Streaming events failed.
    StreamSessionEventsFailed = "stream_session_events_failed", 500;
    /// Attaching failed.
    AttachSessionFailed = "attach_session_failed", 500;
    /// Creating a context failed.
    CreateFailed = "create_failed", 500;
    /// Reading a context failed.
    GetFailed = "get_failed", 500;
    /// Deleting a context failed.
    DeleteFailed = "delete_failed", 500;
    /// Restarting a context failed.
    RestartFailed = "restart_failed", 500;
    /// Writing to a context failed.
    WriteFailed = "write_failed", 500;
    /// Carrying out a chunk failed.
    ExecFailed = "exec_failed", 500;
    /// Resizing a context's terminal failed.
    ResizeFailed = "resize_failed", 500;
    /// Signalling a context failed.
    SignalFailed = "signal_failed", 500;
    /// Attaching to a context failed.
    AttachFailed = "attach_failed", 500;
    /// Not built yet.
    NotImplemented = "not_implemented", 501;
    /// The sandbox can't take calls now.
    Unavailable = "unavailable", 503;
    /// The sandbox could not be woken.
    SandboxResumeFailed = "sandbox_resume_failed", 503;
    /// The sandbox could not be started, in the named dialect.
    SandboxFailed = "sandbox_failed", 503;
    /// The sandbox stands still because its disk is full, or the server's disk has no room.
    DiskFull = "disk_full", 507;
}

impl Action {
    /// The code for a failure of ours during this action.
    pub const fn failed(self) -> ErrorCode {
        match self {
            Self::CreateSession => ErrorCode::CreateSessionFailed,
            Self::GetSession => ErrorCode::GetSessionFailed,
            Self::UpdateSession => ErrorCode::UpdateSessionFailed,
            Self::DeleteSession => ErrorCode::DeleteSessionFailed,
            Self::SetSessionDesiredState => ErrorCode::SetSessionDesiredStateFailed,
            Self::CreateSessionAttempt => ErrorCode::CreateSessionAttemptFailed,
            Self::WriteSessionInput => ErrorCode::WriteSessionInputFailed,
            Self::SignalSession => ErrorCode::SignalSessionFailed,
            Self::ResizeSessionTerminal => ErrorCode::ResizeSessionTerminalFailed,
            Self::ListSessionEvents => ErrorCode::ListSessionEventsFailed,
            Self::StreamSessionEvents => ErrorCode::StreamSessionEventsFailed,
            Self::AttachSession => ErrorCode::AttachSessionFailed,
            Self::CreateContext => ErrorCode::CreateFailed,
            Self::GetContext => ErrorCode::GetFailed,
            Self::DeleteContext => ErrorCode::DeleteFailed,
            Self::RestartContext => ErrorCode::RestartFailed,
            Self::WriteContext => ErrorCode::WriteFailed,
            Self::ExecContext => ErrorCode::ExecFailed,
            Self::ResizeContext => ErrorCode::ResizeFailed,
            Self::SignalContext => ErrorCode::SignalFailed,
            Self::AttachContext => ErrorCode::AttachFailed,
        }
    }
}

/// An error on its way to a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct ApiError {
    /// The HTTP status.
    pub status: u16,
    /// The code.
    pub code: ErrorCode,
    /// In words.
    pub message: Cow<'static, str>,
    /// Facts for programs.
    pub details: Option<Value>,
    /// `Retry-After`, whole seconds.
    pub retry_after_seconds: Option<u32>,
}

impl ApiError {
    /// An error with the code's own status.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status: code.status(),
            code,
            message: message.into(),
            details: None,
            retry_after_seconds: None,
        }
    }

    /// A call that makes no sense, unless it is about a session.
    pub fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::BadRequest, message)
    }

    /// Something that clients know and this server does not have yet.
    pub fn not_implemented(what: &str) -> Self {
        let message = format!("{what} can't be used yet");
        Self::new(ErrorCode::NotImplemented, message)
    }

    /// A session call that makes no sense.
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    /// A session call that is too large.
    pub fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status: 413,
            ..Self::new(ErrorCode::InvalidRequest, message)
        }
    }

    /// The cursor is older than what is kept. The wording is the vendor's: clients parse it.
    pub fn cursor_expired(earliest: u64) -> Self {
        Self::new(
            ErrorCode::EventCursorExpired,
            format!("event cursor expired; earliest available sequence is {earliest}"),
        )
        .with_details(json!({ "earliest": earliest }))
    }

    /// The cursor is beyond the last event.
    pub fn cursor_ahead(latest: u64) -> Self {
        Self::invalid(format!(
            "event cursor is beyond the latest sequence {latest}"
        ))
        .with_details(json!({ "reason": "cursor_ahead", "latest": latest }))
    }

    /// With facts for programs.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    /// With a `Retry-After` header.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// The body in the named and environment dialects.
    pub fn bare_envelope(&self) -> BareErrorEnvelope {
        BareErrorEnvelope {
            error: self.envelope().error,
        }
    }

    /// The body.
    pub fn envelope(&self) -> ErrorEnvelope {
        ErrorEnvelope {
            success: False,
            error: ErrorBody {
                code: self.code.as_str().into(),
                message: self.message.clone().into_owned(),
                details: self.details.clone(),
            },
        }
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let message = rejection.to_string();
        match rejection {
            Rejection::AttemptMismatch { expected, current } => {
                let current = current.map(|id| id.to_string());
                Self::new(ErrorCode::SessionConflict, message).with_details(json!({
                    "reason": "attempt_mismatch",
                    "expected": expected.to_string(),
                    "current": current,
                }))
            }
            Rejection::NotRunning { phase } => {
                let phase = crate::session::Phase::from(phase);
                Self::new(ErrorCode::SessionConflict, message)
                    .with_details(json!({ "reason": "not_running", "phase": phase }))
            }
            Rejection::AlreadyRunning => conflict(message, "already_running"),
            Rejection::InputClosed => conflict(message, "input_closed"),
            Rejection::NoTerminal => conflict(message, "no_terminal"),
            Rejection::LifetimePassed => conflict(message, "lifetime_passed"),
            Rejection::Deleting => conflict(message, "deleting"),
            Rejection::InputConflict => conflict(message, "input_conflict"),
            Rejection::RawTerminal => conflict(message, "raw_terminal"),
            Rejection::IdempotencyConflict => conflict(message, "idempotency_conflict"),
            Rejection::NameImmutable => conflict(message, "name_immutable"),
            Rejection::InputBufferFull => {
                Self::new(ErrorCode::InputBufferFull, message).with_retry_after(1)
            }
            Rejection::NotFound => Self::new(ErrorCode::SessionNotFound, message),
            Rejection::TooManySessions { limit } => {
                Self::new(ErrorCode::QuotaExceeded, message).with_details(json!({ "limit": limit }))
            }
            Rejection::Releasing | Rejection::Frozen => {
                Self::new(ErrorCode::Unavailable, message).with_retry_after(1)
            }
        }
    }
}

impl From<SpecError> for ApiError {
    fn from(error: SpecError) -> Self {
        let message = error.to_string();
        Self::invalid(message).with_details(json!({ "field": error.field }))
    }
}

fn conflict(message: String, reason: &'static str) -> ApiError {
    ApiError::new(ErrorCode::SessionConflict, message).with_details(json!({ "reason": reason }))
}

/// The constant `true` of a success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct True;

/// The constant `false` of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct False;

macro_rules! constant_bool {
    ($name:ident, $value:literal) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bool($value)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if bool::deserialize(deserializer)? == $value {
                    Ok(Self)
                } else {
                    Err(serde::de::Error::custom(concat!("success is not ", $value)))
                }
            }
        }
    };
}

constant_bool!(True, true);
constant_bool!(False, false);

/// The envelope of a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Success<T> {
    /// Always true.
    #[schema(value_type = bool)]
    pub success: True,
    /// What was asked for.
    pub data: T,
}

impl<T> Success<T> {
    /// Puts data into the envelope.
    pub const fn new(data: T) -> Self {
        Self {
            success: True,
            data,
        }
    }
}

/// The envelope of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorEnvelope {
    /// Always false.
    #[schema(value_type = bool)]
    pub success: False,
    /// What went wrong.
    pub error: ErrorBody,
}

/// The envelope of a failure in the named and environment dialects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BareErrorEnvelope {
    /// What went wrong.
    pub error: ErrorBody,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// Facts for programs, by code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub details: Option<Value>,
}
