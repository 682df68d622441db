//! A sandbox as the rest of the server sees it: reads are answered here, changes are asked of
//! its task.

mod calls;
mod reads;

use std::{path::PathBuf, sync::Arc};

use outlive_api::{
    agent::{Outcome, Request, SessionView},
    session::Phase,
};
use outlive_core::{
    id::{SandboxId, SessionId},
    sandbox::{Desired, Hold, Refusal},
    session::Session,
    time::Timestamp,
};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};

use super::{
    activity::{Activity, Doing},
    config::{ConfigChange, IdleKind},
    disk::{DiskIs, Gauge},
    task::{Command, CopyTo, Reply, RestoreTo, ask, refused},
};
use crate::{
    agents::{
        agent::Agent,
        offline::{self},
        tails::Tails,
    },
    clock,
    limits::CENSUS_ANSWER_MAX,
    reserve::Reserve,
    runtime::Place,
    sessions::{Answer, Awake, CallError, Census, SandboxHandle, Tail},
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
    reserve: Arc<Reserve>,
    gauge: Gauge,
}

impl Sandbox {
    pub(super) fn new(
        record: &SandboxRecord,
        mailbox: mpsc::Sender<Command>,
        snapshot: watch::Receiver<Snapshot>,
        tails: Arc<Tails>,
        activity: Arc<Activity>,
        place: Place,
        reserve: Arc<Reserve>,
    ) -> Self {
        Self {
            id: record.id.clone(),
            owner: record.owner.clone(),
            mailbox,
            snapshot,
            tails,
            activity,
            place,
            reserve,
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
        let held = record.state.held_by(&policy, now).map(|hold| Doing {
            kind: IdleKind::Hold,
            id: hold.id.clone(),
            since: hold.since,
        });
        let mut doing = self.activity.doing(rule);
        doing.extend(held);
        (doing, sleeps_at)
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
        observed: outlive_core::sandbox::Observed,
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
        Box::pin(async move {
            let answer = self.unless_deleted(self.call_now(request)).await;
            // Whatever a supervisor could not write, it says no more than that it failed.
            answer.map_err(|error| self.reserve.blame(error))
        })
    }

    fn attach(&self, session: &SessionId) -> Awake {
        Awake::while_open(self.activity.open(IdleKind::Attached, session.as_str()))
    }

    fn wake(&self) -> Answer<'_, ()> {
        Box::pin(self.unless_deleted(async move { self.awake().await.map(drop) }))
    }

    fn room(&self) -> Result<(), CallError> {
        if self.record().state.lacks_room(clock::now()) {
            return Err(refused(Refusal::DiskFull));
        }
        Ok(())
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
