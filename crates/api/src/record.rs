//! Events as records of a journal: who appends them and who reads them agree here.
//!
//! A record's kind is the index of the event's body, so that a reader can filter without
//! decoding; its stream is meaningful for output only; its payload is the raw bytes of output,
//! and the CBOR of the body for everything else. Behind it stands the id of a call, as a CBOR byte
//! string of 16, where the record begins what this call asked for: readers who tell clients pass it
//! over, and so do builds that know of no such ids. These numbers are on disk: they never change.

use minicbor::Decoder;
use outlive_core::{
    event::{Body, Stream},
    session::CallId,
};

/// Kind of output records.
pub const KIND_OUTPUT: u8 = 6;

/// Kind of the record that begins an attempt.
pub const KIND_ATTEMPT_STARTING: u8 = 3;

/// Kind of the record that ends an attempt.
pub const KIND_ATTEMPT_EXITED: u8 = 11;

/// The record's kind for an event.
pub const fn kind(body: &Body) -> u8 {
    match body {
        Body::SessionCreated(_) => 0,
        Body::SessionUpdated(_) => 1,
        Body::DesiredState(_) => 2,
        Body::AttemptStarting(_) => KIND_ATTEMPT_STARTING,
        Body::AttemptStarted { .. } => 4,
        Body::SessionReady => 5,
        Body::Output { .. } => KIND_OUTPUT,
        Body::InputAccepted { .. } => 7,
        Body::SignalSent { .. } => 8,
        Body::TerminalResized { .. } => 9,
        Body::AttemptStopping(_) => 10,
        Body::AttemptExited(_) => KIND_ATTEMPT_EXITED,
        Body::Backoff { .. } => 12,
        Body::SessionFailed(_) => 13,
        Body::SessionExpired(_) => 14,
        Body::SessionStopped => 15,
        Body::SessionPaused => 16,
        Body::SessionResumed => 17,
        Body::SessionDeleted => 18,
        Body::StopEscalated => 19,
    }
}

/// The record's kinds that clients know by this `type`; empty when there is no such type.
pub fn kinds_of(event_type: &str) -> &'static [u8] {
    match event_type {
        "session.created" => &[0],
        "session.updated" => &[1],
        "session.desired_state" => &[2],
        "attempt.starting" => &[KIND_ATTEMPT_STARTING],
        "attempt.started" => &[4],
        "session.ready" => &[5],
        "output" => &[KIND_OUTPUT],
        "input.accepted" => &[7],
        // An escalated stop is a signal that nobody asked for by name.
        "signal.sent" => &[8, 19],
        "terminal.resized" => &[9],
        "attempt.stopping" => &[10],
        "attempt.exited" => &[KIND_ATTEMPT_EXITED],
        "session.backoff" => &[12],
        "session.failed" => &[13],
        "session.expired" => &[14],
        "session.stopped" => &[15],
        "session.paused" => &[16],
        "session.resumed" => &[17],
        "session.deleted" => &[18],
        _ => &[],
    }
}

/// The record's stream of output; every other record carries 0.
pub const fn stream_code(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
        Stream::Pty => 3,
    }
}

/// The stream of an output record.
pub const fn stream_of(code: u8) -> Option<Stream> {
    match code {
        1 => Some(Stream::Stdout),
        2 => Some(Stream::Stderr),
        3 => Some(Stream::Pty),
        _ => None,
    }
}

/// The payload of a record that is not output.
pub fn payload(body: &Body, call: Option<CallId>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = minicbor::encode(body, &mut bytes).and_then(|()| match call {
        Some(call) => minicbor::encode(call, &mut bytes),
        None => Ok(()),
    });
    match written {
        Ok(()) => bytes,
        Err(error) => unreachable!("writing to memory can't fail: {error}"),
    }
}

/// The event of a record that is not output.
pub fn body(payload: &[u8]) -> Result<Body, BadRecord> {
    minicbor::decode(payload).map_err(|error| BadRecord(error.to_string()))
}

/// The same, and the call that it begins to answer.
pub fn body_and_call(payload: &[u8]) -> Result<(Body, Option<CallId>), BadRecord> {
    let bad = |error: minicbor::decode::Error| BadRecord(error.to_string());
    let mut decoder = Decoder::new(payload);
    let body = decoder.decode().map_err(bad)?;
    let is_all = decoder.position() == payload.len();
    let call = if is_all {
        None
    } else {
        Some(decoder.decode().map_err(bad)?)
    };
    Ok((body, call))
}

/// How long a record counts for retention: about as long as its event in JSON. Output, which
/// is what fills a journal, is exact but for the digits of its number.
pub const fn logical_len(kind: u8, payload_bytes: u32) -> u64 {
    let payload = payload_bytes as u64;
    if kind == KIND_OUTPUT {
        JSON_BYTES_AROUND_OUTPUT + payload.div_ceil(3) * 4
    } else {
        JSON_BYTES_AROUND_OTHERS + payload
    }
}

/// JSON of an output event without its data and with a four-digit number.
const JSON_BYTES_AROUND_OUTPUT: u64 = 197;

/// JSON of another event without what its payload says.
const JSON_BYTES_AROUND_OTHERS: u64 = 190;

/// The payload is no event that this build knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("journal record can't be read: {0}")]
pub struct BadRecord(String);

#[cfg(test)]
mod tests {
    use outlive_core::{
        id::{Generation, SessionId},
        spec::DesiredState,
        time::Timestamp,
    };

    use super::*;
    use crate::event;

    #[test]
    fn records_give_their_events_back() {
        for stream in [Stream::Stdout, Stream::Stderr, Stream::Pty] {
            assert_eq!(stream_of(stream_code(stream)), Some(stream));
        }
        for from in [
            Body::DesiredState(DesiredState::Stopped),
            Body::AttemptStarted { pid: 7 },
            Body::SessionReady,
            Body::Backoff { delay_ms: 250 },
        ] {
            assert_eq!(body(&payload(&from, None)), Ok(from.clone()));
            for call in [None, Some(CallId([7; 16]))] {
                let payload = payload(&from, call);
                assert_eq!(body_and_call(&payload), Ok((from.clone(), call)));
                // As clients and builds before call ids read it.
                assert_eq!(body(&payload), Ok(from.clone()));
            }
            assert_eq!(kinds_of(event::kind(&from)), &[kind(&from)]);
        }
        body(b"no event").unwrap_err();
    }

    #[test]
    fn output_counts_for_retention_what_its_json_is_long() {
        let mut json = Vec::new();
        let data = b"0123456789";
        crate::encode::Encoder::new(SessionId::from_bits(1)).json(
            &event::EventRef {
                seq: 1234,
                at: Timestamp::EPOCH,
                generation: Generation::FIRST,
                attempt: 1,
                content: event::Content::Output {
                    stream: Stream::Stdout,
                    data,
                },
            },
            &mut json,
        );
        assert_eq!(logical_len(KIND_OUTPUT, 10), json.len() as u64);
    }

    #[test]
    fn every_type_but_the_gap_has_a_kind() {
        for name in event::KINDS {
            assert_eq!(kinds_of(name).is_empty(), name == "journal.gap", "{name}");
        }
    }
}
