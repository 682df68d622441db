//! Input to a session by calls: each piece once, in order, whatever happens to the answers.

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    client::{Call, Client, wait_before_retry},
    error::{Failure, Result, Retry},
    limits::RECONNECT_DELAY_MAX,
};

/// Whether, and how, the input ends after the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// More may come.
    Open,
    /// End of file follows; for a terminal its character.
    AfterData,
    /// The terminal hangs up, whatever mode it is in.
    Hangup,
}

/// A random identifier: 128 bits in hexadecimal.
pub fn random_id(prefix: &str) -> Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|error| Failure::new("random", format!("no random numbers: {error}")))?;
    Ok(format!("{prefix}{:032x}", u128::from_be_bytes(bits)))
}

/// The body of an input call.
pub fn body(input_id: &str, attempt: Option<&str>, data: &[u8], end: End) -> Value {
    let mut body = json!({"input_id": input_id});
    if let Some(attempt) = attempt {
        body["expected_attempt_id"] = attempt.into();
    }
    if !data.is_empty() {
        body["data_base64"] = base64_simd::STANDARD.encode_to_string(data).into();
    }
    if end != End::Open {
        body["eof"] = true.into();
    }
    if end == End::Hangup {
        body["eof_mode"] = "hangup".into();
    }
    body
}

/// Sends local input to one attempt of a session.
#[derive(Debug)]
pub struct Sender {
    client: Client,
    path: String,
    attempt: Option<String>,
    prefix: String,
    sent: u64,
}

/// Whether the attempt still takes input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// It took this.
    Yes,
    /// It ended, or closed its input.
    NoMore,
}

impl Sender {
    /// Prepares to send to the current attempt.
    pub fn new(client: &Client, session_path: &str, view: &Value) -> Result<Self> {
        Ok(Self {
            client: client.clone(),
            path: format!("{session_path}/inputs"),
            attempt: view["attempt"]["id"].as_str().map(str::to_owned),
            prefix: random_id("in-")?,
            sent: 0,
        })
    }

    /// Closes the command's input.
    pub async fn close(mut self) -> Result<()> {
        self.send(&[], End::AfterData).await.map(|_| ())
    }

    /// Sends everything that comes, then the end of file.
    pub async fn forward(mut self, mut stdin: mpsc::Receiver<Bytes>) -> Result<()> {
        while let Some(chunk) = stdin.recv().await {
            if self.send(&chunk, End::Open).await? == Taken::NoMore {
                return Ok(());
            }
        }
        self.close().await
    }

    /// Sends one piece until it is known to have arrived; its id makes repetitions harmless.
    async fn send(&mut self, data: &[u8], end: End) -> Result<Taken> {
        self.sent += 1;
        let id = format!("{}-{}", self.prefix, self.sent);
        let body = body(&id, self.attempt.as_deref(), data, end);
        loop {
            match self
                .client
                .call(Call::post(&self.path).body(&body).repeatable())
                .await
            {
                Ok(_) => return Ok(Taken::Yes),
                Err(failure) if matches!(failure.status, Some(404 | 409)) => {
                    return Ok(Taken::NoMore);
                }
                // A command that does not read yet, or a server that is away: the follower of
                // the output decides when to give up.
                Err(failure) if failure.retry() == Retry::Later => {
                    tokio::time::sleep(wait_before_retry(&failure, RECONNECT_DELAY_MAX)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}
