//! Being connected to a session: its output here, our input there, its ending passed on.
//!
//! [`pipes`] reads the event stream and sends input by calls; [`terminal`] speaks WebSocket and
//! hands the local terminal over. Neither ever ends a session: detaching, a signal to us and a
//! lost connection all leave it running, and [`left_off`] says how to come back.

use std::time::Duration;

use serde_json::Value;

use crate::{
    client::{Call, Client},
    error::{Failure, Result},
    event::{Ending, Event},
    next,
    output::note,
    terminal::DetachKeys,
};

pub mod ending;
pub mod input;
pub mod pipes;
pub mod replay;
pub mod standstill;
pub mod terminal;

/// Exit code when `--timeout` passed, as timeout(1) has it.
const EXIT_TIMEOUT: u8 = 124;

/// A session to be connected to.
#[derive(Debug)]
pub struct Attachment<'a> {
    /// The server.
    pub client: &'a Client,
    /// Its sandbox.
    pub sandbox: &'a str,
    /// Its id.
    pub session: &'a str,
    /// The session as it was just before.
    pub view: &'a Value,
    /// Replay what came after this.
    pub after: u64,
    /// What to do with the local standard input.
    pub stdin: Stdin,
    /// How long to look for a lost server; `None` is for ever.
    pub patience: Option<Duration>,
    /// The keys that detach.
    pub detach_keys: DetachKeys,
}

/// What to do with the local standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stdin {
    /// The command sees end of file at once.
    Closed,
    /// It stays as it is.
    Untouched,
    /// It goes to the command, its end included.
    Forward,
}

/// How being connected ended.
#[derive(Debug)]
pub enum Outcome {
    /// The command ended and is not started again.
    Ended(Ending, Box<Event>),
    /// The detach keys.
    Detached(u64),
    /// A signal told us to go.
    Interrupted(u64, u8),
    /// Somebody deleted the session.
    Deleted(u64),
    /// What comes after this event can't be passed on here; the command is left alone.
    OutputLost(u64, Failure),
}

impl Attachment<'_> {
    /// Path of the session.
    pub fn path(&self) -> String {
        session_path(self.sandbox, self.session)
    }

    /// Whether the attempt that ended in `event` was the last one.
    async fn is_over(&self, event: &Event) -> Result<bool> {
        let policy = self.view["spec"]["lifecycle"]["restart"]["policy"].as_str();
        if matches!(policy, None | Some("never"))
            && event.reason.as_deref() != Some("attempt_replaced")
        {
            return Ok(true);
        }
        let path = self.path();
        let now = match self.client.call(Call::get(&path)).await {
            Ok(now) => now,
            Err(failure) if failure.is_missing() => return Ok(true),
            Err(failure) => return Err(failure),
        };
        let same = now["attempt"]["id"].as_str() == event.attempt_id.as_deref();
        Ok(same && matches!(now["phase"].as_str(), Some("exited" | "failed" | "stopped")))
    }
}

/// Watches for the exit that no restart follows.
#[derive(Debug, Default)]
pub struct Exits {
    /// The newest exit, until another attempt starts.
    last: Option<Event>,
}

impl Exits {
    /// Looks at the next event; `Some` once the command is over.
    ///
    /// A session that waits for a restart can still be stopped, or give up: then the exit that
    /// was seen before was the last one.
    pub async fn look(
        &mut self,
        attachment: &Attachment<'_>,
        event: Event,
    ) -> Result<Option<Outcome>> {
        match event.kind.as_str() {
            "attempt.exited" => self.last = Some(event),
            "attempt.starting" => self.last = None,
            kind if kind.starts_with("session.") => {}
            _ => return Ok(None),
        }
        let Some(exit) = &self.last else {
            return Ok(None);
        };
        if !attachment.is_over(exit).await? {
            return Ok(None);
        }
        Ok(self
            .last
            .take()
            .and_then(|exit| Some(Outcome::Ended(exit.ending()?, Box::new(exit)))))
    }
}

/// Path of a session; of a context, that of the session which it is.
pub fn session_path(sandbox: &str, session: &str) -> String {
    if session.starts_with("ctx-") {
        format!("/api/v1/sandboxes/{sandbox}/contexts/{session}/session")
    } else {
        format!("/api/v1/sandboxes/{sandbox}/sessions/{session}")
    }
}

/// Whether a `--timeout` was asked for, so that its passing has a code of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No limit of ours.
    None,
    /// `--timeout`.
    Timeout,
}

/// Tells how it ended and gives the exit code.
pub fn conclude(attachment: &Attachment<'_>, outcome: Outcome, limit: Limit) -> Result<u8> {
    match outcome {
        Outcome::Ended(_, event)
            if limit == Limit::Timeout && event.reason.as_deref() == Some("session_expired") =>
        {
            note("the --timeout passed and the command was stopped");
            Ok(EXIT_TIMEOUT)
        }
        Outcome::Ended(Ending::Code(code), event) => {
            say_who_ended(&event);
            Ok(code)
        }
        Outcome::Ended(Ending::Signal(signal), event) => {
            say_who_ended(&event);
            Ok(128 | signal)
        }
        Outcome::Ended(Ending::StartFailed(message), _) => {
            let what = if message.is_empty() {
                "the command could not be started"
            } else {
                &message
            };
            let mut failure = Failure::new("start_failed", what).not_the_program();
            failure.next = next::after_start(what).map(str::to_owned);
            Err(failure)
        }
        Outcome::Ended(Ending::Unknown(reason), event) => {
            let message = format!(
                "how the command ended is not known ({reason}, event {})",
                event.seq
            );
            Err(Failure::new("exit_unknown", message)
                .with_next(format!(
                    "`outlive session events {} {}` has its output",
                    attachment.sandbox, attachment.session
                ))
                .not_the_program())
        }
        Outcome::Detached(seq) => {
            left_off(attachment, seq);
            Ok(0)
        }
        Outcome::Interrupted(seq, signal) => {
            left_off(attachment, seq);
            Ok(128 | signal)
        }
        Outcome::Deleted(seq) => {
            let message = format!("the session was deleted (last event: {seq})");
            Err(Failure::new("session_deleted", message).not_the_program())
        }
        Outcome::OutputLost(seq, failure) => {
            let words = format!("{} after event {seq}; all of it is kept", failure.message);
            way_back(attachment, seq, &words);
            Err(failure.not_the_program())
        }
    }
}

/// Says why a command ended that did not end by itself: its code alone would not.
fn say_who_ended(event: &Event) {
    let words = match event.reason.as_deref() {
        _ if event.oom == Some(Value::Bool(true)) => {
            "memory ran out, so the command was killed; `outlive sandbox get` shows its sandbox's limit"
        }
        Some("session_expired") => {
            "the command was stopped: its session's idle timeout or lifetime passed"
        }
        Some("readiness_timeout") => "the command was stopped: it was not ready in time",
        Some("desired_state_stopped") => "the command was stopped: somebody stopped its session",
        Some(_) | None => return,
    };
    note(words);
}

/// Says where we left off and how to come back.
pub fn left_off(attachment: &Attachment<'_>, seq: u64) {
    let words = format!("detached after event {seq}; the command goes on.");
    way_back(attachment, seq, &words);
}

fn way_back(attachment: &Attachment<'_>, seq: u64, words: &str) {
    let Attachment {
        sandbox, session, ..
    } = attachment;
    note(&format!(
        "\n{words}\n  \
         come back:  outlive session attach {sandbox} {session} --after {seq}\n  \
         its events: outlive session events {sandbox} {session} --after {seq} --follow\n  \
         stop it:    outlive session stop {sandbox} {session}"
    ));
}
