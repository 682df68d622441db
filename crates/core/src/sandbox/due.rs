//! What is due: the end of a lifetime, sleep, or another try.

use super::{Decision, Desired, Effect, Observed, Policy, Presence, ReleaseWhy, Sandbox};
use crate::time::Timestamp;

impl Sandbox {
    pub(super) fn decide_deadline(
        &self,
        policy: &Policy,
        now: Timestamp,
        quiet_since: Option<Timestamp>,
    ) -> Decision {
        let passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        if self.known.retry_at.is_some_and(|at| at > now) {
            return Decision::of(self.clone());
        }
        if passed(self.hard_expires_at) {
            return self.decide_delete();
        }
        if passed(self.soft_deadline()) {
            return self.decide_release(ReleaseWhy::Ttl);
        }
        if self.known.retry_at.is_some() {
            return self.try_again();
        }
        if passed(self.sleeps_at(policy, now, quiet_since)) {
            return self.freeze();
        }
        Decision::of(self.clone())
    }

    /// What is asked for is tried again.
    fn try_again(&self) -> Decision {
        let mut next = self.clone();
        next.known.retry_at = None;
        match (self.desired, self.known.presence) {
            (_, Presence::Unknown) => Decision::perform(next, Effect::Look),
            (Desired::Running | Desired::Frozen, Presence::Present) => {
                Decision::perform(next, Effect::Greet)
            }
            (Desired::Running, Presence::Absent) => next.sweep(),
            (Desired::Frozen, Presence::Absent) => next.decide_release(ReleaseWhy::RuntimeLost),
            (Desired::Released, _) => {
                next.observed = Observed::Releasing;
                Decision::perform(next, Effect::End)
            }
            (Desired::Deleted, _) => next.decide_delete(),
        }
    }
}
