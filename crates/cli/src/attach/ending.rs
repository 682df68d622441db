//! The end of our input, told to a terminal until the command has taken it.
//!
//! A pipe that was closed stays closed. A terminal knows an end only as a character, which one read
//! sees and no other, and a program that reads single keys doesn't know it at all. So it is told
//! again, after ever longer waits, as long as the command goes on:
//!
//! ```text
//!   end of file ──taken──► wait, twice as long each time ──► end of file
//!        └──it reads keys──► type ctrl-d, wait ──► end of file ──it reads keys──► hang up
//! ```
//! Shells and interpreters that edit their lines leave at the key, by themselves and after what was
//! typed before; for what doesn't, a terminal that hangs up is the end in every mode.

use std::time::Duration;

use super::input::{End, body, random_id};
use crate::{
    client::{Call, Client, wait_before_retry},
    error::{Failure, Result, Retry},
    limits::{END_DELAY_INITIAL, END_KEY_GRACE},
    output::note,
};

/// What is typed at a program that reads keys.
const CTRL_D: &[u8] = b"\x04";

/// Tells the end.
#[derive(Debug)]
pub struct Ending {
    client: Client,
    path: String,
    prefix: String,
    sent: u64,
    delay: Duration,
    key: Key,
}

/// Whether the key was typed and nothing came of it yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Untried,
    Typed,
}

/// What came of one try.
#[derive(Debug)]
enum Tried {
    /// The terminal has it.
    Taken,
    /// Its program reads keys.
    ReadsKeys,
    /// Nothing takes it at this time; how long to wait, if the server said so.
    NotNow(Option<Duration>),
    /// There is nobody to tell any more.
    Gone,
}

impl Ending {
    /// Prepares to tell it to whatever runs in this session.
    pub fn new(client: &Client, session_path: &str) -> Result<Self> {
        Ok(Self {
            client: client.clone(),
            path: format!("{session_path}/inputs"),
            prefix: random_id("end-")?,
            sent: 0,
            delay: END_DELAY_INITIAL,
            key: Key::Untried,
        })
    }

    /// Tells it until there is nothing more to tell.
    pub async fn tell(mut self) -> Result<()> {
        loop {
            let wait = match (self.send(&[], End::AfterData).await?, self.key) {
                (Tried::Gone, _) => return Ok(()),
                (Tried::NotNow(Some(wait)), _) => wait,
                (Tried::NotNow(None), _) => self.longer(),
                (Tried::Taken, _) => {
                    self.key = Key::Untried;
                    self.longer()
                }
                (Tried::ReadsKeys, Key::Untried) => {
                    if matches!(self.send(CTRL_D, End::Open).await?, Tried::Taken) {
                        self.key = Key::Typed;
                    }
                    END_KEY_GRACE
                }
                (Tried::ReadsKeys, Key::Typed) => {
                    // Before it is done: the end of the command may be here before the answer.
                    note("the input has ended; the command reads keys, so its terminal hangs up");
                    if matches!(self.send(&[], End::Hangup).await?, Tried::Taken) {
                        return Ok(());
                    }
                    self.longer()
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// How long to wait now: the number of tries must not grow with time.
    fn longer(&mut self) -> Duration {
        let now = self.delay;
        self.delay = now.saturating_mul(2);
        now
    }

    async fn send(&mut self, data: &[u8], end: End) -> Result<Tried> {
        self.sent += 1;
        let id = format!("{}-{}", self.prefix, self.sent);
        let body = body(&id, None, data, end);
        let call = Call::post(&self.path).body(&body).repeatable();
        match self.client.call(call).await {
            Ok(_) => Ok(Tried::Taken),
            Err(failure) if failure.is_missing() => Ok(Tried::Gone),
            Err(failure) if failure.reason() == Some("raw_terminal") => Ok(Tried::ReadsKeys),
            Err(failure) => not_now(failure),
        }
    }
}

fn not_now(failure: Failure) -> Result<Tried> {
    match (failure.status, failure.retry()) {
        // It waits for its restart, or its end is on its way to us.
        (Some(409), _) => Ok(Tried::NotNow(None)),
        (_, Retry::Later) => {
            let wait = wait_before_retry(&failure, END_DELAY_INITIAL);
            Ok(Tried::NotNow(Some(wait)))
        }
        (_, Retry::Useless) => Err(failure),
    }
}
