//! One frame: a header of 32 bytes and a payload.
//!
//! ```text
//!  0   2   3   4         7   8          16         24        28        32
//!  ├───┼───┼───┼─────────┼───┼──────────┼──────────┼─────────┼─────────┤ payload …
//!  check │ kind  length   stream  seq      at_nanos   attempt   crc
//!      state
//! ```
//!
//! A frame begins at a multiple of 32 bytes, so no header crosses a page and no reader sees half
//! of one. Both check values are salted with a secret of the segment: whoever controls payloads
//! can't write one that looks like a frame. `check` covers the header alone, so that a length
//! can be trusted before the payload was read; `crc` covers header and payload.

use crate::{
    bytes_at::{i64_at, put, u16_at, u32_at, u64_at},
    limits::PAYLOAD_BYTES_MAX,
    record::{KIND_GAP, KIND_RESERVED},
};

/// Length of a header and alignment of frames.
pub(crate) const HEADER_BYTES: usize = 32;
/// The same, for offsets.
pub(crate) const HEADER_STEP: u64 = 32;

/// State of the session, as of the number in `seq`.
pub(crate) const KIND_CHECKPOINT: u8 = 0xF0;
/// Numbers up to `seq` are reserved.
pub(crate) const KIND_LEASE: u8 = 0xF1;
/// A newer segment exists; numbers up to `seq` are reserved.
pub(crate) const KIND_ROLL: u8 = 0xF2;
/// Everything up to `seq` was written and nothing more was under way.
pub(crate) const KIND_SEAL: u8 = 0xF3;

/// How far the writing of a frame got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Bytes are being moved behind the header; the file's size says how many.
    Open,
    /// Complete.
    Committed,
    /// Complete, and the next frame belongs to the same batch.
    CommittedMore,
}

impl State {
    const fn code(self) -> u8 {
        match self {
            Self::Open => 0x1D,
            Self::Committed => 0xE2,
            Self::CommittedMore => 0xC6,
        }
    }

    const fn parse(code: u8) -> Option<Self> {
        match code {
            0x1D => Some(Self::Open),
            0xE2 => Some(Self::Committed),
            0xC6 => Some(Self::CommittedMore),
            _ => None,
        }
    }
}

/// A header, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) state: State,
    pub(crate) kind: u8,
    pub(crate) stream: u8,
    pub(crate) len: u32,
    pub(crate) seq: u64,
    pub(crate) at_nanos: i64,
    pub(crate) attempt: u32,
    pub(crate) crc: u32,
}

impl Header {
    /// Does this frame carry a number of the journal's sequence.
    pub(crate) const fn is_record(&self) -> bool {
        self.kind < KIND_RESERVED || self.kind == KIND_GAP
    }

    /// Bytes of header and payload, without padding.
    pub(crate) fn frame_len(&self) -> u64 {
        HEADER_STEP + u64::from(self.len)
    }

    /// The header's bytes, with both check values.
    pub(crate) fn encode(&self, salt: u32, payload: &[u8]) -> [u8; HEADER_BYTES] {
        let mut crc = self.crc_begin(salt);
        crc.add(payload);
        self.encode_with(salt, crc.value())
    }

    /// The header's bytes for a payload whose checksum was taken in pieces.
    pub(crate) fn encode_with(&self, salt: u32, crc: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = self.bare(salt);
        put(&mut bytes, 28, &crc.to_le_bytes());
        bytes
    }

    /// Starts the checksum of header and payload.
    pub(crate) fn crc_begin(&self, salt: u32) -> Crc {
        let bytes = self.bare(salt);
        let covered = bytes.first_chunk::<28>().map_or(&[][..], |chunk| chunk);
        Crc(crc32c::crc32c_append(salt, covered))
    }

    fn bare(&self, salt: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        put(&mut bytes, 2, &[self.state.code(), self.kind]);
        put(&mut bytes, 4, &self.len.to_le_bytes());
        put(&mut bytes, 7, &[self.stream]);
        put(&mut bytes, 8, &self.seq.to_le_bytes());
        put(&mut bytes, 16, &self.at_nanos.to_le_bytes());
        put(&mut bytes, 24, &self.attempt.to_le_bytes());
        let check = check_of(salt, &bytes);
        put(&mut bytes, 0, &check.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` when its own check does not hold.
    pub(crate) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let state = State::parse(*bytes.get(2)?)?;
        if u16_at(bytes, 0)? != check_of(salt, bytes.get(..HEADER_BYTES)?) {
            return None;
        }
        Some(Self {
            state,
            kind: *bytes.get(3)?,
            stream: *bytes.get(7)?,
            len: u32_at(bytes, 4)? & 0x00FF_FFFF,
            seq: u64_at(bytes, 8)?,
            at_nanos: i64_at(bytes, 16)?,
            attempt: u32_at(bytes, 24)?,
            crc: u32_at(bytes, 28)?,
        })
    }

    /// Do header and payload belong together.
    pub(crate) fn holds(&self, salt: u32, payload: &[u8]) -> bool {
        let mut crc = self.crc_begin(salt);
        crc.add(payload);
        crc.value() == self.crc
    }
}

/// A checksum under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Crc(u32);

impl Crc {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    pub(crate) const fn value(self) -> u32 {
        self.0
    }
}

/// Check of bytes 2 to 28, folded to 16 bits.
fn check_of(salt: u32, header: &[u8]) -> u16 {
    let crc = crc32c::crc32c_append(!salt, header.get(2..28).unwrap_or_default());
    let [a, b, c, d] = crc.to_le_bytes();
    u16::from_le_bytes([a ^ c, b ^ d])
}

/// The next multiple of 32.
pub(crate) const fn align(offset: u64) -> u64 {
    (offset + (HEADER_STEP - 1)) & !(HEADER_STEP - 1)
}

/// Appends a frame to `into`, which will be written at `base`; pads what is there first.
pub(crate) fn push(into: &mut Vec<u8>, header: &Header, salt: u32, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX, "checked by the caller");
    into.resize(into.len().next_multiple_of(HEADER_BYTES), 0);
    into.extend_from_slice(&header.encode(salt, payload));
    into.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            state: State::Committed,
            kind: 6,
            stream: 2,
            len: 5,
            seq: 0x0102_0304_0506_0708,
            at_nanos: 1_700_000_000_123_456_789,
            attempt: 77,
            crc: 0,
        }
    }

    #[test]
    fn a_header_comes_back_as_it_was() {
        let bytes = header().encode(9, b"hello");
        let back = Header::decode(&bytes, 9).unwrap();
        assert!(back.holds(9, b"hello"));
        assert_eq!(Header { crc: 0, ..back }, header());
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = header().encode(9, b"hello");
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = bytes;
            if let Some(byte) = bad.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            let noticed = Header::decode(&bad, 9).is_none_or(|h| !h.holds(9, b"hello"));
            assert!(noticed, "bit {bit}");
        }
    }

    #[test]
    fn another_segment_does_not_take_it() {
        let bytes = header().encode(9, b"hello");
        assert!(Header::decode(&bytes, 10).is_none_or(|h| !h.holds(10, b"hello")));
    }

    #[test]
    fn the_checksum_is_crc32c() {
        // The check value of CRC-32C in the catalogue of CRC algorithms.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
    }
}
