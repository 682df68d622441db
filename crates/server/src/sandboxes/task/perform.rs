//! The effects of a sandbox: what its task does to the host and to the supervisor.

use std::sync::Arc;

use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    sandbox::{Effect, Input, Observed},
    session::Session,
    time::Timestamp,
};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    super::{fork, store_failed},
    CopyTo, Task, seconds,
};
use crate::{
    agents::{
        agent::{Agent, NoAnswer},
        keeper::Keeper,
        offline,
    },
    limits::{
        AGENT_START_MAX, AGENT_WAIT_MAX, FREEZE_AGAIN_MAX, FREEZE_ANSWER_MAX, KEEPER_KILL_MAX,
        READ_ANSWER_MAX, RELEASE_MAX,
    },
    runtime::{Disk, Progress, Restore, RestoreError, RuntimeError, Start, Whose},
    sessions::CallError,
};

/// What became of the request to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Leaves,
    /// It did not answer, or said no.
    Stays,
}

/// What becomes of the journals of a runtime that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Journals {
    Stay,
    /// The sandbox is removed.
    Go,
}

/// What the machine hears of an effect, nothing when the sandbox is removed; and what whoever
/// asked for it is told.
pub(super) type Came = (Option<Input>, Result<(), CallError>);

impl Task {
    pub(super) async fn perform(&mut self, effect: Effect) -> Came {
        match effect {
            Effect::Look => self.look_for_runtime().await,
            Effect::Greet => self.greet().await,
            Effect::Sweep => {
                let swept = self.tidy_up().await;
                came(swept, Input::Swept, Input::NotSwept)
            }
            Effect::Start => self.start().await,
            Effect::Freeze => {
                let froze = self.stand_still().await;
                came(froze, Input::Froze, Input::NotFrozen)
            }
            Effect::Thaw => {
                let thawed = self.ask_done(Request::Thaw).await;
                came(thawed, Input::Thawed, Input::NotThawed)
            }
            Effect::End => {
                let ended = self.end_runtime(Journals::Stay).await;
                came(ended, Input::Ended, Input::NotEnded)
            }
            Effect::Restore => self.put_back().await,
            Effect::Remove => match self.remove().await {
                Ok(()) => (None, Ok(())),
                Err(error) => (Some(Input::NotRemoved), Err(error)),
            },
        }
    }

    async fn look_for_runtime(&mut self) -> Came {
        match self.look().await {
            Ok(()) => {
                let lives = self.agent.is_some();
                self.publish_now();
                (Some(Input::Found { lives }), Ok(()))
            }
            Err(error) => (Some(Input::NotLooked), Err(error)),
        }
    }

    /// Links to a runtime that lives. An error says nothing about whether one does.
    async fn look(&mut self) -> Result<(), CallError> {
        if self.agent.is_none() {
            let keeper = self.shared.runtime.running(&self.record.id).await;
            let keeper = keeper.map_err(|error| unavailable(&error))?;
            self.agent = keeper.map(|keeper| self.link(keeper));
        }
        Ok(())
    }

    async fn greet(&mut self) -> Came {
        let Some(agent) = self.agent.clone() else {
            return (Some(Input::NotLooked), Err(gone_meanwhile()));
        };
        let welcome = match agent.welcome(AGENT_WAIT_MAX).await {
            Ok(welcome) => welcome,
            Err(error) => return (Some(Input::Unanswered), Err(resume_failed(&error))),
        };
        if let Err(error) = self.tell_env(&agent).await {
            return (Some(Input::Unanswered), Err(error));
        }
        self.catch_up().await;
        let answered = Input::Answered {
            generation: welcome.generation,
            frozen: welcome.frozen,
        };
        (Some(answered), Ok(()))
    }

    async fn start(&mut self) -> Came {
        let Err(error) = self.bring_up().await else {
            return (Some(Input::Started), Ok(()));
        };
        let error = self.shared.reserve.blame(error);
        tracing::error!(sandbox = %self.record.id, generation = self.record.state.generation.0, %error, "a runtime did not start");
        match self.end_runtime(Journals::Stay).await {
            Ok(()) => (Some(Input::NotStarted), Err(error)),
            Err(left) => {
                tracing::error!(sandbox = %self.record.id, error = %left, "a runtime that did not start is not gone yet");
                (Some(Input::HalfStarted), Err(error))
            }
        }
    }

    async fn bring_up(&mut self) -> Result<(), CallError> {
        let whose = Whose::Sandbox(&self.record.id);
        let provisioned = self.shared.runtime.provision(whose).await;
        provisioned.map_err(|error| failed(&error))?;
        let started = self
            .shared
            .runtime
            .start(Start {
                sandbox: &self.record.id,
                generation: self.record.state.generation,
                config: &self.record.config,
                slot: self.record.slot,
                made: self.record.isolation,
            })
            .await
            .map_err(|error| resume_failed(&error))?;
        // Written with the news that it started.
        self.record.isolation = Some(started.tier);
        let agent = self.link(started.keeper);
        self.agent = Some(Arc::clone(&agent));
        // It was launched with the variables that it is to have.
        let welcomed = agent.welcome(AGENT_START_MAX).await;
        welcomed.map(drop).map_err(|error| resume_failed(&error))
    }

    fn link(&self, keeper: Keeper) -> Arc<Agent> {
        Arc::new(Agent::start(
            self.record.id.clone(),
            self.shared.places.of(&self.record.id).state(),
            keeper,
            Arc::clone(&self.tails),
            self.record.config.env(),
            &self.shared.tasks,
            &self.shared.stop,
        ))
    }

    pub(super) async fn tell_env(&self, agent: &Agent) -> Result<(), CallError> {
        let env = self.record.config.env();
        done(agent.call(Request::Configure { env }).await)
    }

    /// A workload that can't be stopped is no fault of ours: it may work the next time. On a full
    /// disk it is tried again with what the reserve gives, as its journals may lack it.
    async fn stand_still(&self) -> Result<(), CallError> {
        let reserve = &self.shared.reserve;
        let mut tries_left = FREEZE_AGAIN_MAX;
        loop {
            let refused = match self.ask_done(Request::Freeze).await {
                // It said no, or waits itself.
                Err(error @ (CallError::Failed { .. } | CallError::Unavailable { .. })) => error,
                answer => return answer,
            };
            let said_no = matches!(refused, CallError::Failed { .. });
            if said_no && tries_left > 0 && reserve.is_full() && reserve.give_up() {
                tries_left -= 1;
            } else if reserve.is_full() {
                tracing::warn!(sandbox = %self.record.id, error = %refused, "a sandbox is not frozen on a full disk");
                return Err(reserve.full().into());
            } else {
                return Err(unavailable(&refused));
            }
        }
    }

    async fn ask_done(&self, request: Request) -> Result<(), CallError> {
        let Some(agent) = &self.agent else {
            return Err(gone_meanwhile());
        };
        match timeout(FREEZE_ANSWER_MAX, agent.call(request)).await {
            Ok(Err(NoAnswer::Away | NoAnswer::Silent)) | Err(_) => {
                Err(unavailable(&"the supervisor does not answer"))
            }
            Ok(answer) => done(answer),
        }
    }

    /// Copies the disk as it is at one instant: a workload that runs stands still meanwhile. Its
    /// sandbox stays what it is, and a server that is killed here finds it frozen and thaws it.
    pub(super) async fn copy(&mut self, to: &CopyTo) -> Result<(), CallError> {
        let runs = self.may_be_copied()?;
        if runs && let Err(error) = self.stand_still().await {
            // It may do so later, if nobody answered.
            self.tell(&Input::NotThawed).await;
            return Err(error);
        }
        let shared = Arc::clone(&self.shared);
        let source = Disk {
            whose: Whose::Sandbox(&self.record.id),
            slot: self.record.slot,
        };
        let target = Disk {
            whose: to.target.whose(),
            slot: to.slot,
        };
        let give_up = CancellationToken::new();
        let copying = shared.runtime.copy(source, target, &to.progress, &give_up);
        let copied = self.mailbox.meanwhile(&give_up, copying).await;
        if runs && self.ask_done(Request::Thaw).await.is_err() {
            // It is looked at again, and thawed then.
            self.tell(&Input::NotThawed).await;
        }
        let copied = copied.map_err(|error| shared.reserve.blame(fork::failed(&error)))?;
        tracing::info!(sandbox = %self.record.id, to = ?to.target, ?copied, "a disk was copied");
        to.progress.reached(copied);
        Ok(())
    }

    /// Tells whether a workload runs that has to stand still for a copy.
    fn may_be_copied(&self) -> Result<bool, CallError> {
        let state = &self.record.state;
        let at_rest = state.restoring.is_none();
        match state.observed {
            Observed::Running if at_rest => Ok(self.agent.is_some()),
            Observed::Frozen | Observed::Released | Observed::Failed if at_rest => Ok(false),
            Observed::Deleting => Err(CallError::NoSandbox),
            Observed::Running
            | Observed::Frozen
            | Observed::Released
            | Observed::Failed
            | Observed::Starting
            | Observed::Freezing
            | Observed::Thawing
            | Observed::Releasing => Err(unavailable(
                &"the sandbox is not at rest; try again in a moment",
            )),
        }
    }

    /// Puts the disk back to what a snapshot holds.
    async fn put_back(&mut self) -> Came {
        let Some(id) = self.record.state.restoring.clone() else {
            return (Some(Input::NotRestored), Err(CallError::NoSnapshot));
        };
        let progress = self.restoring.take();
        let progress = progress.unwrap_or_else(Progress::unseen);
        let snapshot = match self.shared.store.snapshot(&id).await {
            Ok(Some(snapshot)) => snapshot,
            // It is not removed as long as anybody is put back to it.
            Ok(None) => return (Some(Input::NotRestored), Err(CallError::NoSnapshot)),
            Err(error) => return (Some(Input::HalfRestored), Err(store_failed(&error))),
        };
        let shared = Arc::clone(&self.shared);
        let restore = Restore {
            snapshot: (&id, snapshot.slot),
            sandbox: (&self.record.id, self.record.slot),
        };
        let give_up = CancellationToken::new();
        let restoring = shared.runtime.restore(restore, &progress, &give_up);
        match self.mailbox.meanwhile(&give_up, restoring).await {
            Ok(copied) => {
                tracing::info!(sandbox = %self.record.id, snapshot = %id, ?copied, "a disk was put back");
                progress.reached(copied);
                (Some(Input::Restored), Ok(()))
            }
            // The deletion that it gave way to comes next: nothing is started before it.
            Err(RestoreError::Untouched(RuntimeError::GivenUp)) => {
                (Some(Input::HalfRestored), Err(CallError::NoSandbox))
            }
            Err(RestoreError::Untouched(error)) => {
                let error = shared.reserve.blame(fork::failed(&error));
                (Some(Input::NotRestored), Err(error))
            }
            Err(error @ RestoreError::Unsure(_)) => {
                (Some(Input::HalfRestored), Err(unavailable(&error)))
            }
        }
    }

    /// The record goes last.
    async fn remove(&mut self) -> Result<(), CallError> {
        self.end_runtime(Journals::Go).await?;
        let whose = Whose::Sandbox(&self.record.id);
        let deleted = self.shared.runtime.delete(whose).await;
        deleted.map_err(|error| failed(&error))?;
        self.shared
            .store
            .remove_sandbox(&self.record.id)
            .await
            .map_err(|error| store_failed(&error))?;
        self.shared.reserve.refill();
        self.tails.all_gone();
        self.shared.forget(&self.record.id);
        Ok(())
    }

    /// No runtime is left afterwards: it is asked to leave, then made to. An error means that one
    /// may be.
    async fn end_runtime(&mut self, journals: Journals) -> Result<(), CallError> {
        // A start that failed late may have left one.
        self.look().await?;
        if let Some(agent) = self.agent.take() {
            self.publish_now();
            let leave = match journals {
                Journals::Go if agent.discards() => Request::Discard,
                Journals::Go | Journals::Stay => Request::Release,
            };
            let asked = match timeout(RELEASE_MAX, agent.call(leave)).await {
                Ok(Ok(Outcome::Done)) => Asked::Leaves,
                other => {
                    tracing::warn!(sandbox = %self.record.id, ?other, "a runtime did not release itself");
                    Asked::Stays
                }
            };
            self.see_off(agent.keeper(), asked).await?;
        }
        self.tidy_up().await?;
        if journals == Journals::Stay {
            offline::refresh(&self.shared.places.of(&self.record.id), &self.tails).await;
        }
        Ok(())
    }

    async fn see_off(&self, keeper: &Keeper, asked: Asked) -> Result<(), CallError> {
        if asked == Asked::Leaves && timeout(KEEPER_KILL_MAX, keeper.gone()).await.is_ok() {
            return Ok(());
        }
        tracing::warn!(sandbox = %self.record.id, pid = keeper.pid(), "a keeper does not leave; killing it");
        if let Err(error) = keeper.kill() {
            tracing::error!(sandbox = %self.record.id, %error, "a keeper can't be killed");
        }
        match timeout(KEEPER_KILL_MAX, keeper.gone()).await {
            Ok(()) => Ok(()),
            Err(_elapsed) => Err(failed(&format!(
                "keeper {} is still there although it was killed",
                keeper.pid()
            ))),
        }
    }

    async fn tidy_up(&self) -> Result<(), CallError> {
        let swept = self.shared.runtime.release(&self.record.id).await;
        swept.map_err(|error| failed(&error))
    }
}

fn came(result: Result<(), CallError>, fine: Input, bad: Input) -> Came {
    let fact = if result.is_ok() { fine } else { bad };
    (Some(fact), result)
}

/// What sessions did last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    /// The newest activity of any.
    pub(super) active_at: Option<Timestamp>,
    /// Whether any has a process.
    pub(super) has_process: bool,
}

/// Asks a supervisor; nothing when it gives no answer now.
pub(super) async fn life_of(agent: &Agent) -> Option<Life> {
    let answer = timeout(READ_ANSWER_MAX, agent.call(Request::List)).await;
    let Ok(Ok(Outcome::Sessions(views))) = answer else {
        return None;
    };
    let sessions = views
        .iter()
        .filter_map(|view| Session::restore(&view.checkpoint).ok());
    let mut life = Life {
        active_at: None,
        has_process: false,
    };
    for session in sessions {
        life.active_at = life.active_at.max(Some(session.last_activity_at()));
        life.has_process |= session.live_attempt().is_some();
    }
    Some(life)
}

fn done(answer: Result<Outcome, NoAnswer>) -> Result<(), CallError> {
    match answer {
        Ok(Outcome::Done) => Ok(()),
        Ok(Outcome::Rejected(rejection)) => Err(rejection.into()),
        Ok(Outcome::Failed { message }) => Err(failed(&message)),
        Ok(other) => Err(resume_failed(&format!("{other:?}"))),
        Err(error) => Err(resume_failed(&error)),
    }
}

fn gone_meanwhile() -> CallError {
    unavailable(&"the runtime of the sandbox ended")
}

fn resume_failed(error: &impl ToString) -> CallError {
    CallError::ResumeFailed {
        message: error.to_string(),
    }
}

pub(super) fn failed(error: &impl ToString) -> CallError {
    CallError::Failed {
        message: error.to_string(),
    }
}

fn unavailable(error: &impl ToString) -> CallError {
    CallError::Unavailable {
        message: error.to_string(),
        retry_after: seconds(1),
    }
}
