//! What was seen of the session, and whether it is whole.

use sha2::{Digest, Sha256};

use crate::{
    error::{Failure, Result},
    event::{Ending, Event},
};

/// Everything that was seen, over all connections.
#[derive(Default)]
pub(super) struct Evidence {
    /// Number of the last event.
    pub(super) seq: u64,
    /// Lines of the standard output so far.
    pub(super) lines: u64,
    output: Sha256,
    bytes: u64,
    pub(super) ending: Option<Ending>,
}

impl Evidence {
    /// Takes the next event; its number must follow the one before.
    pub(super) fn take(&mut self, event: &Event) -> Result<()> {
        if event.seq != self.seq + 1 {
            return Err(Failure::new(
                "demo",
                format!("event {} came after event {}", event.seq, self.seq),
            ));
        }
        self.seq = event.seq;
        if let Some(bytes) = event.bytes()?
            && event.stream.as_deref() == Some("stdout")
        {
            self.output.update(&bytes);
            self.bytes += bytes.len() as u64;
            self.lines += bytes.split(|byte| *byte == b'\n').skip(1).count() as u64;
        }
        if let Some(ending) = event.ending() {
            self.ending = Some(ending);
        }
        Ok(())
    }

    /// Compares the output with what the process must have written. Gives its length and sum.
    pub(super) fn check(self, pid: u64) -> Result<(u64, String)> {
        // The last line says goodbye; the others are numbered.
        let count = self.lines.saturating_sub(1);
        let mut expected = Sha256::new();
        for line in 1..=count {
            expected.update(format!("line {line} of process {pid}\n"));
        }
        expected.update(format!("{count} lines\n"));
        let (seen, expected) = (hex(&self.output.finalize()), hex(&expected.finalize()));
        if seen == expected {
            Ok((self.bytes, seen))
        } else {
            Err(Failure::new(
                "demo",
                format!(
                    "{} bytes have sha256 {seen}, but {expected} was written",
                    self.bytes
                ),
            ))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        if write!(text, "{byte:02x}").is_err() {
            text.push('?'); // Writing to a String has no way to fail.
        }
    }
    text
}

/// What the session runs: numbered lines until a line of input comes, then exit code 7.
///
/// The count lives in the shell's memory only, so a process that was started again would begin
/// with line 1.
pub(super) const PROGRAM: &str = r#"
exec 3<&0
trap stop=1 USR1
(read -r line <&3; kill -USR1 $$) &
i=0
while [ -z "$stop" ]; do
  i=$((i+1))
  echo "line $i of process $$"
  [ $((i%10)) -ne 0 ] || sleep 0.01
done
echo "$i lines"
exit 7
"#;

#[cfg(test)]
mod tests {
    use super::Evidence;
    use crate::event::Event;

    fn output(seq: u64, text: &str) -> Event {
        let data = base64_simd::STANDARD.encode_to_string(text);
        Event::parse(&format!(
            r#"{{"seq":{seq},"type":"output","stream":"stdout","data_base64":"{data}"}}"#
        ))
        .unwrap()
    }

    #[test]
    fn whole_output_of_one_process_passes() {
        let mut evidence = Evidence::default();
        evidence
            .take(&output(1, "line 1 of process 9\nline 2 o"))
            .unwrap();
        evidence.take(&output(2, "f process 9\n2 lines\n")).unwrap();
        let (bytes, sum) = evidence.check(9).unwrap();
        assert_eq!((bytes, sum.len()), (48, 64));
    }

    #[test]
    fn a_hole_a_repetition_and_another_process_are_seen() {
        let mut evidence = Evidence::default();
        evidence.take(&output(1, "line 1 of process 9\n")).unwrap();
        evidence
            .take(&output(1, "line 1 of process 9\n"))
            .unwrap_err();
        evidence
            .take(&output(3, "line 3 of process 9\n"))
            .unwrap_err();
        evidence.take(&output(2, "1 lines\n")).unwrap();
        evidence.check(10).unwrap_err();
    }
}
