//! WebSocket frames, RFC 6455: what a server reads and writes, without extensions.
//!
//! Written here and not taken from a library because events are encoded once as whole frames and
//! shared by all followers, and because a slow socket must be watched byte by byte; a library
//! hides both behind its own buffer. The reader takes bytes as they come and gives messages.

use std::borrow::Cow;

use bytes::{Buf as _, BytesMut};

/// Longest payload of a control frame.
const CONTROL_BYTES_MAX: usize = 125;

/// Longest reason of a close frame: a control frame without its code.
const REASON_BYTES_MAX: usize = CONTROL_BYTES_MAX - 2;

/// Why a connection ends, as its close frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Close {
    /// The code.
    pub(in super::super) code: u16,
    /// In words, 123 bytes at most.
    pub(in super::super) reason: Cow<'static, str>,
}

impl Close {
    /// Everything was said.
    pub(in super::super) const NORMAL: u16 = 1000;
    /// The server is going away.
    pub(in super::super) const AWAY: u16 = 1001;
    /// The bytes are no WebSocket.
    pub(in super::super) const PROTOCOL: u16 = 1002;
    /// Text that is not UTF-8.
    pub(in super::super) const INVALID_TEXT: u16 = 1007;
    /// The client broke a rule, or may not be here any more.
    pub(in super::super) const POLICY: u16 = 1008;
    /// A message is too long.
    pub(in super::super) const TOO_BIG: u16 = 1009;
    /// Something of ours failed.
    pub(in super::super) const INTERNAL: u16 = 1011;
    /// The client is too slow; it may come again.
    pub(in super::super) const TRY_AGAIN: u16 = 1013;

    /// A close with a reason.
    pub(in super::super) fn new(code: u16, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            reason: reason.into(),
        }
    }

    /// Appends the close frame.
    pub(in super::super) fn append(&self, out: &mut Vec<u8>) {
        let mut end = self.reason.len().min(REASON_BYTES_MAX);
        while !self.reason.is_char_boundary(end) {
            end -= 1;
        }
        let mut payload = self.code.to_be_bytes().to_vec();
        payload.extend_from_slice(&self.reason.as_bytes()[..end]);
        append_frame(Opcode::Close, &payload, out);
    }
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Opcode {
    /// More of the message before.
    Continuation = 0,
    /// UTF-8.
    Text = 1,
    /// Bytes.
    Binary = 2,
    /// The end.
    Close = 8,
    /// Are you there?
    Ping = 9,
    /// I am.
    Pong = 10,
}

impl Opcode {
    const fn parse(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// Appends one final, unmasked frame.
pub(in super::super) fn append_frame(opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
    const FINAL: u8 = 0x80;
    out.push(FINAL | opcode as u8);
    match payload.len() {
        len @ 0..126 => out.push(u8::try_from(len).unwrap_or_default()),
        len @ 126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&u16::try_from(len).unwrap_or_default().to_be_bytes());
        }
        len => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

/// What a client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Message {
    /// Text or bytes: both carry JSON here.
    Data(BytesMut),
    /// To be answered with the same bytes.
    Ping(Vec<u8>),
    /// It is there, and read the ping with these bytes.
    Pong(Vec<u8>),
    /// It goes.
    Close,
}

/// Bytes in, messages out.
#[derive(Debug)]
pub(in super::super) struct Reader {
    message_bytes_max: usize,
    /// The message under way: whether it is text, and its parts so far.
    partial: Option<(Opcode, BytesMut)>,
}

#[derive(Debug, Clone, Copy)]
struct Header {
    last: bool,
    opcode: Opcode,
    mask: [u8; 4],
    /// Its own length.
    len: usize,
    payload_len: usize,
}

impl Reader {
    /// A reader of a connection that just began.
    pub(in super::super) const fn new(message_bytes_max: usize) -> Self {
        Self {
            message_bytes_max,
            partial: None,
        }
    }

    /// Takes one message off the front of `buffer`; `None` when more bytes are needed.
    pub(in super::super) fn next(
        &mut self,
        buffer: &mut BytesMut,
    ) -> Result<Option<Message>, Close> {
        loop {
            let Some(header) = self.header(buffer)? else {
                return Ok(None);
            };
            if buffer.len() - header.len < header.payload_len {
                buffer.reserve(header.len + header.payload_len - buffer.len());
                return Ok(None);
            }
            buffer.advance(header.len);
            let mut payload = buffer.split_to(header.payload_len);
            unmask(&mut payload, header.mask);
            if let Some(message) = self.take(header, payload)? {
                return Ok(Some(message));
            }
        }
    }

    fn header(&self, buffer: &[u8]) -> Result<Option<Header>, Close> {
        let Some(&[first, second]) = buffer.first_chunk() else {
            return Ok(None);
        };
        let protocol = |reason: &'static str| Close::new(Close::PROTOCOL, reason);
        if first & 0x70 != 0 {
            return Err(protocol("reserved bits are set"));
        }
        let opcode = Opcode::parse(first & 0x0f).ok_or_else(|| protocol("unknown opcode"))?;
        if second & 0x80 == 0 {
            return Err(protocol("frame is not masked"));
        }
        let length = match second & 0x7f {
            126 => buffer.get(2..4).map(|b| (be(b), 4)),
            127 => buffer.get(2..10).map(|b| (be(b), 10)),
            short => Some((u64::from(short), 2)),
        };
        let Some((payload_len, at)) = length else {
            return Ok(None);
        };
        let last = first & 0x80 != 0;
        if opcode.is_control() && (!last || payload_len > CONTROL_BYTES_MAX as u64) {
            return Err(protocol("control frame is fragmented or too long"));
        }
        let so_far = self.partial.as_ref().map_or(0, |(_, part)| part.len());
        let payload_len = usize::try_from(payload_len)
            .ok()
            .filter(|bytes| opcode.is_control() || *bytes <= self.message_bytes_max - so_far)
            .ok_or_else(|| Close::new(Close::TOO_BIG, "message is too long"))?;
        let Some(mask) = buffer.get(at..at + 4) else {
            return Ok(None);
        };
        Ok(Some(Header {
            last,
            opcode,
            mask: [mask[0], mask[1], mask[2], mask[3]],
            len: at + 4,
            payload_len,
        }))
    }

    fn take(&mut self, header: Header, payload: BytesMut) -> Result<Option<Message>, Close> {
        let protocol = |reason: &'static str| Close::new(Close::PROTOCOL, reason);
        let (opcode, whole) = match (header.opcode, self.partial.take()) {
            (Opcode::Ping, partial) => {
                self.partial = partial;
                return Ok(Some(Message::Ping(payload.to_vec())));
            }
            (Opcode::Pong, partial) => {
                self.partial = partial;
                return Ok(Some(Message::Pong(payload.to_vec())));
            }
            (Opcode::Close, _) => return Ok(Some(Message::Close)),
            (Opcode::Continuation, None) => return Err(protocol("continuation of nothing")),
            (Opcode::Continuation, Some((opcode, mut part))) => {
                part.extend_from_slice(&payload);
                (opcode, part)
            }
            (_, Some(_)) => return Err(protocol("a message begins inside another")),
            (opcode, None) => (opcode, payload),
        };
        if !header.last {
            self.partial = Some((opcode, whole));
            return Ok(None);
        }
        if opcode == Opcode::Text && std::str::from_utf8(&whole).is_err() {
            return Err(Close::new(Close::INVALID_TEXT, "text is not UTF-8"));
        }
        Ok(Some(Message::Data(whole)))
    }
}

fn be(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let mut chunks = payload.chunks_exact_mut(4);
    for chunk in &mut chunks {
        for (byte, key) in chunk.iter_mut().zip(mask) {
            *byte ^= key;
        }
    }
    for (byte, key) in chunks.into_remainder().iter_mut().zip(mask) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGE_BYTES_MAX: usize = 1 << 20;
    const MASK: [u8; 4] = [0x11, 0x22, 0x33, 0x44];

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut unmasked = Vec::new();
        append_frame(Opcode::Text, payload, &mut unmasked);
        let header_bytes = unmasked.len() - payload.len();
        let mut out = vec![first, unmasked[1] | 0x80];
        out.extend_from_slice(&unmasked[2..header_bytes]);
        out.extend_from_slice(&MASK);
        let at = out.len();
        out.extend_from_slice(payload);
        unmask(&mut out[at..], MASK);
        out
    }

    fn read_all(bytes: &[u8], step: usize) -> Result<Vec<Message>, Close> {
        let mut reader = Reader::new(MESSAGE_BYTES_MAX);
        let mut buffer = BytesMut::new();
        let mut out = Vec::new();
        for chunk in bytes.chunks(step) {
            buffer.extend_from_slice(chunk);
            while let Some(message) = reader.next(&mut buffer)? {
                out.push(message);
            }
        }
        Ok(out)
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(
            payloads in proptest::collection::vec(proptest::collection::vec(0..128u8, 0..70_000), 1..3),
            step in 1..5000usize,
        ) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|p| masked(0x81, p)).collect();
            let expected: Vec<_> = payloads
                .iter()
                .map(|p| Message::Data(BytesMut::from(p.as_slice())))
                .collect();
            prop_assert_eq!(read_all(&bytes, step), Ok(expected));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), step in 1..9usize) {
            match read_all(&bytes, step) {
                Ok(messages) => prop_assert!(messages.len() <= bytes.len()),
                Err(close) => prop_assert!(close.code >= Close::PROTOCOL),
            }
        }
    }

    #[test]
    fn fragments_join_and_control_frames_pass_between_them() {
        let bytes = [
            masked(0x01, b"{\"a\""),
            masked(0x89, b"hi"),
            masked(0x80, b":1}"),
            masked(0x88, b""),
        ]
        .concat();
        assert_eq!(
            read_all(&bytes, 3),
            Ok(vec![
                Message::Ping(b"hi".to_vec()),
                Message::Data(BytesMut::from(&b"{\"a\":1}"[..])),
                Message::Close,
            ])
        );
    }

    #[test]
    fn broken_frames_are_closed_with_their_code() {
        let long = vec![b'a'; MESSAGE_BYTES_MAX + 1];
        for (bytes, code) in [
            (vec![0x81, 0x01, b'a'], Close::PROTOCOL),
            (masked(0xC1, b"a"), Close::PROTOCOL),
            (masked(0x83, b"a"), Close::PROTOCOL),
            (masked(0x80, b"a"), Close::PROTOCOL),
            (masked(0x09, b"a"), Close::PROTOCOL),
            (masked(0x89, &[0; 126]), Close::PROTOCOL),
            (
                [masked(0x01, b"a"), masked(0x81, b"b")].concat(),
                Close::PROTOCOL,
            ),
            (masked(0x81, &[0xff]), Close::INVALID_TEXT),
            (masked(0x82, &long), Close::TOO_BIG),
            (
                [masked(0x02, &long[..MESSAGE_BYTES_MAX]), masked(0x80, b"b")].concat(),
                Close::TOO_BIG,
            ),
        ] {
            assert_eq!(read_all(&bytes, 1 << 16).unwrap_err().code, code);
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let mut out = Vec::new();
        Close::new(Close::POLICY, "é".repeat(100)).append(&mut out);
        assert_eq!(out[..2], [0x88, 124]);
        std::str::from_utf8(&out[4..]).unwrap();
    }
}
