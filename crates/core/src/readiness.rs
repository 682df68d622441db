//! Readiness by output: finds a byte sequence in what an attempt writes, across frames.
//!
//! The driver makes one [`Matcher`] for an attempt whose specification waits for output, feeds it
//! every committed range, and drops it at the match. Between two frames of a stream it keeps the
//! last `needle - 1` bytes, so memory is bounded by the needle and never by a line.

use memchr::memmem::Finder;

use crate::event::Stream;

/// Searches the streams of one attempt.
#[derive(Debug, Clone)]
pub struct Matcher {
    finder: Finder<'static>,
    // By stream: stdout or terminal, stderr.
    tails: [Vec<u8>; 2],
}

/// Whether the needle was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Not yet.
    No,
    /// In this piece, possibly with bytes before it.
    Yes,
}

impl Matcher {
    /// Looks for `needle`, which is not empty in a valid specification.
    pub fn new(needle: &[u8]) -> Self {
        Self {
            finder: Finder::new(needle).into_owned(),
            tails: [Vec::new(), Vec::new()],
        }
    }

    /// Takes the next bytes of a stream.
    pub fn feed(&mut self, stream: Stream, bytes: &[u8]) -> Seen {
        let tail = match stream {
            Stream::Stdout | Stream::Pty => &mut self.tails[0],
            Stream::Stderr => &mut self.tails[1],
        };
        let keep = self.finder.needle().len().saturating_sub(1);
        // The border: what is kept, and as much of the new bytes as a match can reach into.
        let reach = bytes.len().min(keep);
        tail.extend_from_slice(&bytes[..reach]);
        if self.finder.find(tail).is_some() || self.finder.find(bytes).is_some() {
            return Seen::Yes;
        }
        if bytes.len() >= keep {
            tail.clear();
            tail.extend_from_slice(&bytes[bytes.len() - keep..]);
        } else {
            tail.drain(..tail.len().saturating_sub(keep));
        }
        Seen::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_needle_across_frames_is_found() {
        let mut matcher = Matcher::new(b"READY");
        assert_eq!(matcher.feed(Stream::Stdout, b"..REA"), Seen::No);
        assert_eq!(matcher.feed(Stream::Stdout, b"D"), Seen::No);
        assert_eq!(matcher.feed(Stream::Stdout, b"Y"), Seen::Yes);
    }

    #[test]
    fn streams_are_not_joined() {
        let mut matcher = Matcher::new(b"READY");
        assert_eq!(matcher.feed(Stream::Stdout, b"REA"), Seen::No);
        assert_eq!(matcher.feed(Stream::Stderr, b"DY"), Seen::No);
        assert_eq!(matcher.feed(Stream::Stdout, b"DY"), Seen::Yes);
    }

    #[test]
    fn one_byte_needs_no_memory() {
        let mut matcher = Matcher::new(b"$");
        assert_eq!(matcher.feed(Stream::Pty, b"bash"), Seen::No);
        assert!(matcher.tails[0].is_empty());
        assert_eq!(matcher.feed(Stream::Pty, b"-5.2$ "), Seen::Yes);
    }

    // case E4
    #[test]
    fn memory_stays_below_the_needle_over_one_endless_line() {
        let mut matcher = Matcher::new(b"the end");
        let piece = vec![b'x'; 32 * 1024];
        for _ in 0..64 {
            assert_eq!(matcher.feed(Stream::Stdout, &piece), Seen::No);
            assert!(matcher.tails[0].len() < b"the end".len());
        }
        assert_eq!(matcher.feed(Stream::Stdout, b"the "), Seen::No);
        assert_eq!(matcher.feed(Stream::Stdout, b"end"), Seen::Yes);
    }

    proptest::proptest! {
        /// However the bytes are cut, the answer is that of a search over the whole.
        #[test]
        fn cuts_do_not_matter(
            bytes in proptest::collection::vec(0_u8..2, 0..60),
            needle in proptest::collection::vec(0_u8..2, 1..7),
            cuts in proptest::collection::vec(1_usize..5, 60),
        ) {
            let whole = bytes.windows(needle.len()).any(|window| window == needle);
            let mut matcher = Matcher::new(&needle);
            let mut rest = bytes.as_slice();
            let mut seen = false;
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                seen |= matcher.feed(Stream::Stdout, piece) == Seen::Yes;
                rest = after;
            }
            proptest::prop_assert_eq!(seen, whole);
        }
    }
}
