//! What a decision has done to the session's processes.

use std::{io, rc::Rc};

use outlive_core::session::{Effect, TerminalSize};
use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::{
    journal::JournalError,
    log,
    machine::{Attempt, Machine, SpawnOrder},
};

impl<M: Machine> Driver<M> {
    pub(super) async fn perform(&mut self, effect: Effect) -> Result<(), JournalError> {
        match effect {
            Effect::Spawn { number } => self.spawn(number),
            Effect::Terminate => {
                self.mark_stopping();
                self.on_current("terminate", Attempt::terminate);
            }
            Effect::Kill => self.kill().await,
            // The call that brought the bytes puts them into the queue.
            Effect::Write => {}
            Effect::Signal { signal } => {
                self.on_current("signal", |attempt| attempt.signal(signal));
            }
            Effect::Resize { rows, cols } => {
                let size = TerminalSize { rows, cols };
                self.on_current("resize", |attempt| attempt.resize(size));
            }
            Effect::SetRetention(retention) => self.journal.set_retention(retention)?,
            Effect::Remove => self.remove(),
        }
        Ok(())
    }

    /// Acts on the process; when there is none yet, the effect comes again with its start.
    pub(super) fn on_current(&self, what: &str, act: impl FnOnce(&M::Attempt) -> io::Result<()>) {
        if let Some(current) = &self.current
            && let Err(error) = act(&current.attempt)
        {
            log::warn(format_args!("{}: {what} failed: {error}", self.id));
        }
    }

    /// A stop is under way: the attempt's end waits for its whole tree.
    pub(super) fn mark_stopping(&self) {
        if let Some(current) = &self.current {
            current.ending.tree_must_go();
        }
    }

    pub(super) async fn kill(&mut self) {
        if let Some(current) = &self.current {
            current.ending.killed();
        }
        self.stop_start.cancel();
        self.give_up_start_at_thaw();
        self.on_current("kill", Attempt::kill);
        self.kill_leftovers().await;
    }

    pub(super) fn spawn(&mut self, number: u32) {
        if self.around.standstill.is_shut() {
            self.start_at_thaw = Some(number);
            return;
        }
        self.stop_start = CancellationToken::new();
        let order = SpawnOrder {
            session: self.id.clone(),
            number,
            spec: self.session.spec().clone(),
            size: self.session.terminal_size(),
            journal: self.journal.clone(),
            stop: self.stop_start.clone(),
        };
        self.around.figures.count_attempt();
        self.start = Some(Box::pin(Rc::clone(&self.around.machine).spawn(order)));
    }
}
