//! The session machine: one supervised command, from its creation to its deletion.
//!
//! [`Session`] is the state. [`Session::decide`] says what an [`Input`] means now and changes
//! nothing; [`Session::apply`] takes an event and is the only thing that changes a session. So
//! replaying a journal and living through it give the same state.
//!
//! ```text
//!  created ──► pending ─────────────────┐ start: desired running, new attempt, update
//!                                       ▼
//!        ┌──────────────────────────► starting ──ready──► running
//!        │ due                          │   │ exit           │ │
//!     backoff ◄──restart policy──┬──────┼───┴────────────────┘ │ stop, replace, delete,
//!        │                       │      │ not ready in time    │ expiry, new specification
//!        │ stop                  │      └──────────► stopping ◄┘
//!        ▼                       │                     │ exit of the whole tree
//!     stopped ◄──────────────────┼─────────────────────┤
//!     exited, failed ◄───────────┘   ◄── not restarted ┴──► starting, when it was replaced
//!
//!  any live stage ──runtime gone──► suspended ──new runtime──► starting | stopped
//!  starting, running, stopping, backoff, while frozen: shown as paused, their clocks stand still
//! ```
//!
//! What the driver does around it:
//!
//! 1. `decide`, unless [`Session::call_standing`] says that this very call was carried out before; a
//!    [`Rejection`] goes back to the caller and nothing happened.
//! 2. Append the events, numbered by [`Session::attempt_numbers`]; sync if one
//!    [is durable](crate::event::Body::is_durable). A decision with [`Decision::roll`] changes
//!    the generation in the middle.
//! 3. `apply` each, then perform the effects in order.
//! 4. Arm a timer for [`Session::next_deadline`] and give [`Input::DeadlinePassed`] when it is
//!    due.
//!
//! Output is no decision: the pump appends it, then the driver applies it.

mod apply;
mod calls;
mod decide;
mod recovery;
mod state;
mod words;

use std::sync::Arc;

use minicbor::{Decode, Encode};

use calls::Calls;
pub use calls::{CallId, CallMark, CallStanding};

pub use crate::limits::KILL_WAIT;
use crate::{
    event::{Body, Created, Event, Kind, StartReason, StopReason},
    hash::Digest128,
    id::{AttemptId, Generation, SessionId},
    restart::RestartWindow,
    spec::{DesiredState, SessionSpec},
    time::Timestamp,
};
pub use state::{Attempt, Phase, TerminalSize};
use state::{Existence, Live, Owed, Stage};
pub use words::{Decision, Effect, EofMode, Input, Rejection, ReplaceCurrent, Roll};

/// A session: everything that its events say, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Session {
    #[n(0)]
    id: SessionId,
    #[n(1)]
    generation: Generation,
    /// Shared, so that a copy of a session is cheap.
    #[cbor(n(2), with = "shared")]
    spec: Arc<SessionSpec>,
    #[n(3)]
    spec_version: u64,
    #[n(4)]
    handle: Option<String>,
    #[n(5)]
    idempotency_key: Option<String>,
    /// Of the specification of the creation itself, whatever it was changed to since.
    #[n(6)]
    created_digest: Digest128,
    #[n(7)]
    created_at: Timestamp,
    #[n(8)]
    updated_at: Timestamp,
    #[n(9)]
    last_activity_at: Timestamp,
    /// `last_activity_at` in awake time: what the idle timeout counts from.
    #[n(10)]
    idle_since: Timestamp,
    #[n(11)]
    frozen_at: Option<Timestamp>,
    #[n(12)]
    existence: Existence,
    #[n(13)]
    stage: Stage,
    #[n(14)]
    owed: Option<Owed>,
    /// Oldest first; the last is the current or newest one.
    #[n(15)]
    attempts: Vec<Attempt>,
    #[n(16)]
    restart_count: u64,
    #[n(17)]
    window: RestartWindow,
    #[n(18)]
    last_seq: u64,
    #[n(19)]
    kind: Option<Kind>,
    /// Builds before it remembered none.
    #[cbor(n(20), default)]
    calls: Calls,
}

/// Version of the checkpoint's encoding.
const CHECKPOINT_VERSION: u32 = 1;

/// A checkpoint that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// It was written by a newer build.
    #[error("checkpoint version {0} is newer than this build")]
    Version(u32),
    /// It is no checkpoint.
    #[error("malformed checkpoint: {0}")]
    Malformed(String),
}

impl Session {
    /// Decides a creation. The first event becomes the session by [`Session::from_created`]; the
    /// others are applied to it.
    pub fn create(created: Created) -> Decision {
        let starts = created.spec.lifecycle.desired_state == DesiredState::Running;
        let mut decision = Decision::event(Body::SessionCreated(Box::new(created)));
        if starts {
            decision
                .events
                .push(Body::AttemptStarting(StartReason::Created));
            decision.effects.push(Effect::Spawn { number: 1 });
        }
        decision
    }

    /// The session that `event` made; none when it is no creation.
    pub fn from_created(id: SessionId, generation: Generation, event: &Event) -> Option<Self> {
        let created = match &event.body {
            Body::SessionCreated(created) => created,
            Body::SessionUpdated(_)
            | Body::DesiredState(_)
            | Body::AttemptStarting(_)
            | Body::AttemptStarted { .. }
            | Body::SessionReady
            | Body::Output { .. }
            | Body::InputAccepted { .. }
            | Body::SignalSent { .. }
            | Body::TerminalResized { .. }
            | Body::AttemptStopping(_)
            | Body::AttemptExited(_)
            | Body::Backoff { .. }
            | Body::SessionFailed(_)
            | Body::SessionExpired(_)
            | Body::SessionStopped
            | Body::SessionPaused
            | Body::SessionResumed
            | Body::SessionDeleted
            | Body::StopEscalated => return None,
        };
        let owed = match created.spec.lifecycle.desired_state {
            DesiredState::Running => Some(Owed::Start(StartReason::Created)),
            DesiredState::Stopped => None,
        };
        Some(Self {
            id,
            generation,
            created_digest: created.spec.digest(),
            spec: Arc::new(created.spec.clone()),
            spec_version: 1,
            handle: created.handle.clone(),
            idempotency_key: created.idempotency_key.clone(),
            created_at: event.at,
            updated_at: event.at,
            last_activity_at: event.at,
            idle_since: event.at,
            frozen_at: None,
            existence: Existence::Alive,
            stage: Stage::Pending,
            owed,
            attempts: Vec::new(),
            restart_count: 0,
            window: RestartWindow::default(),
            last_seq: event.seq,
            kind: created.kind.clone(),
            calls: Calls::default(),
        })
    }

    /// The state as bytes.
    pub fn checkpoint(&self) -> Vec<u8> {
        minicbor::to_vec((CHECKPOINT_VERSION, self)).expect("encoding to memory can't fail")
    }

    /// The state from bytes.
    pub fn restore(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let malformed =
            |error: minicbor::decode::Error| CheckpointError::Malformed(error.to_string());
        let mut decoder = minicbor::Decoder::new(bytes);
        decoder.array().map_err(malformed)?;
        let version = decoder.u32().map_err(malformed)?;
        if version > CHECKPOINT_VERSION {
            return Err(CheckpointError::Version(version));
        }
        decoder.decode().map_err(malformed)
    }

    /// Its identifier.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The specification in force.
    pub fn spec(&self) -> &SessionSpec {
        &self.spec
    }

    /// 1 at first, one more at each update, desired-state call and attempts call.
    pub fn spec_version(&self) -> u64 {
        self.spec_version
    }

    /// What the supervisor observes.
    pub fn phase(&self) -> Phase {
        let frozen = self.frozen_at.is_some();
        match &self.stage {
            Stage::Starting(_)
            | Stage::Running(_)
            | Stage::Stopping(..)
            | Stage::Backoff { .. }
                if frozen =>
            {
                Phase::Paused
            }
            Stage::Pending => Phase::Pending,
            Stage::Starting(_) => Phase::Starting,
            Stage::Running(_) => Phase::Running,
            Stage::Stopping(..) => Phase::Stopping,
            Stage::Backoff { .. } => Phase::Backoff,
            Stage::Stopped => Phase::Stopped,
            Stage::Exited => Phase::Exited,
            Stage::Failed => Phase::Failed,
            Stage::Suspended => Phase::Suspended,
        }
    }

    /// The runtime that the newest segment of its journal belongs to.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Unique name in the sandbox, for sessions of the named dialect.
    pub fn handle(&self) -> Option<&str> {
        self.handle.as_deref()
    }

    /// What it was made for; none is a supervised session.
    pub fn kind(&self) -> Option<&Kind> {
        self.kind.as_ref()
    }

    /// The key of its creation.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    /// Digest of the specification that its creation asked for.
    pub fn created_digest(&self) -> Digest128 {
        self.created_digest
    }

    /// The current or newest attempt; none before the first.
    pub fn attempt(&self) -> Option<&Attempt> {
        self.attempts.last()
    }

    /// The attempt that lives: it was started and its end was not journalled yet.
    pub fn live_attempt(&self) -> Option<&Attempt> {
        let attempt = self.attempts.last();
        attempt.filter(|_| self.stage.live().is_some())
    }

    /// The newest attempts, oldest first, [`ATTEMPTS_KEPT_MAX`](crate::limits::ATTEMPTS_KEPT_MAX)
    /// at most.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Identifier of the current or newest attempt.
    pub fn attempt_id(&self) -> Option<AttemptId> {
        self.attempt()
            .map(|attempt| AttemptId::derive(&self.id, attempt.number))
    }

    /// Why the current or newest attempt ended or is being ended, as clients see it.
    pub fn attempt_reason(&self) -> Option<&'static str> {
        match (self.stopping(), self.attempt()?.end.as_ref()) {
            (_, Some(end)) => Some(end.reason()),
            (stopping, None) => stopping.map(StopReason::as_str),
        }
    }

    /// The stop that is under way.
    pub fn stopping(&self) -> Option<StopReason> {
        self.stage.stop().map(|stop| stop.reason)
    }

    /// Size of the live attempt's terminal; none with pipes or without a live attempt.
    pub fn terminal_size(&self) -> Option<TerminalSize> {
        self.stage.live().and_then(|live| live.terminal)
    }

    /// Whether the live attempt's input ended, so that a supervisor that takes over closes it.
    pub fn input_closed(&self) -> bool {
        self.stage.live().is_some_and(|live| live.input_closed)
    }

    /// Restarts by policy since the creation; never goes back.
    pub fn restart_count(&self) -> u64 {
        self.restart_count
    }

    /// When it was created.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// Time of the newest event that is no output.
    pub fn updated_at(&self) -> Timestamp {
        self.updated_at
    }

    /// Time of the newest output, accepted input, signal, resize, start or exit.
    pub fn last_activity_at(&self) -> Timestamp {
        self.last_activity_at
    }

    /// Number of the newest event that was applied.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Whether its deletion was journalled.
    pub fn is_deleted(&self) -> bool {
        self.existence == Existence::Deleted
    }

    /// Whether its processes stand still.
    pub fn is_frozen(&self) -> bool {
        self.frozen_at.is_some()
    }

    /// Whether the live attempt is not ready yet, frozen or not.
    pub fn awaits_readiness(&self) -> bool {
        match &self.stage {
            Stage::Starting(live) => live.ready.is_none(),
            Stage::Running(_)
            | Stage::Stopping(..)
            | Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => false,
        }
    }

    /// Number of the next attempt.
    fn next_number(&self) -> u32 {
        self.attempt()
            .map_or(1, |attempt| attempt.number.saturating_add(1))
    }

    /// The attempt number that each of these events carries: the newest attempt's, until one of
    /// them starts the next.
    pub fn attempt_numbers(&self, events: &[Body]) -> Vec<u32> {
        let mut number = self.attempt().map_or(0, |attempt| attempt.number);
        events
            .iter()
            .map(|body| {
                if matches!(body, Body::AttemptStarting(_)) {
                    number = number.saturating_add(1);
                }
                number
            })
            .collect()
    }

    fn live_of_spec(&self) -> Live {
        Live {
            terminal: self.spec.io.terminal_size(),
            ..Live::default()
        }
    }
}

/// A shared value is written like the value itself.
mod shared {
    use std::sync::Arc;

    use minicbor::{
        Decode, Decoder, Encode, Encoder,
        decode::Error as DecodeError,
        encode::{Error as EncodeError, Write},
    };

    pub(super) fn encode<Ctx, T, W>(
        value: &Arc<T>,
        encoder: &mut Encoder<W>,
        ctx: &mut Ctx,
    ) -> Result<(), EncodeError<W::Error>>
    where
        T: Encode<Ctx>,
        W: Write,
    {
        T::encode(value, encoder, ctx)
    }

    pub(super) fn decode<'b, Ctx, T>(
        decoder: &mut Decoder<'b>,
        ctx: &mut Ctx,
    ) -> Result<Arc<T>, DecodeError>
    where
        T: Decode<'b, Ctx>,
    {
        T::decode(decoder, ctx).map(Arc::new)
    }
}
