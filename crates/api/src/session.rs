//! Sessions and attempts as JSON, and the requests about them.

use std::borrow::Cow;

use outlive_core::{
    id::{AttemptId, SessionId},
    session as core,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    agent::SessionView,
    event::{Cursor, EndFacts, OomAnswer},
    spec::{DesiredState, SessionSpec, wire_enum},
    time,
};

wire_enum! {
    /// What the supervisor observes of a session.
    Phase = core::Phase {
        /// Created; nothing was started.
        Pending = "pending" => Pending,
        /// An attempt is being started or is not ready yet.
        Starting = "starting" => Starting,
        /// The attempt is ready.
        Running = "running" => Running,
        /// A restart is scheduled.
        Backoff = "backoff" => Backoff,
        /// The attempt is being ended.
        Stopping = "stopping" => Stopping,
        /// No attempt runs, by request.
        Stopped = "stopped" => Stopped,
        /// The attempt ended and is not restarted.
        Exited = "exited" => Exited,
        /// Start, readiness or the restart limit failed.
        Failed = "failed" => Failed,
        /// The processes stand still.
        Paused = "paused" => Paused,
        /// The attempt ended with its runtime.
        Suspended = "suspended" => Suspended,
    }
}

/// One supervised session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its id, for good.
    pub id: String,
    /// The normalised specification.
    pub spec: SessionSpec,
    /// Rises with every change of it.
    pub spec_version: u64,
    /// What the supervisor observes.
    pub phase: Phase,
    /// The runtime it belongs to now.
    pub runtime_generation: u64,
    /// The newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    /// Restarts by policy since it was created.
    pub restart_count: u64,
    /// The window of its journal.
    pub cursor: Cursor,
    /// When it was created.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(format = DateTime)]
    pub updated_at: String,
    /// Last output, accepted input, signal, resize, start or exit.
    #[schema(format = DateTime)]
    pub last_activity_at: String,
}

/// One process execution of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attempt {
    /// Its id.
    pub id: String,
    /// 1 for the first.
    pub number: u32,
    /// The runtime it runs or ran in.
    pub runtime_generation: u64,
    /// Process id inside the sandbox; gone after the exit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// When its process ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub started_at: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub finished_at: Option<String>,
    /// The code, -1 after a death by signal; left out when there is none or nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// A core was dumped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<bool>,
    /// Whether memory ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom: Option<OomAnswer>,
    /// True when nobody can tell how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_unknown: Option<bool>,
    /// Why the start failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Attempt {
    /// The attempt of `session` as clients see it.
    pub fn new(session: &SessionId, attempt: &core::Attempt) -> Self {
        let facts = attempt.end.as_ref().map(EndFacts::from).unwrap_or_default();
        Self {
            id: AttemptId::derive(session, attempt.number).to_string(),
            number: attempt.number,
            runtime_generation: attempt.generation.0,
            pid: attempt.pid.filter(|_| attempt.end.is_none()),
            started_at: attempt.started_at.map(time::text),
            finished_at: attempt.finished_at.map(time::text),
            exit_code: facts.exit_code,
            reason: attempt.end.as_ref().map(|end| end.reason().to_owned()),
            signal: facts.signal.map(Cow::into_owned),
            core: facts.core,
            oom: facts.oom,
            exit_unknown: facts.exit_unknown,
            message: facts.message,
        }
    }
}

impl Session {
    /// A session as clients see it, with the window of its journal.
    pub fn new(session: &core::Session, cursor: Cursor) -> Self {
        let attempt = session.attempt().map(|attempt| Attempt {
            // While it is being stopped, the newest attempt already says why.
            reason: session.attempt_reason().map(str::to_owned),
            ..Attempt::new(session.id(), attempt)
        });
        Self {
            id: session.id().to_string(),
            spec: session.spec().into(),
            spec_version: session.spec_version(),
            phase: session.phase().into(),
            runtime_generation: session.generation().0,
            attempt,
            restart_count: session.restart_count(),
            cursor,
            created_at: time::text(session.created_at()),
            updated_at: time::text(session.updated_at()),
            last_activity_at: time::text(session.last_activity_at()),
        }
    }
}

impl TryFrom<&SessionView> for Session {
    type Error = core::CheckpointError;

    fn try_from(view: &SessionView) -> Result<Self, Self::Error> {
        let session = core::Session::restore(&view.checkpoint)?;
        Ok(Self::new(&session, Cursor::from(view)))
    }
}

impl From<&SessionView> for Cursor {
    fn from(view: &SessionView) -> Self {
        Self {
            earliest: view.earliest,
            latest: view.latest,
        }
    }
}

impl AttemptList {
    /// The attempts that a session remembers.
    pub fn new(session: &core::Session) -> Self {
        let id = session.id();
        Self {
            attempts: session
                .attempts()
                .iter()
                .map(|attempt| Attempt::new(id, attempt))
                .collect(),
        }
    }
}

/// All sessions of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// Ordered by creation, then id.
    pub sessions: Vec<Session>,
}

/// The newest 64 attempts of a session. Those before are told by its events, as long as they are
/// kept: `GET …/events?types=attempt.starting,attempt.exited`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttemptList {
    /// Ordered by number.
    pub attempts: Vec<Attempt>,
}

/// Body of `PUT …/desired-state`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DesiredStateRequest {
    /// The state.
    pub state: DesiredState,
}

/// Body of `POST …/attempts`; may be empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CreateAttemptRequest {
    /// End the current attempt first; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace_current: Option<bool>,
}

/// What to do about end of input on a terminal in raw mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EofMode {
    /// Send the EOF character; refuse in raw mode.
    Character,
    /// Hang the terminal up.
    Hangup,
}

impl From<EofMode> for core::EofMode {
    fn from(mode: EofMode) -> Self {
        match mode {
            EofMode::Character => Self::Character,
            EofMode::Hangup => Self::Hangup,
        }
    }
}

/// Body of `POST …/inputs`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct InputRequest {
    /// The caller's id for this write: a retry with the same id writes once.
    #[schema(min_length = 1, max_length = 128)]
    pub input_id: String,
    /// Refuse if this is not the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_attempt_id: Option<String>,
    /// The bytes, standard base64 with padding; 4 MiB decoded at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<String>,
    /// Close the input after them; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eof: Option<bool>,
    /// How to end a terminal's input; default `character`. Not in the vendor's API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eof_mode: Option<EofMode>,
}

/// Answer of `POST …/inputs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputResponse {
    /// The caller's id.
    pub input_id: String,
    /// The attempt that took it.
    pub attempt_id: String,
    /// Always true.
    pub accepted: bool,
    /// The id was known, with the same content: nothing was written again.
    pub duplicate: bool,
    /// `unknown` when a retry can't be settled: the bytes may or may not have arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<crate::event::UnknownText>,
}

/// Body of `POST …/signals`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SignalRequest {
    /// HUP INT QUIT KILL TERM USR1 USR2 STOP CONT WINCH, any case, `SIG` optional; or 1 to 64.
    pub signal: String,
    /// Refuse if this is not the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_attempt_id: Option<String>,
}

/// Body of `PUT …/terminal`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ResizeRequest {
    /// Lines.
    #[schema(format = Int32, minimum = 1, maximum = 65535)]
    pub rows: i64,
    /// Columns.
    #[schema(format = Int32, minimum = 1, maximum = 65535)]
    pub cols: i64,
    /// Refuse if this is not the current attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_attempt_id: Option<String>,
}

/// `{"accepted":true}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Accepted {
    /// Always true.
    pub accepted: bool,
}

/// `{"resized":true}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resized {
    /// Always true.
    pub resized: bool,
}

/// `{"deleted":true}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    /// Always true.
    pub deleted: bool,
}
