//! The sandbox machine: a place with a disk that runs, stands still, or keeps its disk only.
//!
//! [`Sandbox`] is the state; most of it is one row of the server's store. [`Sandbox::decide`] says
//! what an [`Input`] means now and changes nothing. A [`Decision`] is the next state and at most
//! one effect; the task that owns the sandbox writes the state into the store *before* it performs
//! the effect, and feeds back what came of it. So whatever a killed server leaves behind is a
//! state whose effect may or may not have happened, and [`Input::Found`] settles which.
//!
//! ```text
//!              create ► starting ◄──────── wake, resume ─────────────────┐
//!                         │  ▲                                           │
//!                 answers │  │ runtime died                              │
//!                         ▼  │                                           │
//!     failed ◄─ no start─ running ─── pause, ttl ──► releasing ────► released
//!                         │  ▲                        ▲     ▲
//!           suspend, idle │  │ wake, resume           │     │ runtime died
//!                         ▼  │                        │     │
//!                    freezing┼thawing                 │     │
//!                         ▼  │                        │     │
//!                        frozen ──────── pause, ttl ──┴─────┘
//!
//!     any ── restore ► releasing, disk put back ► as it was before: starting or released
//!     any ── delete, hard_ttl ► deleting ► (no trace)
//! ```
//!
//! A sandbox with more on its disk than it may have stands still ([`Input::DiskOver`]), and calls
//! don't wake it. Whoever resumes it gives it a while to make room.
//!
//! Two rules keep workloads safe meanwhile: a runtime that lives is never ended because a step
//! with it failed, and no generation starts before it is certain that none lives.

mod decide;
mod due;
mod facts;
mod restore;
mod words;

use std::time::Duration;

pub use self::words::{
    AutoResume, Decision, Desired, Effect, Hold, Holds, Input, Observed, Policy, Refusal,
    ReleaseWhy, Then,
};
use crate::{
    id::{Generation, SnapshotId},
    time::Timestamp,
};

/// What is known of a sandbox's runtime: not stored, since a new server has to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Nobody looked yet, or looking failed.
    Unknown,
    /// None lives.
    Absent,
    /// One lives; whether it answers is another matter.
    Present,
}

/// A sandbox: what was asked of it, what is known of it, and when something is due.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sandbox {
    /// What was asked for last.
    pub desired: Desired,
    /// What is known.
    pub observed: Observed,
    /// Why it has no runtime, or is about to have none.
    pub why: Option<ReleaseWhy>,
    /// Number of the current or last runtime.
    pub generation: Generation,
    /// When the current or last runtime was asked for.
    pub claimed_at: Timestamp,
    /// When it is released.
    pub expires_at: Option<Timestamp>,
    /// When it is deleted.
    pub hard_expires_at: Option<Timestamp>,
    /// What keeps it awake by request, oldest first.
    pub holds: Vec<Hold>,
    /// The snapshot that its disk is being put back to: nothing runs before that came to its end.
    pub restoring: Option<SnapshotId>,
    /// What no store keeps.
    pub known: Known,
}

/// What is known of a sandbox and no store keeps: the next server finds it out, or does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Known {
    /// Whether a runtime lives.
    pub presence: Presence,
    /// When its runtime answered first, as far as this server knows.
    started_at: Option<Timestamp>,
    /// Since when its processes go on, as far as this server knows: the idle rule counts from
    /// there at the earliest.
    running_since: Option<Timestamp>,
    /// Starts that failed or runtimes that died young, in a row.
    failures: u32,
    /// Other steps that could not be done, in a row.
    stumbles: u32,
    /// When what is asked for is tried again; until then nothing else is due.
    retry_at: Option<Timestamp>,
    /// Whether more is on its disk than may be, as it was last measured.
    pub disk_full: bool,
    /// Until when it may run all the same, to make room.
    room_until: Option<Timestamp>,
}

impl Known {
    /// Of a sandbox nothing happened to yet, but this.
    const fn of(presence: Presence) -> Self {
        Self {
            presence,
            started_at: None,
            running_since: None,
            failures: 0,
            stumbles: 0,
            retry_at: None,
            disk_full: false,
            room_until: None,
        }
    }
}

/// The part of a [`Sandbox`] that outlives a server; see there for what each means.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of `Sandbox`")]
pub struct Stored {
    pub desired: Desired,
    pub observed: Observed,
    pub why: Option<ReleaseWhy>,
    pub generation: Generation,
    pub claimed_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub hard_expires_at: Option<Timestamp>,
    pub holds: Vec<Hold>,
    pub restoring: Option<SnapshotId>,
}

impl Sandbox {
    /// One that is about to be started for the first time.
    pub fn create(now: Timestamp, policy: &Policy) -> Self {
        Self {
            desired: Desired::Running,
            observed: Observed::Starting,
            why: None,
            generation: Generation::FIRST,
            claimed_at: now,
            expires_at: policy.ttl.map(|ttl| now + ttl),
            hard_expires_at: policy.hard_ttl.map(|ttl| now + ttl),
            holds: Vec::new(),
            restoring: None,
            known: Known::of(Presence::Absent),
        }
    }

    /// One whose disk was made without a runtime: a fork, or a snapshot that was restored.
    pub fn create_released(now: Timestamp, policy: &Policy) -> Self {
        Self {
            desired: Desired::Released,
            observed: Observed::Released,
            why: Some(ReleaseWhy::Pause),
            expires_at: None,
            ..Self::create(now, policy)
        }
    }

    /// As a store remembers it: whether a runtime lives has to be found out.
    #[must_use]
    pub fn remembered(stored: Stored) -> Self {
        let Stored {
            desired,
            observed,
            why,
            generation,
            claimed_at,
            expires_at,
            hard_expires_at,
            holds,
            restoring,
        } = stored;
        Self {
            desired,
            observed,
            why,
            generation,
            claimed_at,
            expires_at,
            hard_expires_at,
            holds,
            restoring,
            known: Known::of(Presence::Unknown),
        }
    }

    /// What a store has to remember of it.
    pub fn stored(&self) -> Stored {
        Stored {
            desired: self.desired,
            observed: self.observed,
            why: self.why,
            generation: self.generation,
            claimed_at: self.claimed_at,
            expires_at: self.expires_at,
            hard_expires_at: self.hard_expires_at,
            holds: self.holds.clone(),
            restoring: self.restoring.clone(),
        }
    }

    /// Whether a store has to keep more of `next` than what is observed of the sandbox. That alone
    /// need not survive a power loss: it ends every runtime, and the next server looks anew.
    pub fn asks_for_more(&self, next: &Self) -> bool {
        let observed = self.observed;
        self.stored()
            != Stored {
                observed,
                ..next.stored()
            }
    }

    /// Whether `next` differs in nothing but whether its processes stand still, which no list of a
    /// store is asked for.
    pub fn only_moves(&self, next: &Self) -> bool {
        let has_processes = |observed| {
            matches!(
                observed,
                Observed::Running | Observed::Freezing | Observed::Frozen | Observed::Thawing
            )
        };
        has_processes(self.observed) && has_processes(next.observed) && !self.asks_for_more(next)
    }

    /// Takes over what `next` knows and no store keeps; what is stored stays as it is.
    pub fn learn(&mut self, next: &Self) {
        self.known = next.known;
    }

    /// Whether calls reach a runtime now, or will once it answers.
    pub fn is_awake(&self) -> bool {
        self.desired == Desired::Running && self.observed == Observed::Running
    }

    /// Whether it has to stand still for what is on its disk.
    pub fn lacks_room(&self, now: Timestamp) -> bool {
        self.known.disk_full && self.known.room_until.is_none_or(|at| at <= now)
    }

    /// Whether everything that was asked for is reached.
    pub fn is_settled(&self) -> bool {
        let wanted = match self.desired {
            Desired::Running => Observed::Running,
            Desired::Frozen => Observed::Frozen,
            Desired::Released => Observed::Released,
            Desired::Deleted => return false,
        };
        self.restoring.is_none() && self.observed == wanted
    }

    /// The holds that keep it awake.
    pub fn held_by(&self, policy: &Policy, now: Timestamp) -> impl Iterator<Item = &Hold> {
        let count = match policy.holds {
            Holds::Count => self.holds.as_slice(),
            Holds::DontCount => &[],
        };
        count.iter().filter(move |hold| hold.expires_at > now)
    }

    /// When it falls asleep if nothing happens any more. `quiet_since` is when the last thing
    /// that counts ended; nothing while one goes on.
    pub fn sleeps_at(
        &self,
        policy: &Policy,
        now: Timestamp,
        quiet_since: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let after = policy.freeze_after_idle?;
        let held = self.held_by(policy, now).map(|hold| hold.expires_at).max();
        let since = [Some(quiet_since?), self.known.running_since, held];
        let quiet = since.into_iter().flatten().max()?;
        self.is_awake().then(|| quiet + after)
    }

    /// When [`Input::DeadlinePassed`] is due.
    pub fn next_deadline(
        &self,
        policy: &Policy,
        now: Timestamp,
        quiet_since: Option<Timestamp>,
    ) -> Option<Timestamp> {
        if self.known.retry_at.is_some() {
            return self.known.retry_at; // What is due meanwhile would fail in the same way.
        }
        [
            self.hard_expires_at,
            self.soft_deadline(),
            self.sleeps_at(policy, now, quiet_since),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn soft_deadline(&self) -> Option<Timestamp> {
        let has_runtime = matches!(self.desired, Desired::Running | Desired::Frozen);
        self.expires_at.filter(|_| has_runtime)
    }

    /// A step can't be done now: what is asked for is tried again, later each time.
    fn stumble(&mut self, now: Timestamp) {
        self.known.retry_at = Some(now + backoff(self.known.stumbles));
        self.known.stumbles = self.known.stumbles.saturating_add(1);
    }

    /// What was asked for is reached.
    fn settle(&mut self) {
        self.known.stumbles = 0;
        self.known.retry_at = None;
    }
}

/// How long a step waits that could not be done `before` times in a row.
fn backoff(before: u32) -> Duration {
    use crate::limits::{RUNTIME_BACKOFF_MAX, RUNTIME_BACKOFF_MIN};
    (RUNTIME_BACKOFF_MIN * 2_u32.pow(before.min(16))).min(RUNTIME_BACKOFF_MAX)
}
