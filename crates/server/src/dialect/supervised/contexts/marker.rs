//! What our interpreters say between the bytes of the code they carry out.
//!
//! ```text
//!  ESC ] 7717 ; ready BEL              it waits for a line
//!  ESC ] 7717 ; begin;NONCE BEL        what follows on this stream is the chunk's
//!  ESC ] 7717 ; end;NONCE;STATUS BEL   … up to here
//! ```
//! An operating-system command of a number that no terminal knows: shown raw, it is invisible.
//! A chunk ends on each stream by itself, so nothing of it is missed or taken for the next one's,
//! however the streams are interleaved. Code that knows its nonce can fool whoever waits for it,
//! which is nobody but its author.

/// How a marker begins.
const START: &[u8] = b"\x1b]7717;";
/// How it ends.
const END: u8 = 0x07;
/// Longest marker, bytes; what is longer is no marker.
const MARKER_BYTES_MAX: usize = 128;

/// What readiness looks for.
pub(super) const READY: &str = "\x1b]7717;ready\x07";

/// What was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Marker {
    /// It waits for a line.
    Ready,
    /// The chunk begins.
    Begin {
        /// Which.
        nonce: String,
    },
    /// The chunk is done.
    End {
        /// Which.
        nonce: String,
        /// As its interpreter sees it; 0 is fine.
        status: u8,
    },
}

/// A part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes that were written.
    Data(Vec<u8>),
    /// Something was said.
    Said(Marker),
}

/// Takes one stream apart, however it is cut.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// The beginning of what may become a marker.
    held: Vec<u8>,
}

impl Scanner {
    /// The next bytes of the stream.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut buffer = std::mem::take(&mut self.held);
        buffer.extend_from_slice(bytes);
        let (mut pieces, mut data) = (Vec::new(), Vec::new());
        let mut rest = buffer.as_slice();
        while let Some(at) = rest.iter().position(|byte| *byte == START[0]) {
            let (before, from) = rest.split_at(at);
            data.extend_from_slice(before);
            match look(from) {
                Look::Marker(marker, len) => {
                    flush(&mut pieces, &mut data);
                    pieces.push(Piece::Said(marker));
                    rest = from.get(len..).unwrap_or_default();
                }
                Look::Perhaps => {
                    self.held = from.to_vec();
                    rest = &[];
                }
                Look::No => {
                    let (escape, after) = from.split_at(1);
                    data.extend_from_slice(escape);
                    rest = after;
                }
            }
        }
        data.extend_from_slice(rest);
        flush(&mut pieces, &mut data);
        pieces
    }

    /// What was held back, once nothing more comes.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

fn flush(pieces: &mut Vec<Piece>, data: &mut Vec<u8>) {
    if !data.is_empty() {
        pieces.push(Piece::Data(std::mem::take(data)));
    }
}

enum Look {
    Marker(Marker, usize),
    /// More bytes tell.
    Perhaps,
    No,
}

/// Whether a marker begins here.
fn look(from: &[u8]) -> Look {
    let begun = from.len().min(START.len());
    if from.get(..begun) != START.get(..begun) {
        return Look::No;
    }
    let window = from.get(..MARKER_BYTES_MAX).unwrap_or(from);
    match window.iter().position(|byte| *byte == END) {
        Some(end) => match window.get(START.len()..end).and_then(parse) {
            Some(marker) => Look::Marker(marker, end + 1),
            None => Look::No,
        },
        None if from.len() < MARKER_BYTES_MAX => Look::Perhaps,
        None => Look::No,
    }
}

fn parse(said: &[u8]) -> Option<Marker> {
    let said = std::str::from_utf8(said).ok()?;
    let mut words = said.split(';');
    let marker = match (words.next()?, words.next(), words.next()) {
        ("ready", None, None) => Marker::Ready,
        ("begin", Some(nonce), None) => Marker::Begin {
            nonce: nonce.to_owned(),
        },
        ("end", Some(nonce), Some(status)) => Marker::End {
            nonce: nonce.to_owned(),
            status: status.parse().ok()?,
        },
        _ => return None,
    };
    words.next().is_none().then_some(marker)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn joined(pieces: Vec<Piece>) -> Vec<Piece> {
        let mut out: Vec<Piece> = Vec::new();
        for piece in pieces {
            match (out.last_mut(), piece) {
                (Some(Piece::Data(before)), Piece::Data(more)) => before.extend(more),
                (_, piece) => out.push(piece),
            }
        }
        out
    }

    fn data(bytes: &[u8]) -> Piece {
        Piece::Data(bytes.to_vec())
    }

    #[test]
    fn a_chunk_is_told_from_what_is_around_it() {
        let stream = b"before\x1b]7717;begin;n1\x07inside\x1b[0m\x1b]7717;end;n1;3\x07\x1b]7717;ready\x07after";
        let expected = [
            data(b"before"),
            Piece::Said(Marker::Begin {
                nonce: "n1".to_owned(),
            }),
            data(b"inside\x1b[0m"),
            Piece::Said(Marker::End {
                nonce: "n1".to_owned(),
                status: 3,
            }),
            Piece::Said(Marker::Ready),
            data(b"after"),
        ];
        assert_eq!(Scanner::default().push(stream), expected);
        // And byte by byte.
        let mut scanner = Scanner::default();
        let pieces = stream.iter().flat_map(|byte| scanner.push(&[*byte]));
        assert_eq!(joined(pieces.collect()), expected);
    }

    #[test]
    fn what_only_looks_like_a_marker_is_output() {
        for stream in [
            &b"\x1b]7717;begin\x07"[..],
            b"\x1b]7717;end;n;999\x07",
            b"\x1b]7717;ready;x\x07",
            b"\x1b]0;title\x07",
            b"\x1b\x1b\x1b[A",
        ] {
            let mut scanner = Scanner::default();
            let mut pieces = scanner.push(stream);
            pieces.push(Piece::Data(scanner.finish()));
            assert_eq!(joined(pieces), [data(stream)]);
        }
        let endless = [START, &[b'x'; 4 * MARKER_BYTES_MAX]].concat();
        let mut scanner = Scanner::default();
        assert_eq!(scanner.push(&endless), [data(&endless)]);
        assert!(scanner.finish().is_empty());
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_however_the_stream_is_cut(
            bytes in proptest::collection::vec(
                proptest::sample::select(&b"\x1b]7717;ready\x07ab"[..]), 0..200
            ),
            cut in 1_usize..9,
        ) {
            let whole = joined({
                let mut scanner = Scanner::default();
                let mut pieces = scanner.push(&bytes);
                pieces.push(Piece::Data(scanner.finish()));
                pieces
            });
            let mut scanner = Scanner::default();
            let mut pieces: Vec<_> =
                bytes.chunks(cut).flat_map(|part| scanner.push(part)).collect();
            pieces.push(Piece::Data(scanner.finish()));
            prop_assert_eq!(joined(pieces), whole);
        }
    }
}
