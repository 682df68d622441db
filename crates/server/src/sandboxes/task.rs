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
        AGENT_START_MAX, DEADLINE_SLEEP_MAX, KEEPER_KILL_MAX, RELEASE_MAX, RUNTIME_BACKOFF_MAX,
        RUNTIME_BACKOFF_MIN, RUNTIME_STABLE_MIN, RUNTIME_STARTS_MAX,
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
    /// When the next start of a runtime that should run is due.
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
        let provisioned = self.shared.runtime.provision(&self.record.id).await;
        let started = match provisioned {
            Ok(()) => self.start(self.record.generation).await,
            Err(error) => Err(CallError::Failed {
                message: error.to_string(),
            }),
        };
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
                        Next::GoOn
                    }
                };
                answer(reply, Err(error));
                next
            }
        }
    }

    /// Goes on from where a server before was killed.
    async fn settle(&mut self) -> Next {
        let keeper = match self.shared.runtime.running(&self.record.id).await {
            Ok(keeper) => keeper,
            Err(error) => {
                tracing::error!(sandbox = %self.record.id, %error, "a runtime can't be looked for");
                None
            }
        };
        if let Some(keeper) = keeper {
            self.agent = Some(self.link(keeper));
        }
        match self.record.desired {
            Desired::Running if self.agent.is_some() => {
                if let Err(error) = self.take_over().await {
                    tracing::error!(sandbox = %self.record.id, %error, "a runtime that was running can't be taken over");
                    self.end_runtime().await;
                    return self.replace().await;
                }
                Next::GoOn
            }
            Desired::Running => self.replace().await,
            Desired::Released => {
                let why = self.record.why.unwrap_or(ReleaseWhy::Pause);
                if let Err(error) = self.release(why).await {
                    tracing::error!(sandbox = %self.record.id, %error, "a release can't be finished");
                }
                Next::GoOn
            }
            Desired::Deleted => match self.delete().await {
                Ok(()) => Next::Removed,
                Err(error) => {
                    tracing::error!(sandbox = %self.record.id, %error, "a removal can't be finished");
                    self.retry_later();
                    Next::GoOn
                }
            },
        }
    }

    /// A keeper lives: whoever it supervises goes on.
    async fn take_over(&mut self) -> Result<(), CallError> {
        let Some(agent) = self.agent.clone() else {
            return Ok(());
        };
        let welcome = agent
            .welcome(AGENT_START_MAX)
            .await
            .map_err(|error| resume_failed(&error))?;
        self.tell_env(&agent).await?;
        self.started = Some(Instant::now());
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
        match self.bring_up(generation).await {
            Ok(()) => {
                self.started = Some(Instant::now());
                self.put(|record| record.observed = Observed::Running).await
            }
            Err(error) => {
                tracing::error!(sandbox = %self.record.id, generation = generation.0, %error, "a runtime did not start");
                self.end_runtime().await;
                self.put(|record| record.observed = Observed::Failed)
                    .await?;
                Err(error)
            }
        }
    }

    async fn bring_up(&mut self, generation: Generation) -> Result<(), CallError> {
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
        self.tidy_up().await;
        if self.record.desired != Desired::Running {
            return Next::GoOn;
        }
        let stable = self
            .started
            .take()
            .is_some_and(|started| started.elapsed() >= RUNTIME_STABLE_MIN);
        if stable {
            self.failures = 0;
        }
        tracing::warn!(sandbox = %self.record.id, generation = self.record.generation.0, "a runtime is gone; the next generation takes its place");
        if self.start(self.record.generation.next()).await.is_err() {
            self.failures += 1;
            if self.failures < RUNTIME_STARTS_MAX {
                self.retry_later();
            }
        }
        Next::GoOn
    }

    fn retry_later(&mut self) {
        let shift = self.failures.min(16);
        let pause = (RUNTIME_BACKOFF_MIN * 2_u32.pow(shift)).min(RUNTIME_BACKOFF_MAX);
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
        self.retry = None;
        self.put(|record| {
            record.desired = Desired::Released;
            record.observed = Observed::Releasing;
            record.why = Some(why);
        })
        .await?;
        self.end_runtime().await;
        self.put(|record| record.observed = Observed::Released)
            .await
    }

    /// Removes everything, the record last.
    async fn delete(&mut self) -> Result<(), CallError> {
        self.retry = None;
        self.put(|record| {
            record.desired = Desired::Deleted;
            record.observed = Observed::Deleting;
        })
        .await?;
        self.end_runtime().await;
        self.shared
            .runtime
            .delete(&self.record.id)
            .await
            .map_err(|error| CallError::Failed {
                message: error.to_string(),
            })?;
        self.shared
            .store
            .remove_sandbox(&self.record.id)
            .await
            .map_err(|error| store_failed(&error))?;
        self.tails.all_gone();
        self.shared.forget(&self.record.id);
        Ok(())
    }

    /// No runtime is left afterwards: it is asked to leave, then made to.
    async fn end_runtime(&mut self) {
        let keeper = match self.agent.take() {
            Some(agent) => {
                self.publish_now();
                if agent.is_up() {
                    match timeout(RELEASE_MAX, agent.call(Request::Release)).await {
                        Ok(Ok(Outcome::Done)) => {}
                        other => {
                            tracing::warn!(sandbox = %self.record.id, ?other, "a runtime did not release itself");
                        }
                    }
                }
                Some(agent.keeper().clone())
            }
            // A start that failed late may have left one.
            None => self
                .shared
                .runtime
                .running(&self.record.id)
                .await
                .unwrap_or_else(|error| {
                    tracing::error!(sandbox = %self.record.id, %error, "a runtime can't be looked for");
                    None
                }),
        };
        if let Some(keeper) = keeper {
            self.see_off(&keeper).await;
        }
        self.tidy_up().await;
        offline::refresh(&self.shared.places.of(&self.record.id), &self.tails).await;
    }

    async fn see_off(&self, keeper: &Keeper) {
        if matches!(timeout(KEEPER_KILL_MAX, keeper.gone()).await, Ok(Ok(()))) {
            return;
        }
        tracing::warn!(sandbox = %self.record.id, pid = keeper.pid(), "a keeper does not leave; killing it");
        if let Err(error) = keeper.kill() {
            tracing::error!(sandbox = %self.record.id, %error, "a keeper can't be killed");
        }
        if !matches!(timeout(KEEPER_KILL_MAX, keeper.gone()).await, Ok(Ok(()))) {
            tracing::error!(sandbox = %self.record.id, pid = keeper.pid(), "a killed keeper is still there");
        }
    }

    async fn tidy_up(&self) {
        if let Err(error) = self.shared.runtime.release(&self.record.id).await {
            tracing::error!(sandbox = %self.record.id, %error, "something of a runtime is left");
        }
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
        let now = clock::now();
        let in_sandbox = [self.record.hard_expires_at, self.soft_deadline()]
            .into_iter()
            .flatten()
            .map(|at| at.since(now))
            .min()
            .unwrap_or(DEADLINE_SLEEP_MAX);
        // The wall clock may be set: look again now and then.
        let deadline = Instant::now() + in_sandbox.min(DEADLINE_SLEEP_MAX);
        self.retry.map_or(deadline, |retry| retry.min(deadline))
    }

    fn soft_deadline(&self) -> Option<Timestamp> {
        let runs = self.record.desired == Desired::Running;
        self.record.expires_at.filter(|_| runs)
    }

    async fn due(&mut self) -> Next {
        let now = clock::now();
        let passed = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        let retry = self.retry.is_some_and(|retry| retry <= Instant::now());
        if passed(self.record.hard_expires_at) || (retry && self.record.desired == Desired::Deleted)
        {
            match self.delete().await {
                Ok(()) => return Next::Removed,
                Err(error) => {
                    tracing::error!(sandbox = %self.record.id, %error, "a removal failed");
                    self.failures += 1;
                    self.retry_later();
                }
            }
        } else if passed(self.soft_deadline()) {
            if let Err(error) = self.release(ReleaseWhy::Ttl).await {
                tracing::error!(sandbox = %self.record.id, %error, "a pause failed");
            }
        } else if retry {
            self.retry = None;
            return self.replace().await;
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
