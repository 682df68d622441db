//! A context's journal as the messages of its WebSocket.

use std::collections::{BTreeMap, VecDeque};

use outlive_api::context::{ContextOutput, ContextServerMessage};
use outlive_core::{
    event::{AttemptEnd, Body, Kind, Stream},
    session::Session,
};

use super::{
    marker::{Marker, Piece, Scanner},
    view::finish,
    watch::{Said, Told},
};

/// Inputs whose readiness is told, at most; older ones are not any more.
const EXPECTED_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct Show {
    /// The attempt that is shown: the newest when it was attached to, or a later one.
    attempt: u32,
    /// How it ended, when it had before.
    end: Option<AttemptEnd>,
    /// What was published when it was attached to.
    known_until: u64,
    /// Whether its interpreter says something between the bytes.
    says: bool,
    sides: BTreeMap<Stream, Side>,
    expected: VecDeque<(String, usize)>,
}

/// One stream.
#[derive(Debug, Default)]
struct Side {
    scanner: Scanner,
    /// The beginning of a character.
    cut: Vec<u8>,
}

impl Show {
    /// Shows the newest attempt of `session`; up to `known_until` its state is known.
    pub(super) fn new(session: &Session, known_until: u64) -> Self {
        let attempt = session.attempt();
        Self {
            attempt: attempt.map_or(0, |attempt| attempt.number),
            end: attempt.and_then(|attempt| attempt.end.clone()),
            known_until,
            says: matches!(session.kind(), Some(Kind::Interpreter { prompt: None, .. })),
            sides: BTreeMap::new(),
            expected: VecDeque::new(),
        }
    }

    /// An input of this many lines was written: that the interpreter is ready after them is told.
    pub(super) fn expect(&mut self, request_id: String, lines: usize) {
        if !self.says {
            return;
        }
        if self.expected.len() >= EXPECTED_MAX {
            self.expected.pop_front();
        }
        self.expected.push_back((request_id, lines));
    }

    /// The end of a process that had ended before, once everything up to it was shown.
    pub(super) fn known_end(&self, cursor: u64) -> Option<ContextServerMessage> {
        let end = self.end.as_ref()?;
        (cursor >= self.known_until).then(|| done(end))
    }

    /// Tells of a record; gives the last message when the process ended with it.
    pub(super) fn tell(
        &mut self,
        told: Told,
        send: &mut impl FnMut(&ContextServerMessage),
    ) -> Option<ContextServerMessage> {
        if told.attempt > self.attempt {
            self.attempt = told.attempt;
            self.end = None;
            self.sides.clear();
        }
        if told.attempt != self.attempt {
            return None;
        }
        match told.said {
            Said::Output(stream, bytes) => {
                self.output(told.seq, stream, &bytes, send);
                None
            }
            Said::Event(Body::AttemptExited(end)) => {
                self.rest(told.seq, send);
                Some(done(&end))
            }
            Said::Event(_) | Said::Lost => None,
        }
    }

    fn output(
        &mut self,
        seq: u64,
        stream: Stream,
        bytes: &[u8],
        send: &mut impl FnMut(&ContextServerMessage),
    ) {
        let side = self.sides.entry(stream).or_default();
        let pieces = if self.says {
            side.scanner.push(bytes)
        } else {
            vec![Piece::Data(bytes.to_vec())]
        };
        for piece in pieces {
            match piece {
                Piece::Data(data) => {
                    if let Some(message) = side.message(seq, stream, data) {
                        send(&message);
                    }
                }
                Piece::Said(Marker::Ready) => {
                    if let Some(request_id) = ready(&mut self.expected) {
                        send(&ContextServerMessage::Done {
                            request_id: Some(request_id),
                            exit_code: None,
                            state: None,
                            signal: None,
                        });
                    }
                }
                Piece::Said(Marker::Begin { .. } | Marker::End { .. }) => {}
            }
        }
    }

    /// What was held back when nothing more comes.
    fn rest(&mut self, seq: u64, send: &mut impl FnMut(&ContextServerMessage)) {
        for (stream, side) in &mut self.sides {
            let held = side.scanner.finish();
            let rest = [std::mem::take(&mut side.cut), held].concat();
            if !rest.is_empty() {
                send(&text(seq, *stream, rest));
            }
        }
    }
}

/// One more line was taken: the input that is over with it.
fn ready(expected: &mut VecDeque<(String, usize)>) -> Option<String> {
    let (_, lines) = expected.front_mut()?;
    *lines = lines.saturating_sub(1);
    if *lines > 0 {
        return None;
    }
    expected.pop_front().map(|(request_id, _)| request_id)
}

impl Side {
    /// The bytes up to the last whole character.
    fn message(&mut self, seq: u64, stream: Stream, data: Vec<u8>) -> Option<ContextServerMessage> {
        let mut whole = std::mem::take(&mut self.cut);
        whole.extend(data);
        if let Err(error) = std::str::from_utf8(&whole)
            && error.error_len().is_none()
        {
            self.cut = whole.split_off(error.valid_up_to());
        }
        (!whole.is_empty()).then(|| text(seq, stream, whole))
    }
}

fn text(seq: u64, stream: Stream, bytes: Vec<u8>) -> ContextServerMessage {
    let source = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Pty => "pty",
    };
    let (data, data_base64) = match String::from_utf8(bytes) {
        Ok(data) => (data, None),
        Err(error) => {
            let bytes = error.into_bytes();
            let data = String::from_utf8_lossy(&bytes).into_owned();
            (data, Some(base64_simd::STANDARD.encode_to_string(&bytes)))
        }
    };
    ContextServerMessage::Output {
        source: source.to_owned(),
        data,
        data_base64,
        seq,
    }
}

fn done(end: &AttemptEnd) -> ContextServerMessage {
    let mut output = ContextOutput::default();
    finish(&mut output, end);
    ContextServerMessage::Done {
        request_id: None,
        exit_code: output.exit_code,
        state: output.state,
        signal: output.signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(side: &mut Side, data: &[u8]) -> Option<(String, Option<String>)> {
        match side.message(1, Stream::Stdout, data.to_vec())? {
            ContextServerMessage::Output {
                data, data_base64, ..
            } => Some((data, data_base64)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_character_is_never_cut_in_two() {
        let mut side = Side::default();
        assert_eq!(said(&mut side, b"a\xc3"), Some(("a".to_owned(), None)));
        assert_eq!(said(&mut side, b""), None);
        assert_eq!(said(&mut side, b"\xa9b"), Some(("éb".to_owned(), None)));
        let broken = said(&mut side, b"\xff!");
        assert_eq!(
            broken,
            Some(("\u{fffd}!".to_owned(), Some("/yE=".to_owned())))
        );
    }

    #[test]
    fn an_input_is_done_when_all_its_lines_were_taken() {
        let mut expected = VecDeque::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(ready(&mut expected), None);
        assert_eq!(ready(&mut expected).as_deref(), Some("a"));
        assert_eq!(ready(&mut expected).as_deref(), Some("b"));
        assert_eq!(ready(&mut expected), None);
    }
}
