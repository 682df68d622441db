//! Output on its way into one answer: the end of it, as text and, where that loses something, as
//! bytes.

use outlive_api::context::ContextOutput;
use outlive_core::event::Stream;

use crate::limits::CONTEXT_OUTPUT_BYTES_MAX;

/// What a process wrote, the last of it.
#[derive(Debug, Default)]
pub(super) struct Capture {
    raw: Tail,
    stdout: Option<Tail>,
    stderr: Option<Tail>,
    /// Events before these are not kept any more.
    lost: bool,
}

/// The last bytes of a stream.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Capture {
    /// It wrote.
    pub(super) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        self.raw.push(bytes);
        match stream {
            Stream::Stdout => self.stdout.get_or_insert_default().push(bytes),
            Stream::Stderr => self.stderr.get_or_insert_default().push(bytes),
            Stream::Pty => {}
        }
    }

    /// Something before it is missing.
    pub(super) fn lost(&mut self) {
        self.lost = true;
    }

    /// As an answer; without a terminal both streams are named, also when they are empty.
    pub(super) fn finish(mut self, terminal: bool) -> ContextOutput {
        if !terminal {
            self.stdout.get_or_insert_default();
            self.stderr.get_or_insert_default();
        }
        let truncated = self.lost || self.raw.cut;
        let text = |tail: Option<Tail>| tail.map_or((None, None), Tail::text);
        let (output_raw, output_raw_base64) = self.raw.text();
        let (stdout, stdout_base64) = text(self.stdout);
        let (stderr, stderr_base64) = text(self.stderr);
        ContextOutput {
            output_raw,
            output_raw_base64,
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            truncated: truncated.then_some(true),
            ..ContextOutput::default()
        }
    }

    /// The end of all that was written, for a message.
    pub(super) fn last_words(&self) -> String {
        const WORDS_BYTES_MAX: usize = 512;
        let bytes = &self.raw.bytes;
        let from = bytes.len().saturating_sub(WORDS_BYTES_MAX);
        let words = String::from_utf8_lossy(bytes.get(from..).unwrap_or_default());
        words.trim().to_owned()
    }
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Moved seldom: each byte once on average.
        if self.bytes.len() > 2 * CONTEXT_OUTPUT_BYTES_MAX {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let over = self.bytes.len().saturating_sub(CONTEXT_OUTPUT_BYTES_MAX);
        if over > 0 {
            self.bytes.drain(..over);
            self.cut = true;
        }
    }

    fn text(mut self) -> (Option<String>, Option<String>) {
        self.trim();
        if self.cut {
            // Not in the middle of a character.
            let whole = self.bytes.iter().take(3);
            let whole = whole
                .take_while(|byte| (0x80..0xc0).contains(*byte))
                .count();
            self.bytes.drain(..whole);
        }
        match String::from_utf8(self.bytes) {
            Ok(text) => (Some(text), None),
            Err(error) => {
                let bytes = error.into_bytes();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let base64 = base64_simd::STANDARD.encode_to_string(&bytes);
                (Some(text), Some(base64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_a_cut_is_told() {
        let mut capture = Capture::default();
        for _ in 0..5 {
            capture.push(Stream::Stdout, &vec![b'a'; CONTEXT_OUTPUT_BYTES_MAX]);
        }
        capture.push(Stream::Stderr, b"end");
        let output = capture.finish(false);
        let raw = output.output_raw.unwrap();
        assert_eq!(raw.len(), CONTEXT_OUTPUT_BYTES_MAX);
        assert!(raw.ends_with("aend"));
        assert_eq!(output.stderr.as_deref(), Some("end"));
        assert_eq!(output.truncated, Some(true));
    }

    #[test]
    fn bytes_that_are_no_text_are_there_as_bytes() {
        let mut capture = Capture::default();
        capture.push(Stream::Stdout, b"a\xff");
        let output = capture.finish(false);
        assert_eq!(output.stdout.as_deref(), Some("a\u{fffd}"));
        assert_eq!(output.stdout_base64.as_deref(), Some("Yf8="));
        assert_eq!(output.stderr.as_deref(), Some(""));
        assert_eq!((output.stderr_base64, output.truncated), (None, None));
        let mut capture = Capture::default();
        capture.push(Stream::Pty, b"x");
        let output = capture.finish(true);
        assert_eq!(
            (output.stdout, output.output_raw.as_deref()),
            (None, Some("x"))
        );
    }
}
