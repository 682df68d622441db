//! A sandbox without processes: the real session machine over real journal files, and a child
//! that does what the test says.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use outlive_api::{
    agent::{Outcome, Request, SessionView, Write},
    record,
};
use outlive_core::{
    event::{AttemptEnd, Body, Created, Event, ExitStatus, Oom, Stream},
    id::{Generation, SandboxId, SessionId},
    limits::SESSIONS_MAX,
    receipt,
    session::{Decision, Effect, Input, Rejection, Session},
    time::Timestamp,
};
use outlive_journal::{Appender, Config, Durability, FileStorage, NewRecord, Retention};
use tokio::sync::{Notify, watch};

use crate::sessions::{
    Answer, Awake, CallError, Caller, Census, Life, SandboxHandle, Sandboxes, Tail,
};

/// The only sandbox.
pub(super) const SANDBOX: &str = "sbx-00000000-001";

/// The only sandbox, and all that can be seen of it.
#[derive(Debug)]
pub(super) struct FakeSandbox {
    id: SandboxId,
    directory: tempfile::TempDir,
    sessions: Mutex<BTreeMap<SessionId, FakeSession>>,
    /// How often a call or an attach woke it.
    pub(super) wakes: AtomicUsize,
    /// While it is set, signals are not answered.
    pub(super) hold_signals: watch::Sender<bool>,
    /// Writes that the child's queue takes before it refuses one for want of room.
    pub(super) room: Mutex<Option<u32>>,
    /// A signal waits.
    pub(super) held: Notify,
}

#[derive(Debug)]
struct FakeSession {
    session: Session,
    journal: Appender,
    tail: watch::Sender<Tail>,
    receipts: HashMap<String, u64>,
    now: i64,
}

/// Finds the sandbox for its owner.
#[derive(Debug)]
pub(super) struct FakeSandboxes(pub(super) Arc<FakeSandbox>);

impl Sandboxes for FakeSandboxes {
    fn find<'a>(
        &'a self,
        caller: &'a Caller,
        sandbox: &'a SandboxId,
    ) -> Answer<'a, Arc<dyn SandboxHandle>> {
        Box::pin(async move {
            if *sandbox == self.0.id && &*caller.owner == "me" {
                Ok(Arc::clone(&self.0) as Arc<dyn SandboxHandle>)
            } else {
                Err(CallError::NoSandbox)
            }
        })
    }

    fn census(&self) -> Answer<'_, Census> {
        Box::pin(async { Ok(Census::default()) })
    }
}

impl FakeSandbox {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            id: SandboxId::parse(SANDBOX).unwrap(),
            directory: tempfile::tempdir().unwrap(),
            sessions: Mutex::default(),
            wakes: AtomicUsize::new(0),
            hold_signals: watch::Sender::new(false),
            room: Mutex::default(),
            held: Notify::new(),
        })
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, FakeSession>> {
        self.sessions.lock().unwrap()
    }

    fn path(&self, session: &SessionId) -> PathBuf {
        self.directory.path().join(session.as_str())
    }

    /// The child writes.
    pub(super) fn output(&self, session: &SessionId, stream: Stream, data: &[u8]) {
        let mut sessions = self.sessions();
        let session = sessions.get_mut(session).unwrap();
        let len = u32::try_from(data.len()).unwrap();
        session.append(&[(Body::Output { stream, len }, data)]);
    }

    /// The child ends.
    pub(super) fn exit(&self, session: &SessionId, status: ExitStatus) {
        let mut sessions = self.sessions();
        sessions.get_mut(session).unwrap().exit(status);
    }

    /// What is kept from now on.
    pub(super) fn retain(&self, session: &SessionId, bytes_max: u64) {
        let mut sessions = self.sessions();
        let session = sessions.get_mut(session).unwrap();
        let retention = Retention {
            bytes_max,
            age_max: std::time::Duration::from_hours(24),
        };
        session
            .journal
            .set_retention(session.now, retention)
            .unwrap();
        session.publish();
    }

    /// The window of a journal.
    pub(super) fn tail(&self, session: &SessionId) -> Tail {
        *self.sessions()[session].tail.borrow()
    }

    async fn perform(&self, request: Request) -> Result<Outcome, Rejection> {
        match request {
            Request::Create { session, created } => self.create(session, *created),
            Request::Update { session, spec } => self.decide(&session, &Input::Update(spec)),
            Request::SetDesiredState { session, state } => {
                self.decide(&session, &Input::SetDesiredState(state))
            }
            Request::NewAttempt { session, replace } => {
                self.decide(&session, &Input::NewAttempt(replace))
            }
            Request::Write { session, write } => self.write(&session, &write),
            Request::Signal {
                session,
                expected,
                signal,
            } => {
                let mut hold = self.hold_signals.subscribe();
                if *hold.borrow() {
                    self.held.notify_one();
                    hold.wait_for(|hold| !hold).await.unwrap();
                }
                self.decide(&session, &Input::Signal { expected, signal })?;
                Ok(Outcome::Done)
            }
            Request::Resize {
                session,
                expected,
                rows,
                cols,
            } => {
                let input = Input::Resize {
                    expected,
                    rows,
                    cols,
                };
                self.decide(&session, &input)?;
                Ok(Outcome::Done)
            }
            Request::Delete(session) => self.delete(&session),
            other => panic!("the dialect never asks {other:?}"),
        }
    }

    fn create(&self, id: SessionId, created: Created) -> Result<Outcome, Rejection> {
        let mut sessions = self.sessions();
        if let Some(key) = &created.idempotency_key
            && let Some(same) = sessions
                .values()
                .find(|session| session.session.idempotency_key() == Some(key))
        {
            return if same.session.created_digest() == created.spec.digest() {
                Ok(Outcome::Existing(Box::new(same.view())))
            } else {
                Err(Rejection::IdempotencyConflict)
            };
        }
        if sessions.len() >= SESSIONS_MAX {
            let limit = u32::try_from(SESSIONS_MAX).unwrap();
            return Err(Rejection::TooManySessions { limit });
        }
        let session = FakeSession::create(&self.path(&id), id.clone(), created);
        let view = session.view();
        sessions.insert(id, session);
        Ok(Outcome::Session(Box::new(view)))
    }

    fn decide(&self, id: &SessionId, input: &Input) -> Result<Outcome, Rejection> {
        let mut sessions = self.sessions();
        let session = sessions.get_mut(id).ok_or(Rejection::NotFound)?;
        session.decide(input)?;
        Ok(Outcome::Session(Box::new(session.view())))
    }

    fn write(&self, id: &SessionId, write: &Write) -> Result<Outcome, Rejection> {
        let mut sessions = self.sessions();
        let session = sessions.get_mut(id).ok_or(Rejection::NotFound)?;
        let number = session
            .session
            .attempt()
            .map_or(0, |attempt| attempt.number);
        let digest = receipt::digest(number, &write.data, write.eof);
        let known = session.receipts.get(&write.input_id).copied();
        let standing = session
            .session
            .standing(write.expected.as_ref(), known, digest)?;
        let duplicate = standing == receipt::Standing::Duplicate;
        let mut room = self.room.lock().unwrap();
        match room.map(|left| left.checked_sub(1)) {
            Some(None) => {
                *room = None;
                return Err(Rejection::InputBufferFull);
            }
            Some(left) => *room = left,
            None => {}
        }
        drop(room);
        if !duplicate {
            session.decide(&Input::Write {
                expected: write.expected.clone(),
                input_id: write.input_id.clone(),
                digest,
                bytes: u32::try_from(write.data.len()).unwrap(),
                eof: write.eof,
                truncated_line: false,
            })?;
            session.receipts.insert(write.input_id.clone(), digest);
            // The child is `cat`.
            if !write.data.is_empty() {
                let len = u32::try_from(write.data.len()).unwrap();
                let stream = Stream::Stdout;
                session.append(&[(Body::Output { stream, len }, &write.data)]);
            }
            if write.eof.is_some() {
                session.exit(ExitStatus::Code(0));
            }
        }
        Ok(Outcome::Written {
            attempt: session.session.attempt_id().unwrap(),
            duplicate,
            applied_unknown: false,
        })
    }

    fn delete(&self, id: &SessionId) -> Result<Outcome, Rejection> {
        let mut sessions = self.sessions();
        let session = sessions.get_mut(id).ok_or(Rejection::NotFound)?;
        session.decide(&Input::Delete)?;
        let session = sessions.remove(id).unwrap();
        std::fs::remove_dir_all(self.path(id)).unwrap();
        session.tail.send_modify(|tail| tail.life = Life::Deleted);
        Ok(Outcome::Done)
    }
}

/// Leaves the journal of a session that was just created.
pub(crate) fn leave_journal(path: &Path, id: SessionId, created: Created) {
    drop(FakeSession::create(path, id, created));
}

impl FakeSession {
    fn create(path: &Path, id: SessionId, created: Created) -> Self {
        let config = Config {
            retention: Retention {
                bytes_max: created.spec.retention.bytes_max,
                age_max: std::time::Duration::from_secs(created.spec.retention.age_seconds_max),
            },
            generation: 1,
            boot_id: [7; 16],
            logical_len: record::logical_len,
        };
        let storage = FileStorage::create(path).unwrap();
        let journal = Appender::create(storage, config, 1, b"").unwrap();
        let decision = Session::create(created);
        let first = Event {
            seq: 1,
            at: Timestamp::from_unix_nanos(1),
            attempt: 0,
            body: decision.events[0].clone(),
            call: None,
        };
        let session = Session::from_created(id, Generation::FIRST, &first).unwrap();
        let (tail, _) = watch::channel(Tail {
            earliest: 1,
            latest: 0,
            life: Life::Present,
        });
        let mut this = Self {
            session,
            journal,
            tail,
            receipts: HashMap::new(),
            now: 1_700_000_000_000_000_000,
        };
        this.carry_out(decision);
        this
    }

    fn view(&self) -> SessionView {
        let tail = *self.tail.borrow();
        SessionView {
            checkpoint: self.session.checkpoint(),
            earliest: tail.earliest,
            latest: tail.latest,
        }
    }

    fn decide(&mut self, input: &Input) -> Result<(), Rejection> {
        let decision = self
            .session
            .decide(Timestamp::from_unix_nanos(self.now), input)?;
        self.carry_out(decision);
        Ok(())
    }

    fn carry_out(&mut self, decision: Decision) {
        for body in decision.events {
            self.append(&[(body, b"")]);
        }
        for effect in decision.effects {
            match effect {
                Effect::Spawn { number } => {
                    self.decide(&Input::Started { pid: 100 + number }).unwrap();
                }
                Effect::Terminate => {
                    let status = ExitStatus::Signal {
                        signal: 15,
                        core: false,
                    };
                    self.exit(status);
                }
                Effect::Kill
                | Effect::Write
                | Effect::Signal { .. }
                | Effect::Resize { .. }
                | Effect::SetRetention(_)
                | Effect::Remove => {}
            }
        }
    }

    fn exit(&mut self, status: ExitStatus) {
        let end = AttemptEnd::Exited {
            status,
            stop: None,
            oom: Oom::Unknown,
            rusage: None,
        };
        self.decide(&Input::Exited { end }).unwrap();
    }

    fn append(&mut self, events: &[(Body, &[u8])]) {
        for (body, data) in events {
            self.now += 1_000_000;
            let attempt = self.session.attempt_numbers(std::slice::from_ref(body))[0];
            let (stream, payload) = match body {
                Body::Output { stream, .. } => (record::stream_code(*stream), data.to_vec()),
                body => (0, record::payload(body, None)),
            };
            let new = NewRecord {
                kind: record::kind(body),
                stream,
                attempt,
                payload: &payload,
            };
            let seqs = self
                .journal
                .append(self.now, Durability::WithGroup, &[new], b"state")
                .unwrap();
            self.session.apply(&Event {
                seq: *seqs.start(),
                at: Timestamp::from_unix_nanos(self.now),
                attempt,
                body: body.clone(),
                call: None,
            });
        }
        self.publish();
    }

    fn publish(&mut self) {
        if let Some(point) = self.journal.sync_point().unwrap() {
            self.journal.synced(&point);
        }
        if let Some(garbage) = self.journal.take_garbage() {
            garbage.remove().unwrap();
        }
        let (earliest, latest) = self.journal.window();
        self.tail.send_modify(|tail| {
            tail.earliest = earliest;
            tail.latest = latest;
        });
    }
}

impl SandboxHandle for FakeSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn call(&self, request: Request) -> Answer<'_, Outcome> {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { self.perform(request).await.map_err(CallError::Rejected) })
    }

    fn attach(&self, _session: &SessionId) -> Awake {
        Awake::default()
    }

    fn wake(&self) -> Answer<'_, ()> {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }

    fn room(&self) -> Result<(), CallError> {
        Ok(())
    }

    fn list(&self) -> Answer<'_, Vec<SessionView>> {
        let views = self.sessions().values().map(FakeSession::view).collect();
        Box::pin(async move { Ok(views) })
    }

    fn view<'a>(&'a self, session: &'a SessionId) -> Answer<'a, SessionView> {
        let view = self.sessions().get(session).map(FakeSession::view);
        Box::pin(async move { view.ok_or(CallError::Rejected(Rejection::NotFound)) })
    }

    fn tail<'a>(&'a self, session: &'a SessionId) -> Answer<'a, watch::Receiver<Tail>> {
        let tail = self
            .sessions()
            .get(session)
            .map(|session| session.tail.subscribe());
        Box::pin(async move { tail.ok_or(CallError::Rejected(Rejection::NotFound)) })
    }

    fn journal<'a>(&'a self, session: &'a SessionId) -> Answer<'a, PathBuf> {
        let path = self.path(session);
        Box::pin(async move { Ok(path) })
    }
}
