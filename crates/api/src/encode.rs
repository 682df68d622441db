//! Events to JSON bytes by hand: no serde, no `String` per field, base64 by SIMD.
//!
//! An [`Encoder`] belongs to one session and keeps what does not change from event to event: the
//! session's id, the current attempt's id, the second of the day. It appends to the caller's
//! buffer, so that a batch of events is one allocation. The bytes equal those of
//! [`crate::event::Event`] through serde.

use outlive_core::{
    event::Body,
    id::{AttemptId, SessionId},
};

use crate::{
    event::{Content, EndFacts, EventRef, OomAnswer, StreamName, reason},
    signal,
    time::Formatter,
};

/// Longest JSON of an event beside its data: ids, time, texts.
const ENVELOPE_BYTES_TYPICAL: usize = 320;

/// Writes the events of one session as JSON.
#[derive(Debug, Clone)]
pub struct Encoder {
    session: SessionId,
    attempt: u32,
    attempt_id: String,
    time: Formatter,
}

impl Encoder {
    /// An encoder for the events of `session`.
    pub fn new(session: SessionId) -> Self {
        Self {
            session,
            attempt: 0,
            attempt_id: String::new(),
            time: Formatter::default(),
        }
    }

    /// The session.
    pub const fn session(&self) -> &SessionId {
        &self.session
    }

    /// Appends the event as one JSON object.
    pub fn json(&mut self, event: &EventRef<'_>, out: &mut Vec<u8>) {
        out.reserve(estimate(event));
        out.extend_from_slice(b"{\"seq\":");
        number(event.seq, out);
        out.extend_from_slice(b",\"session_id\":\"");
        out.extend_from_slice(self.session.as_str().as_bytes());
        out.extend_from_slice(b"\",\"runtime_generation\":");
        number(event.generation.0, out);
        if event.attempt != 0 {
            if event.attempt != self.attempt {
                self.attempt = event.attempt;
                self.attempt_id = AttemptId::derive(&self.session, event.attempt).to_string();
            }
            out.extend_from_slice(b",\"attempt_id\":\"");
            out.extend_from_slice(self.attempt_id.as_bytes());
            out.push(b'"');
        }
        out.extend_from_slice(b",\"type\":\"");
        out.extend_from_slice(event.content.kind().as_bytes());
        out.push(b'"');
        match event.content {
            Content::Output { stream, data } => {
                out.extend_from_slice(b",\"stream\":\"");
                out.extend_from_slice(StreamName::from(stream).as_str().as_bytes());
                out.extend_from_slice(b"\",\"data_base64\":\"");
                base64_simd::STANDARD.encode_append(data, out);
                out.push(b'"');
            }
            Content::Gap { first } => {
                out.extend_from_slice(b",\"reason\":\"lost ");
                number(first, out);
                out.push(b'-');
                number(event.seq, out);
                out.push(b'"');
            }
            Content::Body(body) => append_body(body, out),
        }
        out.extend_from_slice(b",\"occurred_at\":\"");
        self.time.append(event.at, out);
        out.extend_from_slice(b"\"}");
    }

    /// Appends the event as one server-sent event.
    pub fn sse(&mut self, event: &EventRef<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"id: ");
        number(event.seq, out);
        out.extend_from_slice(b"\nevent: ");
        out.extend_from_slice(event.content.kind().as_bytes());
        out.extend_from_slice(b"\ndata: ");
        self.json(event, out);
        out.extend_from_slice(b"\n\n");
    }

    /// Appends the event as one whole unmasked WebSocket text frame:
    /// `{"type":"event","event":{…}}`.
    pub fn websocket(&mut self, event: &EventRef<'_>, out: &mut Vec<u8>) {
        // The length stands before the text and is known after it: room is left for the header
        // that will most likely fit, and the text is moved when another one does.
        let guess = if estimate(event) > usize::from(u16::MAX) {
            10
        } else {
            4
        };
        let start = out.len();
        out.resize(start + guess, 0);
        out.extend_from_slice(b"{\"type\":\"event\",\"event\":");
        self.json(event, out);
        out.push(b'}');
        let text = start + guess;
        let len = out.len() - text;
        let mut header = [0; 10];
        let header = text_frame_header(len, &mut header);
        if header.len() > guess {
            out.resize(out.len() + header.len() - guess, 0);
        }
        if header.len() != guess {
            out.copy_within(text..text + len, start + header.len());
            out.truncate(start + header.len() + len);
        }
        out[start..start + header.len()].copy_from_slice(header);
    }
}

/// The header of an unmasked, final text frame of `len` bytes.
fn text_frame_header(len: usize, space: &mut [u8; 10]) -> &[u8] {
    const FINAL_TEXT: u8 = 0x81;
    space[0] = FINAL_TEXT;
    if let Ok(short @ 0..126) = u8::try_from(len) {
        space[1] = short;
        &space[..2]
    } else if let Ok(len) = u16::try_from(len) {
        space[1] = 126;
        space[2..4].copy_from_slice(&len.to_be_bytes());
        &space[..4]
    } else {
        space[1] = 127;
        space[2..10].copy_from_slice(&(len as u64).to_be_bytes());
        &space[..10]
    }
}

/// About how long the event's JSON is; exact enough to allocate once.
pub fn estimate(event: &EventRef<'_>) -> usize {
    match event.content {
        Content::Output { data, .. } => data.len().div_ceil(3) * 4 + ENVELOPE_BYTES_TYPICAL,
        Content::Body(_) | Content::Gap { .. } => ENVELOPE_BYTES_TYPICAL,
    }
}

fn append_body(body: &Body, out: &mut Vec<u8>) {
    let end = match body {
        Body::AttemptExited(end) => Some(EndFacts::from(end)),
        _ => None,
    };
    if let Some(code) = end.as_ref().and_then(|end| end.exit_code) {
        out.extend_from_slice(b",\"exit_code\":");
        if code < 0 {
            out.push(b'-');
        }
        number(code.unsigned_abs().into(), out);
    }
    if let Some(reason) = reason(body) {
        text_field("reason", &reason, out);
    }
    match body {
        Body::InputAccepted {
            input_id,
            bytes,
            eof,
            truncated_line,
            digest: _,
        } => {
            text_field("input_id", input_id, out);
            out.extend_from_slice(b",\"bytes\":");
            number((*bytes).into(), out);
            out.extend_from_slice(if eof.is_some() {
                b",\"eof\":true"
            } else {
                b",\"eof\":false"
            });
            if *truncated_line {
                out.extend_from_slice(b",\"truncated_line\":true");
            }
        }
        Body::SignalSent { signal } => text_field("signal", &signal::name(*signal), out),
        Body::StopEscalated => text_field("signal", &signal::name(crate::event::SIGKILL), out),
        Body::TerminalResized { rows, cols } => {
            out.extend_from_slice(b",\"rows\":");
            number((*rows).into(), out);
            out.extend_from_slice(b",\"cols\":");
            number((*cols).into(), out);
        }
        _ => {}
    }
    if let Some(end) = end {
        append_end(&end, out);
    }
}

fn append_end(end: &EndFacts, out: &mut Vec<u8>) {
    if let Some(signal) = &end.signal {
        text_field("signal", signal, out);
    }
    match end.core {
        Some(true) => out.extend_from_slice(b",\"core\":true"),
        Some(false) => out.extend_from_slice(b",\"core\":false"),
        None => {}
    }
    match end.oom {
        Some(OomAnswer::Known(true)) => out.extend_from_slice(b",\"oom\":true"),
        Some(OomAnswer::Known(false)) => out.extend_from_slice(b",\"oom\":false"),
        Some(OomAnswer::Unknown(_)) => out.extend_from_slice(b",\"oom\":\"unknown\""),
        None => {}
    }
    if end.exit_unknown == Some(true) {
        out.extend_from_slice(b",\"exit_unknown\":true");
    }
    if let Some(message) = &end.message {
        text_field("message", message, out);
    }
}

fn text_field(name: &str, value: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    json_text(value, out);
}

/// Appends `value` as a JSON string, quotes and escapes included.
pub fn json_text(value: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for byte in value.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Appends a number in decimal.
pub fn number(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}
