//! The sandbox machine: stories in its own words, and every short sequence of what may happen.
#![expect(clippy::unwrap_used, reason = "test")]

mod exhaustive;
mod scenarios;

use std::time::Duration;

use outlive_core::{
    id::{Generation, SnapshotId},
    sandbox::{
        AutoResume, Decision, Effect, Holds, Input, Observed, Policy, Refusal, Sandbox, Then,
    },
    time::Timestamp,
};

/// A runtime as the host knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Host {
    None,
    Running,
    Frozen,
}

/// Whose files are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Disk {
    Own,
    Snapshot,
}

/// How an effect ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It happens, and the server hears of it.
    Works,
    /// It doesn't happen, and the server knows no more.
    Fails,
    /// It happens, and the server takes it for failed.
    WorksUnheard,
    /// The server is killed before it happens.
    KilledBefore,
    /// The server is killed right after it happened.
    KilledAfter,
}

/// A sandbox, its host and the time: what one server after another sees of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    sandbox: Sandbox,
    host: Host,
    disk: Disk,
    now: Timestamp,
    /// The newest generation that was ever started.
    started: Generation,
    removed: bool,
}

/// Which server goes on after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Lives,
    Killed,
}

fn snapshot() -> SnapshotId {
    SnapshotId::from_bits(7)
}

fn policy() -> Policy {
    Policy {
        ttl: None,
        hard_ttl: None,
        auto_resume: AutoResume::Yes,
        freeze_after_idle: Some(Duration::from_mins(15)),
        holds: Holds::Count,
    }
}

impl World {
    /// A sandbox that was just put into the store and is about to be started.
    fn new(policy: &Policy) -> Self {
        let now = Timestamp::EPOCH + Duration::from_hours(1);
        Self {
            sandbox: Sandbox::create(now, policy),
            host: Host::None,
            disk: Disk::Own,
            now,
            started: Generation(0),
            removed: false,
        }
    }

    /// One whose runtime answers.
    fn running(policy: &Policy) -> Self {
        let mut world = Self::new(policy);
        let fact = world.perform(Effect::Start, Outcome::Works).unwrap();
        world.give(policy, &fact).unwrap();
        assert_eq!(world.sandbox.observed, Observed::Running);
        world
    }

    /// Lets the machine decide an input and every fact that follows, all effects working.
    fn give(&mut self, policy: &Policy, input: &Input) -> Result<(), Refusal> {
        self.give_with(policy, input, &mut |_| Outcome::Works)
            .map(drop)
    }

    /// The same, with an outcome chosen for each effect.
    fn give_with(
        &mut self,
        policy: &Policy,
        input: &Input,
        outcome_of: &mut dyn FnMut(Effect) -> Outcome,
    ) -> Result<Server, Refusal> {
        for _ in 0..8 {
            let Decision { next, effect, then } = self.decide(policy, input)?;
            self.sandbox = next;
            let mut effect = effect;
            let mut failed = false;
            while let Some(one) = effect.take() {
                let outcome = outcome_of(one);
                failed |= outcome != Outcome::Works;
                let Some(fact) = self.perform(one, outcome) else {
                    return Ok(Server::Killed);
                };
                if self.removed {
                    return Ok(Server::Lives);
                }
                let decision = self.decide(policy, &fact).unwrap();
                assert_eq!(
                    decision.then,
                    Then::Done,
                    "a fact is never put off: {fact:?}"
                );
                self.sandbox = decision.next;
                effect = decision.effect;
            }
            if then == Then::Done || failed {
                return Ok(Server::Lives);
            }
        }
        panic!("{input:?} is put off for ever: {self:?}");
    }

    fn decide(&self, policy: &Policy, input: &Input) -> Result<Decision, Refusal> {
        let decision = self.sandbox.decide(policy, self.now, input);
        let again = self.sandbox.decide(policy, self.now, input);
        assert_eq!(decision, again, "the same inputs, another decision");
        decision
    }

    /// Does to the host what the effect says, and tells what the server hears; nothing when it
    /// is killed.
    fn perform(&mut self, effect: Effect, outcome: Outcome) -> Option<Input> {
        self.check(effect);
        let happens = matches!(
            outcome,
            Outcome::Works | Outcome::WorksUnheard | Outcome::KilledAfter
        );
        let was = self.host;
        if happens {
            match effect {
                Effect::Look | Effect::Greet | Effect::Sweep => {}
                Effect::Start => {
                    self.started = self.sandbox.generation;
                    self.host = Host::Running;
                }
                Effect::Freeze => self.host = Host::Frozen,
                Effect::Thaw => self.host = Host::Running,
                Effect::End => self.host = Host::None,
                Effect::Restore => self.disk = Disk::Snapshot,
                Effect::Remove => {
                    self.host = Host::None;
                    self.removed = true;
                }
            }
        }
        let works = outcome == Outcome::Works;
        match outcome {
            Outcome::KilledBefore | Outcome::KilledAfter => {
                self.sandbox = Sandbox::remembered(self.sandbox.stored());
                None
            }
            Outcome::Works | Outcome::Fails | Outcome::WorksUnheard => Some(match effect {
                Effect::Look if works => Input::Found {
                    lives: was != Host::None,
                },
                Effect::Look => Input::NotLooked,
                Effect::Greet if works => Input::Answered {
                    generation: self.started,
                    frozen: was == Host::Frozen,
                },
                Effect::Greet => Input::Unanswered,
                Effect::Sweep if works => Input::Swept,
                Effect::Sweep => Input::NotSwept,
                Effect::Start if works => Input::Started,
                Effect::Start if happens => Input::HalfStarted,
                Effect::Start => Input::NotStarted,
                Effect::Freeze if works => Input::Froze,
                Effect::Freeze => Input::NotFrozen,
                Effect::Thaw if works => Input::Thawed,
                Effect::Thaw => Input::NotThawed,
                Effect::End if works => Input::Ended,
                Effect::End => Input::NotEnded,
                Effect::Restore if works => Input::Restored,
                Effect::Restore if happens => Input::HalfRestored,
                Effect::Restore => Input::NotRestored,
                Effect::Remove => {
                    self.removed &= works;
                    Input::NotRemoved
                }
            }),
        }
    }

    /// What must hold whenever an effect is about to happen.
    fn check(&self, effect: Effect) {
        use outlive_core::sandbox::Desired;
        let sandbox = &self.sandbox;
        match effect {
            Effect::Look => {}
            Effect::Greet => assert_ne!(self.host, Host::None, "nobody to greet: {self:?}"),
            Effect::Sweep => assert_eq!(self.host, Host::None, "swept alive: {self:?}"),
            Effect::Start => {
                assert_eq!(self.host, Host::None, "two runtimes: {self:?}");
                assert!(
                    sandbox.generation > self.started,
                    "a number twice: {self:?}"
                );
                assert_eq!(sandbox.desired, Desired::Running, "nobody asked: {self:?}");
                assert_eq!(sandbox.restoring, None, "started on half a disk: {self:?}");
            }
            Effect::Freeze => {
                assert_ne!(self.host, Host::None, "nothing to freeze: {self:?}");
                assert_eq!(sandbox.desired, Desired::Frozen, "nobody asked: {self:?}");
            }
            Effect::Thaw => {
                assert_ne!(self.host, Host::None, "nothing to thaw: {self:?}");
                assert_eq!(sandbox.desired, Desired::Running, "nobody asked: {self:?}");
            }
            // A runtime that lives is never ended because a step with it failed.
            Effect::End => assert!(
                sandbox.desired == Desired::Released || sandbox.restoring.is_some(),
                "{self:?}"
            ),
            Effect::Restore => {
                assert_eq!(self.host, Host::None, "under a runtime: {self:?}");
                assert!(sandbox.restoring.is_some(), "nobody asked: {self:?}");
            }
            Effect::Remove => assert_eq!(sandbox.desired, Desired::Deleted, "{self:?}"),
        }
    }

    /// The next server begins with a look; its effects end as told.
    fn restart_with(&mut self, policy: &Policy, outcome_of: &mut dyn FnMut(Effect) -> Outcome) {
        self.sandbox = Sandbox::remembered(self.sandbox.stored());
        let mut effect = Some(Effect::Look);
        while let Some(one) = effect {
            let fact = self.perform(one, outcome_of(one));
            if self.removed {
                return;
            }
            // One that is killed is followed by another, which looks again.
            effect = match fact {
                None => Some(Effect::Look),
                Some(fact) => {
                    let decision = self.decide(policy, &fact).unwrap();
                    self.sandbox = decision.next;
                    decision.effect
                }
            };
        }
    }

    fn restart(&mut self, policy: &Policy) {
        self.restart_with(policy, &mut |_| Outcome::Works);
    }

    /// The host loses its runtime, and the server sees it.
    fn die(&mut self, policy: &Policy) {
        self.host = Host::None;
        self.give(policy, &Input::Gone).unwrap();
    }

    /// Time goes on to the next deadline; tells whether there is one.
    fn tick(&mut self, policy: &Policy, quiet_since: Option<Timestamp>) -> bool {
        let due = self.sandbox.next_deadline(policy, self.now, quiet_since);
        let Some(due) = due else {
            return false;
        };
        self.now = self.now.max(due);
        self.give(policy, &Input::DeadlinePassed { quiet_since })
            .unwrap();
        true
    }
}
