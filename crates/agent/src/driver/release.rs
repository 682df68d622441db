//! The end of a runtime: every attempt ends with it, and its journal says so.
//!
//! ```text
//!   halt ─► session.paused ─► kill ─► tree gone, output drained ─► attempt.exited
//!         {runtime_replaced} ─► seal, synced together with all others
//! ```

use std::rc::Rc;

use outlive_core::{limits::KILL_WAIT, session::Input};
use tokio::{sync::oneshot, time::timeout};

use super::Driver;
use crate::{
    journal::JournalError,
    limits::{RELEASE_DRAIN_MAX, START_RELEASE_WAIT},
    log,
    machine::{Attempt, Machine},
};

impl<M: Machine> Driver<M> {
    pub(super) async fn release(&mut self, to: oneshot::Sender<Result<(), JournalError>>) {
        let result = self.try_release().await;
        if let Err(error) = &result {
            log::warn(format_args!("{}: not released cleanly: {error}", self.id));
        }
        // Nobody to tell: the supervisor ends anyhow.
        drop(to.send(result));
    }

    async fn try_release(&mut self) -> Result<(), JournalError> {
        // A start that is under way has to come to its end, or its process would be forgotten.
        if let Some(mut start) = self.start.take() {
            let in_time = timeout(START_RELEASE_WAIT, start.as_mut()).await;
            let started = if let Ok(started) = in_time {
                started
            } else {
                self.stop_start.cancel();
                start.await
            };
            self.on_started(started).await?;
        }
        if self.latched.is_some() {
            return Ok(());
        }
        if let Some(current) = &self.current
            && let Err(error) = current.attempt.halt()
        {
            log::warn(format_args!("{}: could not be halted: {error}", self.id));
        }
        self.feed_fact(Input::Frozen).await?;
        self.kill_leftovers().await;
        if let Some(current) = self.current.take() {
            drop(current.input);
            end_tree(&current.attempt).await;
            self.feed_fact(Input::Released).await?;
            current.attempt.release();
        } else {
            self.feed_fact(Input::Released).await?;
        }
        self.absorb_output();
        self.journal.seal(&self.session)
    }
}

/// Kills the tree and collects its last output.
async fn end_tree<A: Attempt>(attempt: &Rc<A>) {
    if let Err(error) = attempt.kill() {
        log::warn(format_args!("an attempt could not be killed: {error}"));
    }
    let gone = async {
        attempt.leader_gone().await;
        attempt.tree_gone().await;
    };
    if timeout(KILL_WAIT, gone).await.is_err() {
        log::warn(format_args!("a killed tree is still there"));
    }
    if timeout(RELEASE_DRAIN_MAX, attempt.drained()).await.is_err() {
        log::warn(format_args!(
            "the disk has no room for the last output of an attempt: it is lost with the runtime"
        ));
    }
}
