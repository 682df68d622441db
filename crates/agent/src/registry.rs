//! The sessions of the sandbox: found on disk, made by calls, each with a driver of its own.
//!
//! ```text
//!   start:  sessions/* ─► a driver each, opened a few at a time; calls wait for their own only
//!   create: id and key are taken before anything waits, so two creations never both win
//!   end:    a driver that deleted its session is forgotten, then the deletion is answered
//! ```
//! One session's damage stays its own: it is shown, logged and counted, and all others work.

mod keys;
mod standstill;

use std::{cell::RefCell, collections::HashMap, fs, io, path::PathBuf, rc::Rc, sync::Arc};

use outlive_api::agent::{Outcome, Request, SessionView};
use outlive_core::{
    event::Created,
    id::SessionId,
    session::{CallMark, Rejection, Session},
};
use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot},
    time::{Instant, timeout_at},
};

use self::keys::Keys;
#[cfg(test)]
use crate::standstill::Standstill;
use crate::{
    driver::{self, Creation, Face, Message, Standing, Surroundings},
    journal::JournalError,
    limits::{LIST_WAIT, MAILBOX_MAX, OPENS_AT_ONCE, SESSIONS_MAX},
    log,
    machine::Machine,
};

/// The sessions.
#[derive(Debug)]
pub(crate) struct Registry<M> {
    around: Rc<Surroundings<M>>,
    directory: PathBuf,
    state: RefCell<State>,
    opened: Notify,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<SessionId, Handle>,
    keys: Keys,
    is_releasing: bool,
    /// Sessions that are still being opened.
    opening: usize,
    /// Sessions whose journals may lack what became of their attempts.
    unsure: usize,
}

/// How to reach one session.
#[derive(Debug, Clone)]
struct Handle {
    mailbox: mpsc::Sender<Message>,
    face: Rc<Face>,
}

impl<M: Machine> Registry<M> {
    /// Without any session yet; their journals lie in folders of `directory`.
    pub(crate) fn new(around: Rc<Surroundings<M>>, directory: PathBuf) -> Rc<Self> {
        Rc::new(Self {
            around,
            directory,
            state: RefCell::new(State::default()),
            opened: Notify::new(),
        })
    }

    /// Finds the sessions on disk and opens them; returns before they are open.
    pub(crate) fn open_all(self: &Rc<Self>) -> io::Result<()> {
        let opens = Arc::new(Semaphore::new(OPENS_AT_ONCE));
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| SessionId::parse(name).ok()) else {
                log::warn(format_args!("{} is no session", entry.path().display()));
                continue;
            };
            let (handle, mailbox) = Handle::new();
            self.state
                .borrow_mut()
                .sessions
                .insert(id.clone(), handle.clone());
            self.state.borrow_mut().opening += 1;
            self.state.borrow_mut().unsure += 1;
            // Whoever watches before it is open must not take it for deleted.
            let tail = self.around.journals.tails.add(id.clone(), 0, 0);
            let registry = Rc::clone(self);
            let opens = Arc::clone(&opens);
            let path = entry.path();
            self.around.tasks.spawn_local(async move {
                let permit = opens.acquire_owned().await;
                let around = Rc::clone(&registry.around);
                let face = Rc::clone(&handle.face);
                let opened = driver::reopen(around, id.clone(), path, face, mailbox).await;
                // The journal is read. What became of its process may take longer to find out, and
                // no other session waits for that.
                drop(permit);
                if let Ok(Some(_)) = &opened {
                    registry.note_key(&id, &handle);
                }
                registry.state.borrow_mut().opening -= 1;
                registry.opened.notify_waiters();
                match opened {
                    Ok(Some(mut driver)) => {
                        if driver.is_frozen() {
                            registry.note_frozen();
                        }
                        if driver.take_over().await {
                            registry.note_sure();
                        }
                        let deleters = driver.run().await;
                        registry.forget(&id, deleters);
                    }
                    Ok(None) => {
                        registry.around.journals.tails.remove(&tail);
                        registry.forget(&id, Vec::new());
                        registry.note_sure();
                    }
                    Err(error) => registry.note_broken(&id, &handle, &error),
                }
            });
        }
        if self.state.borrow().unsure == 0 {
            self.around.machine.forget_past();
        }
        Ok(())
    }

    /// What became of a session's attempts is in its journal.
    fn note_sure(&self) {
        self.state.borrow_mut().unsure -= 1;
        if self.state.borrow().unsure == 0 {
            self.around.machine.forget_past();
        }
    }

    /// Answers a call about a session, or about all.
    pub(crate) async fn call(self: &Rc<Self>, request: Request, mark: Option<CallMark>) -> Outcome {
        let changes = !matches!(request, Request::List | Request::Get(_));
        if changes && self.state.borrow().is_releasing {
            return Outcome::Rejected(Rejection::Releasing);
        }
        let is_frozen = self.around.standstill.is_shut();
        if changes && is_frozen && !matches!(request, Request::Delete(_)) {
            return Outcome::Rejected(Rejection::Frozen);
        }
        match request {
            Request::List => self.list().await,
            Request::Get(session) => self.get(&session).await,
            Request::Create { session, created } => self.create(session, *created).await,
            request => match session_of(&request).cloned() {
                Some(session) => self.forward(&session, request, mark).await,
                None => Outcome::Failed {
                    message: format!("{request:?} is no call about sessions"),
                },
            },
        }
    }

    /// Ends every attempt because the runtime goes. No change is accepted from now on.
    pub(crate) async fn release(&self) -> Result<(), JournalError> {
        self.state.borrow_mut().is_releasing = true;
        let _turn = self.around.standstill.turn().await;
        // Thousands of sessions that are over must not cost as many syncs.
        let syncer = &self.around.journals.syncer;
        let _held = syncer.hold();
        let mut releases = Vec::new();
        for handle in self.handles() {
            let (answer, released) = oneshot::channel();
            if handle.mailbox.send(Message::Release(answer)).await.is_ok() {
                releases.push(released);
            }
        }
        let mut failed = None;
        for released in releases {
            match released.await {
                Ok(Ok(())) | Err(_) => {} // Released, or deleted meanwhile.
                Ok(Err(error)) => failed = Some(error),
            }
        }
        let synced = syncer.sync_together(&self.directory).await;
        match failed {
            Some(error) => Err(error),
            None => Ok(synced?),
        }
    }

    /// Whether everything stands still.
    #[cfg(test)]
    pub(crate) fn standstill(&self) -> &Standstill {
        &self.around.standstill
    }

    /// Bytes of all journals on disk.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.handles()
            .iter()
            .map(|handle| handle.face.journal_bytes())
            .sum()
    }

    fn handles(&self) -> Vec<Handle> {
        self.state.borrow().sessions.values().cloned().collect()
    }

    /// Waits until every journal that was on disk is read.
    async fn all_opened(&self) {
        while self.state.borrow().opening > 0 {
            self.opened.notified().await;
        }
    }

    async fn list(&self) -> Outcome {
        let mut views: Vec<(Rc<Session>, SessionView)> = Vec::new();
        let patience = Instant::now() + LIST_WAIT;
        for handle in self.handles() {
            // One that is still being taken over is shown as its journal says.
            let standing = timeout_at(patience, handle.open())
                .await
                .unwrap_or(Standing::Open);
            handle.face.settled().await;
            if standing == Standing::Open
                && let (Some(session), Some(view)) = (handle.face.session(), handle.face.view())
            {
                views.push((session, view));
            }
        }
        views.sort_by(|(one, _), (other, _)| {
            (one.created_at(), one.id()).cmp(&(other.created_at(), other.id()))
        });
        Outcome::Sessions(views.into_iter().map(|(_, view)| view).collect())
    }

    async fn get(&self, session: &SessionId) -> Outcome {
        let handle = self.state.borrow().sessions.get(session).cloned();
        let Some(handle) = handle else {
            return Outcome::Rejected(Rejection::NotFound);
        };
        handle
            .shown()
            .await
            .map_or_else(|outcome| outcome, |view| Outcome::Session(Box::new(view)))
    }

    async fn forward(
        &self,
        session: &SessionId,
        request: Request,
        mark: Option<CallMark>,
    ) -> Outcome {
        let handle = self.state.borrow().sessions.get(session).cloned();
        let Some(handle) = handle else {
            return Outcome::Rejected(Rejection::NotFound);
        };
        match handle.open().await {
            Standing::Open => {}
            Standing::Broken(_) if matches!(request, Request::Delete(_)) => {
                return self.delete_broken(session, &handle).await;
            }
            standing => return standing_outcome(standing),
        }
        let (answer, outcome) = oneshot::channel();
        if handle
            .mailbox
            .send(Message::Call(request, mark, answer))
            .await
            .is_err()
        {
            return self.ended();
        }
        outcome.await.unwrap_or_else(|_| self.ended())
    }

    /// No driver has it: its files go, and whatever still runs of it.
    async fn delete_broken(&self, session: &SessionId, handle: &Handle) -> Outcome {
        self.around.machine.abandon(session);
        let path = self.directory.join(session.as_str());
        let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(path)).await;
        match removed.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // Another call was faster.
            Err(error) => {
                let message = format!("the session's files: {error}");
                return Outcome::Failed { message };
            }
        }
        handle.face.standing.send_replace(Standing::Gone);
        self.forget(session, Vec::new());
        Outcome::Done
    }

    /// What a call hears whose driver ended before it answered.
    fn ended(&self) -> Outcome {
        Outcome::Rejected(if self.state.borrow().is_releasing {
            Rejection::Releasing
        } else {
            Rejection::NotFound
        })
    }

    async fn create(self: &Rc<Self>, id: SessionId, created: Created) -> Outcome {
        // A key may belong to a session that is still being opened.
        if created.idempotency_key.is_some() {
            self.all_opened().await;
        }
        if let Some(existing) = self.existing(&id, &created) {
            return self.answer_existing(&existing, &created).await;
        }
        let (handle, mailbox) = Handle::new();
        {
            let mut state = self.state.borrow_mut();
            // It may have waited for a key.
            if state.is_releasing {
                return Outcome::Rejected(Rejection::Releasing);
            }
            if self.around.standstill.is_shut() {
                return Outcome::Rejected(Rejection::Frozen);
            }
            if state.sessions.len() >= SESSIONS_MAX as usize {
                return Outcome::Rejected(Rejection::TooManySessions {
                    limit: SESSIONS_MAX,
                });
            }
            if let Some(key) = &created.idempotency_key {
                state.keys.insert(key.clone(), id.clone());
            }
            state.sessions.insert(id.clone(), handle.clone());
        }
        let (answer, outcome) = oneshot::channel();
        let registry = Rc::clone(self);
        self.around.tasks.spawn_local(async move {
            let creation = Creation {
                path: registry.directory.join(id.as_str()),
                id: id.clone(),
                created,
                face: Rc::clone(&handle.face),
                mailbox,
                answer,
            };
            let around = Rc::clone(&registry.around);
            let deleters = match driver::create(around, creation).await {
                Some(driver) => driver.run().await,
                None => Vec::new(),
            };
            registry.forget(&id, deleters);
        });
        outcome.await.unwrap_or_else(|_| self.ended())
    }

    /// The session that this creation would make again.
    fn existing(&self, id: &SessionId, created: &Created) -> Option<SessionId> {
        let state = self.state.borrow();
        let by_key = created
            .idempotency_key
            .as_ref()
            .and_then(|key| state.keys.get(key));
        by_key
            .or_else(|| state.sessions.get_key_value(id).map(|(id, _)| id))
            .cloned()
    }

    async fn answer_existing(&self, id: &SessionId, created: &Created) -> Outcome {
        let handle = self.state.borrow().sessions.get(id).cloned();
        let Some(handle) = handle else {
            return Outcome::Rejected(Rejection::NotFound);
        };
        let view = match handle.shown().await {
            Ok(view) => view,
            Err(outcome) => return outcome,
        };
        let same = handle.face.session().is_some_and(|session| {
            session.created_digest() == created.spec.digest()
                && session.idempotency_key() == created.idempotency_key.as_deref()
        });
        if same {
            Outcome::Existing(Box::new(view))
        } else {
            Outcome::Rejected(Rejection::IdempotencyConflict)
        }
    }

    fn note_key(&self, id: &SessionId, handle: &Handle) {
        let session = handle.face.session();
        if let Some(key) = session
            .as_ref()
            .and_then(|session| session.idempotency_key())
        {
            self.state
                .borrow_mut()
                .keys
                .insert(key.to_owned(), id.clone());
        }
    }

    /// The session stays in the way of its id, says what is wrong, and harms nobody.
    fn note_broken(&self, id: &SessionId, handle: &Handle, error: &io::Error) {
        log::warn(format_args!("{id}: can't be opened: {error}"));
        self.around.figures.count_damaged();
        let message = format!("the session's journal can't be opened: {error}");
        handle.face.standing.send_replace(Standing::Broken(message));
    }

    fn forget(&self, id: &SessionId, deleters: Vec<oneshot::Sender<Outcome>>) {
        let mut state = self.state.borrow_mut();
        if !state.is_releasing {
            state.sessions.remove(id);
            state.keys.remove(id);
        }
        drop(state);
        for deleter in deleters {
            driver::answer(deleter, Outcome::Done);
        }
    }
}

impl Handle {
    fn new() -> (Self, mpsc::Receiver<Message>) {
        let (mailbox, messages) = mpsc::channel(MAILBOX_MAX);
        (
            Self {
                mailbox,
                face: Face::new(),
            },
            messages,
        )
    }

    /// Waits until it is clear how the session stands.
    async fn open(&self) -> Standing {
        let mut standing = self.face.standing.subscribe();
        match standing
            .wait_for(|standing| *standing != Standing::Opening)
            .await
        {
            Ok(standing) => standing.clone(),
            Err(_) => Standing::Gone, // The face outlives this call, so this can't be.
        }
    }

    /// The session for the server, or why there is none.
    async fn shown(&self) -> Result<SessionView, Outcome> {
        match self.open().await {
            Standing::Open => {
                self.face.settled().await;
                self.face
                    .view()
                    .ok_or(Outcome::Rejected(Rejection::NotFound))
            }
            standing => Err(standing_outcome(standing)),
        }
    }
}

fn standing_outcome(standing: Standing) -> Outcome {
    match standing {
        Standing::Broken(message) => Outcome::Failed { message },
        Standing::Opening | Standing::Open | Standing::Gone => {
            Outcome::Rejected(Rejection::NotFound)
        }
    }
}

fn session_of(request: &Request) -> Option<&SessionId> {
    match request {
        Request::Update { session, .. }
        | Request::SetDesiredState { session, .. }
        | Request::NewAttempt { session, .. }
        | Request::Write { session, .. }
        | Request::Signal { session, .. }
        | Request::Resize { session, .. }
        | Request::Create { session, .. }
        | Request::Get(session)
        | Request::Delete(session) => Some(session),
        Request::Configure { .. }
        | Request::List
        | Request::Watch
        | Request::Release
        | Request::Discard
        | Request::Freeze
        | Request::Thaw
        | Request::Upgrade { .. }
        | Request::Health => None,
    }
}
