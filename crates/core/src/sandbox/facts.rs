//! What came of an effect, or happened by itself. A fact is never refused.

use super::{
    Decision, Desired, Effect, Observed, Presence, ReleaseWhy, Sandbox, backoff, decide::presence,
};
use crate::{
    id::Generation,
    limits::{DISK_ROOM_MAX, RUNTIME_STABLE_MIN, RUNTIME_STARTS_MAX},
    time::Timestamp,
};

impl Sandbox {
    pub(super) fn decide_found(&self, lives: bool) -> Decision {
        let mut next = self.clone();
        next.known.presence = presence(lives);
        match (self.desired, lives) {
            (Desired::Running | Desired::Frozen, true) => Decision::perform(next, Effect::Greet),
            (Desired::Running, false) => next.sweep(),
            (Desired::Frozen, false) => next.lost(),
            (Desired::Released, false) if self.observed == Observed::Released => {
                next.settle();
                Decision::of(next)
            }
            (Desired::Released, _) => {
                next.observed = Observed::Releasing;
                Decision::perform(next, Effect::End)
            }
            (Desired::Deleted, _) => {
                next.observed = Observed::Deleting;
                Decision::perform(next, Effect::Remove)
            }
        }
    }

    /// A frozen runtime that died is not replaced before somebody needs it.
    fn lost(mut self) -> Decision {
        self.desired = Desired::Released;
        self.observed = Observed::Releasing;
        self.why = Some(ReleaseWhy::RuntimeLost);
        Decision::perform(self, Effect::End)
    }

    pub(super) fn decide_answered(
        &self,
        now: Timestamp,
        generation: Generation,
        frozen: bool,
    ) -> Decision {
        let mut next = self.clone();
        next.known.presence = Presence::Present;
        next.generation = self.generation.max(generation);
        // What was asked of it last and not answered may be done only now.
        let is_in_between = matches!(self.observed, Observed::Freezing | Observed::Thawing);
        match self.desired {
            Desired::Running if frozen || is_in_between => {
                next.observed = Observed::Thawing;
                Decision::perform(next, Effect::Thaw)
            }
            Desired::Running => {
                next.goes_on(now);
                Decision::of(next)
            }
            Desired::Frozen if frozen && self.observed == Observed::Frozen => {
                next.settle();
                Decision::of(next)
            }
            Desired::Frozen => {
                next.observed = Observed::Freezing;
                Decision::perform(next, Effect::Freeze)
            }
            Desired::Released => {
                next.observed = Observed::Releasing;
                Decision::perform(next, Effect::End)
            }
            Desired::Deleted => {
                next.observed = Observed::Deleting;
                Decision::perform(next, Effect::Remove)
            }
        }
    }

    /// Nobody knows how far a step came: it is looked for, later.
    pub(super) fn decide_stumble(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.known.presence = Presence::Unknown;
        next.stumble(now);
        Decision::of(next)
    }

    /// It may stand still, or be about to.
    pub(super) fn decide_not_thawed(&self, now: Timestamp) -> Decision {
        let mut decision = self.decide_stumble(now);
        if self.observed == Observed::Running {
            decision.next.observed = Observed::Thawing;
        }
        decision
    }

    pub(super) fn decide_started(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.known.presence = Presence::Present;
        next.known.started_at = Some(now);
        next.goes_on(now);
        Decision::of(next)
    }

    pub(super) fn decide_not_started(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.known.presence = Presence::Absent;
        next.observed = Observed::Failed;
        next.known.failures = self.known.failures.saturating_add(1);
        if next.known.failures < RUNTIME_STARTS_MAX {
            next.known.retry_at = Some(now + backoff(next.known.failures));
        }
        Decision::of(next)
    }

    pub(super) fn decide_froze(&self) -> Decision {
        let mut next = self.clone();
        next.observed = Observed::Frozen;
        next.settle();
        Decision::of(next)
    }

    /// Whoever was stopped goes on; the caller is told why.
    pub(super) fn decide_not_frozen(&self) -> Decision {
        let mut next = self.clone();
        next.desired = Desired::Running;
        next.observed = Observed::Thawing;
        Decision::perform(next, Effect::Thaw)
    }

    pub(super) fn decide_thawed(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.goes_on(now);
        Decision::of(next)
    }

    fn goes_on(&mut self, now: Timestamp) {
        self.observed = Observed::Running;
        self.known.running_since = Some(now);
        self.settle();
    }

    pub(super) fn decide_ended(&self) -> Decision {
        let mut next = self.clone();
        next.known.presence = Presence::Absent;
        next.observed = Observed::Released;
        next.known.started_at = None;
        next.settle();
        Decision::of(next)
    }

    pub(super) fn decide_gone(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.known.presence = Presence::Absent;
        match (self.desired, self.observed) {
            (Desired::Running, _) => self.replace(next, now),
            (Desired::Frozen, _) => next.lost(),
            (Desired::Released, Observed::Released) | (Desired::Deleted, _) => Decision::of(next),
            (
                Desired::Released,
                Observed::Starting
                | Observed::Running
                | Observed::Freezing
                | Observed::Frozen
                | Observed::Thawing
                | Observed::Releasing
                | Observed::Failed
                | Observed::Deleting,
            ) => {
                next.observed = Observed::Releasing;
                Decision::perform(next, Effect::End)
            }
        }
    }

    /// Another generation takes the place of one that died; of those that die young, later.
    fn replace(&self, mut next: Self, now: Timestamp) -> Decision {
        match self.known.started_at.map(|at| now.since(at)) {
            Some(lived) if lived >= RUNTIME_STABLE_MIN => next.known.failures = 0,
            Some(_) => next.known.failures = self.known.failures.saturating_add(1),
            None => {}
        }
        next.known.started_at = None;
        if next.known.failures > 1 {
            next.observed = Observed::Starting;
            next.known.retry_at = Some(now + backoff(next.known.failures - 1));
            return Decision::of(next);
        }
        next.sweep()
    }

    pub(super) fn decide_swept(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.begin_generation(now);
        Decision::perform(next, Effect::Start)
    }

    /// Nothing is lost by standing still, and nothing more is written.
    pub(super) fn decide_disk_over(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.known.disk_full = true;
        let runs = self.is_awake() && self.known.presence == Presence::Present;
        if runs && next.lacks_room(now) {
            return next.freeze();
        }
        Decision::of(next)
    }

    /// It stays as it is until somebody needs it.
    pub(super) fn decide_disk_fits(&self) -> Decision {
        let mut next = self.clone();
        next.known.disk_full = false;
        next.known.room_until = None;
        Decision::of(next)
    }

    /// As it is once somebody resumes it: with a while to make room, where it has none.
    pub(super) fn with_room(&self, now: Timestamp) -> Self {
        let mut next = self.clone();
        if self.lacks_room(now) {
            next.known.room_until = Some(now + DISK_ROOM_MAX);
        }
        next
    }
}
