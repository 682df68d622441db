//! A chunk of code, given to an interpreter and followed to its end.
//!
//! The end is no guess. An interpreter that was started by its alias says it on each of its
//! streams, with the chunk's own nonce, so two chunks at once, a chunk whose caller went away and
//! a late word of an earlier one are never mixed up. A foreign interpreter gets one line after
//! the other, and a line is done when its prompt stands at the end of what was written; its
//! chunks are carried out one at a time.

use std::collections::BTreeMap;

use outlive_api::{
    context::ContextOutput,
    error::{Action, ApiError, ErrorCode},
};
use outlive_core::{
    event::{AttemptEnd, Body, Kind, Stream},
    id::AttemptId,
    session::Session,
};
use tokio::time::timeout;

use super::{
    call::{InContext, nonce},
    capture::Capture,
    interpreter::Interpreter,
    marker::{Marker, Piece, Scanner},
    view::{finish, has_terminal},
    watch::{Said, Watch},
};
use crate::limits::{CHUNK_BYTES_MAX, CONTEXT_WAIT_MAX};

/// How an interpreter tells the end of a chunk.
enum Teller<'a> {
    Itself(Interpreter),
    Prompt(&'a str),
}

/// Gives the interpreter a chunk, and answers with what the chunk wrote and how it ended.
pub(super) async fn chunk(
    at: &InContext,
    action: Action,
    session: &Session,
    code: &str,
) -> Result<ContextOutput, ApiError> {
    let following = async {
        match teller(session)? {
            Teller::Itself(interpreter) => told(at, action, session, interpreter, code).await,
            Teller::Prompt(prompt) => prompted(at, action, session, prompt, code).await,
        }
    };
    timeout(CONTEXT_WAIT_MAX, following)
        .await
        .unwrap_or_else(|_elapsed| Err(waited_too_long()))
}

/// Gives the interpreter a chunk, and does not wait for it.
pub(super) async fn begin(
    at: &InContext,
    action: Action,
    session: &Session,
    code: &str,
) -> Result<(), ApiError> {
    let data = match teller(session)? {
        Teller::Itself(interpreter) => interpreter.frame(&nonce(action)?, checked(code)?)?,
        Teller::Prompt(_) => format!("{}\n", checked(code)?.trim_end_matches('\n')).into_bytes(),
    };
    at.write(action, None, data, None).await.map(drop)
}

/// The answer when a chunk takes longer than a call waits.
pub(super) fn waited_too_long() -> ApiError {
    ApiError::new(
        ErrorCode::ExecTimeout,
        "it goes on and this call waits no longer; its WebSocket follows it",
    )
}

fn teller(session: &Session) -> Result<Teller<'_>, ApiError> {
    match session.kind() {
        Some(Kind::Interpreter {
            alias,
            prompt: None,
        }) => Interpreter::of(alias).map(Teller::Itself),
        Some(Kind::Interpreter {
            prompt: Some(prompt),
            ..
        }) if !prompt.is_empty() => Some(Teller::Prompt(prompt)),
        Some(Kind::Interpreter { .. } | Kind::Command) | None => None,
    }
    .ok_or_else(|| {
        ApiError::invalid(
            "where a chunk of this interpreter ends nobody can tell; use input and the \
             WebSocket, or create it with ready.mode prompt_token",
        )
    })
}

fn checked(code: &str) -> Result<&str, ApiError> {
    if code.len() > CHUNK_BYTES_MAX {
        return Err(ApiError::too_large(format!(
            "a chunk is larger than {CHUNK_BYTES_MAX} bytes; write a file and run that"
        )));
    }
    Ok(code)
}

/// One stream while a chunk is looked for in it.
#[derive(Debug, Default)]
struct Side {
    scanner: Scanner,
    at: Place,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    Inside,
    After,
}

/// Follows a chunk of an interpreter that tells its end.
#[derive(Debug)]
struct Chunk {
    nonce: String,
    sides: BTreeMap<Stream, Side>,
    capture: Capture,
    status: Option<u8>,
}

impl Chunk {
    fn new(nonce: String, terminal: bool) -> Self {
        let streams: &[Stream] = if terminal {
            &[Stream::Pty]
        } else {
            &[Stream::Stdout, Stream::Stderr]
        };
        Self {
            nonce,
            sides: streams
                .iter()
                .map(|stream| (*stream, Side::default()))
                .collect(),
            capture: Capture::default(),
            status: None,
        }
    }

    fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let Some(side) = self.sides.get_mut(&stream) else {
            return;
        };
        for piece in side.scanner.push(bytes) {
            match piece {
                Piece::Data(data) if side.at == Place::Inside => self.capture.push(stream, &data),
                Piece::Said(Marker::Begin { nonce }) if nonce == self.nonce => {
                    side.at = Place::Inside;
                }
                Piece::Said(Marker::End { nonce, status }) if nonce == self.nonce => {
                    side.at = Place::After;
                    self.status = Some(status);
                }
                Piece::Data(_) | Piece::Said(_) => {}
            }
        }
    }

    fn is_done(&self) -> bool {
        self.sides.values().all(|side| side.at == Place::After)
    }

    /// What was held back when the process ended.
    fn drain(&mut self) {
        for (stream, side) in &mut self.sides {
            let held = side.scanner.finish();
            if side.at == Place::Inside {
                self.capture.push(*stream, &held);
            }
        }
    }
}

async fn told(
    at: &InContext,
    action: Action,
    session: &Session,
    interpreter: Interpreter,
    code: &str,
) -> Result<ContextOutput, ApiError> {
    let nonce = nonce(action)?;
    let frame = interpreter.frame(&nonce, checked(code)?)?;
    let terminal = has_terminal(session);
    let mut chunk = Chunk::new(nonce, terminal);
    let watch = Watch::start(at, action, None).await?;
    let mut watch = watch.while_there_is_room(at);
    let attempt = at.write(action, None, frame, None).await?;
    loop {
        let told = watch.next().await;
        for told in told.map_err(|ended| ended.into_error(action))? {
            let ours = AttemptId::derive(&at.session, told.attempt) == attempt;
            match told.said {
                Said::Output(stream, bytes) if ours => chunk.push(stream, &bytes),
                Said::Event(Body::AttemptExited(end)) if ours => {
                    chunk.drain();
                    return Ok(ended(chunk.capture, terminal, &end));
                }
                Said::Lost => chunk.capture.lost(),
                Said::Output(..) | Said::Event(_) => {}
            }
        }
        if chunk.is_done() {
            let mut output = chunk.capture.finish(terminal);
            output.exit_code = chunk.status.map(i32::from);
            return Ok(output);
        }
    }
}

fn ended(capture: Capture, terminal: bool, end: &AttemptEnd) -> ContextOutput {
    let mut output = capture.finish(terminal);
    finish(&mut output, end);
    output
}

/// Line by line, each until the prompt stands at the end.
async fn prompted(
    at: &InContext,
    action: Action,
    session: &Session,
    prompt: &str,
    code: &str,
) -> Result<ContextOutput, ApiError> {
    let turn = at.state.turns.of(at.sandbox.id(), &at.session);
    let _turn = turn.lock().await;
    let terminal = has_terminal(session);
    let mut capture = Capture::default();
    let watch = Watch::start(at, action, None).await?;
    let mut watch = watch.while_there_is_room(at);
    for line in checked(code)?.lines() {
        let data = format!("{line}\n").into_bytes();
        let attempt = at.write(action, None, data, None).await?;
        let mut end = PromptEnd::new(prompt);
        while !end.is_there() {
            let told = watch.next().await;
            for told in told.map_err(|ended| ended.into_error(action))? {
                let ours = AttemptId::derive(&at.session, told.attempt) == attempt;
                match told.said {
                    Said::Output(stream, bytes) if ours => {
                        capture.push(stream, &end.pass(&bytes));
                    }
                    Said::Event(Body::AttemptExited(exit)) if ours => {
                        return Ok(ended(capture, terminal, &exit));
                    }
                    Said::Lost => capture.lost(),
                    Said::Output(..) | Said::Event(_) => {}
                }
            }
        }
    }
    Ok(capture.finish(terminal))
}

/// Looks for a prompt at the end of what was written.
struct PromptEnd<'a> {
    prompt: &'a [u8],
    held: Vec<u8>,
}

impl<'a> PromptEnd<'a> {
    fn new(prompt: &'a str) -> Self {
        Self {
            prompt: prompt.as_bytes(),
            held: Vec::new(),
        }
    }

    /// What certainly is no part of the prompt at the end.
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let longest = self.held.len().min(self.prompt.len());
        let kept = (0..=longest)
            .rev()
            .find(|len| {
                self.held
                    .ends_with(self.prompt.get(..*len).unwrap_or_default())
            })
            .unwrap_or(0);
        self.held.drain(..self.held.len() - kept).collect()
    }

    fn is_there(&self) -> bool {
        self.held == self.prompt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_done_when_both_streams_say_so() {
        let mut chunk = Chunk::new("n".to_owned(), false);
        chunk.push(Stream::Stdout, b"old\x1b]7717;begin;n\x07out");
        chunk.push(
            Stream::Stderr,
            b"\x1b]7717;begin;n\x07err\x1b]7717;end;n;4\x07",
        );
        assert!(!chunk.is_done(), "standard output still may come");
        chunk.push(Stream::Stdout, b" more\x1b]7717;end;other;0\x07!");
        assert!(!chunk.is_done(), "another chunk's end");
        chunk.push(
            Stream::Stdout,
            b"\x1b]7717;end;n;4\x07\x1b]7717;ready\x07late",
        );
        assert!(chunk.is_done());
        assert_eq!(chunk.status, Some(4));
        let output = chunk.capture.finish(false);
        assert_eq!(output.stdout.as_deref(), Some("out more!"));
        assert_eq!(output.stderr.as_deref(), Some("err"));
    }

    #[test]
    fn a_prompt_counts_at_the_end_only() {
        let mut end = PromptEnd::new("sql> ");
        let mut seen = end.pass(b"a sql> b\nsq");
        assert!(!end.is_there());
        seen.extend(end.pass(b"l> "));
        assert!(end.is_there());
        assert_eq!(seen, b"a sql> b\n");
    }
}
