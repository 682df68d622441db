//! A sandbox as the rest of the server sees it: reads are answered here, changes are asked of
//! its task.

use std::{path::PathBuf, sync::Arc, time::Duration};

use outlive_api::{
    agent::{Outcome, Request, SessionView},
    session::Phase,
};
use outlive_core::{
    id::{SandboxId, SessionId},
    sandbox::{Desired, Hold, Observed},
    session::{Phase as CorePhase, Rejection, Session},
    time::Timestamp,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{
    activity::{Activity, Doing},
    config::{ConfigChange, IdleKind},
    disk::{DiskIs, Gauge},
    task::{Command, CopyTo, Reply, RestoreTo, ask},
};
use crate::{
    agents::{
        agent::{Agent, NoAnswer},
        link::Lost,
        offline::{self, Writer},
        tails::Tails,
    },
    clock,
    limits::{AGENT_WAIT_MAX, CENSUS_ANSWER_MAX, READ_ANSWER_MAX, STARTING_WAIT_MAX, WAKES_MAX},
    runtime::Place,
    sessions::{Answer, Awake, CallError, Census, Life, SandboxHandle, Tail},
    store::{Owner, SandboxRecord},
};

/// What is known of a sandbox right now.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) record: Arc<SandboxRecord>,
    pub(crate) agent: Option<Arc<Agent>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sandbox {
    id: SandboxId,
    owner: Owner,
    mailbox: mpsc::Sender<Command>,
    snapshot: watch::Receiver<Snapshot>,
    tails: Arc<Tails>,
    activity: Arc<Activity>,
    place: Place,
    gauge: Gauge,
}

impl Sandbox {
    pub(super) fn new(
        id: SandboxId,
        owner: Owner,
        mailbox: mpsc::Sender<Command>,
        snapshot: watch::Receiver<Snapshot>,
        tails: Arc<Tails>,
        activity: Arc<Activity>,
        place: Place,
    ) -> Self {
        Self {
            id,
            owner,
            mailbox,
            snapshot,
            tails,
            activity,
            place,
            gauge: Gauge::default(),
        }
    }

    /// How full its disk is.
    pub(super) fn gauge(&self) -> &Gauge {
        &self.gauge
    }

    /// What a measurement of its disk means.
    pub(super) async fn tell_disk(&self, disk: DiskIs) {
        let told = self.ask(|reply| Command::Disk(disk, reply)).await;
        if let Err(error) = told {
            tracing::debug!(sandbox = %self.id, %error, "a disk is measured and told of again");
            self.gauge.measure_soon();
        }
    }

    /// The tenant.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What the store says of it.
    pub(crate) fn record(&self) -> Arc<SandboxRecord> {
        Arc::clone(&self.snapshot.borrow().record)
    }

    /// The runtime that runs it, when one does.
    pub(crate) fn agent(&self) -> Option<Arc<Agent>> {
        self.snapshot.borrow().agent.clone()
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Keeps the disk only.
    pub(crate) async fn pause(&self) -> Result<(), CallError> {
        self.ask(Command::Pause).await
    }

    /// Has its disk copied; never wakes it.
    pub(super) async fn copy(&self, to: CopyTo) -> Result<(), CallError> {
        self.ask(|reply| Command::Copy(Box::new(to), reply)).await
    }

    /// Has its disk put back.
    pub(super) async fn restore(&self, to: RestoreTo) -> Result<(), CallError> {
        self.ask(|reply| Command::Restore(Box::new(to), reply))
            .await
    }

    /// Stands still where it is.
    pub(crate) async fn suspend(&self) -> Result<(), CallError> {
        self.ask(Command::Suspend).await
    }

    /// Stays awake for a while.
    pub(crate) async fn hold(&self, hold: Hold) -> Result<(), CallError> {
        self.ask(|reply| Command::Hold(Box::new(hold), reply)).await
    }

    /// Stays awake no longer because of that hold.
    pub(crate) async fn drop_hold(&self, id: &str) -> Result<(), CallError> {
        let id = id.to_owned();
        self.ask(|reply| Command::DropHold(id, reply)).await
    }

    /// How many sessions it has. Never wakes it.
    pub(crate) async fn session_count(&self) -> Result<u64, CallError> {
        let count = if self.snapshot.borrow().agent.is_some() {
            self.tails.sessions().len()
        } else {
            offline::count(&self.place).await?
        };
        Ok(count as u64)
    }

    /// What keeps it awake now, and when it falls asleep if nothing else happens.
    pub(crate) fn wakefulness(&self) -> (Vec<Doing>, Option<Timestamp>) {
        let record = self.record();
        let rule = &record.config.idle;
        let now = clock::now();
        let quiet_since = self.activity.quiet_since(rule);
        let policy = record.config.policy();
        let sleeps_at = record.state.sleeps_at(&policy, now, quiet_since);
        (self.activity.doing(rule), sleeps_at)
    }

    /// Has a runtime, whatever `auto_resume` says.
    pub(crate) async fn resume(&self) -> Result<(), CallError> {
        self.ask(Command::Resume).await
    }

    /// Moves its deadline.
    pub(crate) async fn refresh(&self, duration: Option<u64>) -> Result<(), CallError> {
        self.ask(|reply| Command::Refresh(duration, reply)).await
    }

    /// Changes its configuration.
    pub(crate) async fn configure(&self, change: ConfigChange) -> Result<(), CallError> {
        let changed = self
            .ask(|reply| Command::Configure(Box::new(change), reply))
            .await;
        self.gauge.measure_soon();
        changed
    }

    /// Removes it.
    pub(crate) async fn delete(&self) -> Result<(), CallError> {
        self.ask(Command::Delete).await
    }

    async fn ask(&self, command: impl FnOnce(Reply) -> Command) -> Result<(), CallError> {
        match ask(&self.mailbox, command).await {
            // Its task ended under the question because the sandbox did.
            Err(CallError::Unavailable { .. })
                if self.record().state.desired == Desired::Deleted =>
            {
                Err(CallError::NoSandbox)
            }
            answer => answer,
        }
    }

    /// What fails because the sandbox was deleted under it, fails for that reason: everything that
    /// it did or did not do is gone.
    async fn unless_deleted<T>(
        &self,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        match work.await {
            Err(_) if self.record().state.desired == Desired::Deleted => Err(CallError::NoSandbox),
            answer => answer,
        }
    }

    /// The runtime that answers; wakes the sandbox where that is allowed.
    async fn awake(&self) -> Result<Arc<Agent>, CallError> {
        for _ in 0..WAKES_MAX {
            let snapshot = self.snapshot.borrow().clone();
            match snapshot.record.state.observed {
                Observed::Running => {
                    if let Some(agent) = snapshot.agent {
                        return Ok(agent);
                    }
                }
                Observed::Releasing if snapshot.record.state.restoring.is_some() => {
                    return Err(unavailable("the sandbox's files are being put back", 1));
                }
                Observed::Releasing => return Err(unavailable("the sandbox is pausing", 1)),
                Observed::Deleting => return Err(CallError::NoSandbox),
                Observed::Starting
                | Observed::Freezing
                | Observed::Frozen
                | Observed::Thawing
                | Observed::Released
                | Observed::Failed => {}
            }
            self.ask(Command::Wake).await?;
        }
        Err(unavailable("the sandbox does not stay awake", 5))
    }

    /// A call that wakes the sandbox means the attempt that recovery is about to start: it waits
    /// for that attempt instead of being refused for coming a moment early.
    async fn call_now(&self, request: Request) -> Result<Outcome, CallError> {
        let _busy = self.activity.open(kind_of(&request), "call");
        let until = Instant::now() + STARTING_WAIT_MAX;
        let mut followed = None;
        loop {
            let answer = self.call_awake(request.clone()).await;
            let Some(session) = met_a_start(&request, &answer) else {
                return answer;
            };
            let Some(tail) = &mut followed else {
                // Asked once more with the tail in hand, so that no event slips in between.
                followed = self.tails.follow(session);
                if followed.is_none() {
                    return answer;
                }
                continue;
            };
            if !matches!(timeout_at(until, tail.changed()).await, Ok(Ok(()))) {
                return answer;
            }
        }
    }

    async fn call_awake(&self, request: Request) -> Result<Outcome, CallError> {
        let mut last = Lost::NotSent;
        for _ in 0..WAKES_MAX {
            let agent = self.awake().await?;
            match agent.call(request.clone()).await {
                // It fell asleep under the call.
                Ok(Outcome::Rejected(Rejection::Frozen)) => self.ask(Command::Wake).await?,
                Ok(outcome) => return accept(outcome),
                Err(NoAnswer::RuntimeGone { call }) => {
                    last = call;
                    if call == Lost::Unknown && !safe_in_next_generation(&request) {
                        return Err(no_answer(&NoAnswer::Unknown));
                    }
                    // The task learns of the end on its own; wait until it did.
                    self.until_replaced(&agent).await;
                }
                Err(other) => return Err(no_answer(&other)),
            }
        }
        Err(no_answer(&NoAnswer::RuntimeGone { call: last }))
    }

    async fn until_replaced(&self, dead: &Arc<Agent>) {
        let mut snapshot = self.snapshot.clone();
        let changed = snapshot.wait_for(|now| {
            now.agent
                .as_ref()
                .is_none_or(|agent| !Arc::ptr_eq(agent, dead))
        });
        if changed.await.is_err() {
            tracing::trace!("a sandbox ended under a call");
        }
    }

    /// The snapshot, once it is known whether a runtime answers: a new server looks for it first,
    /// and a new generation takes a moment.
    async fn known(&self) -> Snapshot {
        let mut snapshot = self.snapshot.clone();
        let settled = snapshot.wait_for(|now| {
            let has_none = matches!(
                now.record.state.observed,
                Observed::Released | Observed::Failed | Observed::Deleting
            );
            now.agent.is_some() || has_none
        });
        if timeout(AGENT_WAIT_MAX, settled).await.is_err() {
            tracing::debug!(sandbox = %self.id, "no runtime answers yet; the files do");
        }
        self.snapshot.borrow().clone()
    }

    /// Asks a runtime that lives, without waking one; nothing when none answers.
    async fn ask_live(&self, request: Request) -> Option<Result<Outcome, CallError>> {
        let snapshot = self.known().await;
        if snapshot.record.state.observed == Observed::Deleting {
            return Some(Err(CallError::NoSandbox));
        }
        let agent = snapshot.agent?;
        match timeout(READ_ANSWER_MAX, agent.call(request)).await {
            Ok(Ok(outcome)) => Some(accept(outcome)),
            // Its files answer.
            Ok(Err(NoAnswer::Away | NoAnswer::Unknown | NoAnswer::RuntimeGone { .. })) => None,
            Err(_elapsed) => {
                tracing::warn!(sandbox = %self.id, "a supervisor does not answer a question; the files do");
                None
            }
        }
    }

    /// Who wrote the files that answer in its place.
    fn writer(&self) -> Writer {
        if self.snapshot.borrow().record.state.observed == Observed::Released {
            Writer::Gone
        } else {
            Writer::Away
        }
    }

    async fn list_now(&self) -> Result<Vec<SessionView>, CallError> {
        match self.ask_live(Request::List).await {
            Some(Ok(Outcome::Sessions(views))) => Ok(views),
            Some(Ok(other)) => Err(unexpected(&other)),
            // So many sessions that they don't fit into one answer: one by one.
            Some(Err(CallError::Failed { .. })) => self.list_singly().await,
            Some(Err(error)) => Err(error),
            None => offline::list(&self.place, self.writer()).await,
        }
    }

    async fn list_singly(&self) -> Result<Vec<SessionView>, CallError> {
        let mut views = Vec::new();
        for session in self.tails.sessions() {
            match self.view_now(&session).await {
                Ok(view) => views.push(view),
                Err(CallError::Rejected(Rejection::NotFound)) => {} // Deleted meanwhile.
                Err(error) => return Err(error),
            }
        }
        offline::sort(&mut views);
        Ok(views)
    }

    async fn view_now(&self, session: &SessionId) -> Result<SessionView, CallError> {
        match self.ask_live(Request::Get(session.clone())).await {
            Some(Ok(Outcome::Session(view))) => Ok(*view),
            Some(Ok(other)) => Err(unexpected(&other)),
            Some(Err(error)) => Err(error),
            None => offline::view(&self.place, session, self.writer()).await,
        }
    }

    async fn tail_now(&self, session: &SessionId) -> Result<watch::Receiver<Tail>, CallError> {
        if let Some(mut tail) = self.tails.follow(session) {
            // The first event of every journal is its creation. A tail before it means that the
            // supervisor is opening the journal again, which ends in a moment.
            let is_open = |tail: &Tail| tail.latest > 0 || tail.life != Life::Present;
            let opened = timeout(AGENT_WAIT_MAX, tail.wait_for(is_open)).await;
            if opened.map(|opened| opened.map(drop)).is_err() {
                let view = offline::view(&self.place, session, self.writer()).await?;
                self.tails.learn(session, view.earliest, view.latest);
            }
            return Ok(tail);
        }
        let view = self.view_now(session).await?;
        self.tails.learn(session, view.earliest, view.latest);
        self.tails
            .follow(session)
            .ok_or(CallError::Rejected(Rejection::NotFound))
    }
}

/// Figures.
impl Sandbox {
    /// Counts itself; asks a runtime that answers and wakes none.
    pub(super) async fn count(&self) -> Census {
        let mut census = Census::default();
        let snapshot = self.snapshot.borrow().clone();
        let state = super::rest::status_of(snapshot.record.state.observed).as_str();
        census.sandboxes.insert(state, 1);
        if let Some(agent) = snapshot.agent {
            // One that gives no answer now is counted the next time.
            let inside = count_inside(&agent, &mut census);
            if timeout(CENSUS_ANSWER_MAX, inside).await.is_err() {
                tracing::debug!(sandbox = %self.id, "a supervisor gives no figures");
            }
        }
        census
    }
}

async fn count_inside(agent: &Agent, census: &mut Census) {
    if let Ok(Outcome::Health(health)) = agent.call(Request::Health).await {
        census.add(&health);
    }
    if let Ok(Outcome::Sessions(views)) = agent.call(Request::List).await {
        for view in &views {
            let phase = Session::restore(&view.checkpoint).map(|session| session.phase());
            let phase = phase.map_or("unreadable", |phase| Phase::from(phase).as_str());
            *census.sessions.entry(phase).or_default() += 1;
        }
    }
}

/// Tests wait for states, not for time.
#[cfg(test)]
impl Sandbox {
    /// Returns once what is known is what was asked for; tells whether the sandbox is left.
    pub(super) async fn settled(&self) -> bool {
        self.snapshot
            .clone()
            .wait_for(|now| {
                let state = &now.record.state;
                state.is_settled() && (now.agent.is_some() || state.desired == Desired::Released)
            })
            .await
            .is_ok()
    }

    /// Returns once it is removed.
    pub(super) async fn settled_gone(&self) -> bool {
        self.snapshot.clone().wait_for(|_| false).await.is_ok()
    }

    /// Returns once it has this generation and state.
    pub(super) async fn reaches(
        &self,
        generation: outlive_core::id::Generation,
        observed: Observed,
    ) {
        self.snapshot
            .clone()
            .wait_for(|now| {
                let state = &now.record.state;
                state.generation == generation && state.observed == observed
            })
            .await
            .unwrap();
    }
}

impl SandboxHandle for Sandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn call(&self, request: Request) -> Answer<'_, Outcome> {
        Box::pin(self.unless_deleted(self.call_now(request)))
    }

    fn attach(&self, session: &SessionId) -> Awake {
        Awake::while_open(self.activity.open(IdleKind::Attached, session.as_str()))
    }

    fn wake(&self) -> Answer<'_, ()> {
        Box::pin(self.unless_deleted(async move { self.awake().await.map(drop) }))
    }

    fn list(&self) -> Answer<'_, Vec<SessionView>> {
        Box::pin(self.unless_deleted(self.list_now()))
    }

    fn view<'a>(&'a self, session: &'a SessionId) -> Answer<'a, SessionView> {
        Box::pin(self.unless_deleted(self.view_now(session)))
    }

    fn tail<'a>(&'a self, session: &'a SessionId) -> Answer<'a, watch::Receiver<Tail>> {
        Box::pin(self.unless_deleted(self.tail_now(session)))
    }

    fn journal<'a>(&'a self, session: &'a SessionId) -> Answer<'a, PathBuf> {
        Box::pin(async move { Ok(self.place.journal(session)) })
    }
}

/// What a call is to the idle rule.
fn kind_of(request: &Request) -> IdleKind {
    match request {
        Request::Create { .. } | Request::NewAttempt { .. } => IdleKind::Exec,
        _ => IdleKind::Input,
    }
}

/// The session whose attempt was not started yet when a request for it was refused. A refused
/// request changed nothing, so it may be made again.
fn met_a_start<'a>(
    request: &'a Request,
    answer: &Result<Outcome, CallError>,
) -> Option<&'a SessionId> {
    let Err(CallError::Rejected(Rejection::NotRunning {
        phase: CorePhase::Suspended | CorePhase::Starting,
    })) = answer
    else {
        return None;
    };
    match request {
        Request::Write { session, .. }
        | Request::Signal { session, .. }
        | Request::Resize { session, .. } => Some(session),
        _ => None,
    }
}

/// Requests that may go to the next generation although the last one may have carried them out:
/// those that the journal recognises, or that say what should be.
fn safe_in_next_generation(request: &Request) -> bool {
    matches!(
        request,
        Request::Get(_)
            | Request::List
            | Request::Health
            | Request::Configure { .. }
            | Request::SetDesiredState { .. }
            | Request::Delete(_)
            | Request::Write { .. }
    )
}

fn accept(outcome: Outcome) -> Result<Outcome, CallError> {
    match outcome {
        Outcome::Rejected(rejection) => Err(rejection.into()),
        Outcome::Failed { message } => Err(CallError::Failed { message }),
        fine => Ok(fine),
    }
}

fn unexpected(outcome: &Outcome) -> CallError {
    tracing::error!(?outcome, "an answer to another question");
    CallError::Failed {
        message: "the supervisor gave an answer to another question".to_owned(),
    }
}

fn no_answer(error: &NoAnswer) -> CallError {
    unavailable(&error.to_string(), 1)
}

fn unavailable(message: &str, retry_after_seconds: u64) -> CallError {
    CallError::Unavailable {
        message: message.to_owned(),
        retry_after: Duration::from_secs(retry_after_seconds),
    }
}
