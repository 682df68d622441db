//! Facts of the outside: processes, output, freezing.

use super::super::{
    Decision, Effect, Session,
    state::{Live, Stage},
};
use crate::{
    event::{AttemptEnd, Body, Expiry, StopReason},
    limits::START_MESSAGE_BYTES_MAX,
    spec::{Descendants, Readiness},
    time::Timestamp,
};

impl Session {
    pub(super) fn decide_started(&self, pid: u32) -> Decision {
        let started = Decision::event(Body::AttemptStarted { pid });
        match &self.stage {
            Stage::Starting(live) if live.started.is_none() => {
                let mut decision = and_owed_resize(started, live);
                if matches!(self.spec.readiness, Readiness::Process { .. }) {
                    decision.events.push(Body::SessionReady);
                }
                decision
            }
            // The stop came while the process was being started.
            Stage::Stopping(live, stop) if live.started.is_none() => {
                started.then(if stop.escalated {
                    Effect::Kill
                } else {
                    Effect::Terminate
                })
            }
            // It was already told, or the attempt is over.
            Stage::Starting(_)
            | Stage::Stopping(..)
            | Stage::Running(_)
            | Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => Decision::none(),
        }
    }

    pub(super) fn decide_start_failed(&self, now: Timestamp, message: &str) -> Decision {
        match &self.stage {
            Stage::Starting(live) | Stage::Stopping(live, _) if live.started.is_none() => {
                let message = shortened(message);
                self.exit(now, AttemptEnd::StartFailed { message })
            }
            // Nothing is being started: it was already told.
            Stage::Starting(_)
            | Stage::Running(_)
            | Stage::Stopping(..)
            | Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => Decision::none(),
        }
    }

    pub(super) fn decide_output_matched(&self) -> Decision {
        match &self.stage {
            Stage::Starting(live) if live.ready.is_none() => Decision::event(Body::SessionReady),
            // Ready already, or too late: the attempt is on its way out.
            Stage::Starting(_)
            | Stage::Running(_)
            | Stage::Stopping(..)
            | Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => Decision::none(),
        }
    }

    pub(super) fn decide_exited(&self, now: Timestamp, end: &AttemptEnd) -> Decision {
        let stop = match &self.stage {
            Stage::Starting(_) | Stage::Running(_) => None,
            Stage::Stopping(_, stop) => Some(stop.reason),
            // Nothing lives, so nothing ends: an exit that was already told.
            Stage::Pending
            | Stage::Backoff { .. }
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => return Decision::none(),
        };
        let end = match end {
            AttemptEnd::Exited {
                status,
                oom,
                rusage,
                ..
            } => AttemptEnd::Exited {
                status: *status,
                stop,
                oom: *oom,
                rusage: *rusage,
            },
            AttemptEnd::StartFailed { message } => AttemptEnd::StartFailed {
                message: shortened(message),
            },
            AttemptEnd::RuntimeReplaced => AttemptEnd::RuntimeReplaced,
        };
        let mut decision = self.exit(now, end);
        if self.spec.lifecycle.descendants == Descendants::Kill {
            decision.effects.insert(0, Effect::Kill);
        }
        decision
    }

    pub(super) fn decide_frozen(&self) -> Decision {
        if self.frozen_at.is_some() {
            return Decision::none();
        }
        match &self.stage {
            Stage::Starting(_)
            | Stage::Running(_)
            | Stage::Stopping(..)
            | Stage::Backoff { .. } => Decision::event(Body::SessionPaused),
            // No process to stand still and no clock to stop.
            Stage::Pending | Stage::Stopped | Stage::Exited | Stage::Failed | Stage::Suspended => {
                Decision::none()
            }
        }
    }

    pub(super) fn decide_thawed(&self, now: Timestamp) -> Decision {
        if self.frozen_at.is_none() {
            return Decision::none();
        }
        let mut decision = Decision::event(Body::SessionResumed);
        // The lifetime ran on while frozen, and fires before anything else.
        if self.lifetime_passed(now, &self.spec) {
            self.expire(&mut decision, Expiry::MaxLifetime);
        }
        decision
    }

    /// Adds an expiry where it has something to end.
    pub(super) fn expire(&self, decision: &mut Decision, expiry: Expiry) {
        match &self.stage {
            Stage::Starting(_) | Stage::Running(_) => {
                decision.events.push(Body::SessionExpired(expiry));
                decision
                    .events
                    .push(Body::AttemptStopping(StopReason::SessionExpired));
                decision.effects.push(Effect::Terminate);
            }
            Stage::Backoff { .. } => {
                decision.events.push(Body::SessionExpired(expiry));
                if self.may_have_leftovers() {
                    decision.effects.push(Effect::Kill);
                }
            }
            // It is ending or has ended; a later start is refused.
            Stage::Stopping(..)
            | Stage::Pending
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => {}
        }
    }

    pub(super) fn decide_released(&self, now: Timestamp) -> Decision {
        match &self.stage {
            Stage::Starting(_) | Stage::Running(_) | Stage::Stopping(..) => {
                let mut decision = self.decide_frozen();
                let exit = self.exit(now, AttemptEnd::RuntimeReplaced);
                decision.events.extend(exit.events);
                decision.effects.extend(exit.effects);
                decision
            }
            // No attempt ends, but the clock of the restart stands still until recovery.
            Stage::Backoff { .. } => self.decide_frozen(),
            Stage::Pending | Stage::Stopped | Stage::Exited | Stage::Failed | Stage::Suspended => {
                Decision::none()
            }
        }
    }
}

fn and_owed_resize(decision: Decision, live: &Live) -> Decision {
    match live.terminal {
        Some(size) if live.resize_owed => decision.then(Effect::Resize {
            rows: size.rows,
            cols: size.cols,
        }),
        Some(_) | None => decision,
    }
}

/// The front of a message, cut between characters.
fn shortened(message: &str) -> String {
    let end = message.floor_char_boundary(START_MESSAGE_BYTES_MAX);
    message[..end].to_owned()
}
