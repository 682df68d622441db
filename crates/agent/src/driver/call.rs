//! Calls of users.

use outlive_api::agent::{Outcome, Request};
use outlive_core::session::{CallMark, CallStanding, Input, Rejection};
use tokio::sync::oneshot;

use super::{Driver, answer};
use crate::{journal::JournalError, limits::WAITERS_MAX, machine::Machine};

/// When a call is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// As soon as it is done.
    Now,
    /// When nothing starts or ends any more.
    WhenOver,
    /// When the files are gone.
    WhenGone,
}

impl<M: Machine> Driver<M> {
    pub(super) async fn call(
        &mut self,
        request: Request,
        mark: Option<CallMark>,
        to: oneshot::Sender<Outcome>,
    ) -> Result<(), JournalError> {
        if let Some(message) = self.latched.clone() {
            self.call_latched(&request, to, message);
            return Ok(());
        }
        // What stands still can be looked at and taken away, and no more.
        if self.around.standstill.is_shut() && !matches!(request, Request::Delete(_)) {
            answer(to, Outcome::Rejected(Rejection::Frozen));
            return Ok(());
        }
        let (input, when) = match request {
            Request::Write { session: _, write } => return self.write(write, to).await,
            Request::Update { session: _, spec } => (Input::Update(spec), Answer::WhenOver),
            Request::SetDesiredState { session: _, state } => {
                (Input::SetDesiredState(state), Answer::WhenOver)
            }
            Request::NewAttempt {
                session: _,
                replace,
            } => (Input::NewAttempt(replace), Answer::WhenOver),
            // Gone is gone, however often it was asked for.
            Request::Delete(_) => {
                return self
                    .command(&Input::Delete, None, Answer::WhenGone, to)
                    .await;
            }
            Request::Signal {
                session: _,
                expected,
                signal,
            } => (Input::Signal { expected, signal }, Answer::Now),
            Request::Resize {
                session: _,
                expected,
                rows,
                cols,
            } => (
                Input::Resize {
                    expected,
                    rows,
                    cols,
                },
                Answer::Now,
            ),
            other => {
                let message = format!("{other:?} is no call about one session");
                answer(to, Outcome::Failed { message });
                return Ok(());
            }
        };
        self.command(&input, mark, when, to).await
    }

    async fn command(
        &mut self,
        input: &Input,
        mark: Option<CallMark>,
        when: Answer,
        to: oneshot::Sender<Outcome>,
    ) -> Result<(), JournalError> {
        if when != Answer::Now && self.waiters.len() + self.deleters.len() >= WAITERS_MAX {
            let message = "too many calls wait for this session".to_owned();
            answer(to, Outcome::Failed { message });
            return Ok(());
        }
        let standing = mark.map_or(CallStanding::New, |mark| self.session.call_standing(mark));
        let fed = match standing {
            CallStanding::New => self.feed_by(input, mark.map(|mark| mark.id)).await,
            // By the supervisor before this one, which was killed before it answered.
            CallStanding::CarriedOut => Ok(Ok(())),
            CallStanding::Unknown => {
                answer(to, Outcome::Forgotten);
                return Ok(());
            }
        };
        match fed {
            Ok(Ok(())) => {
                if self.session.stopping().is_some() {
                    self.mark_stopping();
                }
                match when {
                    Answer::Now => answer(to, Outcome::Done),
                    Answer::WhenOver => self.waiters.push(to),
                    Answer::WhenGone => self.deleters.push(to),
                }
                Ok(())
            }
            // A second deletion waits for the first.
            Ok(Err(Rejection::Deleting)) if when == Answer::WhenGone => {
                self.deleters.push(to);
                Ok(())
            }
            Ok(Err(rejection)) => {
                answer(to, Outcome::Rejected(rejection));
                Ok(())
            }
            Err(error) => {
                answer(
                    to,
                    Outcome::Failed {
                        message: error.to_string(),
                    },
                );
                match error {
                    JournalError::Full => Ok(()), // Later, when there is space.
                    broken @ JournalError::Broken(_) => Err(broken),
                }
            }
        }
    }

    /// A session whose journal failed can still be deleted, and says so to everything else.
    fn call_latched(&mut self, request: &Request, to: oneshot::Sender<Outcome>, message: String) {
        if let Request::Delete(_) = request {
            self.deleters.push(to);
            self.remove();
        } else {
            answer(to, Outcome::Failed { message });
        }
    }
}
