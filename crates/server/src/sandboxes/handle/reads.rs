//! Reads of a sandbox, which wake nothing: answered by a runtime that lives, or by the files.

use std::collections::BTreeSet;

use outlive_api::agent::{Outcome, Request, SessionView};
use outlive_core::{
    id::SessionId,
    sandbox::Observed,
    session::{Rejection, Session},
};
use tokio::{sync::watch, time::timeout};

use super::{Sandbox, Snapshot, calls::accept};
use crate::{
    agents::{
        agent::NoAnswer,
        offline::{self, Writer},
    },
    limits::{AGENT_WAIT_MAX, READ_ANSWER_MAX},
    sessions::{CallError, Life, Tail},
};

impl Sandbox {
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
            Ok(Err(
                NoAnswer::Away
                | NoAnswer::Unknown
                | NoAnswer::Silent
                | NoAnswer::RuntimeGone { .. },
            )) => None,
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

    pub(super) async fn list_now(&self) -> Result<Vec<SessionView>, CallError> {
        match self.ask_live(Request::List).await {
            Some(Ok(Outcome::Sessions(views))) => self.completed(views).await,
            Some(Ok(other)) => Err(unexpected(&other)),
            // So many sessions that they don't fit into one answer: one by one.
            Some(Err(CallError::Failed { .. })) => self.list_singly().await,
            Some(Err(error)) => Err(error),
            None => offline::list(&self.place, self.writer()).await,
        }
    }

    /// A supervisor that was just started doesn't wait for ever until it has taken over thousands
    /// of sessions: the others are as their files say.
    async fn completed(&self, mut views: Vec<SessionView>) -> Result<Vec<SessionView>, CallError> {
        let mut missing = self.tails.sessions();
        if views.len() >= missing.len() {
            return Ok(views);
        }
        let ids: BTreeSet<_> = views.iter().filter_map(id_of).collect();
        missing.retain(|session| !ids.contains(session));
        views.extend(offline::list_of(&self.place, missing, self.writer()).await?);
        offline::sort(&mut views);
        Ok(views)
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

    pub(super) async fn view_now(&self, session: &SessionId) -> Result<SessionView, CallError> {
        match self.ask_live(Request::Get(session.clone())).await {
            Some(Ok(Outcome::Session(view))) => Ok(*view),
            Some(Ok(other)) => Err(unexpected(&other)),
            Some(Err(error)) => Err(error),
            None => offline::view(&self.place, session, self.writer()).await,
        }
    }

    pub(super) async fn tail_now(
        &self,
        session: &SessionId,
    ) -> Result<watch::Receiver<Tail>, CallError> {
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

/// Whose view it is; nobody's that this build can read.
fn id_of(view: &SessionView) -> Option<SessionId> {
    let session = Session::restore(&view.checkpoint).ok()?;
    Some(session.id().clone())
}

fn unexpected(outcome: &Outcome) -> CallError {
    tracing::error!(?outcome, "an answer to another question");
    CallError::Failed {
        message: "the supervisor gave an answer to another question".to_owned(),
    }
}
