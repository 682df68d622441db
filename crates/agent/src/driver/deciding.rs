//! An input's way: decided, journalled, made the state, carried out.

use std::rc::Rc;

use outlive_core::{
    event::Body,
    session::{CallId, Decision, Input, Rejection, Session},
};

use super::{Driver, Fact};
use crate::{journal::JournalError, limits::FULL_RETRY, log, machine::Machine};

impl<M: Machine> Driver<M> {
    /// Decides and carries out.
    pub(super) async fn feed(
        &mut self,
        input: &Input,
    ) -> Result<Result<(), Rejection>, JournalError> {
        self.feed_by(input, None).await
    }

    /// The same, and it is remembered that this call asked for it.
    pub(super) async fn feed_by(
        &mut self,
        input: &Input,
        call: Option<CallId>,
    ) -> Result<Result<(), Rejection>, JournalError> {
        self.absorb_output();
        let decision = match self.session.decide(self.around.clock.now(), input) {
            Ok(decision) => decision,
            Err(rejection) => return Ok(Err(rejection)),
        };
        match self.carry_out(decision, call).await {
            // The reserve is for what must be journalled whatever happens. Part of it may be in
            // the journal by now, so what is left to do is decided anew.
            Err(JournalError::Full) if self.around.reserve.spend() => {
                match self.session.decide(self.around.clock.now(), input) {
                    Ok(decision) => self.carry_out(decision, call).await.map(Ok),
                    Err(rejection) => Ok(Err(rejection)),
                }
            }
            outcome => outcome.map(Ok),
        }
    }

    /// A fact is never refused, and waits for space where there is none.
    pub(super) async fn feed_fact(&mut self, input: Input) -> Result<(), JournalError> {
        self.facts.push_back(Fact { input, ended: None });
        self.feed_facts().await
    }

    pub(super) async fn feed_facts(&mut self) -> Result<(), JournalError> {
        while let Some(fact) = self.facts.pop_front() {
            match self.feed(&fact.input).await {
                Ok(Ok(())) => {}
                Ok(Err(rejection)) => {
                    log::warn(format_args!("{}: a fact was refused: {rejection}", self.id));
                }
                Err(JournalError::Full) => {
                    self.facts.push_front(fact);
                    self.retry_at = Some(self.around.clock.now() + FULL_RETRY);
                    return Ok(());
                }
                Err(error) => {
                    self.let_go(fact.ended);
                    return Err(error);
                }
            }
            self.let_go(fact.ended);
        }
        Ok(())
    }

    /// Journals a decision, makes it the state, and performs it.
    pub(super) async fn carry_out(
        &mut self,
        decision: Decision,
        call: Option<CallId>,
    ) -> Result<(), JournalError> {
        let Decision {
            mut events,
            effects,
            roll,
        } = decision;
        if let Some(roll) = roll {
            let rest = events.split_off(roll.from.min(events.len()));
            self.journal_events(events, None).await?;
            let mut session = Session::clone(&self.session);
            session.enter_generation(roll.generation);
            self.journal.enter_runtime(&session)?;
            self.session = Rc::new(session);
            events = rest;
        }
        self.journal_events(events, call).await?;
        for effect in effects {
            self.perform(effect).await?;
        }
        Ok(())
    }

    async fn journal_events(
        &mut self,
        events: Vec<Body>,
        call: Option<CallId>,
    ) -> Result<(), JournalError> {
        if events.is_empty() {
            return Ok(());
        }
        let is_durable = events.iter().any(Body::is_durable);
        self.face.facts_begin(self.journal.window().1);
        let journalled = self.append_and_sync(events, call, is_durable).await;
        if journalled.is_ok() {
            self.face.show(&self.session, &self.journal);
        }
        self.face.facts_done();
        journalled
    }

    async fn append_and_sync(
        &mut self,
        events: Vec<Body>,
        call: Option<CallId>,
        is_durable: bool,
    ) -> Result<(), JournalError> {
        self.session = Rc::new(self.journal.append(&self.session, events, call)?);
        if is_durable {
            self.face.facts_written(self.session.last_seq());
            self.journal.sync().await?;
        }
        Ok(())
    }
}
