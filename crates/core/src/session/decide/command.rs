//! Commands of users.

use super::super::{
    Decision, Effect, Rejection, ReplaceCurrent, Session,
    state::{Live, Stage},
};
use crate::{
    event::{Body, StartReason, StopReason},
    spec::{DesiredState, SessionSpec},
    time::Timestamp,
};

impl Session {
    pub(super) fn decide_update(
        &self,
        now: Timestamp,
        spec: &SessionSpec,
    ) -> Result<Decision, Rejection> {
        self.check_alive()?;
        if self.handle.is_some() && spec.name != self.spec.name {
            return Err(Rejection::NameImmutable);
        }
        let updated = Decision::event(Body::SessionUpdated(Box::new(spec.clone())));
        let mut decision = match (spec.lifecycle.desired_state, &self.stage) {
            (DesiredState::Stopped, Stage::Starting(_) | Stage::Running(_)) => {
                and_stop(updated, StopReason::DesiredStateStopped)
            }
            (DesiredState::Running, Stage::Starting(_) | Stage::Running(_)) => {
                if self.spec.same_process(spec) {
                    updated
                } else {
                    self.check_lifetime(now, spec)?;
                    and_stop(updated, StopReason::SpecReplaced)
                }
            }
            (DesiredState::Stopped, Stage::Stopping(..)) => updated,
            (DesiredState::Running, Stage::Stopping(..)) => {
                self.check_lifetime(now, spec)?;
                updated
            }
            (
                DesiredState::Stopped,
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
            ) => self.and_empty_tree(updated),
            (
                DesiredState::Running,
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
            ) => {
                self.check_lifetime(now, spec)?;
                self.and_start(updated, StartReason::DesiredStateRunning)
            }
        };
        if spec.retention != self.spec.retention {
            decision
                .effects
                .insert(0, Effect::SetRetention(spec.retention));
        }
        Ok(decision)
    }

    pub(super) fn decide_desired_state(
        &self,
        now: Timestamp,
        state: DesiredState,
    ) -> Result<Decision, Rejection> {
        self.check_alive()?;
        let set = Decision::event(Body::DesiredState(state));
        match (state, &self.stage) {
            (DesiredState::Stopped, Stage::Starting(_) | Stage::Running(_)) => {
                Ok(and_stop(set, StopReason::DesiredStateStopped))
            }
            (DesiredState::Running, Stage::Starting(_) | Stage::Running(_))
            | (DesiredState::Stopped, Stage::Stopping(..)) => Ok(set),
            (DesiredState::Running, Stage::Stopping(..)) => {
                self.check_lifetime(now, &self.spec)?;
                Ok(set)
            }
            (
                DesiredState::Stopped,
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
            ) => Ok(self.and_empty_tree(set)),
            (
                DesiredState::Running,
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
            ) => {
                self.check_lifetime(now, &self.spec)?;
                Ok(self.and_start(set, StartReason::DesiredStateRunning))
            }
        }
    }

    pub(super) fn decide_new_attempt(
        &self,
        now: Timestamp,
        replace: ReplaceCurrent,
    ) -> Result<Decision, Rejection> {
        self.check_alive()?;
        let decision = match (&self.stage, replace) {
            (Stage::Starting(_) | Stage::Running(_) | Stage::Stopping(..), ReplaceCurrent::No) => {
                return Err(Rejection::AlreadyRunning);
            }
            (Stage::Starting(_) | Stage::Running(_), ReplaceCurrent::Yes) => {
                and_stop(Decision::none(), StopReason::AttemptReplaced)
            }
            // The stop that is under way ends the attempt; this one only says what follows.
            (Stage::Stopping(..), ReplaceCurrent::Yes) => {
                Decision::event(Body::AttemptStopping(StopReason::AttemptReplaced))
            }
            (
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
                ReplaceCurrent::No,
            ) => self.and_start(Decision::none(), StartReason::AttemptCreated),
            (
                Stage::Pending
                | Stage::Backoff { .. }
                | Stage::Stopped
                | Stage::Exited
                | Stage::Failed
                | Stage::Suspended,
                ReplaceCurrent::Yes,
            ) => {
                let emptied = self.and_empty_tree(Decision::none());
                self.and_start(emptied, StartReason::AttemptCreated)
            }
        };
        self.check_lifetime(now, &self.spec)?;
        Ok(decision)
    }

    pub(super) fn decide_write(&self, accepted: Body, bytes: u32) -> Result<Decision, Rejection> {
        let live = self.process()?;
        // A second end of input is nothing new, and nothing wrong.
        if live.input_closed && bytes > 0 {
            return Err(Rejection::InputClosed);
        }
        Ok(Decision::event(accepted).then(Effect::Write))
    }

    pub(super) fn decide_signal(&self, signal: u8) -> Result<Decision, Rejection> {
        self.process()?;
        Ok(Decision::event(Body::SignalSent { signal }).then(Effect::Signal { signal }))
    }

    pub(super) fn decide_resize(&self, rows: u16, cols: u16) -> Result<Decision, Rejection> {
        // Without a live attempt the specification tells what the next one would have.
        let terminal = match self.stage.live() {
            Some(live) => live.terminal,
            None => self.spec.io.terminal_size(),
        };
        if terminal.is_none() {
            return Err(Rejection::NoTerminal);
        }
        let Some(live) = self.stage.live() else {
            return Err(self.not_running());
        };
        let resized = Decision::event(Body::TerminalResized { rows, cols });
        // Before its process runs the size is remembered, and set when it does.
        Ok(match live.started {
            Some(_) => resized.then(Effect::Resize { rows, cols }),
            None => resized,
        })
    }

    pub(super) fn decide_delete(&self) -> Result<Decision, Rejection> {
        match self.check_alive() {
            Ok(()) => {}
            // A second caller waits for what the first one began.
            Err(Rejection::Deleting) => {
                return Ok(self.and_kill_what_is_frozen(Decision::none()));
            }
            Err(rejection) => return Err(rejection),
        }
        Ok(match &self.stage {
            Stage::Starting(_) | Stage::Running(_) => {
                self.and_kill_what_is_frozen(and_stop(Decision::none(), StopReason::SessionDeleted))
            }
            Stage::Stopping(..) => self.and_kill_what_is_frozen(Decision::event(
                Body::AttemptStopping(StopReason::SessionDeleted),
            )),
            Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => self
                .and_empty_tree(Decision::event(Body::SessionDeleted))
                .then(Effect::Remove),
        })
    }

    /// What stands still can't end in its own way, and its grace would never pass.
    fn and_kill_what_is_frozen(&self, mut decision: Decision) -> Decision {
        let is_escalated = self.stage.stop().is_some_and(|stop| stop.escalated);
        if self.is_frozen() && self.stage.live().is_some() && !is_escalated {
            decision.events.push(Body::StopEscalated);
            decision.effects = vec![Effect::Kill];
        }
        decision
    }

    /// The live attempt, when its process runs.
    fn process(&self) -> Result<&Live, Rejection> {
        let live = self.stage.live().filter(|live| live.started.is_some());
        live.ok_or_else(|| self.not_running())
    }

    fn not_running(&self) -> Rejection {
        Rejection::NotRunning {
            phase: self.phase(),
        }
    }

    fn check_lifetime(&self, now: Timestamp, spec: &SessionSpec) -> Result<(), Rejection> {
        if self.lifetime_passed(now, spec) {
            Err(Rejection::LifetimePassed)
        } else {
            Ok(())
        }
    }

    fn and_start(&self, mut decision: Decision, reason: StartReason) -> Decision {
        decision.events.push(Body::AttemptStarting(reason));
        decision.then(Effect::Spawn {
            number: self.next_number(),
        })
    }

    /// A stop, a replacement and a deletion reach what ended attempts left behind.
    fn and_empty_tree(&self, decision: Decision) -> Decision {
        if self.may_have_leftovers() {
            decision.then(Effect::Kill)
        } else {
            decision
        }
    }
}

pub(super) fn and_stop(mut decision: Decision, reason: StopReason) -> Decision {
    decision.events.push(Body::AttemptStopping(reason));
    decision.then(Effect::Terminate)
}
