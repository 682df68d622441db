//! Receipts: what is remembered of an accepted input, and what a retry means.
//!
//! A receipt is a hash of the caller's `input_id` and a digest over the attempt, the bytes and
//! the end of input. The journal keeps them; this module says how they are computed and compared.
//!
//! ```text
//! expected attempt stale ──► AttemptMismatch
//! id known ── same digest, same attempt ──► duplicate, accepted again without effect
//!          └─ anything else ──────────────► InputConflict
//! id new ──► Session::decide(Input::Write)
//! ```

use crate::{
    hash::{Digest128, StableHasher},
    id::AttemptId,
    limits,
    session::{EofMode, Rejection, Session},
    spec::{SpecError, SpecProblem},
};

/// Checks an input's id: trimmed, it has 1 to 128 characters.
pub fn check_input_id(input_id: &str) -> Result<String, SpecError> {
    let input_id = input_id.trim();
    let problem = match input_id.chars().count() {
        0 => SpecProblem::Missing,
        1..=limits::INPUT_ID_CHARS_MAX => return Ok(input_id.to_owned()),
        _ => SpecProblem::TooLong {
            max: limits::INPUT_ID_CHARS_MAX,
            unit: "characters",
        },
    };
    Err(SpecError {
        field: "input_id",
        problem,
    })
}

/// The hash under which the receipt of `input_id` is kept.
pub fn id_hash(input_id: &str) -> Digest128 {
    StableHasher::new().piece(input_id.as_bytes()).finish128()
}

/// The digest of one write: attempt, bytes and end of input.
///
/// How an end of input is carried out is not part of it: a retry may ask for it differently.
pub fn digest(attempt: u32, bytes: &[u8], eof: Option<EofMode>) -> u64 {
    StableHasher::new()
        .number(u64::from(attempt))
        .piece(bytes)
        .number(u64::from(eof.is_some()))
        .finish64()
}

/// What a write means in the light of the receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The id is new: decide it.
    New,
    /// A retry of an accepted write. Nothing is to be done.
    Duplicate,
}

impl Session {
    /// Compares a write with the receipt that the journal has for its id, if any.
    ///
    /// The digest is [`digest`] over the *current* attempt's number, so a retry after the attempt
    /// changed is a conflict.
    pub fn standing(
        &self,
        expected: Option<&AttemptId>,
        known: Option<u64>,
        digest: u64,
    ) -> Result<Standing, Rejection> {
        self.check_alive()?;
        self.check_expected(expected)?;
        match known {
            None => Ok(Standing::New),
            Some(known) if known == digest => Ok(Standing::Duplicate),
            Some(_) => Err(Rejection::InputConflict),
        }
    }
}
