//! Events as JSON: the typed shape that clients decode, and what each field says.
//!
//! [`Event`] is the reference; [`crate::encode`] writes the same bytes by hand, faster. Both take
//! their texts from the functions here, and a property test holds them together.

use std::borrow::Cow;

use outlive_core::{
    event::{AttemptEnd, Body, ExitStatus, Oom, Stream},
    id::{AttemptId, Generation, SessionId},
    spec::DesiredState,
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{signal, time};

/// One record of a session's journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number: rises, never repeats.
    pub seq: u64,
    /// The session.
    pub session_id: String,
    /// The runtime it was recorded in.
    pub runtime_generation: u64,
    /// The newest attempt when it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_id: Option<String>,
    /// What happened: `output`, `attempt.exited`, `session.created`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Where output came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamName>,
    /// Output bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// Of `attempt.exited`: the code, -1 after a death by signal, left out when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of `input.accepted`: the caller's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_id: Option<String>,
    /// Of `input.accepted`: how many bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u32>,
    /// Of `input.accepted`: whether the input ends after them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eof: Option<bool>,
    /// Of `input.accepted`, as a warning: a line is longer than the 4095 bytes that a terminal in
    /// canonical mode takes, and the terminal drops the rest of it. Left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_line: Option<bool>,
    /// Of `terminal.resized`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u16>,
    /// Of `terminal.resized`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cols: Option<u16>,
    /// Of `signal.sent`, and of `attempt.exited` after a death by signal: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Of `attempt.exited` after a death by signal: a core was dumped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<bool>,
    /// Of `attempt.exited`: whether memory ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom: Option<OomAnswer>,
    /// Of `attempt.exited`: true when nobody can tell how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_unknown: Option<bool>,
    /// Of `attempt.exited` after a failed start: what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was recorded.
    #[schema(format = DateTime)]
    pub occurred_at: String,
}

/// Where output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StreamName {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The terminal.
    Pty,
}

impl StreamName {
    /// The text on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Pty => "pty",
        }
    }
}

impl From<Stream> for StreamName {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Stdout => Self::Stdout,
            Stream::Stderr => Self::Stderr,
            Stream::Pty => Self::Pty,
        }
    }
}

impl From<StreamName> for Stream {
    fn from(stream: StreamName) -> Self {
        match stream {
            StreamName::Stdout => Self::Stdout,
            StreamName::Stderr => Self::Stderr,
            StreamName::Pty => Self::Pty,
        }
    }
}

/// Whether memory ran out: true, false, or the text `unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum OomAnswer {
    /// It is known.
    Known(bool),
    /// There is no memory cgroup to tell.
    Unknown(UnknownText),
}

/// The text `unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownText {
    /// The only value.
    Unknown,
}

impl From<Oom> for OomAnswer {
    fn from(oom: Oom) -> Self {
        match oom {
            Oom::No => Self::Known(false),
            Oom::Yes => Self::Known(true),
            Oom::Unknown => Self::Unknown(UnknownText::Unknown),
        }
    }
}

/// The window of events that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cursor {
    /// First retained; `latest + 1` when none is.
    pub earliest: u64,
    /// Last recorded.
    pub latest: u64,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The window now.
    pub cursor: Cursor,
    /// Ascending by seq.
    pub events: Vec<Event>,
}

/// What one event says, borrowed from where it lies.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// The process wrote these bytes.
    Output {
        /// Where.
        stream: Stream,
        /// What.
        data: &'a [u8],
    },
    /// Anything else; never [`Body::Output`].
    Body(&'a Body),
    /// Events that are lost: the event's own number is the last of them.
    Gap {
        /// The first lost number.
        first: u64,
    },
}

/// One event, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct EventRef<'a> {
    /// Its number.
    pub seq: u64,
    /// When it was recorded.
    pub at: Timestamp,
    /// The runtime it was recorded in.
    pub generation: Generation,
    /// The newest attempt's number; 0 before the first.
    pub attempt: u32,
    /// What it says.
    pub content: Content<'a>,
}

impl Content<'_> {
    /// The `type` of the event.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Output { .. } => "output",
            Self::Gap { .. } => "journal.gap",
            Self::Body(body) => kind(body),
        }
    }
}

/// The `type` of an event.
pub const fn kind(body: &Body) -> &'static str {
    match body {
        Body::SessionCreated(_) => "session.created",
        Body::SessionUpdated(_) => "session.updated",
        Body::DesiredState(_) => "session.desired_state",
        Body::AttemptStarting(_) => "attempt.starting",
        Body::AttemptStarted { .. } => "attempt.started",
        Body::SessionReady => "session.ready",
        Body::Output { .. } => "output",
        Body::InputAccepted { .. } => "input.accepted",
        Body::SignalSent { .. } | Body::StopEscalated => "signal.sent",
        Body::TerminalResized { .. } => "terminal.resized",
        Body::AttemptStopping(_) => "attempt.stopping",
        Body::AttemptExited(_) => "attempt.exited",
        Body::Backoff { .. } => "session.backoff",
        Body::SessionFailed(_) => "session.failed",
        Body::SessionExpired(_) => "session.expired",
        Body::SessionStopped => "session.stopped",
        Body::SessionPaused => "session.paused",
        Body::SessionResumed => "session.resumed",
        Body::SessionDeleted => "session.deleted",
    }
}

/// Every `type` that an event can have.
pub const KINDS: [&str; 20] = [
    "session.created",
    "session.updated",
    "session.desired_state",
    "attempt.starting",
    "attempt.started",
    "session.ready",
    "output",
    "input.accepted",
    "signal.sent",
    "terminal.resized",
    "attempt.stopping",
    "attempt.exited",
    "session.backoff",
    "session.failed",
    "session.expired",
    "session.stopped",
    "session.paused",
    "session.resumed",
    "session.deleted",
    "journal.gap",
];

/// The signal that an escalated stop sends.
pub(crate) const SIGKILL: u8 = 9;

/// The `reason` of an event, if it has one.
pub fn reason(body: &Body) -> Option<Cow<'static, str>> {
    Some(match body {
        Body::DesiredState(DesiredState::Running) => "running".into(),
        Body::DesiredState(DesiredState::Stopped) => "stopped".into(),
        Body::AttemptStarting(reason) => reason.as_str().into(),
        Body::SignalSent { signal } => signal::name(*signal),
        Body::AttemptStopping(reason) => reason.as_str().into(),
        Body::AttemptExited(end) => end.reason().into(),
        Body::Backoff { delay_ms } => time::go_duration(*delay_ms).into(),
        Body::SessionFailed(reason) => reason.as_str().into(),
        Body::SessionExpired(expiry) => expiry.as_str().into(),
        Body::SessionStopped => "runtime_recovery_policy".into(),
        Body::StopEscalated => signal::name(SIGKILL),
        Body::SessionCreated(_)
        | Body::SessionUpdated(_)
        | Body::AttemptStarted { .. }
        | Body::SessionReady
        | Body::Output { .. }
        | Body::InputAccepted { .. }
        | Body::TerminalResized { .. }
        | Body::SessionPaused
        | Body::SessionResumed
        | Body::SessionDeleted => return None,
    })
}

/// The facts of an attempt's end, as events and sessions show them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EndFacts {
    /// The code, -1 after a death by signal; none when there is none or nobody knows.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<Cow<'static, str>>,
    /// A core was dumped.
    pub core: Option<bool>,
    /// Whether memory ran out.
    pub oom: Option<OomAnswer>,
    /// Nobody can tell how it ended.
    pub exit_unknown: Option<bool>,
    /// Why the start failed.
    pub message: Option<String>,
}

impl From<&AttemptEnd> for EndFacts {
    fn from(end: &AttemptEnd) -> Self {
        let mut facts = Self::default();
        match end {
            AttemptEnd::Exited { status, oom, .. } => {
                facts.oom = Some((*oom).into());
                match status {
                    ExitStatus::Code(code) => facts.exit_code = Some((*code).into()),
                    ExitStatus::Signal { signal, core } => {
                        facts.exit_code = Some(-1);
                        facts.signal = Some(signal::name(*signal));
                        facts.core = Some(*core);
                    }
                    ExitStatus::Unknown => facts.exit_unknown = Some(true),
                }
            }
            AttemptEnd::StartFailed { message } => facts.message = Some(message.clone()),
            AttemptEnd::RuntimeReplaced => {}
        }
        facts
    }
}

impl Event {
    /// The typed form of an event.
    pub fn new(session: &SessionId, event: &EventRef<'_>) -> Self {
        let mut out = Self {
            seq: event.seq,
            session_id: session.to_string(),
            runtime_generation: event.generation.0,
            attempt_id: (event.attempt != 0)
                .then(|| AttemptId::derive(session, event.attempt).to_string()),
            kind: event.content.kind().into(),
            stream: None,
            data_base64: None,
            exit_code: None,
            reason: None,
            input_id: None,
            bytes: None,
            eof: None,
            truncated_line: None,
            rows: None,
            cols: None,
            signal: None,
            core: None,
            oom: None,
            exit_unknown: None,
            message: None,
            occurred_at: time::text(event.at),
        };
        match event.content {
            Content::Output { stream, data } => {
                out.stream = Some(stream.into());
                out.data_base64 = Some(base64_simd::STANDARD.encode_to_string(data));
            }
            Content::Gap { first } => out.reason = Some(format!("lost {first}-{}", event.seq)),
            Content::Body(body) => out.fill(body),
        }
        out
    }

    fn fill(&mut self, body: &Body) {
        self.reason = reason(body).map(Cow::into_owned);
        match body {
            Body::InputAccepted {
                input_id,
                bytes,
                eof,
                truncated_line,
                digest: _,
            } => {
                self.input_id = Some(input_id.clone());
                self.bytes = Some(*bytes);
                self.eof = Some(eof.is_some());
                self.truncated_line = truncated_line.then_some(true);
            }
            Body::SignalSent { signal } => self.signal = Some(signal::name(*signal).into_owned()),
            Body::StopEscalated => self.signal = Some(signal::name(SIGKILL).into_owned()),
            Body::TerminalResized { rows, cols } => {
                self.rows = Some(*rows);
                self.cols = Some(*cols);
            }
            Body::AttemptExited(end) => {
                let facts = EndFacts::from(end);
                self.exit_code = facts.exit_code;
                self.signal = facts.signal.map(Cow::into_owned);
                self.core = facts.core;
                self.oom = facts.oom;
                self.exit_unknown = facts.exit_unknown;
                self.message = facts.message;
            }
            _ => {}
        }
    }
}
