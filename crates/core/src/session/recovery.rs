//! What a new supervisor and a new runtime find.
//!
//! ```text
//! new supervisor, same runtime   the attempts live on; `unfinished` says which effects of
//!                                journalled intents may not have happened and are done again
//! new runtime                    the attempts are gone; `RuntimeStarted` ends them in the
//!                                journal and starts what was active, if its policy says so
//! ```

use super::{
    Decision, Effect, Roll, Session,
    apply::Aftermath,
    state::{Existence, Owed, Stage},
};
use crate::{
    event::{AttemptEnd, Body, Expiry, StartReason},
    id::Generation,
    spec::{DesiredState, RuntimeRecovery},
    time::Timestamp,
};

impl Session {
    /// The effects of journalled intents that no fact has answered yet, for a supervisor that
    /// takes over. Each is done again unless its trace is found: a `Spawn` whose process exists
    /// is answered with `Started`, and ending twice does no harm.
    pub fn unfinished(&self) -> Vec<Effect> {
        if self.existence == Existence::Deleted {
            return vec![Effect::Remove];
        }
        let mut effects = Vec::new();
        match &self.stage {
            Stage::Starting(live) if live.started.is_none() => {
                effects.extend(self.attempt().map(|newest| Effect::Spawn {
                    number: newest.number,
                }));
            }
            Stage::Stopping(_, stop) if stop.escalated => effects.push(Effect::Kill),
            Stage::Stopping(..) => effects.push(Effect::Terminate),
            // A stop reaches what ended attempts left behind.
            Stage::Stopped if self.may_have_leftovers() => effects.push(Effect::Kill),
            Stage::Starting(_)
            | Stage::Running(_)
            | Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => {}
        }
        // A terminal that already has the size doesn't notice.
        if let Some(live) = self.stage.live()
            && let (Some(size), Some(_)) = (live.terminal, live.started)
        {
            effects.push(Effect::Resize {
                rows: size.rows,
                cols: size.cols,
            });
        }
        effects
    }

    pub(super) fn decide_runtime_started(
        &self,
        now: Timestamp,
        generation: Generation,
    ) -> Decision {
        let mut decision = Decision::none();
        if self.existence == Existence::Deleted {
            return decision;
        }
        let newer = generation > self.generation;
        let recovers = match &self.stage {
            Stage::Starting(_) | Stage::Running(_) | Stage::Stopping(..) => {
                if self
                    .attempt()
                    .is_none_or(|attempt| attempt.generation >= generation)
                {
                    return decision;
                }
                let end = AttemptEnd::RuntimeReplaced;
                let aftermath = self.aftermath(now, &end);
                decision.events.push(Body::AttemptExited(end));
                if aftermath == Aftermath::Owe(Owed::Delete) {
                    decision.events.push(Body::SessionDeleted);
                    decision.effects.push(Effect::Remove);
                    return decision;
                }
                self.spec.lifecycle.desired_state == DesiredState::Running
            }
            // A release that was interrupted goes on in its own runtime; nothing starts there.
            Stage::Suspended => self
                .attempt()
                .is_none_or(|attempt| attempt.generation < generation),
            Stage::Backoff { .. } => newer,
            Stage::Pending | Stage::Stopped | Stage::Exited | Stage::Failed => {
                newer && matches!(self.owed, Some(Owed::Start(_) | Owed::Restart))
            }
        };
        decision.roll = newer.then_some(Roll {
            generation,
            from: decision.events.len(),
        });
        if recovers {
            self.recover(now, &mut decision);
        }
        decision
    }

    /// The session was active before its runtime went.
    fn recover(&self, now: Timestamp, decision: &mut Decision) {
        match self.spec.lifecycle.runtime_recovery {
            RuntimeRecovery::Stop => decision.events.push(Body::SessionStopped),
            RuntimeRecovery::Restart if self.lifetime_passed(now, &self.spec) => {
                decision
                    .events
                    .push(Body::SessionExpired(Expiry::MaxLifetime));
            }
            RuntimeRecovery::Restart => {
                decision
                    .events
                    .push(Body::AttemptStarting(StartReason::RuntimeRecovered));
                decision.effects.push(Effect::Spawn {
                    number: self.next_number(),
                });
            }
        }
    }
}
