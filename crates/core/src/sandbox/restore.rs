//! Putting a disk back to what a snapshot holds.
//!
//! ```text
//!   restore ─► end the runtime ─► put the disk back ─► start the next one, or rest
//!                  ▲    │ not ended      │ nobody knows how far
//!                  └────┴────────────────┘ later
//! ```
//! The wish is in the store before anything happens, and stays there until the disk is one or the
//! other: a server that is killed in between is followed by one that begins again. Sessions and
//! their journals are not touched; the end of the runtime is the one that a release has.

use super::{
    Decision, Desired, Effect, Input, Observed, Policy, Presence, Refusal, ReleaseWhy, Sandbox,
};
use crate::{id::SnapshotId, time::Timestamp};

impl Sandbox {
    /// What runs is ended first, and runs again afterwards; what stands still loses its processes,
    /// and waits for somebody who needs it.
    pub(super) fn decide_restore(&self, snapshot: &SnapshotId) -> Decision {
        let mut next = self.clone();
        next.restoring = Some(snapshot.clone());
        if self.desired == Desired::Frozen {
            next.desired = Desired::Released;
            next.why = Some(ReleaseWhy::Pause);
        }
        if self.observed != Observed::Released {
            next.observed = Observed::Releasing;
        }
        next.go_on_restoring()
    }

    /// Everything finishes what was begun.
    pub(super) fn decide_restoring(
        &self,
        policy: &Policy,
        now: Timestamp,
        input: &Input,
    ) -> Result<Decision, Refusal> {
        let mut next = self.clone();
        match input {
            Input::Restore(snapshot) => Ok(self.decide_restore(snapshot)),
            Input::Wake => {
                self.may_be_called(policy)?;
                Ok(Decision::first(next, Effect::End))
            }
            Input::Resume | Input::Suspend => Ok(Decision::first(next, Effect::End)),
            Input::Release(why) => {
                next.desired = Desired::Released;
                next.why = Some(*why);
                Ok(next.go_on_restoring())
            }
            Input::Delete
            | Input::Refresh(_)
            | Input::TtlChanged
            | Input::HardTtlChanged
            | Input::Hold(_)
            | Input::DropHold(_)
            | Input::DiskOver
            | Input::DiskFits => self.decide_whole(policy, now, input),
            Input::DeadlinePassed { .. } => Ok(self.decide_restoring_deadline(now)),
            Input::Found { .. } | Input::Gone => Ok(next.go_on_restoring()),
            Input::Ended => {
                next.known.presence = Presence::Absent;
                next.known.started_at = None;
                Ok(Decision::perform(next, Effect::Restore))
            }
            Input::Restored | Input::NotRestored => Ok(self.decide_restored(now)),
            // None of the others follows from what is performed meanwhile, but for those that say
            // that a step can't be done now.
            Input::NotLooked
            | Input::Unanswered
            | Input::Answered { .. }
            | Input::Swept
            | Input::NotSwept
            | Input::Started
            | Input::NotStarted
            | Input::HalfStarted
            | Input::Froze
            | Input::NotFrozen
            | Input::Thawed
            | Input::NotThawed
            | Input::NotEnded
            | Input::HalfRestored
            | Input::NotRemoved => Ok(self.decide_stumble(now)),
        }
    }

    /// The end of a runtime looks for one by itself, and finds none where none is left.
    fn go_on_restoring(mut self) -> Decision {
        self.known.retry_at = None;
        Decision::perform(self, Effect::End)
    }

    fn decide_restoring_deadline(&self, now: Timestamp) -> Decision {
        if self.known.retry_at.is_some_and(|at| at > now) {
            return Decision::of(self.clone());
        }
        if self.hard_expires_at.is_some_and(|at| at <= now) {
            return self.decide_delete();
        }
        self.clone().go_on_restoring()
    }

    /// The disk is whole, one way or the other.
    fn decide_restored(&self, now: Timestamp) -> Decision {
        let mut next = self.clone();
        next.restoring = None;
        // How full it is has to be measured.
        next.known.disk_full = false;
        next.settle();
        match self.desired {
            Desired::Running => {
                next.begin_generation(now);
                Decision::perform(next, Effect::Start)
            }
            Desired::Frozen | Desired::Released => {
                next.desired = Desired::Released;
                next.observed = Observed::Released;
                Decision::of(next)
            }
            Desired::Deleted => self.decide_delete(),
        }
    }
}
