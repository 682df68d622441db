//! How a session comes to have a driver: by its creation, or from what is on disk.
//!
//! ```text
//!   create   session.created, attempt.starting ─► durable ─► shown ─► spawn
//!   reopen   checkpoint, events ─► state ─┬─ same runtime: find its process again, and do what
//!                                         │                was journalled and not done
//!                                         └─ new runtime:  end what ran, as its keeper saw it or
//!                                                          without a status; recover by its rule
//! ```

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    path::PathBuf,
    rc::Rc,
};

use outlive_api::agent::Outcome;
use outlive_core::{
    event::{AttemptEnd, Created, ExitStatus, Oom},
    id::SessionId,
    readiness::Matcher,
    session::{Decision, Effect, Input, Session},
    spec::Readiness,
};
use outlive_journal::Unread;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Driver, Face, Leftovers, Message, Standing, Surroundings, answer};
use crate::{
    journal::{JournalError, Opened, SessionJournal},
    log,
    machine::{AdoptOrder, Adopted, Attempt, Ended, Machine, StartFailure},
};

/// A session to make.
#[derive(Debug)]
pub(crate) struct Creation {
    /// Its directory, which does not exist yet.
    pub(crate) path: PathBuf,
    /// Its id.
    pub(crate) id: SessionId,
    /// The facts.
    pub(crate) created: Created,
    /// Where it is shown.
    pub(crate) face: Rc<Face>,
    /// Its calls.
    pub(crate) mailbox: mpsc::Receiver<Message>,
    /// Where the creation is answered.
    pub(crate) answer: oneshot::Sender<Outcome>,
}

/// Makes a session; `None` when that failed, which is answered then.
pub(crate) async fn create<M: Machine>(
    around: Rc<Surroundings<M>>,
    creation: Creation,
) -> Option<Driver<M>> {
    let Creation {
        path,
        id,
        created,
        face,
        mailbox,
        answer: to,
    } = creation;
    let begun = begin(&around, path, &id, created).await;
    let (session, journal, effects) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            log::warn(format_args!("{id}: not created: {error}"));
            face.standing.send_replace(Standing::Gone);
            answer(
                to,
                Outcome::Failed {
                    message: format!("the session's journal: {error}"),
                },
            );
            return None;
        }
    };
    let mut driver = Driver::of(around, face, session, journal, mailbox);
    driver.waiters.push(to);
    driver.open_face();
    for effect in effects {
        if let Err(error) = driver.perform(effect).await {
            driver.latch(&error);
        }
    }
    Some(driver)
}

async fn begin<M: Machine>(
    around: &Surroundings<M>,
    path: PathBuf,
    id: &SessionId,
    created: Created,
) -> Result<(Session, SessionJournal, Vec<Effect>), JournalError> {
    let retention = created.spec.retention;
    let Decision {
        events,
        effects,
        roll: _,
    } = Session::create(created);
    let (journal, session) =
        SessionJournal::create(&around.journals, &path, id, retention, events)?;
    if let Err(error) = journal.sync().await {
        // Nobody heard of it.
        journal.remove()?;
        return Err(error);
    }
    Ok((session, journal, effects))
}

/// Opens a session that is on disk; `None` when it was deleted or never made.
///
/// It is not open to calls before [`Driver::take_over`].
pub(crate) async fn reopen<M: Machine>(
    around: Rc<Surroundings<M>>,
    id: SessionId,
    path: PathBuf,
    face: Rc<Face>,
    mailbox: mpsc::Receiver<Message>,
) -> io::Result<Option<Driver<M>>> {
    let journals = around.journals.clone();
    let opened = {
        let path = path.clone();
        tokio::task::spawn_blocking(move || SessionJournal::open(&journals, path, &id))
            .await
            .map_err(io::Error::other)??
    };
    let Some(Opened {
        journal,
        session,
        newest_input,
        is_damaged,
        unread,
    }) = opened
    else {
        // Its creation never got to the disk and was never answered.
        std::fs::remove_dir_all(&path)?;
        face.standing.send_replace(Standing::Gone);
        return Ok(None);
    };
    if is_damaged {
        around.figures.count_damaged();
    }
    let Some(session) = session.filter(|session| !session.is_deleted()) else {
        journal.remove()?;
        face.standing.send_replace(Standing::Gone);
        return Ok(None);
    };
    journal.sync().await.map_err(io::Error::other)?;
    if let Some(unread) = unread {
        look_later(&around, session.id().clone(), unread);
    }
    let mut driver = Driver::of(around, face, session, journal, mailbox);
    driver.unsettled_inputs = driver.journal.unsettled_inputs()?;
    driver.unsettled_inputs.extend(newest_input);
    driver.face.show(&driver.session, &driver.journal);
    Ok(Some(driver))
}

/// Looks for damage where opening did not read. Nobody waits for it: readers report what they meet.
fn look_later<M: Machine>(around: &Rc<Surroundings<M>>, id: SessionId, unread: Unread) {
    let figures = Rc::clone(&around.figures);
    around.tasks.spawn_local(async move {
        match tokio::task::spawn_blocking(move || unread.check()).await {
            Ok(Ok(damage)) if damage.is_empty() => {}
            Ok(Ok(damage)) => {
                log::warn(format_args!("{id}: {damage:?}"));
                if damage.is_loss() {
                    figures.count_damaged();
                }
            }
            Ok(Err(error)) => log::warn(format_args!("{id}: not looked through: {error}")),
            Err(error) => log::warn(format_args!("{id}: not looked through: {error}")),
        }
    });
}

impl<M: Machine> Driver<M> {
    fn of(
        around: Rc<Surroundings<M>>,
        face: Rc<Face>,
        session: Session,
        journal: SessionJournal,
        mailbox: mpsc::Receiver<Message>,
    ) -> Self {
        let leftovers = Leftovers::new(&around.leftovers);
        Self {
            around,
            id: session.id().clone(),
            face,
            session: Rc::new(session),
            journal,
            mailbox,
            start: None,
            stop_start: CancellationToken::new(),
            start_at_thaw: None,
            current: None,
            leftovers,
            waiters: Vec::new(),
            deleters: Vec::new(),
            unsettled_inputs: BTreeSet::new(),
            facts: VecDeque::new(),
            retry_at: None,
            latched: None,
            removed: false,
        }
    }

    fn open_face(&mut self) {
        self.face.show(&self.session, &self.journal);
        self.face.standing.send_replace(Standing::Open);
    }

    /// Whether its journal says that this runtime stands still.
    pub(crate) fn is_frozen(&self) -> bool {
        self.session.is_frozen() && self.session.generation() >= self.around.generation
    }

    /// Goes on where another supervisor, or another runtime, stopped. `true`: all that it found is
    /// in the journal.
    pub(crate) async fn take_over(&mut self) -> bool {
        if let Err(error) = self.try_take_over().await {
            self.latch(&error);
        }
        self.open_face();
        self.latched.is_none() && self.facts.is_empty()
    }

    async fn try_take_over(&mut self) -> Result<(), JournalError> {
        // Attempts of this runtime first: a new runtime has none, and says so.
        let generation = self.around.generation;
        let live = self.session.live_attempt().map(|attempt| {
            (
                attempt.number,
                attempt.generation,
                attempt.started_at.is_some(),
            )
        });
        match live {
            Some((number, of, was_started)) if of >= generation => {
                // Those that a supervisor before the last one left are in no newest record.
                self.note_unsettled_inputs();
                self.find_attempt(number, was_started).await?;
            }
            Some(_) | None => {
                self.settle_inputs();
                if let Some((number, _, true)) = live
                    && let Some(ended) = self.around.machine.past_end(&self.id, number)
                {
                    let end = AttemptEnd::from(ended);
                    self.feed_fact(Input::Exited { end }).await?;
                }
                self.feed_fact(Input::RuntimeStarted(generation)).await?;
            }
        }
        self.find_leftovers();
        if self.session.live_attempt().is_none() {
            for effect in self.session.unfinished() {
                self.perform(effect).await?;
            }
        }
        Ok(())
    }

    async fn find_attempt(&mut self, number: u32, was_started: bool) -> Result<(), JournalError> {
        let order = AdoptOrder {
            session: self.id.clone(),
            number,
            journal: self.journal.clone(),
        };
        match Rc::clone(&self.around.machine).adopt(order).await {
            Adopted::Ran(attempt) => {
                let size = self.session.terminal_size();
                self.run_attempt(attempt).await?;
                // What was journalled and may not have been done.
                if let Some(size) = size {
                    self.on_current("resize", |attempt| attempt.resize(size));
                }
                for effect in self.session.unfinished() {
                    // It runs, though a full disk may have kept that out of the journal so far.
                    if !matches!(effect, Effect::Spawn { .. }) {
                        self.perform(effect).await?;
                    }
                }
                Ok(())
            }
            Adopted::Failed(StartFailure(message)) if !was_started => {
                self.feed_fact(Input::StartFailed { message }).await
            }
            Adopted::NeverRan if !was_started => {
                // Journalled, never released: nothing happened yet, so it happens now.
                self.spawn(number);
                Ok(())
            }
            Adopted::NeverRan | Adopted::Failed(_) | Adopted::Lost => {
                let end = AttemptEnd::from(Ended {
                    status: ExitStatus::Unknown,
                    oom: Oom::Unknown,
                    rusage: None,
                });
                self.feed_fact(Input::Exited { end }).await
            }
        }
    }

    /// Looks for the bytes that make the attempt ready, in what it wrote already and from now on.
    pub(super) async fn look_for_readiness(&mut self) -> Result<(), JournalError> {
        let needle = match &self.session.spec().readiness {
            Readiness::Output { needle, .. } if self.session.awaits_readiness() => needle,
            _ => return Ok(()),
        };
        let number = self.session.attempt().map_or(0, |attempt| attempt.number);
        self.journal
            .search_output(Matcher::new(needle), number)
            .await?;
        Ok(())
    }
}
