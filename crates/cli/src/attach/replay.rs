//! Old output on a new terminal: everything but the questions.
//!
//! A program asks its terminal things: where is the cursor (`ESC [6n`), what are you (`ESC [c`),
//! which colour (`ESC ]11;?`). Replayed, such a question would be answered again, and the answer
//! would be typed into whatever runs now. So a replay leaves questions out; all else passes byte
//! by byte, sequences that are cut by the end of a chunk included.

/// Longest sequence that is looked at whole; a longer one is no question and passes.
const SEQUENCE_BYTES_MAX: usize = 256;

/// Leaves questions out of replayed output.
#[derive(Debug, Default)]
pub struct Replay {
    held: Vec<u8>,
}

/// What the held bytes are.
enum Held {
    /// Not a whole sequence yet.
    Partial,
    /// A question.
    Question,
    /// Something else.
    Other,
}

impl Replay {
    /// What of `output` goes to the terminal.
    pub fn pass(&mut self, output: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(output.len());
        for byte in output {
            if self.held.is_empty() && *byte != 0x1b && *byte != 0x05 {
                out.push(*byte);
                continue;
            }
            self.held.push(*byte);
            match classify(&self.held) {
                Held::Partial => {}
                Held::Question => self.held.clear(),
                Held::Other => out.append(&mut self.held),
            }
        }
        out
    }

    /// What was held when the replay ended.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

fn classify(sequence: &[u8]) -> Held {
    if sequence.len() > SEQUENCE_BYTES_MAX {
        return Held::Other;
    }
    match sequence {
        [0x05] | [0x1b, b'Z'] => Held::Question,
        [0x1b] | [0x1b, b'[' | b']' | b'P'] => Held::Partial,
        [0x1b, b'[', rest @ ..] => control(rest),
        [0x1b, b']', rest @ ..] => string(rest, |body| body.contains(&b'?')),
        [0x1b, b'P', rest @ ..] => string(rest, |body| {
            body.starts_with(b"$q") || body.starts_with(b"+q")
        }),
        _ => Held::Other,
    }
}

/// A control sequence after `ESC [`.
fn control(rest: &[u8]) -> Held {
    let Some((last, body)) = rest.split_last() else {
        return Held::Partial;
    };
    match last {
        0x20..=0x3f => Held::Partial,
        b'n' | b'c' => Held::Question,
        // Mode, keyboard protocol, version, window size and terminal parameters.
        b'p' if body.ends_with(b"$") => Held::Question,
        b'u' if body == b"?" => Held::Question,
        b'q' if body.starts_with(b">") => Held::Question,
        b't' if matches!(body, [b'1', b'1'..=b'9'] | b"20" | b"21" | b"14;2") => Held::Question,
        b'x' if body.is_empty() || matches!(body, b"0" | b"1") => Held::Question,
        _ => Held::Other,
    }
}

/// A string that ends with BEL or `ESC \`.
fn string(rest: &[u8], is_question: impl Fn(&[u8]) -> bool) -> Held {
    let ([body @ .., 0x07] | [body @ .., 0x1b, b'\\']) = rest else {
        return Held::Partial;
    };
    if is_question(body) {
        Held::Question
    } else {
        Held::Other
    }
}

#[cfg(test)]
mod tests {
    use super::Replay;

    /// Passes `input` in pieces of `size`.
    fn pass(input: &[u8], size: usize) -> Vec<u8> {
        let mut replay = Replay::default();
        let mut out: Vec<u8> = input
            .chunks(size)
            .flat_map(|piece| replay.pass(piece))
            .collect();
        out.extend(replay.finish());
        out
    }

    // case D6
    #[test]
    fn questions_are_left_out_however_the_output_is_cut() {
        let input = b"a\x1b[6nb\x1b[cc\x1b]11;?\x07d\x1b[>0ce\x1b]4;1;?\x1b\\f\x1b[?2026$pg\x1bP$qm\x1b\\h\x1b[?uk\x1b[14tl\x1bZm\x05n";
        for size in 1..=input.len() {
            assert_eq!(pass(input, size), b"abcdefghklmn", "pieces of {size}");
        }
    }

    #[test]
    fn everything_else_passes_unchanged() {
        let input = b"\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]8;;http://x/\x1b\\link\x1b[2J\x1b[8;24;80t\x1b(B\xe2\x94\x80\x1b[2;3H\x1b[?25h\x1b[1 q\x1b";
        for size in 1..=input.len() {
            assert_eq!(pass(input, size), input, "pieces of {size}");
        }
        let long = [b"\x1b]52;c;".as_slice(), &[b'A'; 5000], b"?\x07after"].concat();
        assert_eq!(pass(&long, 77), long);
    }
}
