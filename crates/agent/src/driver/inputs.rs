//! Writes: receipts, the queue, end of input.
//!
//! ```text
//!   expected attempt ─► known id ─► running ─► room ─► receipt journalled ─► bytes to the child
//!                        └► duplicate or conflict                              └► answer
//! ```

use std::{io, rc::Rc};

use outlive_api::agent::{Outcome, Write};
use outlive_core::{
    id::AttemptId,
    limits::{INPUT_BYTES_MAX, INPUT_ID_CHARS_MAX},
    receipt::{self, Standing},
    session::{EofMode, Input, Rejection},
    spec::Io,
};
use tokio::sync::oneshot;

use super::{Driver, answer};
use crate::{
    input::{Eof, InputQueue, Kind, Progress},
    journal::JournalError,
    limits::{CANONICAL_LINE_BYTES_MAX, UNSETTLED_INPUTS_MAX},
    log,
    machine::{Attempt, Machine},
};

impl<M: Machine> Driver<M> {
    pub(super) async fn write(
        &mut self,
        write: Write,
        to: oneshot::Sender<Outcome>,
    ) -> Result<(), JournalError> {
        let is_durable = write.durable;
        let outcome = match self.accept(write).await {
            Ok(outcome) => outcome,
            Err(error) => {
                answer(
                    to,
                    Outcome::Failed {
                        message: error.to_string(),
                    },
                );
                return match error {
                    JournalError::Full => Ok(()),
                    broken @ JournalError::Broken(_) => Err(broken),
                };
            }
        };
        if is_durable && matches!(outcome, Outcome::Written { .. }) {
            // The group's sync takes long: others go on meanwhile.
            let journal = self.journal.clone();
            self.around.tasks.spawn_local(async move {
                match journal.sync().await {
                    Ok(()) => answer(to, outcome),
                    Err(error) => answer(
                        to,
                        Outcome::Failed {
                            message: error.to_string(),
                        },
                    ),
                }
            });
        } else {
            answer(to, outcome);
        }
        Ok(())
    }

    async fn accept(&mut self, write: Write) -> Result<Outcome, JournalError> {
        let Write {
            expected,
            input_id,
            data,
            eof,
            durable: _,
        } = write;
        if data.len() > INPUT_BYTES_MAX || input_id.chars().count() > INPUT_ID_CHARS_MAX {
            return Ok(Outcome::Failed {
                message: "the input is too long".to_owned(),
            });
        }
        let number = self.session.attempt().map_or(0, |attempt| attempt.number);
        let attempt = AttemptId::derive(&self.id, number);
        let digest = receipt::digest(number, &data, eof);
        let known = self.journal.find_receipt(&input_id)?;
        match self.session.standing(expected.as_ref(), known, digest) {
            Ok(Standing::New) => {}
            Ok(Standing::Duplicate) => {
                let applied_unknown = self.unsettled_inputs.contains(&input_id);
                return Ok(Outcome::Written {
                    attempt,
                    duplicate: true,
                    applied_unknown,
                });
            }
            Err(rejection) => return Ok(Outcome::Rejected(rejection)),
        }
        let input = Input::Write {
            expected,
            input_id: input_id.clone(),
            digest,
            bytes: u32::try_from(data.len()).unwrap_or(u32::MAX),
            eof,
            truncated_line: self.truncates(&data)?,
        };
        let decision = match self.session.decide(self.around.clock.now(), &input) {
            Ok(decision) => decision,
            Err(rejection) => return Ok(Outcome::Rejected(rejection)),
        };
        if let Some(rejection) = self.refusal(data.len(), eof)? {
            return Ok(Outcome::Rejected(rejection));
        }
        if let Some(current) = &self.current {
            current.attempt.expect_echo();
        }
        self.carry_out(decision, None).await?;
        match self.deliver(&data, eof) {
            Ok(()) => {
                self.note_delivered();
                Ok(Outcome::Written {
                    attempt,
                    duplicate: false,
                    applied_unknown: false,
                })
            }
            Err(error) => {
                log::warn(format_args!(
                    "{}: input was not delivered: {error}",
                    self.id
                ));
                self.doubt(input_id);
                Ok(Outcome::Failed {
                    message: format!("the input was not delivered: {error}"),
                })
            }
        }
    }

    /// The attempt is over: nobody asks any more which of its inputs arrived.
    pub(super) fn settle_inputs(&mut self) {
        if !self.unsettled_inputs.is_empty() {
            self.unsettled_inputs.clear();
            self.note_unsettled_inputs();
        }
    }

    /// Whether this input arrived is not known.
    fn doubt(&mut self, input_id: String) {
        if self.unsettled_inputs.len() < UNSETTLED_INPUTS_MAX {
            self.unsettled_inputs.insert(input_id);
            self.note_unsettled_inputs();
        }
    }

    /// Writes down that the input whose receipt is the newest event arrived, for a supervisor that
    /// follows.
    fn note_delivered(&self) {
        if let Err(error) = self.journal.note_delivered(self.session.last_seq()) {
            log::warn(format_args!(
                "{}: another supervisor will take an input for unsure: {error}",
                self.id
            ));
        }
    }

    /// Writes down which inputs are unsure, for the supervisors that follow.
    pub(super) fn note_unsettled_inputs(&self) {
        if let Err(error) = self.journal.note_unsettled_inputs(&self.unsettled_inputs) {
            log::warn(format_args!(
                "{}: another supervisor will take some inputs for sure: {error}",
                self.id
            ));
        }
    }

    /// What only the queue and the terminal can tell.
    fn refusal(
        &self,
        bytes: usize,
        eof: Option<EofMode>,
    ) -> Result<Option<Rejection>, JournalError> {
        let Some(current) = &self.current else {
            return Ok(Some(Rejection::NotRunning {
                phase: self.session.phase(),
            }));
        };
        let has_room = match &current.input {
            Some(input) if !input.is_broken() => input.has_room(bytes),
            // The program closed its end, or the supervisor could not open its own.
            Some(_) | None if bytes > 0 => return Ok(Some(Rejection::InputClosed)),
            Some(_) | None => true,
        };
        if !has_room || !self.journal.reserve_receipt()? {
            return Ok(Some(Rejection::InputBufferFull));
        }
        let is_terminal = matches!(self.session.spec().io, Io::Pty(_));
        if is_terminal
            && eof == Some(EofMode::Character)
            && current.attempt.eof_character()?.is_none()
        {
            return Ok(Some(Rejection::RawTerminal));
        }
        Ok(None)
    }

    /// Whether the terminal will drop the end of a line, as far as it can be told beforehand: its
    /// program may change the mode before the bytes arrive.
    fn truncates(&self, data: &[u8]) -> io::Result<bool> {
        let Some(current) = &self.current else {
            return Ok(false);
        };
        let begun = current.input.as_ref().map_or(0, InputQueue::line_bytes);
        if begun + data.len() <= CANONICAL_LINE_BYTES_MAX {
            return Ok(false);
        }
        let ends = current.attempt.line_ends()?;
        Ok(ends.is_some_and(|ends| ends.overflow(begun, data)))
    }

    fn deliver(&mut self, data: &[u8], eof: Option<EofMode>) -> io::Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if let Some(input) = &mut current.input {
            if let Some(spool) = input.push(data)? {
                current.attempt.keep_spool(spool)?;
            }
            match (eof, input.kind()) {
                (None, _) => return Ok(()),
                (Some(EofMode::Hangup), Kind::Terminal) => input.push_eof(Eof::Hangup),
                // Among the bytes: more may follow, and a successor finds it in the spool. A
                // program that went raw meanwhile gets the character all the same.
                (Some(EofMode::Character), Kind::Terminal) => {
                    let character = current.attempt.eof_character()?.unwrap_or(VEOF_DEFAULT);
                    if let Some(spool) = input.push_eof_characters(character)? {
                        current.attempt.keep_spool(spool)?;
                    }
                    return Ok(());
                }
                (Some(EofMode::Character | EofMode::Hangup), Kind::Pipe) => {
                    input.push_eof(Eof::Queued);
                }
            }
        }
        self.try_advance_input()
    }

    /// Moves input that waits, and ends it when that is due.
    pub(super) fn advance_input(&mut self) {
        if let Err(error) = self.try_advance_input() {
            log::warn(format_args!(
                "{}: input can't be delivered: {error}",
                self.id
            ));
            if let Some(current) = &mut self.current {
                current.input = None;
            }
        }
    }

    fn try_advance_input(&mut self) -> io::Result<()> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let Some(input) = &mut current.input else {
            return Ok(());
        };
        match input.advance()? {
            Progress::Blocked | Progress::Idle => Ok(()),
            Progress::Broken => {
                // The child closed its end: bytes that wait have nowhere to go.
                if input.kind() == Kind::Pipe {
                    current.input = None;
                    current.attempt.close_input()?;
                }
                Ok(())
            }
            Progress::EofDue(Eof::Hangup) => {
                current.input = None;
                Rc::clone(&current.attempt).hang_up();
                Ok(())
            }
            Progress::EofDue(_) => {
                current.input = None;
                current.attempt.close_input()
            }
        }
    }

    /// Takes the input of an attempt that runs, with what a supervisor before us left to do.
    pub(super) fn open_input(&mut self) {
        if let Err(error) = self.try_open_input() {
            log::warn(format_args!(
                "{}: its input can't be used: {error}",
                self.id
            ));
        }
    }

    fn try_open_input(&mut self) -> io::Result<()> {
        let is_closed = self.session.input_closed();
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        let Some((child, kind)) = current.attempt.take_input()? else {
            return Ok(());
        };
        let eof = if is_closed && kind == Kind::Pipe {
            Eof::Queued
        } else {
            Eof::No
        };
        let spool = current.attempt.take_spool();
        current.input = Some(InputQueue::new(child, kind, spool, eof)?);
        self.try_advance_input()
    }
}

/// Control-D.
const VEOF_DEFAULT: u8 = 4;
