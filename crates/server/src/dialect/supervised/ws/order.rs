//! Keeps the inputs of one connection whole: none is written that was sent behind one that was
//! refused, before the client could know of the refusal.
//!
//! ```text
//!   client    i1  i2  i3 ……………………… pong 1   i2 again
//!                  │   │                        │
//!   worker    i1 ok, i2 refused, i3 refused too, i2 ok
//!                       └► answer, ping 1
//! ```
//! A client's end of the connection answers a ping after it read what came before it. So whatever
//! comes behind that pong was sent by somebody who could have read of the refusal.

use std::sync::atomic::{AtomicU64, Ordering};

use outlive_api::error::{ApiError, ErrorCode};

use super::frame::{Opcode, append_frame};

/// What begins the payload of such a ping.
const MARK: &[u8] = b"refused ";

/// How many refusals there were, and how many of them the client has seen.
#[derive(Debug, Default)]
pub(in super::super) struct Marks {
    refused: AtomicU64,
    seen: AtomicU64,
}

impl Marks {
    /// How many refusals the client has seen.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    /// A pong came.
    pub(super) fn saw(&self, payload: &[u8]) {
        let number = payload
            .strip_prefix(MARK)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse::<u64>().ok());
        // What was never asked is no answer.
        let told = number.filter(|number| *number <= self.refused.load(Ordering::Relaxed));
        if let Some(number) = told {
            self.seen.fetch_max(number, Ordering::Relaxed);
        }
    }

    /// Refuses an input that was sent when the client had seen so many refusals, if there were
    /// more.
    pub(in super::super) fn admit(&self, seen: u64) -> Result<(), ApiError> {
        if seen >= self.refused.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(ApiError::new(
            ErrorCode::InputBufferFull,
            "an input that was sent before this one was refused; send that one first, then this \
             one again",
        ))
    }

    /// Looks at the answer to an input that was admitted: one that may be sent again and was not
    /// written is remembered, and the answer gets the ping behind it.
    pub(in super::super) fn note(&self, result: &Result<(), ApiError>, answer: &mut Vec<u8>) {
        let Err(error) = result else { return };
        let passes =
            error.code == ErrorCode::InputBufferFull || error.retry_after_seconds.is_some();
        if passes {
            let number = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
            let mut payload = MARK.to_vec();
            payload.extend_from_slice(number.to_string().as_bytes());
            append_frame(Opcode::Ping, &payload, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Result<(), ApiError> {
        Err(ApiError::new(ErrorCode::InputBufferFull, "full"))
    }

    #[test]
    fn what_was_sent_before_the_client_knew_of_a_refusal_is_refused() {
        let marks = Marks::default();
        marks.admit(marks.seen()).unwrap();
        let mut answer = b"answer".to_vec();
        marks.note(&full(), &mut answer);
        assert_eq!(answer, b"answer\x89\x09refused 1");
        marks.admit(marks.seen()).unwrap_err();
        for foreign in [&b""[..], b"refused ", b"refused 2", b"refused -1", b"1"] {
            marks.saw(foreign);
            marks.admit(marks.seen()).unwrap_err();
        }
        let before = marks.seen();
        marks.saw(b"refused 1");
        marks.admit(marks.seen()).unwrap();
        marks.admit(before).unwrap_err();
    }

    #[test]
    fn only_what_may_be_sent_again_holds_up_others() {
        let marks = Marks::default();
        let mut answer = Vec::new();
        marks.note(&Ok(()), &mut answer);
        marks.note(&Err(ApiError::invalid("no input_id")), &mut answer);
        assert_eq!(answer, b"");
        marks.admit(0).unwrap();
        let away = ApiError::new(ErrorCode::Unavailable, "away").with_retry_after(1);
        marks.note(&Err(away), &mut answer);
        marks.admit(0).unwrap_err();
    }
}
