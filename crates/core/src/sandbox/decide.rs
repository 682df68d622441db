//! What requests mean. Every input meets every state; see the table in [`Sandbox::decide`].

use std::time::Duration;

use super::{
    AutoResume, Decision, Desired, Effect, Hold, Input, Observed, Policy, Presence, Refusal,
    ReleaseWhy, Sandbox, Then,
};
use crate::{limits::HOLDS_MAX, time::Timestamp};

impl Decision {
    pub(super) fn of(next: Sandbox) -> Self {
        Self {
            next,
            effect: None,
            then: Then::Done,
        }
    }

    pub(super) fn perform(next: Sandbox, effect: Effect) -> Self {
        Self {
            next,
            effect: Some(effect),
            then: Then::Done,
        }
    }

    /// Something has to be finished before the input means anything.
    pub(super) fn first(next: Sandbox, effect: Effect) -> Self {
        Self {
            next,
            effect: Some(effect),
            then: Then::Again,
        }
    }
}

/// Who wants a sandbox to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// A call that needs it.
    ToCall,
    /// Somebody who asked for just that.
    ToResume,
}

impl Sandbox {
    /// What `input` means now.
    ///
    /// | request | starting | running | frozen | released | failed | deleting |
    /// |---|---|---|---|---|---|---|
    /// | wake | start | – | thaw | start, if it may | start | refused |
    /// | resume | start | – | thaw | start | start | refused |
    /// | suspend | refused | freeze | – | – | refused | refused |
    /// | release | end | end | end | – | end | refused |
    /// | restore | end | end | end | end | end | refused |
    /// | delete | remove | remove | remove | remove | remove | remove |
    ///
    /// After the end of a restore the disk is put back; what ran before runs again, what rested
    /// rests. Whatever is asked meanwhile finishes that first.
    ///
    /// What is in between (freezing, thawing, releasing) was left by a step that did not come to
    /// its end: it is finished first.
    ///
    /// # Errors
    /// A [`Refusal`], when the request makes no sense now: nothing changed.
    pub fn decide(
        &self,
        policy: &Policy,
        now: Timestamp,
        input: &Input,
    ) -> Result<Decision, Refusal> {
        if self.desired == Desired::Deleted {
            return self.decide_deleted(now, input);
        }
        if self.restoring.is_some() {
            return self.decide_restoring(policy, now, input);
        }
        self.decide_whole(policy, now, input)
    }

    /// What `input` means to one whose disk is its own.
    pub(super) fn decide_whole(
        &self,
        policy: &Policy,
        now: Timestamp,
        input: &Input,
    ) -> Result<Decision, Refusal> {
        match input {
            Input::Wake => self.decide_wake(policy, now, Wants::ToCall),
            Input::Resume => self
                .with_room(now)
                .decide_wake(policy, now, Wants::ToResume),
            Input::Suspend => self.decide_suspend(),
            Input::Release(why) => Ok(self.decide_release(*why)),
            Input::Restore(snapshot) => Ok(self.decide_restore(snapshot)),
            Input::Delete => Ok(self.decide_delete()),
            Input::Refresh(duration) => Ok(self.decide_refresh(policy, now, *duration)),
            Input::TtlChanged => Ok(self.with_expiry(policy.ttl.map(|ttl| now + ttl))),
            Input::HardTtlChanged => {
                let mut next = self.clone();
                next.hard_expires_at = policy.hard_ttl.map(|ttl| now + ttl);
                Ok(Decision::of(next))
            }
            Input::Hold(hold) => self.decide_hold(now, hold),
            Input::DropHold(id) => self.decide_drop_hold(now, id),
            Input::DeadlinePassed { quiet_since } => {
                Ok(self.decide_deadline(policy, now, *quiet_since))
            }
            Input::Found { lives } => Ok(self.decide_found(*lives)),
            Input::NotLooked
            | Input::Unanswered
            | Input::NotSwept
            | Input::HalfStarted
            | Input::NotEnded
            | Input::NotRemoved => Ok(self.decide_stumble(now)),
            Input::NotThawed => Ok(self.decide_not_thawed(now)),
            Input::Answered { generation, frozen } => {
                Ok(self.decide_answered(now, *generation, *frozen))
            }
            Input::Swept => Ok(self.decide_swept(now)),
            Input::Started => Ok(self.decide_started(now)),
            Input::NotStarted => Ok(self.decide_not_started(now)),
            Input::Froze => Ok(self.decide_froze()),
            Input::NotFrozen => Ok(self.decide_not_frozen()),
            Input::Thawed => Ok(self.decide_thawed(now)),
            Input::Ended => Ok(self.decide_ended()),
            // Nobody asked for it any more.
            Input::Restored | Input::NotRestored | Input::HalfRestored => {
                Ok(Decision::of(self.clone()))
            }
            Input::Gone => Ok(self.decide_gone(now)),
            Input::DiskOver => Ok(self.decide_disk_over(now)),
            Input::DiskFits => Ok(self.decide_disk_fits()),
        }
    }

    /// Everything leads to its removal, and nothing back.
    fn decide_deleted(&self, now: Timestamp, input: &Input) -> Result<Decision, Refusal> {
        let mut next = self.clone();
        match input {
            Input::Wake
            | Input::Resume
            | Input::Suspend
            | Input::Release(_)
            | Input::Restore(_)
            | Input::Refresh(_)
            | Input::TtlChanged
            | Input::HardTtlChanged
            | Input::Hold(_)
            | Input::DropHold(_) => Err(Refusal::Deleted),
            Input::Delete | Input::DeadlinePassed { .. } => Ok(self.decide_delete()),
            Input::Found { lives } => {
                next.known.presence = presence(*lives);
                next.observed = Observed::Deleting;
                Ok(Decision::perform(next, Effect::Remove))
            }
            Input::DiskOver | Input::DiskFits => Ok(Decision::of(next)),
            // The runtime may be gone; what is left is removed when its time comes.
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
            | Input::Ended
            | Input::NotEnded
            | Input::Restored
            | Input::NotRestored
            | Input::HalfRestored
            | Input::NotRemoved
            | Input::Gone => {
                next.known.presence = Presence::Unknown;
                next.stumble(now);
                Ok(Decision::of(next))
            }
        }
    }

    fn decide_wake(
        &self,
        policy: &Policy,
        now: Timestamp,
        wants: Wants,
    ) -> Result<Decision, Refusal> {
        if wants == Wants::ToCall {
            self.may_be_called(policy)?;
        }
        // One that runs all the same is about to be stopped.
        if wants == Wants::ToCall && self.lacks_room(now) && self.observed != Observed::Running {
            return Err(Refusal::DiskFull);
        }
        if self.known.presence == Presence::Unknown {
            return Ok(Decision::first(self.clone(), Effect::Look));
        }
        Ok(match self.observed {
            Observed::Running => match self.known.presence {
                Presence::Present => Decision::of(self.clone()),
                Presence::Absent | Presence::Unknown => self.sweep(),
            },
            Observed::Frozen => self.thaw(),
            // A step with a runtime that lives did not come to its end.
            Observed::Freezing | Observed::Thawing => match self.known.presence {
                Presence::Present => self.wanted_running_first(Effect::Greet),
                Presence::Absent | Presence::Unknown => self.sweep(),
            },
            Observed::Releasing => Decision::first(self.clone(), Effect::End),
            Observed::Starting => match self.known.presence {
                Presence::Present => Decision::first(self.clone(), Effect::Greet),
                Presence::Absent | Presence::Unknown => self.sweep(),
            },
            Observed::Released | Observed::Failed => self.start(policy, now),
            Observed::Deleting => return Err(Refusal::Deleted),
        })
    }

    /// Refuses calls that may not wake it.
    pub(super) fn may_be_called(&self, policy: &Policy) -> Result<(), Refusal> {
        if self.desired == Desired::Released && policy.auto_resume == AutoResume::No {
            return Err(Refusal::Paused);
        }
        Ok(())
    }

    fn wanted_running_first(&self, effect: Effect) -> Decision {
        let mut next = self.clone();
        next.desired = Desired::Running;
        Decision::first(next, effect)
    }

    fn thaw(&self) -> Decision {
        let mut next = self.clone();
        next.desired = Desired::Running;
        next.observed = Observed::Thawing;
        Decision::perform(next, Effect::Thaw)
    }

    /// The next generation; nothing is left of the last one.
    fn start(&self, policy: &Policy, now: Timestamp) -> Decision {
        let mut next = self.clone();
        if self.desired != Desired::Running {
            // The deadline of a sandbox that was paused by it counts from now.
            next.expires_at = policy.ttl.map(|ttl| now + ttl);
        }
        next.begin_generation(now);
        Decision::perform(next, Effect::Start)
    }

    pub(super) fn begin_generation(&mut self, now: Timestamp) {
        self.desired = Desired::Running;
        self.observed = Observed::Starting;
        self.why = None;
        self.generation = self.generation.next();
        self.claimed_at = now;
        self.known.retry_at = None;
    }

    /// A runtime is gone that should run: what it left is swept up, then the next one starts.
    pub(super) fn sweep(&self) -> Decision {
        let mut next = self.clone();
        next.desired = Desired::Running;
        next.observed = Observed::Starting;
        next.known.retry_at = None;
        Decision::perform(next, Effect::Sweep)
    }

    fn decide_suspend(&self) -> Result<Decision, Refusal> {
        if self.known.presence == Presence::Unknown && self.observed != Observed::Released {
            return Ok(Decision::first(self.clone(), Effect::Look));
        }
        Ok(match self.observed {
            Observed::Running => self.freeze(),
            Observed::Frozen | Observed::Released => Decision::of(self.clone()),
            Observed::Freezing | Observed::Thawing => {
                let mut next = self.clone();
                next.desired = Desired::Frozen;
                Decision::first(next, Effect::Greet)
            }
            Observed::Releasing => Decision::first(self.clone(), Effect::End),
            Observed::Starting => return Err(Refusal::Starting),
            Observed::Failed => return Err(Refusal::Failed),
            Observed::Deleting => return Err(Refusal::Deleted),
        })
    }

    pub(super) fn freeze(&self) -> Decision {
        let mut next = self.clone();
        next.desired = Desired::Frozen;
        next.observed = Observed::Freezing;
        Decision::perform(next, Effect::Freeze)
    }

    pub(super) fn decide_release(&self, why: ReleaseWhy) -> Decision {
        if self.observed == Observed::Released {
            return Decision::of(self.clone());
        }
        let mut next = self.clone();
        next.desired = Desired::Released;
        next.observed = Observed::Releasing;
        next.why = Some(why);
        next.known.retry_at = None;
        Decision::perform(next, Effect::End)
    }

    pub(super) fn decide_delete(&self) -> Decision {
        let mut next = self.clone();
        next.desired = Desired::Deleted;
        next.observed = Observed::Deleting;
        next.restoring = None;
        next.known.retry_at = None;
        Decision::perform(next, Effect::Remove)
    }

    fn decide_refresh(
        &self,
        policy: &Policy,
        now: Timestamp,
        duration: Option<Duration>,
    ) -> Decision {
        match duration.or(policy.ttl) {
            Some(duration) => self.with_expiry(Some(now + duration)),
            None => Decision::of(self.clone()), // It has no deadline to move.
        }
    }

    fn with_expiry(&self, at: Option<Timestamp>) -> Decision {
        let mut next = self.clone();
        next.expires_at = at;
        Decision::of(next)
    }

    fn decide_hold(&self, now: Timestamp, hold: &Hold) -> Result<Decision, Refusal> {
        let mut next = self.clone();
        next.holds.retain(|other| other.expires_at > now);
        if next.holds.len() >= HOLDS_MAX {
            return Err(Refusal::TooManyHolds(HOLDS_MAX));
        }
        next.holds.push(hold.clone());
        Ok(Decision::of(next))
    }

    fn decide_drop_hold(&self, now: Timestamp, id: &str) -> Result<Decision, Refusal> {
        let mut next = self.clone();
        next.holds.retain(|other| other.expires_at > now);
        let before = next.holds.len();
        next.holds.retain(|other| other.id != id);
        if next.holds.len() == before {
            return Err(Refusal::NoHold);
        }
        Ok(Decision::of(next))
    }
}

pub(super) const fn presence(lives: bool) -> Presence {
    if lives {
        Presence::Present
    } else {
        Presence::Absent
    }
}
