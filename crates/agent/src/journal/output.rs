//! Output, as the pump moves it into the journal, and the search in it for the bytes that make an
//! attempt ready.

use std::{io, path::Path, sync::atomic::Ordering};

use outlive_api::record;
use outlive_core::{
    event::{Body, Event, Stream},
    readiness::{Matcher, Seen},
    time::Timestamp,
};
use outlive_journal::{AppendError, Committed, ReadError, Reader};

use super::{JournalError, SessionJournal, State};
use crate::{
    limits::{OUTPUT_FRAME_BYTES_MAX, SEARCH_PAGE_BYTES, SEARCH_PAGE_RECORDS},
    log,
    process::{SinkError, pump::Fill},
    tails::News,
};

impl SessionJournal {
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
            call: None,
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

    /// Whether the driver has looked at all that there is to look at.
    pub(crate) fn is_settled(&self) -> bool {
        let is_matched = self.shared.is_matched.load(Ordering::Acquire);
        !is_matched && !self.is_stalled() && self.lock().output.is_none()
    }

    /// The newest output that is not part of the state yet.
    pub(crate) fn take_output(&self) -> Option<Event> {
        self.lock().output.take()
    }

    /// The same, left where it is.
    pub(crate) fn output_pending(&self) -> Option<Event> {
        self.lock().output.clone()
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
