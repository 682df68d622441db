//! What a session does when the workload freezes and thaws.
//!
//! ```text
//!   pause   a start comes to its end ─► session.paused
//!   settle  the processes stand still, and all that they wrote is in the journal
//!   go on   the processes run ─► session.resumed, and what fell due meanwhile ─► owed start
//! ```

use outlive_core::session::Input;
use tokio::{sync::oneshot, time::timeout};

use super::Driver;
use crate::{
    journal::JournalError,
    limits::START_FREEZE_WAIT,
    machine::{Machine, StartFailure},
};

/// Where a session answers whether it is as far as it was told to be.
pub(crate) type Answer = oneshot::Sender<Result<(), Hindrance>>;

/// Why a session can't stand still.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Hindrance {
    /// A start is under way and does not come to its end.
    #[error("its process is still being started")]
    Starting,
    /// The disk has no room for what must be written first.
    #[error("no space left for its journal")]
    NoSpace,
}

impl<M: Machine> Driver<M> {
    pub(super) async fn pause(&mut self, to: Answer) -> Result<(), JournalError> {
        let paused = self.try_pause().await;
        let (answer, result) = match paused {
            Ok(answer) => (answer, Ok(())),
            // Its attempt ends with its journal: nothing is left to hinder anybody.
            Err(error) => (Ok(()), Err(error)),
        };
        // The freeze may have been given up meanwhile; then a thaw follows.
        drop(to.send(answer));
        result
    }

    async fn try_pause(&mut self) -> Result<Result<(), Hindrance>, JournalError> {
        if self.latched.is_some() {
            return Ok(Ok(()));
        }
        if let Some(start) = &mut self.start {
            let Ok(started) = timeout(START_FREEZE_WAIT, start.as_mut()).await else {
                return Ok(Err(Hindrance::Starting));
            };
            self.start = None;
            self.on_started(started).await?;
        }
        self.feed_fact(Input::Frozen).await?;
        if !self.deleters.is_empty() && self.session.stopping().is_some() {
            // Standing still it never ends in its own way: asked for again, it is killed.
            self.feed_fact(Input::Delete).await?;
        }
        Ok(if self.facts.is_empty() {
            Ok(())
        } else {
            Err(Hindrance::NoSpace)
        })
    }

    pub(super) async fn settle(&mut self, to: Answer) -> Result<(), JournalError> {
        let answer = if self.journal.is_stalled() && self.latched.is_none() {
            // There may be room by now: whoever asks again finds it tried.
            self.retry().await?;
            Err(Hindrance::NoSpace)
        } else {
            Ok(())
        };
        // Readiness may lie in the last bytes.
        let seen = self.on_journal_changed().await;
        self.absorb_output();
        drop(to.send(answer)); // As above.
        seen
    }

    pub(super) async fn go_on(&mut self, to: oneshot::Sender<()>) -> Result<(), JournalError> {
        let resumed = match self.latched {
            Some(_) => Ok(()),
            None => self.resume().await,
        };
        match to.send(()) {
            Ok(()) | Err(()) => {} // Whoever asked may have gone; it goes on all the same.
        }
        resumed
    }

    async fn resume(&mut self) -> Result<(), JournalError> {
        self.feed_fact(Input::Thawed).await?;
        match self.start_at_thaw {
            Some(_) if self.session.stopping().is_some() => self.give_up_start_at_thaw(),
            Some(number) => {
                self.start_at_thaw = None;
                self.spawn(number);
            }
            None => {}
        }
        Ok(())
    }

    /// The start that waits for the thaw is not wanted any more: it failed.
    pub(super) fn give_up_start_at_thaw(&mut self) {
        if self.start_at_thaw.take().is_some() {
            let failure = StartFailure("it was stopped before it was started".to_owned());
            self.start = Some(Box::pin(std::future::ready(Err(failure))));
        }
    }
}
