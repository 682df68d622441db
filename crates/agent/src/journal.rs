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
#[cfg(test)]
mod tests;
mod unsettled;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use outlive_api::record;
use outlive_core::{
    event::{Body, Event, Stream},
    id::Generation,
    readiness::{Matcher, Seen},
    receipt::id_hash,
    session::Session,
    spec,
    time::Timestamp,
};
use outlive_journal::{
    AppendError, Appender, Committed, Durability, NewRecord, ReadError, Reader, Record, Retention,
    SyncPoint,
    limits::RECEIPTS_ACTIVE_MAX,
    receipts::{Receipt, ReceiptError, Receipts},
};
use tokio::sync::Notify;

use crate::{
    clock::Clock,
    limits::{
        FULL_RETRY, MAINTENANCE_PAUSE, OUTPUT_FRAME_BYTES_MAX, SEARCH_PAGE_BYTES,
        SEARCH_PAGE_RECORDS,
    },
    log,
    process::{SinkError, pump::Fill},
    sync::{Durable, Prepared, Syncer},
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
    /// the journal or none.
    ///
    /// What is durable by its class waits for [`SessionJournal::sync`] before anybody sees it.
    pub(crate) fn append(
        &self,
        before: &Session,
        bodies: Vec<Body>,
    ) -> Result<Session, JournalError> {
        let mut state = self.lock();
        let mut after = before.clone();
        if let Some(output) = state.output.take() {
            after.apply(&output);
        }
        let numbers = after.attempt_numbers(&bodies);
        let events = self.number(&state, bodies, numbers);
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
            .map(|event| record::payload(&event.body))
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

    /// Appends a frame of output that `fill` moves. Called by the pump.
    pub(crate) fn append_output(
        &self,
        attempt: u32,
        stream: Stream,
        fill: &mut Fill<'_>,
    ) -> Result<usize, SinkError> {
        let mut state = self.lock();
        let now = self.shared.around.clock.now().unix_nanos();
        let code = record::stream_code(stream);
        let frame = match state
            .appender
            .begin_output(now, record::KIND_OUTPUT, code, attempt)
        {
            Ok(frame) => frame,
            Err(error) => return Err(self.refuse_output(error)),
        };
        let offset = frame.offset();
        let moved = match frame.fd() {
            Some(file) => fill(file, offset, OUTPUT_FRAME_BYTES_MAX),
            None => Err(io::Error::other("the journal's storage has no descriptors")),
        };
        let committed = match moved {
            Ok(0) => {
                frame.cancel().map_err(|error| self.refuse_output(error))?;
                return Ok(0);
            }
            Ok(count) => {
                let len = u32::try_from(count)
                    .map_err(|error| SinkError::Broken(io::Error::other(error)))?;
                frame
                    .commit(len)
                    .map_err(|error| self.refuse_output(error))?
            }
            Err(error) => {
                frame.cancel().map_err(|error| self.refuse_output(error))?;
                // Room for a frame's header, and none for what follows it.
                return Err(if is_no_space(&error) {
                    self.refuse_output(AppendError::Full)
                } else {
                    SinkError::Source(error)
                });
            }
        };
        self.note_output(&mut state, attempt, stream, &committed);
        Ok(usize::try_from(committed.len).unwrap_or(0))
    }

    fn note_output(&self, state: &mut State, attempt: u32, stream: Stream, committed: &Committed) {
        let at = Timestamp::from_unix_nanos(committed.at_nanos);
        let body = Body::Output {
            stream,
            len: committed.len,
        };
        state.output = Some(Event {
            seq: committed.seq,
            at,
            attempt,
            body,
        });
        if let Some(matcher) = &mut state.matcher {
            match search(matcher, stream, committed) {
                Ok(Seen::No) => {}
                Ok(Seen::Yes) => {
                    state.matcher = None;
                    self.shared.is_matched.store(true, Ordering::Release);
                    self.shared.changed.notify_one();
                }
                Err(error) => log::warn(format_args!("output can't be searched: {error}")),
            }
        }
        self.appended(state, News::Output);
    }

    fn refuse_output(&self, error: AppendError) -> SinkError {
        match error {
            AppendError::Full => {
                self.shared.is_stalled.store(true, Ordering::Release);
                self.shared.changed.notify_one();
                SinkError::Full
            }
            other => SinkError::Broken(io::Error::other(other)),
        }
    }

    /// Whether output waits for space on the disk.
    pub(crate) fn is_stalled(&self) -> bool {
        self.shared.is_stalled.load(Ordering::Acquire)
    }

    /// The pump is about to try again; whether it waits at all.
    pub(crate) fn clear_stall(&self) -> bool {
        self.shared.is_stalled.swap(false, Ordering::AcqRel)
    }

    /// Looks for the bytes that make attempt `number` ready: in what it wrote already, and in all
    /// that comes. To be called before its output is pumped.
    pub(crate) async fn search_output(
        &self,
        mut matcher: Matcher,
        number: u32,
    ) -> Result<(), JournalError> {
        self.shared.is_matched.store(false, Ordering::Release);
        let last = self.lock().appender.last_seq();
        let (earliest, _) = self.window();
        let path = self.shared.path.clone();
        let searched = tokio::task::spawn_blocking(move || {
            let seen = search_written(&path, &mut matcher, number, earliest, last)?;
            io::Result::Ok((seen, matcher))
        });
        let (seen, matcher) = searched.await.map_err(io::Error::other)??;
        match seen {
            Seen::No => self.lock().matcher = Some(matcher),
            Seen::Yes => {
                self.shared.is_matched.store(true, Ordering::Release);
                self.shared.changed.notify_one();
            }
        }
        Ok(())
    }

    /// The attempt is over: nothing is looked for.
    pub(crate) fn end_search(&self) {
        self.lock().matcher = None;
    }

    /// Whether the bytes were seen since the last call.
    pub(crate) fn take_match(&self) -> bool {
        self.shared.is_matched.swap(false, Ordering::AcqRel)
    }

    /// Resolves when the searched bytes were seen, or the disk is full.
    pub(crate) async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// The newest output that is not part of the state yet.
    pub(crate) fn take_output(&self) -> Option<Event> {
        self.lock().output.take()
    }

    /// The same, left where it is.
    pub(crate) fn output_pending(&self) -> Option<Event> {
        self.lock().output.clone()
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

    /// When [`SessionJournal::maintain`] is due.
    pub(crate) fn next_maintenance(&self) -> Option<Timestamp> {
        self.lock().maintain_at
    }

    /// Moves the head by age, seals what is idle, settles receipts.
    pub(crate) fn maintain(&self) -> Result<(), JournalError> {
        let mut state = self.lock();
        if state.is_removed {
            return Ok(());
        }
        let now = self.shared.around.clock.now();
        let due = state.appender.maintain(now.unix_nanos())?;
        // A head that is due moves within a second: one timer a second at most.
        state.maintain_at =
            due.map(|due| Timestamp::from_unix_nanos(due).max(now + MAINTENANCE_PAUSE));
        self.appended(&mut state, News::Fact);
        Ok(())
    }

    /// Changes how much is kept, at once.
    pub(crate) fn set_retention(&self, retention: spec::Retention) -> Result<(), JournalError> {
        let mut state = self.lock();
        let now = self.shared.around.clock.now().unix_nanos();
        state.appender.set_retention(now, retention_of(retention))?;
        state.maintain_at = Some(self.shared.around.clock.now());
        self.appended(&mut state, News::Fact);
        Ok(())
    }

    /// Ends the journal in order: opening it on another boot jumps over no numbers.
    pub(crate) fn seal(&self, session: &Session) -> Result<(), JournalError> {
        let mut state = self.lock();
        let now = self.shared.around.clock.now().unix_nanos();
        state.appender.put_checkpoint(now, &session.checkpoint())?;
        Ok(state.appender.seal(now)?)
    }

    /// Removes the files; whoever reads one may read on.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.lock().is_removed = true;
        self.shared.around.tails.remove(&self.shared.tail);
        match std::fs::remove_dir_all(&self.shared.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome,
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
}

impl Durable for Shared {
    fn sync(&self) -> io::Result<usize> {
        // What comes from here on asks again.
        self.is_sync_asked.store(false, Ordering::Release);
        let mut count = 0;
        while let Some((point, epoch)) = self.sync_point()? {
            if let Err(error) = point.sync() {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.lock().appender.sync_failed(error);
                return Err(copy);
            }
            count += point.sync_count();
            // Another runtime's appender may have come meanwhile: it has a point of its own.
            if self.synced(&point, epoch) {
                break;
            }
        }
        if count > 0 {
            self.tidy_or_warn();
        }
        Ok(count)
    }

    fn prepare(self: Arc<Self>) -> io::Result<Option<Prepared>> {
        self.is_sync_asked.store(false, Ordering::Release);
        let Some((point, epoch)) = self.sync_point()? else {
            return Ok(None);
        };
        Ok(Some(Box::new(move |outcome| match outcome {
            Ok(()) => {
                if self.synced(&point, epoch) {
                    self.tidy_or_warn();
                }
            }
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.lock().appender.sync_failed(copy);
            }
        })))
    }
}

impl Shared {
    /// What has to be synced now, and by which appender's count.
    fn sync_point(&self) -> io::Result<Option<(SyncPoint, u64)>> {
        let mut state = self.lock();
        if state.is_removed {
            return Ok(None);
        }
        match state.appender.sync_point() {
            Ok(point) => Ok(point.map(|point| (point, state.epoch))),
            // Output that is half in the journal waits for space, and so does what follows.
            Err(AppendError::Full) => Err(io::ErrorKind::StorageFull.into()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn receipts(&self) -> MutexGuard<'_, Receipts> {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything up to the point is on disk; `false` when it says nothing about this appender.
    fn synced(&self, point: &SyncPoint, epoch: u64) -> bool {
        let mut state = self.lock();
        if state.epoch != epoch {
            return false;
        }
        state.appender.synced(point);
        self.publish(&state, News::Fact);
        true
    }

    fn publish(&self, state: &State, news: News) {
        let (earliest, latest) = state.appender.window();
        self.tail.move_to(earliest, latest, news);
    }

    fn tidy_or_warn(&self) {
        if let Err(error) = self.tidy() {
            // Nothing is lost: the next sync tries again, and until then no file goes.
            log::warn(format_args!("{}: {error}", self.path.display()));
        }
    }

    /// Puts receipts of sealed segments away, and removes files that nobody needs.
    fn tidy(&self) -> io::Result<()> {
        let (sealed, resumed, last, earliest) = {
            let state = self.lock();
            if state.is_removed {
                return Ok(());
            }
            let (earliest, _) = state.appender.window();
            (
                state.appender.sealed_up_to(),
                state.appender.resumes_after(),
                state.appender.last_seq(),
                earliest,
            )
        };
        let covered = self.seal_receipts(sealed, last, earliest)?;
        let covered = {
            let mut receipts = self.receipts();
            receipts.note_none(resumed)?;
            covered.max(receipts.covered_up_to())
        };
        let garbage = {
            let mut state = self.lock();
            if state.is_removed {
                return Ok(());
            }
            // A file goes only when the receipts of its events are on disk elsewhere.
            state.appender.pin_after(covered);
            state.appender.take_garbage()
        };
        garbage.map_or(Ok(()), |garbage| garbage.remove())
    }

    /// Writes receipts of sealed segments as a run; returns up to where they are safe.
    fn seal_receipts(&self, sealed: u64, last: u64, earliest: u64) -> io::Result<u64> {
        let now = self.around.clock.now().unix_nanos();
        let seal = {
            let mut receipts = self.receipts();
            if receipts.is_seal_due(sealed) {
                let is_crowded = receipts.active_count() >= RECEIPTS_ACTIVE_MAX;
                receipts.begin_seal(if is_crowded { last } else { sealed })?
            } else {
                None
            }
        };
        // The disk is waited for without the receipts: inputs look for theirs meanwhile.
        if let Some(seal) = seal {
            let written = seal.write();
            self.receipts().finish(written, now, earliest)?;
        }
        let merge = self.receipts().begin_merge(now, earliest);
        if let Some(merge) = merge {
            let written = merge.write();
            self.receipts().finish(written, now, earliest)?;
        }
        Ok(self.receipts().covered_up_to())
    }
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Searches what an attempt wrote before this supervisor started.
fn search_written(
    path: &Path,
    matcher: &mut Matcher,
    number: u32,
    earliest: u64,
    last: u64,
) -> io::Result<Seen> {
    let mut reader = Reader::open(path)?;
    let mut after = earliest.saturating_sub(1);
    while after < last {
        let page = match reader.read_after(after, last, SEARCH_PAGE_BYTES, SEARCH_PAGE_RECORDS) {
            Ok(page) => page,
            Err(ReadError::Expired { earliest }) => {
                after = earliest.saturating_sub(1);
                continue;
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        for record in &page {
            let stream = record::stream_of(record.stream);
            if let (record::KIND_OUTPUT, true, Some(stream)) =
                (record.kind, record.attempt == number, stream)
                && matcher.feed(stream, &record.payload) == Seen::Yes
            {
                return Ok(Seen::Yes);
            }
        }
        match page.last() {
            Some(newest) => after = newest.seq,
            None => break,
        }
    }
    Ok(Seen::No)
}

fn search(matcher: &mut Matcher, stream: Stream, committed: &Committed) -> io::Result<Seen> {
    let mut chunk = [0; 8192];
    let mut from = 0;
    while from < committed.len {
        let count = committed.read_at(&mut chunk, from)?;
        if count == 0 {
            break;
        }
        if matcher.feed(stream, &chunk[..count]) == Seen::Yes {
            return Ok(Seen::Yes);
        }
        from += u32::try_from(count).unwrap_or(u32::MAX);
    }
    Ok(Seen::No)
}

/// The event of a record; `None` for a gap and for what this build does not know.
fn event_of(record: &Record) -> Option<Event> {
    let body = match record.kind {
        record::KIND_OUTPUT => Body::Output {
            stream: record::stream_of(record.stream)?,
            len: u32::try_from(record.payload.len()).unwrap_or(u32::MAX),
        },
        _ if record.gap().is_some() => return None,
        _ => match record::body(&record.payload) {
            Ok(body) => body,
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
