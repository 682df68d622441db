//! `apply`: what each event changes. Total: any order of events leaves a session in some lawful
//! state, so that a journal with a lost range still opens.

use std::sync::Arc;

use super::{
    Session,
    state::{Attempt, Existence, Owed, Phase, Stage, Stop, TerminalSize},
};
use crate::{
    event::{
        AttemptEnd, Body, Event, ExitStatus, Expiry, FailReason, Oom, StartReason, StopReason,
    },
    id::Generation,
    limits::{ATTEMPTS_KEPT_MAX, STABLE_READY_MIN},
    restart::Verdict,
    spec::{DesiredState, RestartPolicy, SessionSpec},
    time::Timestamp,
};

/// What follows an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aftermath {
    /// The session comes to rest in a phase.
    Rest(Phase),
    /// Another event has to follow.
    Owe(Owed),
}

impl Session {
    /// The journal enters a segment of this generation. The reader says so at each segment, the
    /// driver where a decision [rolls](super::Decision::roll).
    pub fn enter_generation(&mut self, generation: Generation) {
        if generation > self.generation {
            self.generation = generation;
            // A new runtime is not frozen.
            self.frozen_at = None;
            // Whoever was to be started by hand, and was not, comes to rest.
            let is_wanted = self.spec.lifecycle.desired_state == DesiredState::Running;
            if matches!(self.stage, Stage::Pending) && !is_wanted && self.owed.is_none() {
                self.stage = Stage::Stopped;
            }
        }
    }

    /// How it is shown once its runtime is gone, before the next one finds it: what stood still
    /// waits for its recovery.
    #[must_use]
    pub fn without_runtime(&self) -> Self {
        let mut shown = self.clone();
        if shown.phase() == Phase::Paused {
            shown.frozen_at = None;
            shown.stage = Stage::Suspended;
        }
        shown
    }

    /// Makes an event part of the state. The only thing that changes a session.
    pub fn apply(&mut self, event: &Event) {
        self.last_seq = self.last_seq.max(event.seq);
        if let Some(call) = event.call {
            self.calls.note(call, event.seq);
        }
        if event.body.is_activity() {
            self.last_activity_at = self.last_activity_at.max(event.at);
            self.idle_since = self.idle_since.max(self.awake(event.at));
        }
        self.adopt_lost_attempt(event);
        if let Body::Output { .. } = event.body {
            return;
        }
        self.updated_at = self.updated_at.max(event.at);
        self.apply_body(event);
    }

    fn apply_body(&mut self, event: &Event) {
        let at = event.at;
        match &event.body {
            // Activity, and no more; a creation already is this session and can't happen twice.
            Body::Output { .. } | Body::SignalSent { .. } | Body::SessionCreated(_) => {}
            Body::SessionUpdated(spec) => self.apply_update(spec),
            Body::DesiredState(state) => {
                self.spec_version += 1;
                self.set_desired_state(*state);
                self.follow_desired_state();
            }
            Body::AttemptStarting(reason) => self.apply_starting(event, *reason),
            Body::AttemptStarted { pid } => self.apply_started(at, *pid),
            Body::SessionReady => self.apply_ready(at),
            Body::InputAccepted { eof, .. } => {
                if let (Some(live), Some(mode)) = (self.stage.live_mut(), eof) {
                    live.input_closed |= mode.closes(live.terminal.is_some());
                }
            }
            Body::TerminalResized { rows, cols } => {
                if let Some(live) = self.stage.live_mut() {
                    live.terminal = Some(TerminalSize {
                        rows: *rows,
                        cols: *cols,
                    });
                    live.resize_owed = live.started.is_none();
                }
            }
            Body::AttemptStopping(reason) => self.apply_stopping(at, *reason),
            Body::StopEscalated => {
                if let Stage::Stopping(_, stop) = &mut self.stage {
                    stop.escalated = true;
                }
            }
            Body::AttemptExited(end) => self.apply_exited(at, end),
            Body::Backoff { delay_ms } => self.apply_backoff(at, *delay_ms),
            Body::SessionFailed(_) => self.rest(Stage::Failed),
            Body::SessionExpired(_) | Body::SessionStopped => {
                self.set_desired_state(DesiredState::Stopped);
                self.follow_desired_state();
            }
            Body::SessionPaused => self.frozen_at = self.frozen_at.or(Some(at)),
            Body::SessionResumed => self.apply_resumed(at),
            Body::SessionDeleted => {
                self.existence = Existence::Deleted;
                self.end_live(at, AttemptEnd::unknown());
                self.rest(Stage::Stopped);
            }
        }
    }

    fn apply_update(&mut self, spec: &SessionSpec) {
        self.spec_version += 1;
        self.keep_grace(spec);
        self.spec = Arc::new(spec.clone());
        self.follow_desired_state();
    }

    /// An attempt that doesn't live on under a new specification ends by the grace of its own.
    fn keep_grace(&mut self, new: &SessionSpec) {
        let grace = self.spec.lifecycle.stop_grace_seconds;
        let lives_on =
            new.lifecycle.desired_state == DesiredState::Running && self.spec.same_process(new);
        match &mut self.stage {
            Stage::Starting(_) | Stage::Running(_) if lives_on => {}
            Stage::Starting(live) | Stage::Running(live) | Stage::Stopping(live, _) => {
                live.grace_seconds.get_or_insert(grace);
            }
            Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => {}
        }
    }

    fn set_desired_state(&mut self, state: DesiredState) {
        if self.spec.lifecycle.desired_state != state {
            Arc::make_mut(&mut self.spec).lifecycle.desired_state = state;
        }
    }

    /// The desired state may be new: without a live attempt it takes effect at once, else when
    /// the attempt is over.
    fn follow_desired_state(&mut self) {
        let start = match self.spec.lifecycle.desired_state {
            DesiredState::Running => Some(StartReason::DesiredStateRunning),
            DesiredState::Stopped => None,
        };
        match (&mut self.stage, start) {
            (Stage::Starting(_) | Stage::Running(_), _) => {}
            (Stage::Stopping(_, stop), Some(start)) => stop.next = stop.next.or(Some(start)),
            (Stage::Stopping(_, stop), None) => stop.next = None,
            (
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
                Some(start),
            ) => self.owed = Some(Owed::Start(start)),
            (
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
                None,
            ) => self.rest(Stage::Stopped),
        }
    }

    fn apply_starting(&mut self, event: &Event, reason: StartReason) {
        self.end_live(event.at, AttemptEnd::unknown());
        let number = event.attempt.max(self.next_number());
        self.push_attempt(number, reason, event.at);
        match reason {
            StartReason::AttemptCreated => {
                // A replacement was counted when the old attempt began to stop.
                if self.owed != Some(Owed::Start(StartReason::AttemptCreated)) {
                    self.spec_version += 1;
                }
                self.set_desired_state(DesiredState::Running);
                self.window.clear();
            }
            StartReason::DesiredStateRunning | StartReason::SpecUpdated => self.window.clear(),
            StartReason::RestartPolicy => self.restart_count += 1,
            // The runtime went before the backoff was over.
            StartReason::RuntimeRecovered if matches!(self.stage, Stage::Backoff { .. }) => {
                self.window.take_back();
            }
            StartReason::Created | StartReason::RuntimeRecovered => {}
        }
        self.rest(Stage::Starting(self.live_of_spec()));
    }

    fn apply_started(&mut self, at: Timestamp, pid: u32) {
        let awake = self.awake(at);
        let Some(live) = self.stage.live_mut() else {
            return;
        };
        live.started = live.started.or(Some(awake));
        live.resize_owed = false;
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.pid = Some(pid);
            attempt.started_at = attempt.started_at.or(Some(at));
        }
        self.run_when_ready();
    }

    fn apply_ready(&mut self, at: Timestamp) {
        let awake = self.awake(at);
        if let Some(live) = self.stage.live_mut() {
            live.ready = live.ready.or(Some(awake));
        }
        self.run_when_ready();
    }

    /// A ready attempt with a process is running.
    fn run_when_ready(&mut self) {
        if let Stage::Starting(live) = &self.stage
            && live.ready.is_some()
            && live.started.is_some()
        {
            self.stage = Stage::Running(live.clone());
        }
    }

    fn apply_stopping(&mut self, at: Timestamp, reason: StopReason) {
        let next = match reason {
            StopReason::AttemptReplaced => {
                self.spec_version += 1;
                self.set_desired_state(DesiredState::Running);
                Some(StartReason::AttemptCreated)
            }
            StopReason::SpecReplaced => Some(StartReason::SpecUpdated),
            StopReason::SessionDeleted => {
                self.existence = self.existence.max_deleting();
                None
            }
            StopReason::DesiredStateStopped
            | StopReason::SessionExpired
            | StopReason::ReadinessTimeout => None,
        };
        let since = self.awake(at);
        match &mut self.stage {
            Stage::Starting(live) | Stage::Running(live) => {
                let stop = Stop {
                    reason,
                    since,
                    escalated: false,
                    next,
                };
                self.stage = Stage::Stopping(live.clone(), stop);
            }
            // A stop is under way: it keeps its reason and its grace, only what follows changes.
            Stage::Stopping(_, stop) => stop.next = next,
            Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => {
                self.owed = match reason {
                    StopReason::SessionDeleted => Some(Owed::Delete),
                    StopReason::DesiredStateStopped
                    | StopReason::AttemptReplaced
                    | StopReason::SpecReplaced
                    | StopReason::SessionExpired
                    | StopReason::ReadinessTimeout => next.map(Owed::Start).or(self.owed),
                };
            }
        }
    }

    fn apply_exited(&mut self, at: Timestamp, end: &AttemptEnd) {
        if self.stage.live().is_none() {
            return;
        }
        let aftermath = self.aftermath(at, end);
        self.end_live(at, end.clone());
        if matches!(end, AttemptEnd::RuntimeReplaced) {
            self.frozen_at = None;
        }
        match aftermath {
            Aftermath::Rest(phase) => self.rest(match phase {
                Phase::Stopped => Stage::Stopped,
                Phase::Suspended => Stage::Suspended,
                Phase::Pending
                | Phase::Starting
                | Phase::Running
                | Phase::Backoff
                | Phase::Stopping
                | Phase::Exited
                | Phase::Failed
                | Phase::Paused => Stage::Exited,
            }),
            Aftermath::Owe(owed) => {
                self.stage = Stage::Exited;
                self.owed = Some(owed);
            }
        }
    }

    /// What an exit at `at` with this end leads to. The stop it answers to is that of the stage.
    pub(super) fn aftermath(&self, at: Timestamp, end: &AttemptEnd) -> Aftermath {
        if self.existence != Existence::Alive {
            return Aftermath::Owe(Owed::Delete);
        }
        let lifecycle = &self.spec.lifecycle;
        if lifecycle.desired_state == DesiredState::Stopped {
            return Aftermath::Rest(Phase::Stopped);
        }
        if matches!(end, AttemptEnd::RuntimeReplaced) {
            return Aftermath::Rest(Phase::Suspended);
        }
        let next = self.stage.stop().and_then(|stop| stop.next);
        let restarts = match lifecycle.restart.policy {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => end.is_failure(),
            RestartPolicy::Always => true,
        };
        if next.is_some() || restarts {
            if self.lifetime_passed(at, &self.spec) {
                return Aftermath::Owe(Owed::Expire);
            }
            return Aftermath::Owe(next.map_or(Owed::Restart, Owed::Start));
        }
        match end {
            AttemptEnd::StartFailed { .. } => Aftermath::Owe(Owed::Fail(FailReason::StartFailed)),
            AttemptEnd::Exited {
                stop: Some(StopReason::ReadinessTimeout),
                ..
            } => Aftermath::Owe(Owed::Fail(FailReason::ReadinessTimeout)),
            AttemptEnd::Exited { .. } | AttemptEnd::RuntimeReplaced => {
                Aftermath::Rest(Phase::Exited)
            }
        }
    }

    /// The event that settles what is owed, as of `now`. None for a start, which has an effect
    /// too, and for nothing owed.
    pub(super) fn settling(&self, owed: Owed, now: Timestamp) -> Body {
        match owed {
            Owed::Start(reason) => Body::AttemptStarting(reason),
            Owed::Restart => {
                let window = self.window_after_exit(now);
                match window.verdict(&self.spec.lifecycle.restart, self.awake(now)) {
                    Verdict::RestartAfter { delay_ms } => Body::Backoff { delay_ms },
                    Verdict::LimitExceeded => Body::SessionFailed(FailReason::RestartLimitExceeded),
                }
            }
            Owed::Fail(reason) => Body::SessionFailed(reason),
            Owed::Expire => Body::SessionExpired(Expiry::MaxLifetime),
            Owed::Delete => Body::SessionDeleted,
        }
    }

    /// The window as it is once the live attempt, if any, has ended.
    fn window_after_exit(&self, at: Timestamp) -> crate::restart::RestartWindow {
        let mut window = self.window.clone();
        if self.stayed_ready(at) {
            window.reset_exponent();
        }
        window
    }

    /// Whether the live attempt was ready for so long that its exit is a new story.
    fn stayed_ready(&self, at: Timestamp) -> bool {
        let backoff_max = self.spec.lifecycle.restart.backoff_max();
        let ready = self.stage.live().and_then(|live| live.ready);
        ready.is_some_and(|ready| self.awake(at).since(ready) >= backoff_max.max(STABLE_READY_MIN))
    }

    fn apply_backoff(&mut self, at: Timestamp, delay_ms: u32) {
        let awake = self.awake(at);
        self.end_live(at, AttemptEnd::unknown());
        self.window.record(&self.spec.lifecycle.restart, awake);
        let delay = std::time::Duration::from_millis(u64::from(delay_ms));
        self.rest(Stage::Backoff { due: awake + delay });
    }

    fn apply_resumed(&mut self, at: Timestamp) {
        let Some(frozen_at) = self.frozen_at.take() else {
            return;
        };
        let frozen = at.since(frozen_at);
        self.stage.shift(frozen);
        self.window.shift(frozen);
        self.idle_since = self.idle_since + frozen;
    }

    /// Where the awake clock stands at `at`: it stops when the session freezes.
    pub(super) fn awake(&self, at: Timestamp) -> Timestamp {
        self.frozen_at.map_or(at, |frozen_at| at.min(frozen_at))
    }

    /// Whether `spec`'s lifetime is over.
    pub(super) fn lifetime_passed(&self, now: Timestamp, spec: &SessionSpec) -> bool {
        spec.lifecycle
            .max_lifetime()
            .is_some_and(|lifetime| now >= self.created_at + lifetime)
    }

    /// Comes to a stage with nothing owed.
    fn rest(&mut self, stage: Stage) {
        self.stage = stage;
        self.owed = None;
    }

    /// Closes the live attempt, if there is one.
    fn end_live(&mut self, at: Timestamp, end: AttemptEnd) {
        if self.stage.live().is_none() {
            return;
        }
        if self.stayed_ready(at) {
            self.window.reset_exponent();
        }
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.finished_at = Some(at);
            attempt.end = Some(end);
        }
        self.stage = Stage::Exited;
    }

    /// An event of an attempt whose start was lost with a damaged range: the attempt existed, and
    /// its number must not be given again.
    fn adopt_lost_attempt(&mut self, event: &Event) {
        let newest = self.attempt().map_or(0, |attempt| attempt.number);
        if event.attempt <= newest || matches!(event.body, Body::AttemptStarting(_)) {
            return;
        }
        self.end_live(event.at, AttemptEnd::unknown());
        let reason = if newest == 0 {
            StartReason::Created
        } else {
            StartReason::RestartPolicy
        };
        self.push_attempt(event.attempt, reason, event.at);
        self.rest(Stage::Starting(self.live_of_spec()));
    }

    fn push_attempt(&mut self, number: u32, reason: StartReason, at: Timestamp) {
        if self.attempts.len() >= ATTEMPTS_KEPT_MAX {
            self.attempts.remove(0);
        }
        self.attempts.push(Attempt {
            number,
            generation: self.generation,
            reason,
            starting_at: at,
            pid: None,
            started_at: None,
            finished_at: None,
            end: None,
        });
    }
}

impl AttemptEnd {
    /// The end of an attempt whose end was lost with a damaged range.
    fn unknown() -> Self {
        Self::Exited {
            status: ExitStatus::Unknown,
            stop: None,
            oom: Oom::Unknown,
            rusage: None,
        }
    }
}
