//! Freezing and thawing all sessions together.

use std::rc::Rc;

use outlive_api::agent::Outcome;
use outlive_core::{id::SessionId, session::Rejection};
use tokio::{
    sync::{mpsc::error::TrySendError, oneshot},
    time::{Instant, timeout, timeout_at},
};

use super::Registry;
use crate::{
    driver::{Face, Hindrance, Message},
    limits::FREEZE_ANSWERS_WAIT,
    log,
    machine::Machine,
};

/// Why the workload can't be frozen.
#[derive(Debug, thiserror::Error)]
enum FreezeError {
    /// A session is in the way.
    #[error("{session}: {hindrance}")]
    Session {
        session: SessionId,
        hindrance: Hindrance,
    },
    /// A session is busy for too long.
    #[error("{0}: no answer in time")]
    Silent(SessionId),
    /// The processes could not be stopped.
    #[error("the processes do not stand still: {0}")]
    Processes(std::io::Error),
    /// What they wrote can't be had.
    #[error("their output can't be read: {0}")]
    Output(std::io::Error),
    /// The disk refused.
    #[error("the disk: {0}")]
    Disk(std::io::Error),
}

impl<M: Machine> Registry<M> {
    /// Has every process stand still, and everything that they wrote on disk; or leaves all as it
    /// was, and says why. What the sessions say of it goes to the disk with what comes next: a power
    /// cut ends all that stands still.
    pub(crate) async fn freeze(&self) -> Outcome {
        let _turn = self.around.standstill.turn().await;
        if self.state.borrow().is_releasing {
            return Outcome::Rejected(Rejection::Releasing);
        }
        if self.around.standstill.is_complete() {
            return Outcome::Done;
        }
        match self.try_freeze().await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                let mut message = format!("the sandbox can't be frozen: {error}");
                if let Err(error) = self.undo().await {
                    message = format!("{message}; and it can't be thawed: {error}");
                }
                Outcome::Failed { message }
            }
        }
    }

    /// Has everything go on.
    pub(crate) async fn thaw(&self) -> Outcome {
        let _turn = self.around.standstill.turn().await;
        if self.state.borrow().is_releasing {
            return Outcome::Rejected(Rejection::Releasing);
        }
        if !self.around.standstill.is_shut() {
            // One that is still being opened may say otherwise.
            self.all_opened().await;
        }
        if !self.around.standstill.is_shut() {
            return Outcome::Done;
        }
        match self.undo().await {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Failed {
                message: format!("the sandbox can't be thawed: {error}"),
            },
        }
    }

    /// Goes on with the freeze of a supervisor before this one. It never thaws: what stands in
    /// the way is for the server to hear when it asks.
    pub(crate) async fn go_on_freezing(self: Rc<Self>) {
        self.all_opened().await;
        let _turn = self.around.standstill.turn().await;
        let standstill = &self.around.standstill;
        if !standstill.is_shut() || standstill.is_complete() || self.state.borrow().is_releasing {
            return;
        }
        if let Err(error) = self.try_freeze().await {
            log::warn(format_args!("the sandbox is not frozen yet: {error}"));
        }
    }

    /// The journal of a session of this runtime says that everything stands still.
    pub(super) fn note_frozen(self: &Rc<Self>) {
        // Once the gate moved, this supervisor knows better: the session will hear of it.
        let is_known = self.around.standstill.is_shut() || self.around.standstill.turns() > 0;
        if is_known || self.state.borrow().is_releasing {
            return;
        }
        match self.around.standstill.shut() {
            Ok(()) => {
                let freezing = Rc::clone(self).go_on_freezing();
                self.around.tasks.spawn_local(freezing);
            }
            Err(error) => log::warn(format_args!("a freeze does not go on: {error}")),
        }
    }

    async fn try_freeze(&self) -> Result<(), FreezeError> {
        let around = &self.around;
        around.standstill.shut().map_err(FreezeError::Disk)?;
        let written = around.machine.output_bytes();
        let flush = || around.journals.syncer.sync_together(&self.directory);
        let (halted, flushed) = tokio::join!(self.halt(), flush());
        halted?;
        flushed.map_err(FreezeError::Disk)?;
        self.settle().await?;
        if around.machine.output_bytes() != written {
            flush().await.map_err(FreezeError::Disk)?;
        }
        around.standstill.complete();
        Ok(())
    }

    /// Has the sessions pause, then the processes stand still.
    async fn halt(&self) -> Result<(), FreezeError> {
        self.tell(|_| true, Message::Pause).await?;
        let frozen = self.around.machine.freeze().await;
        frozen.map_err(FreezeError::Processes)
    }

    /// Has everything in the journals. What had no space there tries again, once nobody writes more.
    async fn settle(&self) -> Result<(), FreezeError> {
        self.move_output().await?;
        let has_more = |session: &Face| !session.is_settled();
        let settled = self.tell(has_more, Message::Settle).await;
        let Err(FreezeError::Session {
            hindrance: Hindrance::NoSpace,
            ..
        }) = settled
        else {
            return settled;
        };
        self.move_output().await?;
        self.tell(has_more, Message::Settle).await
    }

    /// Has everything that the processes wrote, which stand still, in the journals.
    async fn move_output(&self) -> Result<(), FreezeError> {
        let moved = timeout(FREEZE_ANSWERS_WAIT, self.around.machine.move_output()).await;
        moved
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(FreezeError::Output)
    }

    /// Tells these sessions, and waits until all did it or said why not.
    async fn tell(
        &self,
        whom: impl Fn(&Face) -> bool,
        message: impl Fn(oneshot::Sender<Result<(), Hindrance>>) -> Message,
    ) -> Result<(), FreezeError> {
        let until = Instant::now() + FREEZE_ANSWERS_WAIT;
        let mut all = Ok(());
        for (session, answer) in self.ask(whom, message) {
            let told = match timeout_at(until, answer).await {
                Ok(Ok(Ok(())) | Err(_)) => Ok(()), // Done, or deleted meanwhile.
                Ok(Ok(Err(hindrance))) => Err(FreezeError::Session { session, hindrance }),
                Err(_) => Err(FreezeError::Silent(session)),
            };
            all = all.and(told);
        }
        all
    }

    /// The processes first, then the sessions.
    async fn undo(&self) -> std::io::Result<()> {
        let around = &self.around;
        around.machine.thaw()?;
        around.standstill.open();
        // No call comes in between: nothing is awaited here.
        let answers = self.ask(|_| true, Message::GoOn);
        let until = Instant::now() + FREEZE_ANSWERS_WAIT;
        for (session, answer) in answers {
            match timeout_at(until, answer).await {
                Ok(Ok(()) | Err(_)) => {} // It goes on, or is deleted.
                // It was told, and its messages come in order.
                Err(_) => log::warn(format_args!("{session}: busy at the thaw")),
            }
        }
        around.standstill.forget()
    }

    /// A message to these sessions, at once. One that is gone answers with an error.
    fn ask<A: 'static>(
        &self,
        whom: impl Fn(&Face) -> bool,
        message: impl Fn(oneshot::Sender<A>) -> Message,
    ) -> Vec<(SessionId, oneshot::Receiver<A>)> {
        let mut answers = Vec::new();
        let sessions = &self.state.borrow().sessions;
        for (session, handle) in sessions.iter().filter(|(_, it)| whom(&it.face)) {
            let (answer, answered) = oneshot::channel();
            match handle.mailbox.try_send(message(answer)) {
                Ok(()) | Err(TrySendError::Closed(_)) => {}
                Err(TrySendError::Full(message)) => {
                    let mailbox = handle.mailbox.clone();
                    // Whoever waits for room gets it in order, so messages stay in order too.
                    self.around.tasks.spawn_local(async move {
                        // A session that is deleted meanwhile has nothing to hear.
                        drop(mailbox.send(message).await);
                    });
                }
            }
            answers.push((session.clone(), answered));
        }
        answers
    }
}
