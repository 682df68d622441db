//! The parts of a session's state: phases, attempts, and the stage that holds a live attempt.

use std::time::Duration;

use minicbor::{Decode, Encode};

use crate::{
    event::{AttemptEnd, FailReason, StartReason, StopReason},
    id::Generation,
    time::Timestamp,
};

/// What the supervisor observes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Phase {
    /// Created; nothing was started.
    #[n(0)]
    Pending,
    /// An attempt is being started or is not ready yet.
    #[n(1)]
    Starting,
    /// The attempt is ready.
    #[n(2)]
    Running,
    /// A restart is scheduled.
    #[n(3)]
    Backoff,
    /// The attempt is being ended.
    #[n(4)]
    Stopping,
    /// No attempt runs, by request.
    #[n(5)]
    Stopped,
    /// The attempt ended and is not restarted.
    #[n(6)]
    Exited,
    /// Start, readiness or the restart limit failed.
    #[n(7)]
    Failed,
    /// The processes stand still.
    #[n(8)]
    Paused,
    /// The attempt ended with its runtime; recovery decides.
    #[n(9)]
    Suspended,
}

/// One attempt: what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Attempt {
    /// 1 for the first.
    #[n(0)]
    pub number: u32,
    /// The runtime it runs or ran in.
    #[n(1)]
    pub generation: Generation,
    /// Why it was started.
    #[n(2)]
    pub reason: StartReason,
    /// When its start was journalled.
    #[n(3)]
    pub starting_at: Timestamp,
    /// Process id inside the sandbox; none before the start.
    #[n(4)]
    pub pid: Option<u32>,
    /// When its process ran.
    #[n(5)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[n(6)]
    pub finished_at: Option<Timestamp>,
    /// How it ended.
    #[n(7)]
    pub end: Option<AttemptEnd>,
}

impl Phase {
    /// As clients see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Backoff => "backoff",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Exited => "exited",
            Self::Failed => "failed",
            Self::Paused => "paused",
            Self::Suspended => "suspended",
        }
    }
}

/// Lines and columns of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct TerminalSize {
    /// Lines.
    #[n(0)]
    pub rows: u16,
    /// Columns.
    #[n(1)]
    pub cols: u16,
}

/// Where a session stands. A live attempt exists in three stages and nowhere else, so there can't
/// be two; [`Phase::Paused`] is no stage but a stage that stands still.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) enum Stage {
    #[n(0)]
    Pending,
    #[n(1)]
    Starting(#[n(0)] Live),
    #[n(2)]
    Running(#[n(0)] Live),
    #[n(3)]
    Stopping(#[n(0)] Live, #[n(1)] Stop),
    #[n(4)]
    Backoff {
        #[n(0)]
        due: Timestamp,
    },
    #[n(5)]
    Stopped,
    #[n(6)]
    Exited,
    #[n(7)]
    Failed,
    #[n(8)]
    Suspended,
}

/// What is known of the live attempt beside its record in the history.
///
/// Its times are *awake times*: at each thaw they move by the time spent frozen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub(super) struct Live {
    /// When its process ran; none before.
    #[n(0)]
    pub(super) started: Option<Timestamp>,
    /// When it became ready; none before.
    #[n(1)]
    pub(super) ready: Option<Timestamp>,
    /// The size of its terminal; none with pipes.
    #[n(2)]
    pub(super) terminal: Option<TerminalSize>,
    /// A resize arrived before the process ran.
    #[n(3)]
    pub(super) resize_owed: bool,
    /// Its input ended.
    #[n(4)]
    pub(super) input_closed: bool,
    /// The grace of the specification that it was started by, once another has taken its place and
    /// ends it; none while the session's own holds.
    #[n(5)]
    pub(super) grace_seconds: Option<u32>,
}

/// The stop that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) struct Stop {
    /// Its reason: the first one, when several asked for it.
    #[n(0)]
    pub(super) reason: StopReason,
    /// When it began, in awake time.
    #[n(1)]
    pub(super) since: Timestamp,
    /// The grace passed and the tree was killed.
    #[n(2)]
    pub(super) escalated: bool,
    /// What is started afterwards.
    #[n(3)]
    pub(super) next: Option<StartReason>,
}

/// What the events so far call for and no event has settled yet.
///
/// A decision's events settle it at once; only a journal whose last batch was torn leaves
/// something owed, and then it is due immediately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(super) enum Owed {
    #[n(0)]
    Start(#[n(0)] StartReason),
    #[n(1)]
    Restart,
    #[n(2)]
    Fail(#[n(0)] FailReason),
    #[n(3)]
    Expire,
    #[n(4)]
    Delete,
}

/// Whether the session is there for callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(super) enum Existence {
    #[n(0)]
    Alive,
    #[n(1)]
    Deleting,
    #[n(2)]
    Deleted,
}

impl Stage {
    pub(super) fn live(&self) -> Option<&Live> {
        match self {
            Self::Starting(live) | Self::Running(live) | Self::Stopping(live, _) => Some(live),
            Self::Pending
            | Self::Backoff { .. }
            | Self::Stopped
            | Self::Exited
            | Self::Failed
            | Self::Suspended => None,
        }
    }

    pub(super) fn live_mut(&mut self) -> Option<&mut Live> {
        match self {
            Self::Starting(live) | Self::Running(live) | Self::Stopping(live, _) => Some(live),
            Self::Pending
            | Self::Backoff { .. }
            | Self::Stopped
            | Self::Exited
            | Self::Failed
            | Self::Suspended => None,
        }
    }

    pub(super) fn stop(&self) -> Option<&Stop> {
        match self {
            Self::Stopping(_, stop) => Some(stop),
            Self::Pending
            | Self::Starting(_)
            | Self::Running(_)
            | Self::Backoff { .. }
            | Self::Stopped
            | Self::Exited
            | Self::Failed
            | Self::Suspended => None,
        }
    }

    /// Moves what frozen time must not move forward.
    pub(super) fn shift(&mut self, by: Duration) {
        if let Some(live) = self.live_mut() {
            live.started = live.started.map(|at| at + by);
            live.ready = live.ready.map(|at| at + by);
        }
        match self {
            Self::Stopping(_, stop) => stop.since = stop.since + by,
            Self::Backoff { due } => *due = *due + by,
            Self::Pending
            | Self::Starting(_)
            | Self::Running(_)
            | Self::Stopped
            | Self::Exited
            | Self::Failed
            | Self::Suspended => {}
        }
    }
}

impl Existence {
    /// Deleting, unless it is deleted already.
    pub(super) fn max_deleting(self) -> Self {
        match self {
            Self::Alive | Self::Deleting => Self::Deleting,
            Self::Deleted => Self::Deleted,
        }
    }
}
