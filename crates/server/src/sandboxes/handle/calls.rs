//! Calls to the runtime of a sandbox: they wake it, wait for what is about to start, and go to the
//! next generation where that can't do harm.

use std::{sync::Arc, time::Duration};

use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    id::SessionId,
    sandbox::Observed,
    session::{Phase as CorePhase, Rejection},
};
use tokio::time::{Instant, timeout_at};

use super::Sandbox;
use crate::{
    agents::{
        agent::{Agent, NoAnswer},
        asked::Asked,
        link::Lost,
    },
    limits::{STARTING_WAIT_MAX, WAKES_MAX},
    sandboxes::{config::IdleKind, task::Command},
    sessions::CallError,
};

impl Sandbox {
    /// The runtime that answers; wakes the sandbox where that is allowed.
    pub(super) async fn awake(&self) -> Result<Arc<Agent>, CallError> {
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
    pub(super) async fn call_now(&self, request: Request) -> Result<Outcome, CallError> {
        let _busy = self.activity.open(kind_of(&request), "call");
        let until = Instant::now() + STARTING_WAIT_MAX;
        let mut followed = None;
        // The same call all along, whomever it is sent to.
        let mut asked = Asked::new(request);
        loop {
            let answer = self.call_awake(&mut asked).await;
            let Some(session) = met_a_start(asked.request(), &answer) else {
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

    async fn call_awake(&self, asked: &mut Asked) -> Result<Outcome, CallError> {
        for _ in 0..WAKES_MAX {
            let agent = self.awake_for(asked.request()).await?;
            match agent.ask(asked).await {
                // It fell asleep under the call.
                Ok(Outcome::Rejected(Rejection::Frozen)) => self.ask(Command::Wake).await?,
                Ok(outcome) => return accept(outcome),
                Err(NoAnswer::RuntimeGone { call }) => {
                    let is_safe = asked.is_remembered() || safe_in_next_generation(asked.request());
                    if call == Lost::Unknown && !is_safe {
                        return Err(no_answer(&NoAnswer::Unknown));
                    }
                    // The task learns of the end on its own; wait until it did.
                    self.until_replaced(&agent).await;
                }
                Err(other) => return Err(no_answer(&other)),
            }
        }
        Err(no_answer(&NoAnswer::RuntimeGone { call: asked.lost() }))
    }

    /// The runtime that answers this request. What is deleted makes room, and ends in its own way:
    /// where a sandbox stands still for its disk, a deletion has the while that a resume gives.
    async fn awake_for(&self, request: &Request) -> Result<Arc<Agent>, CallError> {
        match (self.awake().await, request) {
            (Err(CallError::DiskFull { .. }), Request::Delete(_)) => {
                self.ask(Command::Resume).await?;
                self.awake().await
            }
            (awake, _) => awake,
        }
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

pub(super) fn accept(outcome: Outcome) -> Result<Outcome, CallError> {
    match outcome {
        Outcome::Rejected(rejection) => Err(rejection.into()),
        Outcome::Failed { message } => Err(CallError::Failed { message }),
        fine => Ok(fine),
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
