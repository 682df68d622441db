//! One session's journal, as its driver, the pump and the sync threads share it.
//!
//! ```text
//!   driver ── append: facts and intents ──┐
//!   pump ──── splice: output ─────────────┤ one appender behind one lock, held for microseconds
//!   sync ──── sync point, garbage ────────┘ the disk is waited for without it
//!                 └─► publish ─► Tail ─► links
//! ```
//! Output is a fact that nobody decides: it is noted here when it is committed, and the driver
//! makes it part of the state before it next decides or shows anything.

mod open;
mod output;
#[cfg(test)]
mod tests;
mod unsettled;
mod upkeep;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use outlive_api::record;
use outlive_core::{
    event::{Body, Event},
    id::Generation,
    readiness::Matcher,
    receipt::id_hash,
    session::{CallId, Session},
    spec,
    time::Timestamp,
};
use outlive_journal::{
    AppendError, Appender, Durability, NewRecord, Record, Retention,
    receipts::{Receipt, ReceiptError, Receipts},
};
use tokio::sync::Notify;

use crate::{
    clock::Clock,
    limits::{FULL_RETRY, MAINTENANCE_PAUSE},
    log,
    sync::{Durable, Syncer},
    tails::{News, Tail, Tails},
};
pub(crate) use open::Opened;

/// What all journals of a supervisor share.
#[derive(Debug, Clone)]
pub(crate) struct JournalSurroundings {
    pub(crate) clock: Arc<Clock>,
    pub(crate) syncer: Syncer,
    pub(crate) tails: Arc<Tails>,
    /// Identity of this boot of the machine.
    pub(crate) boot_id: [u8; 16],
    pub(crate) generation: Generation,
}

/// A session's journal. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct SessionJournal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    around: JournalSurroundings,
    tail: Arc<Tail>,
    state: Mutex<State>,
    /// Taken after `state` where both are.
    receipts: Mutex<Receipts>,
    /// Where the newest delivered input is noted, once there was one.
    delivered: Mutex<Option<std::fs::File>>,
    /// The group's sync was asked for and has not begun.
    is_sync_asked: AtomicBool,
    /// The disk was full when output came; the pump waits to be told to go on.
    is_stalled: AtomicBool,
    /// The bytes that make the attempt ready were seen.
    is_matched: AtomicBool,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    appender: Appender,
    /// Counts appenders: a sync that one began says nothing to the next.
    epoch: u64,
    /// Output that the driver has not made part of the state yet.
    output: Option<Event>,
    /// The search for the bytes that make the attempt ready.
    matcher: Option<Matcher>,
    maintain_at: Option<Timestamp>,
    is_removed: bool,
}

/// Why something is not in the journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    /// No space on the disk. The same may succeed later.
    #[error("no space left for the session's journal")]
    Full,
    /// The journal takes nothing any more.
    #[error("{0}")]
    Broken(#[from] io::Error),
}

impl From<AppendError> for JournalError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Full => Self::Full,
            other => Self::Broken(io::Error::other(other)),
        }
    }
}

impl SessionJournal {
    /// Appends a decision's events and returns the session after them. Either all of them are in
    /// the journal or none, and so is the call that asked for them.
    ///
    /// What is durable by its class waits for [`SessionJournal::sync`] before anybody sees it.
    pub(crate) fn append(
        &self,
        before: &Session,
        bodies: Vec<Body>,
        call: Option<CallId>,
    ) -> Result<Session, JournalError> {
        let mut state = self.lock();
        let mut after = before.clone();
        if let Some(output) = state.output.take() {
            after.apply(&output);
        }
        let numbers = after.attempt_numbers(&bodies);
        let mut events = self.number(&state, bodies, numbers);
        if let Some(first) = events.first_mut() {
            first.call = call;
        }
        for event in &events {
            after.apply(event);
        }
        self.write(&mut state, &events, &after)?;
        Ok(after)
    }

    /// Gives events their numbers and time, as the appender will.
    fn number(&self, state: &State, bodies: Vec<Body>, attempts: Vec<u32>) -> Vec<Event> {
        let last_at = Timestamp::from_unix_nanos(state.appender.last_at_nanos());
        let at = self.shared.around.clock.now().max(last_at);
        let first = state.appender.last_seq() + 1;
        (first..)
            .zip(bodies)
            .zip(attempts)
            .map(|((seq, body), attempt)| Event {
                seq,
                at,
                attempt,
                body,
                call: None,
            })
            .collect()
    }

    fn write(
        &self,
        state: &mut State,
        events: &[Event],
        after: &Session,
    ) -> Result<(), JournalError> {
        let Some(at) = events.first().map(|event| event.at) else {
            return Ok(());
        };
        let payloads: Vec<_> = events
            .iter()
            .map(|event| record::payload(&event.body, event.call))
            .collect();
        let records: Vec<_> = events
            .iter()
            .zip(&payloads)
            .map(|(event, payload)| NewRecord {
                kind: record::kind(&event.body),
                stream: 0,
                attempt: event.attempt,
                payload,
            })
            .collect();
        let is_durable = events.iter().any(|event| event.body.is_durable());
        let durability = if is_durable {
            Durability::BeforePublish
        } else {
            Durability::WithGroup
        };
        state
            .appender
            .append(at.unix_nanos(), durability, &records, &after.checkpoint())?;
        for event in events {
            self.note_receipt(event);
        }
        self.published(state, News::Fact);
        // What is durable is about to be synced at once.
        if !is_durable && events.iter().any(|event| event.body.is_worth_a_sync()) {
            self.ask_for_sync();
        }
        Ok(())
    }

    /// Something is in the journal: publishes what may be seen, and has the rest synced.
    fn appended(&self, state: &mut State, news: News) {
        self.published(state, news);
        self.ask_for_sync();
    }

    fn published(&self, state: &mut State, news: News) {
        self.shared.publish(state, news);
        if state.maintain_at.is_none() {
            state.maintain_at = Some(self.shared.around.clock.now() + MAINTENANCE_PAUSE);
            self.shared.changed.notify_one();
        }
    }

    fn ask_for_sync(&self) {
        if !self.shared.is_sync_asked.swap(true, Ordering::AcqRel) {
            let durable: Arc<dyn Durable> = Arc::clone(&self.shared) as _;
            if let Err(error) = self.shared.around.syncer.sync_lazily(durable) {
                self.shared.is_sync_asked.store(false, Ordering::Release);
                log::warn(format_args!("no thread for syncs: {error}"));
            }
        }
    }

    /// Makes everything so far durable, and visible.
    pub(crate) async fn sync(&self) -> Result<(), JournalError> {
        loop {
            let durable: Arc<dyn Durable> = Arc::clone(&self.shared) as _;
            match self.shared.around.syncer.sync(durable).await {
                // It is in the journal and can't be taken back: it waits for space. A disk that
                // refused for good says something else the second time.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    tokio::time::sleep(FULL_RETRY).await;
                }
                outcome => return Ok(outcome?),
            }
        }
    }

    /// First retained and last published event.
    pub(crate) fn window(&self) -> (u64, u64) {
        (self.shared.tail.earliest(), self.shared.tail.latest())
    }

    /// Bytes that are retained.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.lock().appender.retained_bytes()
    }

    /// The digest of an input that was accepted under this id.
    pub(crate) fn find_receipt(&self, input_id: &str) -> io::Result<Option<u64>> {
        let found = self.shared.receipts().find(id_hash(input_id).as_u128())?;
        Ok(found.map(|receipt| receipt.digest))
    }

    /// Makes sure that another receipt has room. `false`: none may be forgotten yet.
    pub(crate) fn reserve_receipt(&self) -> io::Result<bool> {
        let now = self.shared.around.clock.now().unix_nanos();
        let (earliest, _) = self.window();
        match self.shared.receipts().reserve(now, earliest) {
            Ok(()) => Ok(true),
            Err(ReceiptError::Full { .. }) => Ok(false),
            Err(ReceiptError::Io(error)) => Err(error),
        }
    }

    fn note_receipt(&self, event: &Event) {
        if let Body::InputAccepted {
            input_id, digest, ..
        } = &event.body
        {
            self.shared.receipts().insert(Receipt {
                id: id_hash(input_id).as_u128(),
                digest: *digest,
                seq: event.seq,
                at_nanos: event.at.unix_nanos(),
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is one call of the appender, which settles what was left.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receipts(&self) -> MutexGuard<'_, Receipts> {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: &State, news: News) {
        let (earliest, latest) = state.appender.window();
        self.tail.move_to(earliest, latest, news);
    }
}

/// The event of a record; `None` for a gap and for what this build does not know.
fn event_of(record: &Record) -> Option<Event> {
    let (body, call) = match record.kind {
        record::KIND_OUTPUT => {
            let stream = record::stream_of(record.stream)?;
            let len = u32::try_from(record.payload.len()).unwrap_or(u32::MAX);
            (Body::Output { stream, len }, None)
        }
        _ if record.gap().is_some() => return None,
        _ => match record::body_and_call(&record.payload) {
            Ok(read) => read,
            Err(error) => {
                log::warn(format_args!("event {} is passed over: {error}", record.seq));
                return None;
            }
        },
    };
    let at = Timestamp::from_unix_nanos(record.at_nanos);
    Some(Event {
        seq: record.seq,
        at,
        attempt: record.attempt,
        body,
        call,
    })
}

fn retention_of(retention: spec::Retention) -> Retention {
    Retention {
        bytes_max: retention.bytes_max,
        age_max: std::time::Duration::from_secs(retention.age_seconds_max),
    }
}

/// Length of an event as JSON: what retention counts. Output grows by a third in base64.
fn logical_len(kind: u8, len: u32) -> u64 {
    const ENVELOPE: u64 = 190;
    let len = u64::from(len);
    ENVELOPE
        + if kind == record::KIND_OUTPUT {
            len.div_ceil(3) * 4
        } else {
            len
        }
}
