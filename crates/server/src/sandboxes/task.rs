//! The task that owns one sandbox: the only place where it changes.
//!
//! Every change is `put` into the store before its effect. What a killed server leaves behind is
//! read by [`Task::settle`] in the next one:
//!
//! | asked for | a keeper lives | none lives |
//! |---|---|---|
//! | running | link to it | start the next generation |
//! | released | release it | tidy up |
//! | deleted | release it, remove everything | remove everything |
//!
//! The same table finishes whatever could not be finished the first time. Two rules keep
//! workloads safe meanwhile: a runtime that lives is never ended because the store or one call to
//! its supervisor failed, and no generation starts before it is certain that none lives.

use std::{sync::Arc, time::Duration};

use outlive_api::agent::{Outcome, Request};
use outlive_core::{id::Generation, time::Timestamp};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{Shared, Snapshot, config::ConfigChange, going_away, seconds, store_failed};
use crate::{
    agents::{agent::Agent, keeper::Keeper, offline, tails::Tails},
    clock,
    limits::{
        AGENT_START_MAX, AGENT_WAIT_MAX, DEADLINE_SLEEP_MAX, KEEPER_KILL_MAX, RELEASE_MAX,
        RUNTIME_BACKOFF_MAX, RUNTIME_BACKOFF_MIN, RUNTIME_STABLE_MIN, RUNTIME_STARTS_MAX,
    },
    runtime::Start,
    sessions::CallError,
    store::{Desired, Observed, ReleaseWhy, SandboxRecord},
};

/// Where the answer to a command goes.
pub(super) type Reply = oneshot::Sender<Result<(), CallError>>;

/// What a sandbox is asked.
#[derive(Debug)]
pub(super) enum Command {
    /// Have a runtime, if calls may wake it.
    Wake(Reply),
    /// Have a runtime.
    Resume(Reply),
    /// Keep the disk only.
    Pause(Reply),
    /// Move the deadline: this many seconds from now, or the `ttl`.
    Refresh(Option<u64>, Reply),
    /// Another configuration.
    Configure(Box<ConfigChange>, Reply),
    /// Leave no trace.
    Delete(Reply),
}

/// Whether the sandbox goes on after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    /// It is removed; the task ends.
    Removed,
}

/// What became of the request to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Leaves,
    /// It did not answer, or said no.
    Stays,
}

/// See the module.
pub(super) struct Task {
    shared: Arc<Shared>,
    record: SandboxRecord,
    publish: watch::Sender<Snapshot>,
    tails: Arc<Tails>,
    agent: Option<Arc<Agent>>,
    started: Option<Instant>,
    /// Starts that failed or runtimes that died young, in a row.
    failures: u32,
    /// Other steps that could not be done, in a row.
    stumbles: u32,
    /// When what is asked for is tried again; until then nothing else is due.
    retry: Option<Instant>,
}

impl Task {
    pub(super) fn new(
        shared: Arc<Shared>,
        record: SandboxRecord,
        publish: watch::Sender<Snapshot>,
        tails: Arc<Tails>,
    ) -> Self {
        Self {
            shared,
            record,
            publish,
            tails,
            agent: None,
            started: None,
            failures: 0,
            stumbles: 0,
            retry: None,
        }
    }

    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        created: Option<Reply>,
    ) {
        let stop = self.shared.stop.clone();
        let next = match created {
            Some(reply) => self.first_start(reply).await,
            None => self.settle().await,
        };
        if next == Next::Removed {
            return;
        }
        loop {
            let next = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.carry_out(command).await,
                    None => return,
                },
                () = gone(self.agent.clone()) => self.replace().await,
                () = sleep_until(self.wake_up()) => self.due().await,
                () = stop.cancelled() => return,
            };
            if next == Next::Removed {
                return;
            }
        }
    }

    async fn carry_out(&mut self, command: Command) -> Next {
        match command {
            Command::Wake(reply) => {
                let result =
                    if self.record.config.auto_resume || self.record.desired == Desired::Running {
                        self.ensure_running().await
                    } else {
                        Err(CallError::Unavailable {
                            message: "the sandbox is paused and auto_resume is off".to_owned(),
                            retry_after: seconds(5),
                        })
                    };
                answer(reply, result);
            }
            Command::Resume(reply) => {
                let result = self.ensure_running().await;
                answer(reply, result);
            }
            Command::Pause(reply) => {
                let result = self.release(ReleaseWhy::Pause).await;
                answer(reply, result);
            }
            Command::Refresh(duration, reply) => {
                let result = self.refresh(duration).await;
                answer(reply, result);
            }
            Command::Configure(change, reply) => {
                let result = self.configure(*change).await;
                answer(reply, result);
            }
            Command::Delete(reply) => {
                let result = self.delete().await;
                let removed = result.is_ok();
                answer(reply, result);
                if removed {
                    return Next::Removed;
                }
            }
        }
        Next::GoOn
    }

    /// The start of a new sandbox; one that can't be started leaves no trace.
    async fn first_start(&mut self, reply: Reply) -> Next {
        let started = self.start(self.record.generation).await;
        match started {
            Ok(()) => {
                answer(reply, Ok(()));
                Next::GoOn
            }
            Err(error) => {
                let next = match self.delete().await {
                    Ok(()) => Next::Removed,
                    Err(error) => {
                        tracing::error!(sandbox = %self.record.id, %error, "a sandbox that did not start can't be removed yet");
                        // Its maker is told that there is none: it is not started again.
                        self.record.desired = Desired::Deleted;
                        Next::GoOn
                    }
                };
                answer(reply, Err(error));
                next
            }
        }
    }

    /// Goes on from where a server before was killed, or from what failed the last time.
    async fn settle(&mut self) -> Next {
        if let Err(error) = self.look().await {
            tracing::error!(sandbox = %self.record.id, %error, "a runtime can't be looked for; looking again later");
            self.stumble();
            return Next::GoOn;
        }
        match self.record.desired {
            Desired::Running if self.agent.is_some() => {
                if let Err(error) = self.take_over().await {
                    tracing::error!(sandbox = %self.record.id, %error, "a runtime that lives can't be taken over yet");
                }
                Next::GoOn
            }
            Desired::Running => self.replace().await,
            Desired::Released => {
                let why = self.record.why.unwrap_or(ReleaseWhy::Pause);
                if let Err(error) = self.release(why).await {
                    tracing::error!(sandbox = %self.record.id, %error, "a release can't be finished yet");
                }
                Next::GoOn
            }
            Desired::Deleted => match self.delete().await {
                Ok(()) => Next::Removed,
                Err(error) => {
                    tracing::error!(sandbox = %self.record.id, %error, "a removal can't be finished yet");
                    Next::GoOn
                }
            },
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

    /// A keeper lives: whoever it supervises goes on, also when something fails here. What failed
    /// is tried again.
    async fn take_over(&mut self) -> Result<(), CallError> {
        let Some(agent) = self.agent.clone() else {
            return Ok(());
        };
        self.started.get_or_insert_with(Instant::now);
        self.record.observed = Observed::Running;
        self.publish_now();
        let done = self.take_over_from(&agent).await;
        match done {
            Ok(()) => self.settled(),
            Err(_) => self.stumble(),
        }
        done
    }

    async fn take_over_from(&mut self, agent: &Agent) -> Result<(), CallError> {
        let welcome = agent
            .welcome(AGENT_WAIT_MAX)
            .await
            .map_err(|error| resume_failed(&error))?;
        self.tell_env(agent).await?;
        self.put(|record| {
            record.generation = record.generation.max(welcome.generation);
            record.observed = Observed::Running;
        })
        .await
    }

    /// Has a runtime afterwards, or says why not.
    async fn ensure_running(&mut self) -> Result<(), CallError> {
        if self.record.desired == Desired::Deleted {
            return Err(CallError::NoSandbox);
        }
        if self.record.observed == Observed::Running && self.agent.is_some() {
            return Ok(());
        }
        self.look().await?;
        if self.agent.is_some() && self.record.desired == Desired::Running {
            return self.take_over().await;
        }
        if !matches!(self.record.observed, Observed::Released | Observed::Failed) {
            self.end_runtime().await?; // Its end was not finished.
        }
        self.retry = None;
        let ttl = self.record.config.ttl;
        if self.record.desired != Desired::Running {
            // The deadline of a sandbox that was paused by it counts from now.
            self.record.expires_at = ttl.map(|ttl| clock::now() + seconds(ttl));
        }
        self.start(self.record.generation.next()).await
    }

    /// Starts a generation. The store knows of it before it exists.
    async fn start(&mut self, generation: Generation) -> Result<(), CallError> {
        self.put(|record| {
            record.desired = Desired::Running;
            record.observed = Observed::Starting;
            record.why = None;
            record.generation = generation;
            record.claimed_at = clock::now();
        })
        .await?;
        let error = match self.bring_up(generation).await {
            Ok(()) => {
                self.started = Some(Instant::now());
                self.confirm().await;
                return Ok(());
            }
            Err(error) => error,
        };
        tracing::error!(sandbox = %self.record.id, generation = generation.0, %error, "a runtime did not start");
        match self.end_runtime().await {
            Ok(()) => {
                self.put(|record| record.observed = Observed::Failed)
                    .await?;
            }
            Err(left) => {
                tracing::error!(sandbox = %self.record.id, error = %left, "a runtime that did not start is not gone yet");
                self.stumble();
            }
        }
        Err(error)
    }

    /// A runtime answers: all see it now, the store sees it now or a little later.
    async fn confirm(&mut self) {
        self.record.observed = Observed::Running;
        self.publish_now();
        match self.put(|record| record.observed = Observed::Running).await {
            Ok(()) => self.settled(),
            Err(error) => {
                tracing::error!(sandbox = %self.record.id, %error, "the store does not know yet that a runtime answers");
                self.stumble();
            }
        }
    }

    async fn bring_up(&mut self, generation: Generation) -> Result<(), CallError> {
        let provisioned = self.shared.runtime.provision(&self.record.id).await;
        provisioned.map_err(|error| failed(&error))?;
        let keeper = self
            .shared
            .runtime
            .start(Start {
                sandbox: &self.record.id,
                generation,
                config: &self.record.config,
                slot: self.record.slot,
            })
            .await
            .map_err(|error| resume_failed(&error))?;
        let agent = self.link(keeper);
        self.agent = Some(Arc::clone(&agent));
        agent
            .welcome(AGENT_START_MAX)
            .await
            .map_err(|error| resume_failed(&error))?;
        self.tell_env(&agent).await
    }

    fn link(&self, keeper: Keeper) -> Arc<Agent> {
        Arc::new(Agent::start(
            self.record.id.clone(),
            self.shared.places.of(&self.record.id).state(),
            keeper,
            Arc::clone(&self.tails),
            self.record.config.env_vars.clone(),
            &self.shared.tasks,
            &self.shared.stop,
        ))
    }

    async fn tell_env(&self, agent: &Agent) -> Result<(), CallError> {
        let env = self.record.config.env_vars.clone();
        match agent.call(Request::Configure { env }).await {
            Ok(Outcome::Done) => Ok(()),
            Ok(Outcome::Rejected(rejection)) => Err(rejection.into()),
            Ok(other) => Err(resume_failed(&format!("{other:?}"))),
            Err(error) => Err(resume_failed(&error)),
        }
    }

    /// The runtime is gone although it should run: another takes its place.
    async fn replace(&mut self) -> Next {
        self.agent = None;
        if let Err(error) = self.tidy_up().await {
            tracing::error!(sandbox = %self.record.id, %error, "something of a runtime is left; no other is started yet");
            self.starts_later();
            self.stumble();
            return Next::GoOn;
        }
        if self.record.desired != Desired::Running {
            self.stumble(); // Whatever else is asked for goes on from there.
            return Next::GoOn;
        }
        match self.started.take().map(|started| started.elapsed()) {
            Some(lived) if lived >= RUNTIME_STABLE_MIN => self.failures = 0,
            Some(_) => {
                self.failures += 1;
                if self.failures > 1 {
                    tracing::warn!(sandbox = %self.record.id, generation = self.record.generation.0, deaths = self.failures, "runtimes die young; the next generation waits");
                    self.starts_later();
                    self.retry_later(self.failures - 1);
                    return Next::GoOn;
                }
            }
            None => {}
        }
        tracing::warn!(sandbox = %self.record.id, generation = self.record.generation.0, "a runtime is gone; the next generation takes its place");
        match self.start(self.record.generation.next()).await {
            Ok(()) => {}
            Err(CallError::ResumeFailed { .. }) => {
                self.failures += 1;
                if self.failures < RUNTIME_STARTS_MAX {
                    self.retry_later(self.failures);
                }
            }
            // Nothing was started.
            Err(_) => self.stumble(),
        }
        Next::GoOn
    }

    /// All see that no runtime answers now; the store hears of it with the next start.
    fn starts_later(&mut self) {
        if self.record.desired == Desired::Running {
            self.record.observed = Observed::Starting;
        }
        self.publish_now();
    }

    /// A step can't be done now: what is asked for is tried again, later each time.
    fn stumble(&mut self) {
        self.retry_later(self.stumbles);
        self.stumbles = self.stumbles.saturating_add(1);
    }

    /// What is asked for is reached.
    const fn settled(&mut self) {
        self.stumbles = 0;
        self.retry = None;
    }

    fn retry_later(&mut self, before: u32) {
        let pause = (RUNTIME_BACKOFF_MIN * 2_u32.pow(before.min(16))).min(RUNTIME_BACKOFF_MAX);
        self.retry = Some(Instant::now() + pause);
    }

    /// Ends the runtime and keeps the disk.
    async fn release(&mut self, why: ReleaseWhy) -> Result<(), CallError> {
        if self.record.desired == Desired::Deleted {
            return Err(CallError::NoSandbox);
        }
        if self.record.observed == Observed::Released && self.agent.is_none() {
            return Ok(());
        }
        let done = self.release_all(why).await;
        match done {
            Ok(()) => self.settled(),
            Err(_) => self.stumble(),
        }
        done
    }

    async fn release_all(&mut self, why: ReleaseWhy) -> Result<(), CallError> {
        self.put(|record| {
            record.desired = Desired::Released;
            record.observed = Observed::Releasing;
            record.why = Some(why);
        })
        .await?;
        self.end_runtime().await?;
        self.put(|record| record.observed = Observed::Released)
            .await
    }

    /// Removes everything.
    async fn delete(&mut self) -> Result<(), CallError> {
        let done = self.delete_all().await;
        if done.is_err() {
            self.stumble();
        }
        done
    }

    /// The record goes last.
    async fn delete_all(&mut self) -> Result<(), CallError> {
        self.put(|record| {
            record.desired = Desired::Deleted;
            record.observed = Observed::Deleting;
        })
        .await?;
        self.end_runtime().await?;
        let deleted = self.shared.runtime.delete(&self.record.id).await;
        deleted.map_err(|error| failed(&error))?;
        self.shared
            .store
            .remove_sandbox(&self.record.id)
            .await
            .map_err(|error| store_failed(&error))?;
        self.tails.all_gone();
        self.shared.forget(&self.record.id);
        Ok(())
    }

    /// No runtime is left afterwards: it is asked to leave, then made to. An error means that one
    /// may be.
    async fn end_runtime(&mut self) -> Result<(), CallError> {
        // A start that failed late may have left one.
        self.look().await?;
        if let Some(agent) = self.agent.take() {
            self.started = None;
            self.publish_now();
            let asked = match timeout(RELEASE_MAX, agent.call(Request::Release)).await {
                Ok(Ok(Outcome::Done)) => Asked::Leaves,
                other => {
                    tracing::warn!(sandbox = %self.record.id, ?other, "a runtime did not release itself");
                    Asked::Stays
                }
            };
            self.see_off(agent.keeper(), asked).await?;
        }
        self.tidy_up().await?;
        offline::refresh(&self.shared.places.of(&self.record.id), &self.tails).await;
        Ok(())
    }

    async fn see_off(&self, keeper: &Keeper, asked: Asked) -> Result<(), CallError> {
        if asked == Asked::Leaves
            && matches!(timeout(KEEPER_KILL_MAX, keeper.gone()).await, Ok(Ok(())))
        {
            return Ok(());
        }
        tracing::warn!(sandbox = %self.record.id, pid = keeper.pid(), "a keeper does not leave; killing it");
        if let Err(error) = keeper.kill() {
            tracing::error!(sandbox = %self.record.id, %error, "a keeper can't be killed");
        }
        match timeout(KEEPER_KILL_MAX, keeper.gone()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(failed(&error)),
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

    async fn refresh(&mut self, duration: Option<u64>) -> Result<(), CallError> {
        let Some(duration) = duration.or(self.record.config.ttl) else {
            return Ok(()); // It has no deadline to move.
        };
        let at = clock::now() + seconds(duration);
        self.put(|record| record.expires_at = Some(at)).await
    }

    async fn configure(&mut self, change: ConfigChange) -> Result<(), CallError> {
        let now = clock::now();
        let env_changed = change.env_vars.is_some();
        self.put(|record| apply(record, change, now)).await?;
        if let (true, Some(agent)) = (env_changed, self.agent.clone()) {
            self.tell_env(&agent).await?;
        }
        Ok(())
    }

    /// When something is due at the latest.
    fn wake_up(&self) -> Instant {
        if let Some(retry) = self.retry {
            return retry; // What is due meanwhile would fail in the same way.
        }
        let now = clock::now();
        let in_sandbox = [self.record.hard_expires_at, self.soft_deadline()]
            .into_iter()
            .flatten()
            .map(|at| at.since(now))
            .min()
            .unwrap_or(DEADLINE_SLEEP_MAX);
        // The wall clock may be set: look again now and then.
        Instant::now() + in_sandbox.min(DEADLINE_SLEEP_MAX)
    }

    fn soft_deadline(&self) -> Option<Timestamp> {
        let runs = self.record.desired == Desired::Running;
        self.record.expires_at.filter(|_| runs)
    }

    async fn due(&mut self) -> Next {
        let now = clock::now();
        let passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        let again = self.retry.take().is_some();
        if passed(self.record.hard_expires_at) {
            match self.delete().await {
                Ok(()) => return Next::Removed,
                Err(error) => {
                    tracing::error!(sandbox = %self.record.id, %error, "a removal failed");
                }
            }
        } else if passed(self.soft_deadline()) {
            if let Err(error) = self.release(ReleaseWhy::Ttl).await {
                tracing::error!(sandbox = %self.record.id, %error, "a pause failed");
            }
        } else if again {
            return self.settle().await;
        }
        Next::GoOn
    }

    /// Changes the record: in the store first, then for all to see.
    async fn put(&mut self, change: impl FnOnce(&mut SandboxRecord)) -> Result<(), CallError> {
        let mut record = self.record.clone();
        change(&mut record);
        record.updated_at = clock::now().max(record.updated_at);
        self.shared
            .store
            .update_sandbox(&record)
            .await
            .map_err(|error| store_failed(&error))?;
        self.record = record;
        self.publish_now();
        Ok(())
    }

    fn publish_now(&self) {
        self.publish.send_replace(Snapshot {
            record: Arc::new(self.record.clone()),
            agent: self.agent.clone(),
        });
    }
}

fn apply(record: &mut SandboxRecord, change: ConfigChange, now: Timestamp) {
    let (soft, hard) = (change.ttl.is_some(), change.hard_ttl.is_some());
    change.apply(&mut record.config);
    if soft {
        record.expires_at = record.config.ttl.map(|ttl| now + seconds(ttl));
    }
    if hard {
        record.hard_expires_at = record.config.hard_ttl.map(|ttl| now + seconds(ttl));
    }
}

/// Returns once the runtime is gone; never without one.
async fn gone(agent: Option<Arc<Agent>>) {
    match agent {
        Some(agent) => agent.gone().await,
        None => std::future::pending().await,
    }
}

fn answer(reply: Reply, result: Result<(), CallError>) {
    if reply.send(result).is_err() {
        tracing::trace!("a caller left before its answer");
    }
}

fn resume_failed(error: &impl ToString) -> CallError {
    CallError::ResumeFailed {
        message: error.to_string(),
    }
}

fn failed(error: &impl ToString) -> CallError {
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

/// Sends a command and waits until it is carried out.
pub(super) async fn ask(
    mailbox: &mpsc::Sender<Command>,
    command: impl FnOnce(Reply) -> Command,
) -> Result<(), CallError> {
    let (reply, answer) = oneshot::channel();
    match mailbox.try_send(command(reply)) {
        Ok(()) => {}
        Err(mpsc::error::TrySendError::Full(_)) => {
            return Err(CallError::Unavailable {
                message: "too many calls wait for this sandbox".to_owned(),
                retry_after: Duration::from_secs(1),
            });
        }
        // Its task ends with the sandbox or with the server.
        Err(mpsc::error::TrySendError::Closed(_)) => return Err(CallError::NoSandbox),
    }
    answer.await.unwrap_or_else(|_gone| Err(going_away()))
}
