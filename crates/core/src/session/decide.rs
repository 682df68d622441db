//! `decide`: what an input means in each phase. Reads, changes nothing.
//!
//! Every function matches all stages by name: a new stage has to be thought about everywhere.

mod command;
mod deadline;
mod fact;

use super::{
    Decision, Effect, Input, Rejection, Session,
    apply::Aftermath,
    state::{Attempt, Existence, Owed},
};
use crate::{
    event::{AttemptEnd, Body},
    id::AttemptId,
    time::Timestamp,
};

impl Session {
    /// What `input` means now.
    pub fn decide(&self, now: Timestamp, input: &Input) -> Result<Decision, Rejection> {
        match input {
            Input::Update(spec) => self.decide_update(now, spec),
            Input::SetDesiredState(state) => self.decide_desired_state(now, *state),
            Input::NewAttempt(replace) => self.decide_new_attempt(now, *replace),
            Input::Write {
                expected,
                input_id,
                digest,
                bytes,
                eof,
                truncated_line,
            } => {
                self.check_command(expected.as_ref())?;
                let accepted = Body::InputAccepted {
                    input_id: input_id.clone(),
                    digest: *digest,
                    bytes: *bytes,
                    eof: *eof,
                    truncated_line: *truncated_line,
                };
                self.decide_write(accepted, *bytes)
            }
            Input::Signal { expected, signal } => {
                self.check_command(expected.as_ref())?;
                self.decide_signal(*signal)
            }
            Input::Resize {
                expected,
                rows,
                cols,
            } => {
                self.check_command(expected.as_ref())?;
                self.decide_resize(*rows, *cols)
            }
            Input::Delete => self.decide_delete(),
            Input::Started { pid } => Ok(self.decide_started(*pid)),
            Input::StartFailed { message } => Ok(self.decide_start_failed(now, message)),
            Input::OutputMatched => Ok(self.decide_output_matched()),
            Input::Exited { end } => Ok(self.decide_exited(now, end)),
            Input::DeadlinePassed => Ok(self.decide_deadline(now)),
            Input::Frozen => Ok(self.decide_frozen()),
            Input::Thawed => Ok(self.decide_thawed(now)),
            Input::Released => Ok(self.decide_released(now)),
            Input::RuntimeStarted(generation) => Ok(self.decide_runtime_started(now, *generation)),
        }
    }

    /// Refuses every command to a session that is going or gone.
    pub(crate) fn check_alive(&self) -> Result<(), Rejection> {
        match self.existence {
            Existence::Alive => Ok(()),
            Existence::Deleting => Err(Rejection::Deleting),
            Existence::Deleted => Err(Rejection::NotFound),
        }
    }

    /// Refuses a caller who means another attempt.
    pub(crate) fn check_expected(&self, expected: Option<&AttemptId>) -> Result<(), Rejection> {
        let current = self.attempt_id();
        match expected {
            Some(expected) if current.as_ref() != Some(expected) => {
                Err(Rejection::AttemptMismatch {
                    expected: expected.clone(),
                    current,
                })
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_command(&self, expected: Option<&AttemptId>) -> Result<(), Rejection> {
        self.check_alive()?;
        self.check_expected(expected)
    }

    /// The end of the live attempt and what follows it, as one batch.
    fn exit(&self, now: Timestamp, end: AttemptEnd) -> Decision {
        let aftermath = self.aftermath(now, &end);
        let mut decision = Decision::event(Body::AttemptExited(end));
        if let Aftermath::Owe(owed) = aftermath {
            self.settle(&mut decision, owed, now);
        }
        decision
    }

    /// Adds what settles `owed`, and its effect.
    fn settle(&self, decision: &mut Decision, owed: Owed, now: Timestamp) {
        decision.events.push(self.settling(owed, now));
        match owed {
            Owed::Start(_) => decision.effects.push(Effect::Spawn {
                number: self.next_number(),
            }),
            Owed::Delete => decision.effects.push(Effect::Remove),
            Owed::Restart | Owed::Fail(_) | Owed::Expire => {}
        }
    }

    /// Whether an ended attempt may have left processes behind.
    pub(super) fn may_have_leftovers(&self) -> bool {
        self.attempt()
            .is_some_and(|attempt: &Attempt| attempt.end.is_some())
    }
}
