//! The task that owns one sandbox: the only place where it changes.
//!
//! What anything means is decided by [`outlive_core::sandbox`]; here it is carried out, one input
//! at a time:
//!
//! ```text
//!   command, death, deadline ─► decide ─► store ─► show ─► perform ─┐
//!                                 ▲                                 │ what came of it
//!                                 └─────────────────────────────────┘
//! ```
//! The store is written before the effect, so that it survives a kill of this server between any
//! two lines; what was asked for survives a power loss before the effect, or before the answer
//! when the effect destroys nothing. A request that the store can't take down is refused and
//! changes nothing; a fact is remembered all the same, and written with whatever comes next.

mod command;
mod configure;
mod mailbox;
mod perform;

use std::sync::Arc;

use outlive_core::{
    sandbox::{Decision, Desired, Effect, Input, Observed, Refusal, ReleaseWhy, Then},
    time::Timestamp,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

pub(super) use self::command::{Command, CopyTo, Reply, RestoreTo, Target, ask};
use self::{command::answer, mailbox::Mailbox};
use super::{Shared, Snapshot, activity::Activity, config::IdleKind, seconds, store_failed};
use crate::{
    agents::{agent::Agent, tails::Tails},
    clock,
    limits::{DEADLINE_SLEEP_MAX, NOTE_WAIT, PUT_OFF_MAX, STORE_RETRY},
    runtime::Progress,
    sessions::CallError,
    store::SandboxRecord,
};

/// Whether the sandbox goes on after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    /// It is removed; the task ends.
    Removed,
}

/// Where an input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Somebody asks: no change without the store.
    Request,
    /// It happened, whether the store hears of it or not.
    Fact,
}

/// When a change of the store has to survive a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDisk {
    /// Before anything is done.
    First,
    /// When the effect is done: it destroys nothing, and a runtime says itself what it does.
    Beside,
    /// Need not.
    Never,
}

/// See the module.
pub(super) struct Task {
    shared: Arc<Shared>,
    record: SandboxRecord,
    publish: watch::Sender<Snapshot>,
    tails: Arc<Tails>,
    activity: Arc<Activity>,
    agent: Option<Arc<Agent>>,
    mailbox: Mailbox,
    /// Where somebody looks who waits for a restore.
    restoring: Option<Progress>,
    /// The store does not know yet what everybody sees; when it is told again.
    unsaved: Option<Instant>,
    /// What the store knows has to be synced beside the next effect.
    owes_sync: bool,
    /// When the store is told what is observed, unless it is with something else before.
    note_at: Option<Instant>,
    next: Next,
}

impl Task {
    pub(super) fn new(
        shared: Arc<Shared>,
        record: SandboxRecord,
        publish: watch::Sender<Snapshot>,
        tails: Arc<Tails>,
        activity: Arc<Activity>,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        Self {
            shared,
            record,
            publish,
            tails,
            activity,
            agent: None,
            mailbox: Mailbox::new(commands),
            restoring: None,
            unsaved: None,
            owes_sync: false,
            note_at: None,
            next: Next::GoOn,
        }
    }

    pub(super) async fn run(mut self, created: Option<Reply>) {
        let stop = self.shared.stop.clone();
        match created {
            Some(reply) => self.first_start(reply).await,
            // Goes on from where a server before was killed.
            None => self.note(Effect::Look).await,
        }
        while self.next == Next::GoOn {
            let (agent, due) = (self.agent.clone(), self.wake_up());
            tokio::select! {
                command = self.mailbox.next() => match command {
                    Some(command) => self.carry_out(command).await,
                    None => return,
                },
                () = gone(agent) => {
                    self.agent = None;
                    self.tell(&Input::Gone).await;
                }
                () = sleep_until(due) => self.due().await,
                () = self.activity.ended() => {} // There is a deadline again.
                () = stop.cancelled() => return self.note_observed().await,
            }
        }
    }

    async fn carry_out(&mut self, command: Command) {
        let (input, reply) = match command {
            Command::Wake(reply) | Command::Resume(reply) if self.lacks_room_to_start() => {
                return answer(reply, Err(self.shared.reserve.full().into()));
            }
            Command::Wake(reply) => (Input::Wake, reply),
            Command::Resume(reply) => (Input::Resume, reply),
            Command::Suspend(reply) => (Input::Suspend, reply),
            Command::Pause(reply) => (Input::Release(ReleaseWhy::Pause), reply),
            Command::Refresh(duration, reply) => (Input::Refresh(duration.map(seconds)), reply),
            Command::Hold(hold, reply) => (Input::Hold(*hold), reply),
            Command::DropHold(id, reply) => (Input::DropHold(id), reply),
            Command::Delete(reply) => (Input::Delete, reply),
            Command::Restore(to, reply) => {
                let RestoreTo { snapshot, progress } = *to;
                self.restoring = Some(progress);
                (Input::Restore(snapshot), reply)
            }
            Command::Disk(disk, reply) => {
                self.tell(&disk.fact()).await;
                return answer(reply, Ok(()));
            }
            Command::Copy(to, reply) => {
                let result = self.copy(&to).await;
                return answer(reply, result);
            }
            Command::Configure(change, reply) => {
                let result = self.configure(*change).await;
                return answer(reply, result);
            }
        };
        let result = self.feed(&input).await;
        answer(reply, result);
        self.shared.runtime.get_ready();
    }

    /// A runtime that is started takes space, one that goes on does not.
    fn lacks_room_to_start(&self) -> bool {
        let at_rest = matches!(
            self.record.state.observed,
            Observed::Released | Observed::Failed
        );
        at_rest && self.shared.reserve.is_full()
    }

    /// The start of a new sandbox; one that can't be started leaves no trace.
    async fn first_start(&mut self, reply: Reply) {
        self.owes_sync = true; // Nobody waited for that when it was taken in.
        let started = self.carry_on(Effect::Start).await;
        if started.is_err()
            && let Err(error) = self.feed(&Input::Delete).await
        {
            tracing::error!(sandbox = %self.record.id, %error, "a sandbox that did not start can't be removed yet");
            // Its maker is told that there is none: it is not started again.
            self.record.state.desired = Desired::Deleted;
        }
        answer(reply, started);
        self.shared.runtime.get_ready();
    }

    /// Decides an input and everything that follows from it.
    async fn feed(&mut self, input: &Input) -> Result<(), CallError> {
        if matches!(input, Input::Delete | Input::Release(_) | Input::Suspend) {
            self.shared.reserve.make_room();
        }
        for _ in 0..PUT_OFF_MAX {
            let decision = self.decide(input)?;
            let then = decision.then;
            match self.commit(decision, Source::Request).await? {
                Some(effect) => self.carry_on(effect).await?,
                None => return Ok(()),
            }
            if then == Then::Done || self.next == Next::Removed {
                return Ok(());
            }
        }
        Err(CallError::Unavailable {
            message: "the sandbox does not come to rest; try again in a moment".to_owned(),
            retry_after: seconds(1),
        })
    }

    /// Performs an effect, and what follows from what came of it. The first thing that failed is
    /// told.
    async fn carry_on(&mut self, effect: Effect) -> Result<(), CallError> {
        let mut next = Some(effect);
        let mut result = Ok(());
        while let Some(effect) = next {
            let (fact, outcome) = self.perform_and_sync(effect).await;
            if result.is_ok() {
                result = outcome;
            }
            let Some(fact) = fact else {
                self.next = Next::Removed;
                return result;
            };
            let decision = self.decide(&fact)?;
            next = match self.commit(decision, Source::Fact).await {
                Ok(effect) => effect,
                Err(error) => return result.and(Err(error)),
            };
        }
        result
    }

    /// Performs an effect, and has what was asked for on the disk when it is done: both take
    /// their time together.
    async fn perform_and_sync(&mut self, effect: Effect) -> perform::Came {
        if !std::mem::take(&mut self.owes_sync) {
            return self.perform(effect).await;
        }
        let shared = Arc::clone(&self.shared);
        let ((fact, outcome), synced) =
            tokio::join!(self.perform(effect), shared.store.sync_sandboxes());
        let synced = synced.map_err(|error| store_failed(&error));
        if synced.is_err() {
            self.unsaved = Some(Instant::now() + STORE_RETRY);
        }
        (fact, outcome.and(synced))
    }

    /// Something happened that nobody waits for.
    async fn tell(&mut self, fact: &Input) {
        let committed = match self.decide(fact) {
            Ok(decision) => self.commit(decision, Source::Fact).await,
            Err(error) => Err(error),
        };
        match committed {
            Ok(Some(effect)) => self.note(effect).await,
            Ok(None) => {}
            Err(error) => self.log(fact, &error),
        }
    }

    /// Performs an effect that nobody waits for.
    async fn note(&mut self, effect: Effect) {
        if let Err(error) = self.carry_on(effect).await {
            self.log(&effect, &error);
        }
    }

    fn log(&self, what: &impl std::fmt::Debug, error: &CallError) {
        let state = &self.record.state;
        tracing::error!(
            sandbox = %self.record.id, ?what, desired = state.desired.word(),
            observed = state.observed.word(), %error, "a step failed; it is tried again"
        );
    }

    fn decide(&self, input: &Input) -> Result<Decision, CallError> {
        let policy = self.record.config.policy();
        let decided = self.record.state.decide(&policy, clock::now(), input);
        decided.map_err(refused)
    }

    /// Makes a decision the state: in the store first, then for all to see. Gives back what is
    /// to be performed now.
    async fn commit(
        &mut self,
        decision: Decision,
        source: Source,
    ) -> Result<Option<Effect>, CallError> {
        let Decision { next, effect, .. } = decision;
        if next.stored() == self.record.state.stored() && self.unsaved.is_none() {
            self.record.state = next;
            self.publish_now();
            return Ok(effect);
        }
        let is_told_later = source == Source::Fact
            && effect.is_none()
            && self.unsaved.is_none()
            && self.record.state.only_moves(&next);
        if is_told_later {
            self.record.state = next;
            self.record.updated_at = clock::now().max(self.record.updated_at);
            self.note_at
                .get_or_insert_with(|| Instant::now() + NOTE_WAIT);
            self.publish_now();
            return Ok(None);
        }
        let on_disk = match effect {
            _ if self.unsaved.is_some() => OnDisk::First,
            _ if !self.record.state.asks_for_more(&next) => OnDisk::Never,
            Some(Effect::Freeze | Effect::Thaw) => OnDisk::Beside,
            _ => OnDisk::First,
        };
        let mut record = self.record.clone();
        record.state = next;
        record.updated_at = clock::now().max(record.updated_at);
        match (self.save(&record, on_disk).await, source, effect) {
            (Ok(()), _, effect) => {
                self.record = record;
                self.publish_now();
                Ok(effect)
            }
            (Err(error), Source::Request, _) => Err(error),
            // It is so, and what nobody stored is stored later.
            (Err(error), Source::Fact, None) => {
                tracing::error!(sandbox = %self.record.id, %error, "the store does not know yet what became of a sandbox");
                self.record = record;
                self.publish_now();
                Ok(None)
            }
            // Nothing is done without the store; what is known is known.
            (Err(error), Source::Fact, Some(_)) => {
                self.record.state.learn(&record.state);
                self.put_off();
                Err(error)
            }
        }
    }

    /// Tells the store what it was not told before the answer.
    async fn note_observed(&mut self) {
        if self.note_at.take().is_none() {
            return;
        }
        let record = self.record.clone();
        if let Err(error) = self.save(&record, OnDisk::Never).await {
            tracing::error!(sandbox = %record.id, %error, "the store does not know yet what became of a sandbox");
        }
    }

    async fn save(&mut self, record: &SandboxRecord, on_disk: OnDisk) -> Result<(), CallError> {
        let saved = match on_disk {
            OnDisk::First => self.shared.store.update_sandbox(record).await,
            OnDisk::Beside | OnDisk::Never => self.shared.store.note_sandbox(record).await,
        };
        self.owes_sync = saved.is_ok() && on_disk == OnDisk::Beside;
        self.note_at = None; // It has all of it, or is told again.
        self.unsaved = match &saved {
            Ok(()) => None,
            Err(_) => Some(Instant::now() + STORE_RETRY),
        };
        saved.map_err(|error| store_failed(&error))
    }

    /// What could not be stored is decided anew, a little later.
    fn put_off(&mut self) {
        let put_off = self.decide(&Input::NotLooked);
        if let Ok(decision) = put_off {
            self.record.state.learn(&decision.next);
        }
        self.publish_now();
    }

    /// When something is due at the latest.
    fn wake_up(&self) -> Instant {
        let now = clock::now();
        let policy = self.record.config.policy();
        let due = self
            .record
            .state
            .next_deadline(&policy, now, self.quiet_since());
        let in_sandbox = due.map_or(DEADLINE_SLEEP_MAX, |at| at.since(now));
        // The wall clock may be set: look again now and then.
        let due = Instant::now() + in_sandbox.min(DEADLINE_SLEEP_MAX);
        let told = [self.unsaved, self.note_at].into_iter().flatten().min();
        told.map_or(due, |at| at.min(due))
    }

    fn quiet_since(&self) -> Option<Timestamp> {
        self.activity.quiet_since(&self.record.config.idle)
    }

    async fn due(&mut self) {
        if self.unsaved.is_some_and(|at| at <= Instant::now()) {
            let record = self.record.clone();
            if let Err(error) = self.save(&record, OnDisk::First).await {
                tracing::error!(sandbox = %self.record.id, %error, "the store still fails");
            }
            return;
        }
        if self.note_at.is_some_and(|at| at <= Instant::now()) {
            return self.note_observed().await;
        }
        let now = clock::now();
        let policy = self.record.config.policy();
        let sleeps = self
            .record
            .state
            .sleeps_at(&policy, now, self.quiet_since());
        if sleeps.is_some_and(|at| at <= now) {
            self.look_for_life().await;
        }
        let quiet_since = self.quiet_since();
        let due = Input::DeadlinePassed { quiet_since };
        if let Err(error) = self.feed(&due).await {
            self.log(&due, &error);
        }
    }

    /// Before it falls asleep, the sessions are asked when they last did anything: output does
    /// not pass through this server.
    async fn look_for_life(&mut self) {
        let Some(agent) = self.agent.clone() else {
            return;
        };
        let Some(life) = perform::life_of(&agent).await else {
            return;
        };
        if let Some(at) = life.active_at {
            self.activity.touch(IdleKind::Output, at);
        }
        if life.has_process {
            self.activity.touch(IdleKind::Process, clock::now());
        }
    }

    fn publish_now(&self) {
        self.publish.send_replace(Snapshot {
            record: Arc::new(self.record.clone()),
            agent: self.agent.clone(),
        });
    }
}

/// Returns once the runtime is gone; never without one.
async fn gone(agent: Option<Arc<Agent>>) {
    match agent {
        Some(agent) => agent.gone().await,
        None => std::future::pending().await,
    }
}

pub(super) fn refused(refusal: Refusal) -> CallError {
    match refusal {
        Refusal::Deleted => CallError::NoSandbox,
        Refusal::Paused => CallError::Unavailable {
            message: refusal.to_string(),
            retry_after: seconds(5),
        },
        Refusal::Starting => CallError::Unavailable {
            message: refusal.to_string(),
            retry_after: seconds(1),
        },
        Refusal::Failed => CallError::ResumeFailed {
            message: refusal.to_string(),
        },
        Refusal::TooManyHolds(_) => CallError::QuotaExceeded {
            message: refusal.to_string(),
        },
        Refusal::NoHold => CallError::NoHold,
        Refusal::DiskFull => CallError::DiskFull {
            message: refusal.to_string(),
        },
    }
}
