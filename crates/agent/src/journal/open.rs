//! How a journal is made, and how a session is read from one.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use outlive_core::{
    event::{Body, Event},
    id::{Generation, SessionId},
    session::Session,
    spec,
};
use outlive_journal::{
    Appender, Config, FileStorage, OpenError, ReadError, Reader, Record, Unread, receipts::Receipts,
};
use tokio::sync::Notify;

use super::{
    JournalError, JournalSurroundings, SessionJournal, Shared, State, event_of, logical_len,
    retention_of,
};
use crate::{
    limits::{SEARCH_PAGE_BYTES, SEARCH_PAGE_RECORDS},
    log,
    tails::News,
};

/// A journal that was on disk.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) journal: SessionJournal,
    /// The session, unless its creation never got to the disk.
    pub(crate) session: Option<Session>,
    /// The input whose receipt is the last thing a driver did, unless its bytes are known to have
    /// followed.
    pub(crate) newest_input: Option<String>,
    /// Something was lost.
    pub(crate) is_damaged: bool,
    /// What was not looked at, when there is any.
    pub(crate) unread: Option<Unread>,
}

impl SessionJournal {
    /// Makes a journal in a directory that doesn't exist, with the first events of a session.
    /// Nothing is visible before the first sync.
    pub(crate) fn create(
        around: &JournalSurroundings,
        path: &Path,
        id: &SessionId,
        retention: spec::Retention,
        bodies: Vec<Body>,
    ) -> Result<(Self, Session), JournalError> {
        let storage = FileStorage::create(path)?;
        let config = config_of(around, around.generation, retention);
        let made = Appender::create(storage, config, around.clock.now().unix_nanos(), &[])
            .map_err(JournalError::from)
            .and_then(|appender| {
                let journal = Self::of(around, path.to_path_buf(), id, appender)?;
                let session = journal.append_creation(id, bodies)?;
                Ok((journal, session))
            });
        if made.is_err() {
            // Half a journal is none.
            std::fs::remove_dir_all(path)?;
        }
        made
    }

    fn append_creation(&self, id: &SessionId, bodies: Vec<Body>) -> Result<Session, JournalError> {
        let mut state = self.lock();
        // The creation precedes every attempt; what follows it belongs to the first.
        let attempts = (0..bodies.len())
            .map(|index| u32::from(index > 0))
            .collect();
        let events = self.number(&state, bodies, attempts);
        let session = replay(id, self.shared.around.generation, &events);
        let session =
            session.ok_or_else(|| io::Error::other("a session begins with its creation"))?;
        self.write(&mut state, &events, &session)?;
        Ok(session)
    }

    /// Opens what is on disk, whatever state it is in; `None` when nothing was ever promised.
    pub(crate) fn open(
        around: &JournalSurroundings,
        path: PathBuf,
        id: &SessionId,
    ) -> io::Result<Option<Opened>> {
        let Some(mut opened) = open_appender(around, &path, around.generation)? else {
            return Ok(None);
        };
        let session = session_of(id, &opened, around.generation);
        if session.is_none() && opened.damage.is_loss() {
            return Err(io::Error::other("the session's state is lost"));
        }
        if let Some(session) = &session
            && session.generation() < around.generation
        {
            // The events that end the old runtime belong to its segment: go on in that first.
            drop(opened);
            opened = open_appender(around, &path, session.generation())?
                .ok_or_else(|| io::Error::other("the journal went away"))?;
        }
        Self::assemble(around, path, id, opened, session).map(Some)
    }

    /// Goes on in a new runtime's segment.
    pub(crate) fn enter_runtime(&self, session: &Session) -> Result<(), JournalError> {
        let mut state = self.lock();
        let now = self.shared.around.clock.now().unix_nanos();
        state.appender.seal(now)?;
        let around = &self.shared.around;
        let mut opened = open_appender(around, &self.shared.path, around.generation)?
            .ok_or_else(|| io::Error::other("the journal went away"))?;
        opened.appender.put_checkpoint(now, &session.checkpoint())?;
        opened
            .appender
            .set_retention(now, retention_of(session.spec().retention))?;
        state.appender = opened.appender;
        state.epoch += 1;
        self.appended(&mut state, News::Fact);
        Ok(())
    }

    fn assemble(
        around: &JournalSurroundings,
        path: PathBuf,
        id: &SessionId,
        opened: outlive_journal::Opened,
        session: Option<Session>,
    ) -> io::Result<Opened> {
        let is_damaged = opened.damage.is_loss();
        if !opened.damage.is_empty() {
            log::warn(format_args!("{id}: {:?}", opened.damage));
        }
        let last = outlive_core::time::Timestamp::from_unix_nanos(opened.appender.last_at_nanos());
        around.clock.raise_to(last);
        let newest_input = newest_input(&opened.records);
        let journal = Self::of(around, path, id, opened.appender)?;
        let delivered = journal.delivered()?;
        let newest_input = newest_input.and_then(|(seq, id)| (seq > delivered).then_some(id));
        {
            let mut state = journal.lock();
            let covered = journal.shared.receipts().covered_up_to();
            let begin = opened
                .records
                .first()
                .map_or(opened.checkpoint_seq + 1, |it| it.seq);
            journal.note_written(covered, begin - 1)?;
            for event in opened.records.iter().filter_map(event_of) {
                if event.seq > covered {
                    journal.note_receipt(&event);
                }
            }
            if let Some(session) = &session {
                let now = around.clock.now().unix_nanos();
                let appender = &mut state.appender;
                appender
                    .put_checkpoint(now, &session.checkpoint())
                    .map_err(io::Error::other)?;
                appender
                    .set_retention(now, retention_of(session.spec().retention))
                    .map_err(io::Error::other)?;
            }
            state.maintain_at = Some(around.clock.now());
            journal.appended(&mut state, News::Fact);
        }
        Ok(Opened {
            journal,
            session,
            newest_input,
            is_damaged,
            unread: opened.unread,
        })
    }

    /// Notes receipts of written events after `after` and up to `upto`, which no run holds yet.
    fn note_written(&self, mut after: u64, upto: u64) -> io::Result<()> {
        let mut reader = Reader::open(&self.shared.path)?;
        while after < upto {
            match reader.read_after(after, upto, SEARCH_PAGE_BYTES, SEARCH_PAGE_RECORDS) {
                Ok(page) => {
                    page.iter()
                        .filter_map(event_of)
                        .for_each(|event| self.note_receipt(&event));
                    after = page.last().map_or(upto, |newest| newest.seq);
                }
                Err(ReadError::Expired { earliest }) => after = earliest.saturating_sub(1),
                Err(ReadError::Io(error)) => return Err(error),
                Err(ReadError::Ahead { .. } | ReadError::Empty) => return Ok(()),
            }
        }
        Ok(())
    }

    fn of(
        around: &JournalSurroundings,
        path: PathBuf,
        id: &SessionId,
        appender: Appender,
    ) -> io::Result<Self> {
        let (earliest, latest) = appender.window();
        let state = State {
            appender,
            epoch: 0,
            output: None,
            matcher: None,
            maintain_at: None,
            is_removed: false,
        };
        let receipts = Receipts::open(FileStorage::open(&path)?)?;
        let shared = Shared {
            receipts: Mutex::new(receipts),
            path,
            tail: around.tails.add(id.clone(), earliest, latest),
            around: around.clone(),
            state: Mutex::new(state),
            delivered: Mutex::default(),
            is_sync_asked: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            is_matched: AtomicBool::new(false),
            changed: Notify::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

fn open_appender(
    around: &JournalSurroundings,
    path: &Path,
    generation: Generation,
) -> io::Result<Option<outlive_journal::Opened>> {
    // What is really kept is set as soon as the session is known; until then everything is.
    let retention = spec::Retention {
        bytes_max: u64::MAX / 2,
        age_seconds_max: u64::from(u32::MAX),
    };
    let storage = FileStorage::open(path)?;
    let config = config_of(around, generation, retention);
    match Appender::open(storage, config, around.clock.now().unix_nanos()) {
        Ok(opened) => Ok(Some(opened)),
        Err(OpenError::Empty) => Ok(None),
        Err(OpenError::Io(error)) => Err(error),
    }
}

fn config_of(
    around: &JournalSurroundings,
    generation: Generation,
    retention: spec::Retention,
) -> Config {
    Config {
        retention: retention_of(retention),
        generation: generation.0,
        boot_id: around.boot_id,
        logical_len,
    }
}

/// The session as its journal tells it; `None` when its creation is not there.
fn session_of(
    id: &SessionId,
    opened: &outlive_journal::Opened,
    current: Generation,
) -> Option<Session> {
    let generation = opened
        .records
        .last()
        .map(|record| Generation(record.generation));
    let events: Vec<_> = opened.records.iter().filter_map(event_of).collect();
    if opened.checkpoint.is_empty() {
        return replay(id, generation.unwrap_or(current), &events);
    }
    let mut session = match Session::restore(&opened.checkpoint) {
        Ok(session) => session,
        Err(error) => {
            log::warn(format_args!("{id}: {error}"));
            return replay(id, generation.unwrap_or(current), &events);
        }
    };
    // All records after the checkpoint lie in one segment.
    if let Some(generation) = generation {
        session.enter_generation(generation);
    }
    for event in &events {
        session.apply(event);
    }
    Some(session)
}

fn replay(id: &SessionId, generation: Generation, events: &[Event]) -> Option<Session> {
    let mut events = events.iter();
    let first = events.find(|event| matches!(event.body, Body::SessionCreated(_)))?;
    let mut session = Session::from_created(id.clone(), generation, first)?;
    for event in events {
        session.apply(event);
    }
    Some(session)
}

/// Number and id of an accepted input that nothing but output follows.
fn newest_input(records: &[Record]) -> Option<(u64, String)> {
    let newest = records
        .iter()
        .rev()
        .filter_map(event_of)
        .find(|event| !matches!(event.body, Body::Output { .. }))?;
    match newest.body {
        Body::InputAccepted { input_id, .. } => Some((newest.seq, input_id)),
        _ => None,
    }
}
