//! Deadlines: they are computed from the state, so they survive a crash of the supervisor.

use std::time::Duration;

use super::{
    super::{
        Decision, Effect, Session,
        state::{Live, Stage},
    },
    command::and_stop,
};
use crate::{
    event::{Body, Expiry, StartReason, StopReason},
    spec::Readiness,
    time::Timestamp,
};

/// What a live attempt that is not ready waits for.
#[derive(Default)]
struct Patience {
    ready: Option<Timestamp>,
    give_up: Option<Timestamp>,
}

impl Session {
    /// When the next [`Input::DeadlinePassed`](super::super::Input::DeadlinePassed) is due; none
    /// while nothing waits for time. May lie in the past: then it is due at once.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.owed.is_some() && self.stage.live().is_none() {
            return Some(self.updated_at);
        }
        if self.frozen_at.is_some() {
            return None;
        }
        match &self.stage {
            Stage::Starting(live) => {
                let patience = self.patience(live);
                earliest([
                    patience.ready,
                    patience.give_up,
                    self.idle_due(),
                    self.lifetime_due(),
                ])
            }
            Stage::Running(_) => earliest([self.idle_due(), self.lifetime_due()]),
            Stage::Stopping(_, stop) if stop.escalated => None,
            Stage::Stopping(live, stop) => Some(stop.since + self.grace(live)),
            Stage::Backoff { due } => earliest([Some(*due), self.lifetime_due()]),
            Stage::Pending | Stage::Stopped | Stage::Exited | Stage::Failed | Stage::Suspended => {
                None
            }
        }
    }

    pub(super) fn decide_deadline(&self, now: Timestamp) -> Decision {
        if self.next_deadline().is_none_or(|due| now < due) {
            return Decision::none();
        }
        if let Some(owed) = self.owed
            && self.stage.live().is_none()
        {
            let mut decision = Decision::none();
            self.settle(&mut decision, owed, now);
            return decision;
        }
        let due = |deadline: Option<Timestamp>| deadline.is_some_and(|at| now >= at);
        match &self.stage {
            Stage::Starting(_) | Stage::Running(_) | Stage::Backoff { .. }
                if due(self.lifetime_due()) =>
            {
                self.expired(Expiry::MaxLifetime)
            }
            Stage::Starting(_) | Stage::Running(_) if due(self.idle_due()) => {
                self.expired(Expiry::IdleTimeout)
            }
            Stage::Starting(live) => {
                let patience = self.patience(live);
                if due(patience.ready) {
                    Decision::event(Body::SessionReady)
                } else if due(patience.give_up) {
                    and_stop(Decision::none(), StopReason::ReadinessTimeout)
                } else {
                    Decision::none()
                }
            }
            Stage::Backoff { .. } => Decision::event(Body::AttemptStarting(
                StartReason::RestartPolicy,
            ))
            .then(Effect::Spawn {
                number: self.next_number(),
            }),
            Stage::Stopping(..) => Decision::event(Body::StopEscalated).then(Effect::Kill),
            Stage::Running(_)
            | Stage::Pending
            | Stage::Stopped
            | Stage::Exited
            | Stage::Failed
            | Stage::Suspended => Decision::none(),
        }
    }

    fn expired(&self, expiry: Expiry) -> Decision {
        let mut decision = Decision::none();
        self.expire(&mut decision, expiry);
        decision
    }

    fn grace(&self, live: &Live) -> Duration {
        let own = live
            .grace_seconds
            .map(|seconds| Duration::from_secs(seconds.into()));
        own.unwrap_or_else(|| self.spec.lifecycle.stop_grace())
    }

    fn patience(&self, live: &Live) -> Patience {
        let Some(started) = live.started.filter(|_| live.ready.is_none()) else {
            return Patience::default();
        };
        let after = |ms: u32| Some(started + Duration::from_millis(u64::from(ms)));
        match &self.spec.readiness {
            // Told by the start itself; due at once where a torn batch lost it.
            Readiness::Process { .. } => Patience {
                ready: Some(started),
                give_up: None,
            },
            Readiness::Delay {
                delay_ms,
                timeout_ms,
            } if delay_ms <= timeout_ms => Patience {
                ready: after(*delay_ms),
                give_up: None,
            },
            Readiness::Delay { timeout_ms, .. } | Readiness::Output { timeout_ms, .. } => {
                Patience {
                    ready: None,
                    give_up: after(*timeout_ms),
                }
            }
        }
    }

    fn idle_due(&self) -> Option<Timestamp> {
        self.spec
            .lifecycle
            .idle_timeout()
            .map(|idle| self.idle_since + idle)
    }

    fn lifetime_due(&self) -> Option<Timestamp> {
        self.spec
            .lifecycle
            .max_lifetime()
            .map(|lifetime| self.created_at + lifetime)
    }
}

fn earliest<const N: usize>(deadlines: [Option<Timestamp>; N]) -> Option<Timestamp> {
    deadlines.into_iter().flatten().min()
}
