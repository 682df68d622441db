//! One session's driver: the only task that changes the session.
//!
//! ```text
//!   calls ─► mailbox ─┐
//!   spawn finished ───┤                    ┌► append ► sync, when durable ► apply ► show
//!   process gone ─────┼─► Input ─► decide ─┤
//!   deadline passed ──┤                    └► perform: spawn, write, signal, kill, remove
//!   output committed ─┘
//! ```
//! Everything that may take long is a future that the loop polls beside the mailbox: a start, an
//! end, a full input pipe. So a call is answered at once, or waits in a list until the change that
//! it asked for is over, while others go on. The loop itself waits for the disk only, when an
//! event has to be durable before anybody hears of it.

mod call;
mod deciding;
mod effects;
mod ending;
mod face;
mod inputs;
mod leftovers;
mod open;
mod release;
mod standstill;
#[cfg(test)]
mod tests;

use std::{
    cell::Cell,
    collections::{BTreeSet, VecDeque},
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    event::{AttemptEnd, Body, Event, ExitStatus, Oom},
    id::{Generation, SessionId},
    session::{CallMark, Input, Phase, Rejection, Session},
    time::Timestamp,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock::Clock,
    figures::Figures,
    input::InputQueue,
    journal::{JournalError, JournalSurroundings, SessionJournal},
    limits::FULL_RETRY,
    log,
    machine::{Attempt, Ended, Machine, StartFailure},
    reserve::Reserve,
    standstill::Standstill,
};
use ending::Ending;
pub(crate) use face::{Face, Standing};
use leftovers::Leftovers;
pub(crate) use open::{Creation, create, reopen};
pub(crate) use standstill::Hindrance;

/// What all drivers of a supervisor share.
#[derive(Debug)]
pub(crate) struct Surroundings<M> {
    pub(crate) machine: Rc<M>,
    pub(crate) generation: Generation,
    pub(crate) clock: Arc<Clock>,
    pub(crate) journals: JournalSurroundings,
    pub(crate) reserve: Reserve,
    pub(crate) tasks: TaskTracker,
    pub(crate) figures: Rc<Figures>,
    /// How many ended attempts of all sessions have something left.
    pub(crate) leftovers: Rc<Cell<usize>>,
    pub(crate) standstill: Rc<Standstill>,
}

/// What reaches a driver.
#[derive(Debug)]
pub(crate) enum Message {
    /// A call about this session, what it is known by, and where its answer goes.
    Call(Request, Option<CallMark>, oneshot::Sender<Outcome>),
    /// The runtime ends: journal it, and say when that is done.
    Release(oneshot::Sender<Result<(), JournalError>>),
    /// The workload is about to stand still: journal it.
    Pause(standstill::Answer),
    /// It stands still: take what it wrote.
    Settle(standstill::Answer),
    /// It goes on, and so do the session's clocks.
    GoOn(oneshot::Sender<()>),
}

/// The driver of one session.
pub(crate) struct Driver<M: Machine> {
    around: Rc<Surroundings<M>>,
    id: SessionId,
    face: Rc<Face>,
    session: Rc<Session>,
    journal: SessionJournal,
    mailbox: mpsc::Receiver<Message>,
    start: Option<Start<M::Attempt>>,
    /// Ends the start that is under way.
    stop_start: CancellationToken,
    /// The attempt that is started when the workload thaws.
    start_at_thaw: Option<u32>,
    current: Option<Current<M::Attempt>>,
    /// Ended attempts whose trees may have members left.
    leftovers: Leftovers<M::Attempt>,
    waiters: Vec<oneshot::Sender<Outcome>>,
    deleters: Vec<oneshot::Sender<Outcome>>,
    /// Inputs that were accepted and whose bytes may or may not have been written: a supervisor
    /// was killed, or the delivery failed.
    unsettled_inputs: BTreeSet<String>,
    /// Facts that are not in the journal yet: the disk is full.
    facts: VecDeque<Fact<M::Attempt>>,
    /// When they, and the output that waits too, are tried again.
    retry_at: Option<Timestamp>,
    /// The journal failed: nothing can change any more but the deletion.
    latched: Option<String>,
    removed: bool,
}

type Started<A> = Result<A, StartFailure>;
type Start<A> = Pin<Box<dyn Future<Output = Started<A>>>>;

/// The attempt whose process lives.
struct Current<A> {
    attempt: Rc<A>,
    input: Option<InputQueue>,
    ending: Ending,
}

/// Something that happened, and the attempt that is history once it is in the journal.
struct Fact<A> {
    input: Input,
    ended: Option<Rc<A>>,
}

/// What woke the driver.
enum Wake<A> {
    Message(Option<Message>),
    Started(Started<A>),
    Ended(Ended),
    InputReady,
    JournalChanged,
    Timer,
}

impl<M: Machine> Driver<M> {
    /// Drives the session until it is deleted or released.
    ///
    /// Returns the calls that asked for the deletion; they are answered once the session is
    /// forgotten everywhere.
    pub(crate) async fn run(mut self) -> Vec<oneshot::Sender<Outcome>> {
        loop {
            self.answer_waiters();
            if self.removed {
                self.face.standing.send_replace(Standing::Gone);
                return self.deleters;
            }
            let result = match self.next().await {
                Wake::Message(Some(Message::Call(request, mark, answer))) => {
                    self.call(request, mark, answer).await
                }
                Wake::Message(Some(Message::Release(answer))) => {
                    self.release(answer).await;
                    return Vec::new();
                }
                Wake::Message(Some(Message::Pause(answer))) => self.pause(answer).await,
                Wake::Message(Some(Message::Settle(answer))) => self.settle(answer).await,
                Wake::Message(Some(Message::GoOn(answer))) => self.go_on(answer).await,
                Wake::Message(None) => return Vec::new(),
                Wake::Started(started) => {
                    self.start = None;
                    self.on_started(started).await
                }
                Wake::Ended(ended) => self.on_ended(ended).await,
                Wake::InputReady => {
                    self.advance_input();
                    Ok(())
                }
                Wake::JournalChanged => self.on_journal_changed().await,
                Wake::Timer => self.on_timer().await,
            };
            if let Err(error) = result {
                self.latch(&error);
            }
        }
    }

    /// Waits for the next thing to do.
    async fn next(&mut self) -> Wake<M::Attempt> {
        let due = self.next_due();
        let clock = Arc::clone(&self.around.clock);
        let Self {
            mailbox,
            start,
            current,
            journal,
            ..
        } = self;
        let (ending, input) = match current {
            Some(Current { ending, input, .. }) => (Some(ending), input.as_ref()),
            None => (None, None),
        };
        let ended = async {
            match ending {
                Some(ending) => ending.next().await,
                None => std::future::pending().await,
            }
        };
        let input_ready = async {
            match input {
                Some(input) => input.ready().await,
                None => std::future::pending().await,
            }
        };
        let timer = async {
            match due {
                Some(due) => sleep(clock.until(due)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Facts first: a call should meet the state as it is. Calls last: a crowd of them
            // must not hold up a deadline or input that was accepted before.
            biased;
            started = or_never(start.as_mut()) => Wake::Started(started),
            ended = ended => Wake::Ended(ended),
            () = journal.changed() => Wake::JournalChanged,
            () = timer => Wake::Timer,
            () = input_ready => Wake::InputReady,
            message = mailbox.recv() => Wake::Message(message),
        }
    }

    fn next_due(&self) -> Option<Timestamp> {
        if self.latched.is_some() {
            return None;
        }
        // While a fact waits for space, what follows from the state waits too.
        let decided = if self.facts.is_empty() {
            self.session.next_deadline()
        } else {
            None
        };
        [decided, self.journal.next_maintenance(), self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }

    async fn on_started(&mut self, started: Started<M::Attempt>) -> Result<(), JournalError> {
        match started {
            Ok(attempt) => self.run_attempt(attempt).await,
            Err(StartFailure(message)) => self.feed_fact(Input::StartFailed { message }).await,
        }
    }

    /// The process runs, whether it was started now or found.
    async fn run_attempt(&mut self, attempt: M::Attempt) -> Result<(), JournalError> {
        let attempt = Rc::new(attempt);
        let descendants = self.session.spec().lifecycle.descendants;
        self.current = Some(Current {
            ending: Ending::of(&attempt, descendants),
            attempt: Rc::clone(&attempt),
            input: None,
        });
        if self.session.stopping().is_some() {
            self.mark_stopping();
        }
        if self
            .session
            .attempt()
            .is_none_or(|attempt| attempt.started_at.is_none())
        {
            self.feed_fact(Input::Started { pid: attempt.pid() })
                .await?;
        }
        self.look_for_readiness().await?;
        if let Err(error) = attempt.start_output() {
            log::warn(format_args!(
                "{}: its output can't be read: {error}",
                self.id
            ));
        }
        self.open_input();
        Ok(())
    }

    async fn on_ended(&mut self, ended: Ended) -> Result<(), JournalError> {
        // Readiness may lie in the last bytes.
        self.on_journal_changed().await?;
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        drop(current.input);
        self.journal.end_search();
        self.settle_inputs();
        let input = Input::Exited {
            end: AttemptEnd::from(ended),
        };
        self.facts.push_back(Fact {
            input,
            ended: Some(current.attempt),
        });
        self.feed_facts().await
    }

    async fn on_timer(&mut self) -> Result<(), JournalError> {
        let now = self.around.clock.now();
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.retry().await?;
        }
        self.absorb_output();
        let is_due = self.session.next_deadline().is_some_and(|due| due <= now);
        if is_due && self.facts.is_empty() {
            let was = self.session.phase();
            self.feed_fact(Input::DeadlinePassed).await?;
            if was == Phase::Backoff && self.session.phase() == Phase::Starting {
                self.around.figures.count_restart();
            }
        }
        if self
            .journal
            .next_maintenance()
            .is_some_and(|due| due <= now)
        {
            match self.journal.maintain() {
                Ok(()) => self.around.reserve.refill(),
                Err(JournalError::Full) => {} // Its own timer comes again.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tries again what had no space.
    async fn retry(&mut self) -> Result<(), JournalError> {
        self.feed_facts().await?;
        if self.journal.clear_stall()
            && let Some(current) = &self.current
        {
            current.attempt.resume_output();
        }
        Ok(())
    }

    async fn on_journal_changed(&mut self) -> Result<(), JournalError> {
        if self.journal.is_stalled() && self.retry_at.is_none() {
            self.retry_at = Some(self.around.clock.now() + FULL_RETRY);
        }
        if self.journal.take_match() {
            self.feed_fact(Input::OutputMatched).await?;
        }
        Ok(())
    }

    /// Makes output that was committed since the last time part of the state.
    fn absorb_output(&mut self) {
        if let Some(output) = self.journal.take_output() {
            Rc::make_mut(&mut self.session).apply(&output);
            self.face.show(&self.session, &self.journal);
        }
    }

    /// Calls that asked for a change are answered when it is over.
    fn answer_waiters(&mut self) {
        if self.waiters.is_empty() {
            return;
        }
        let gone = self.removed || self.session.is_deleted();
        if !gone && self.latched.is_none() && !self.is_settled() {
            return;
        }
        for waiter in self.waiters.drain(..) {
            let outcome = match (&self.latched, gone, self.face.view()) {
                (Some(message), _, _) => Outcome::Failed {
                    message: message.clone(),
                },
                (None, false, Some(view)) => Outcome::Session(Box::new(view)),
                (None, _, _) => Outcome::Rejected(Rejection::NotFound),
            };
            answer(waiter, outcome);
        }
    }

    /// Nothing is about to start or to end.
    fn is_settled(&self) -> bool {
        self.start.is_none()
            && self.start_at_thaw.is_none()
            && self.facts.is_empty()
            && self.session.stopping().is_none()
    }

    /// The journal failed. The attempt ends visibly; the supervisor and other sessions go on.
    fn latch(&mut self, error: &JournalError) {
        log::warn(format_args!("{}: the journal failed: {error}", self.id));
        if self.latched.is_some() {
            return;
        }
        self.latched = Some(format!("the session's journal failed: {error}"));
        self.abandon_start();
        if let Some(current) = &self.current {
            current.ending.killed();
        }
        self.on_current("kill", Attempt::kill);
        for leftover in self.leftovers.iter() {
            self.kill_leftover(leftover);
        }
        self.show_lost();
    }

    /// Nobody waits for the start any more, but its process must not stay behind.
    fn abandon_start(&mut self) {
        self.start_at_thaw = None;
        let Some(start) = self.start.take() else {
            return;
        };
        self.stop_start.cancel();
        let id = self.id.clone();
        self.around.tasks.spawn_local(async move {
            if let Ok(attempt) = start.await {
                if let Err(error) = attempt.kill() {
                    log::warn(format_args!("{id}: an attempt is not killed: {error}"));
                }
                attempt.leader_gone().await;
                attempt.release();
            }
        });
    }

    /// In memory only, so that nobody takes the attempt for running.
    fn show_lost(&mut self) {
        let Some(attempt) = self.session.live_attempt().map(|attempt| attempt.number) else {
            return;
        };
        let end = AttemptEnd::from(Ended {
            status: ExitStatus::Unknown,
            oom: Oom::Unknown,
            rusage: None,
        });
        let (at, seq) = (self.around.clock.now(), self.session.last_seq());
        let event = Event {
            seq,
            at,
            attempt,
            body: Body::AttemptExited(end),
            call: None,
        };
        Rc::make_mut(&mut self.session).apply(&event);
        self.face.show(&self.session, &self.journal);
    }

    fn remove(&mut self) {
        if let Err(error) = self.journal.remove() {
            log::warn(format_args!(
                "{}: files could not be removed: {error}",
                self.id
            ));
        }
        self.removed = true;
    }
}

/// Answers a call; whoever asked may have gone.
pub(crate) fn answer(to: oneshot::Sender<Outcome>, outcome: Outcome) {
    // When the link closed, what was asked for is done all the same.
    drop(to.send(outcome));
}

async fn or_never<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
