//! Journal records to encoded chunks: the one place where events are read and written as JSON.
//!
//! Everything here is synchronous: `pread` from the page cache and SIMD. Callers decide whether
//! that happens in place (a few records at the tail) or on a blocking thread (a replay).

use std::{io, path::Path};

use bytes::Bytes;
use outlive_api::{
    encode::Encoder,
    event::{Content, EventRef},
    record::{KIND_ATTEMPT_EXITED, KIND_ATTEMPT_STARTING, KIND_OUTPUT, body, stream_of},
};
use outlive_core::{
    id::{Generation, SessionId},
    time::Timestamp,
};
use outlive_journal::{KIND_GAP, ReadError, Reader, Record};

use super::filter::Filter;

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `id:`, `event:`, `data:`.
    Sse,
    /// Whole WebSocket text frames.
    WebSocket,
    /// JSON objects, each with a comma before it.
    Page,
}

/// What a read may return.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// The last event that may be read.
    pub(super) upto: u64,
    /// About how many bytes of output; one event may exceed it.
    pub(super) bytes_max: usize,
    /// How many events pass the filter at most.
    pub(super) events_max: usize,
}

/// Records taken from the journal at once, whatever passes the filter.
const RECORDS_MAX: usize = 2048;

/// Events in a row, encoded.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The events are those after this one …
    pub(super) after: u64,
    /// … up to this one, which was looked at last.
    pub(super) last: u64,
    /// All of them.
    pub(super) bytes: Bytes,
    /// Where each of them ends.
    pub(super) marks: Vec<Mark>,
    /// The newest `attempt.exited` that was looked at.
    pub(super) exited: Option<u64>,
    /// The newest `attempt.starting` that was looked at.
    pub(super) started: Option<u64>,
}

/// The end of one event in a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    /// The event's number.
    pub(super) seq: u64,
    /// Offset behind its last byte.
    pub(super) end: usize,
}

/// A reader of one session's journal that writes JSON.
#[derive(Debug)]
pub(super) struct Source {
    reader: Reader,
    encoder: Encoder,
}

impl Source {
    /// Opens the journal in `directory`.
    pub(super) fn open(directory: &Path, session: SessionId) -> io::Result<Self> {
        Ok(Self {
            reader: Reader::open(directory)?,
            encoder: Encoder::new(session),
        })
    }

    /// The events after `after` that pass the filter. A chunk without marks means that none of
    /// the events up to `last` passed; `last == after` means that there is nothing to read.
    pub(super) fn chunk(
        &mut self,
        format: Format,
        after: u64,
        bounds: &Bounds,
        filter: &mut Filter,
    ) -> Result<Chunk, ReadError> {
        let records_max = if filter.is_open() {
            bounds.events_max.min(RECORDS_MAX)
        } else {
            RECORDS_MAX
        };
        let records = self
            .reader
            .read_after(after, bounds.upto, bounds.bytes_max, records_max)?;
        let payload_bytes: usize = records.iter().map(|record| record.payload.len()).sum();
        let mut out = Vec::with_capacity(payload_bytes / 3 * 4 + records.len() * 320);
        let mut chunk = Chunk {
            after,
            last: after,
            bytes: Bytes::new(),
            marks: Vec::with_capacity(records.len()),
            exited: None,
            started: None,
        };
        for record in &records {
            if chunk.marks.len() >= bounds.events_max {
                break;
            }
            chunk.last = record.seq;
            match record.kind {
                KIND_ATTEMPT_EXITED => chunk.exited = Some(record.seq),
                KIND_ATTEMPT_STARTING => chunk.started = Some(record.seq),
                _ => {}
            }
            if filter.passes(record) {
                self.encode(format, record, &mut out);
                chunk.marks.push(Mark {
                    seq: record.seq,
                    end: out.len(),
                });
            }
        }
        chunk.bytes = out.into();
        Ok(chunk)
    }

    /// The numbers of the newest `count` events up to `upto` that pass the filter: the one before
    /// them, to begin with.
    pub(super) fn before_newest(
        &mut self,
        after: u64,
        upto: u64,
        count: usize,
        filter: &mut Filter,
    ) -> Result<u64, ReadError> {
        const READ_BYTES: usize = 256 * 1024;
        let mut newest = std::collections::VecDeque::with_capacity(count.min(RECORDS_MAX) + 1);
        let mut cursor = after;
        loop {
            let records = self
                .reader
                .read_after(cursor, upto, READ_BYTES, RECORDS_MAX)?;
            let Some(last) = records.last() else { break };
            cursor = last.seq;
            for record in records.iter().filter(|record| filter.passes(record)) {
                newest.push_back(record.seq);
                if newest.len() > count {
                    newest.pop_front();
                }
            }
        }
        // What lies between does not pass the filter, so "one before" is as good as any.
        Ok(newest
            .front()
            .map_or(cursor, |seq| seq.saturating_sub(1))
            .max(after))
    }

    fn encode(&mut self, format: Format, record: &Record, out: &mut Vec<u8>) {
        let decoded;
        let content = if record.kind == KIND_OUTPUT
            && let Some(stream) = stream_of(record.stream)
        {
            Content::Output {
                stream,
                data: &record.payload,
            }
        } else if record.kind == KIND_GAP {
            Content::Gap {
                first: record.gap().map_or(record.seq, |gap| gap.from),
            }
        } else {
            match body(&record.payload) {
                Ok(body) => {
                    decoded = body;
                    Content::Body(&decoded)
                }
                Err(error) => {
                    // Written by a newer build, or damaged in a way its checksum can't show.
                    let session = self.encoder.session();
                    tracing::warn!(%session, seq = record.seq, %error, "an event is unreadable");
                    Content::Gap { first: record.seq }
                }
            }
        };
        let event = EventRef {
            seq: record.seq,
            at: Timestamp::from_unix_nanos(record.at_nanos),
            generation: Generation(record.generation),
            attempt: record.attempt,
            content,
        };
        match format {
            Format::Sse => self.encoder.sse(&event, out),
            Format::WebSocket => self.encoder.websocket(&event, out),
            Format::Page => {
                out.push(b',');
                self.encoder.json(&event, out);
            }
        }
    }
}
