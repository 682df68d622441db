//! The local terminal handed to a session, over WebSocket.
//!
//! One input is under way at a time; what is typed meanwhile is sent together once it is
//! acknowledged. So keys never overtake each other, and after a broken connection the same input
//! with the same id is sent again, which the server knows and writes once.

use std::{collections::VecDeque, pin::Pin};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::Stdout,
    signal::unix::{Signal, SignalKind},
    sync::mpsc,
};

use super::{
    Attachment, Exits, Outcome, Stdin,
    ending::Ending,
    input::{End, body, random_id},
    replay::Replay,
    standstill::Standstill,
};
use crate::{
    client::wait_before_retry,
    clock::Stopwatch,
    error::{Failure, Result, Retry},
    event::Event,
    limits::{CONNECTION_STOOD, RECONNECT_DELAY_INITIAL, RECONNECT_DELAY_MAX, STDIN_CHUNK_BYTES},
    output::{is_about_output, note, pass_on},
    signals::{Signals, listen},
    socket::Socket,
    terminal::{Detach, RawMode, Typed, read_stdin, size, stdin_is_terminal},
};

/// Stays connected until the command has ended, or the user or a signal wants to go.
pub async fn attach(attachment: &Attachment<'_>) -> Result<Outcome> {
    let mut signals = Signals::listen()?;
    let mut screen = Screen::new(attachment)?;
    let raw = screen.has_keyboard.then(RawMode::enter).transpose()?;
    let outcome = tokio::select! {
        biased;
        signal = signals.next() => Ok(Outcome::Interrupted(screen.cursor, signal)),
        outcome = screen.stay() => outcome,
    };
    drop(raw);
    outcome
}

/// A message of the server.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Message {
    Event {
        event: Event,
    },
    Ack {
        #[serde(default)]
        request_id: String,
    },
    Error {
        #[serde(default)]
        request_id: String,
        #[serde(default)]
        code: String,
        #[serde(default)]
        error: String,
    },
    #[serde(other)]
    Unknown,
}

/// Input that was taken from the keyboard and waits for its ack.
struct Sent {
    request_id: String,
    message: Value,
}

/// How far our input is.
enum Input {
    /// More may come.
    Open,
    /// It has ended, which is told once everything before it has arrived.
    Ended,
    /// Its end is being told.
    Telling(Pin<Box<dyn Future<Output = Result<()>> + Send>>),
    /// There is nothing more to tell.
    Told,
}

struct Screen<'a, 'b> {
    attachment: &'a Attachment<'b>,
    cursor: u64,
    /// Events up to here are older than our being connected.
    replay_until: u64,
    replay: Replay,
    stdout: Stdout,
    stdin: Option<mpsc::Receiver<Bytes>>,
    /// Our input is a terminal. Found out early: one that is gone is none any more.
    has_keyboard: bool,
    typed: Typed,
    waiting: VecDeque<u8>,
    input: Input,
    sent: Option<Sent>,
    id_prefix: String,
    ids: u64,
    resized: Signal,
    exits: Exits,
    standstill: Standstill,
}

impl<'a, 'b> Screen<'a, 'b> {
    fn new(attachment: &'a Attachment<'b>) -> Result<Self> {
        let latest = attachment.view["cursor"]["latest"].as_u64().unwrap_or(0);
        let (stdin, input) = match attachment.stdin {
            Stdin::Forward => (Some(read_stdin()), Input::Open),
            Stdin::Closed => (None, Input::Ended),
            Stdin::Untouched => (None, Input::Open),
        };
        Ok(Self {
            attachment,
            cursor: attachment.after,
            // What a command of our own has written is for us: its questions are answered.
            replay_until: if attachment.after == 0 { 0 } else { latest },
            replay: Replay::default(),
            stdout: tokio::io::stdout(),
            stdin,
            has_keyboard: attachment.stdin == Stdin::Forward && stdin_is_terminal(),
            typed: Typed::new(&attachment.detach_keys),
            waiting: VecDeque::new(),
            input,
            sent: None,
            id_prefix: random_id("key-")?,
            ids: 0,
            resized: listen(SignalKind::window_change())?,
            exits: Exits::default(),
            standstill: Standstill::new(attachment),
        })
    }

    /// Connects again and again until there is an outcome.
    async fn stay(&mut self) -> Result<Outcome> {
        let mut delay = RECONNECT_DELAY_INITIAL;
        let mut lost = Stopwatch::start();
        loop {
            let path = format!("{}/ws", self.attachment.path());
            let failure = match Socket::open(self.attachment.client, &path, self.cursor).await {
                Err(failure) if failure.is_missing() && self.cursor > 0 => {
                    return Ok(Outcome::Deleted(self.cursor));
                }
                Err(failure) => failure,
                Ok(mut socket) => {
                    let (before, opened) = (self.cursor, Stopwatch::start());
                    let failure = match self.talk(&mut socket).await {
                        Ok(outcome) => return Ok(outcome),
                        Err(failure) => failure,
                    };
                    // What brought events, or stood for a while, was a good connection.
                    if self.cursor > before || opened.elapsed() >= CONNECTION_STOOD {
                        lost = Stopwatch::start();
                        delay = RECONNECT_DELAY_INITIAL;
                    }
                    failure
                }
            };
            if is_about_output(&failure) {
                return Ok(Outcome::OutputLost(self.cursor, failure));
            }
            let patience = self.attachment.patience;
            let over = patience.is_some_and(|patience| lost.elapsed() >= patience);
            if failure.retry() == Retry::Useless || over {
                let mut failure = failure;
                failure.message = format!("{} (last event: {})", failure.message, self.cursor);
                return Err(failure);
            }
            tokio::time::sleep(wait_before_retry(&failure, delay)).await;
            delay = (delay * 2).min(RECONNECT_DELAY_MAX);
        }
    }

    /// Talks over one connection; a failure means that it broke.
    async fn talk(&mut self, socket: &mut Socket) -> Result<Outcome> {
        if let Some(sent) = &self.sent {
            socket.send(&sent.message).await?;
        }
        self.send_size(socket).await?;
        loop {
            self.send_input(socket).await?;
            self.tell_end()?;
            let hungry = self.waiting.len() < STDIN_CHUNK_BYTES;
            tokio::select! {
                text = socket.receive() => {
                    if let Some(outcome) = self.heard(&text?).await? {
                        return Ok(outcome);
                    }
                }
                _ = self.resized.recv() => self.send_size(socket).await?,
                chunk = next_chunk(&mut self.stdin), if hungry => {
                    if self.typed(chunk) == Detach::Yes {
                        return Ok(Outcome::Detached(self.cursor));
                    }
                }
                // A sandbox that stands still is not woken for it.
                told = told(&mut self.input), if !self.standstill.stands() => {
                    self.input = Input::Told;
                    if let Err(failure) = told {
                        note(&format!("the command was not told that its input ended: {failure}"));
                    }
                }
            }
        }
    }

    fn typed(&mut self, chunk: Option<Bytes>) -> Detach {
        let Some(chunk) = chunk else {
            self.stdin = None;
            if self.has_keyboard {
                // Keys have no end: our terminal is gone, and the command is not to notice.
                return Detach::Yes;
            }
            self.input = Input::Ended;
            return Detach::No;
        };
        let (bytes, detach) = self.typed.pass(&chunk);
        // What is typed during a replay answers what the replay shows, not the program.
        if self.cursor >= self.replay_until {
            self.waiting.extend(bytes);
        }
        detach
    }

    async fn send_size(&mut self, socket: &mut Socket) -> Result<()> {
        let Some(size) = size().filter(|_| self.attachment.stdin == Stdin::Forward) else {
            return Ok(());
        };
        let request_id = self.request_id();
        let resize = json!({
            "type": "resize", "request_id": request_id, "rows": size.rows, "cols": size.cols,
        });
        socket.send(&resize).await
    }

    async fn send_input(&mut self, socket: &mut Socket) -> Result<()> {
        if self.sent.is_some() || self.waiting.is_empty() {
            return Ok(());
        }
        let data: Vec<u8> = self.waiting.drain(..).collect();
        let request_id = self.request_id();
        let mut message = body(
            &format!("{}-{}", self.id_prefix, self.ids),
            None,
            &data,
            End::Open,
        );
        message["type"] = "input".into();
        message["request_id"] = request_id.clone().into();
        let sent = self.sent.insert(Sent {
            request_id,
            message,
        });
        socket.send(&sent.message).await
    }

    /// Begins to tell the end of our input once it is due.
    fn tell_end(&mut self) -> Result<()> {
        let all_arrived = self.sent.is_none() && self.waiting.is_empty();
        if matches!(self.input, Input::Ended) && all_arrived {
            let ending = Ending::new(self.attachment.client, &self.attachment.path())?;
            self.input = Input::Telling(Box::pin(ending.tell()));
        }
        Ok(())
    }

    fn request_id(&mut self) -> String {
        self.ids += 1;
        format!("r{}", self.ids)
    }

    async fn heard(&mut self, text: &str) -> Result<Option<Outcome>> {
        let message = serde_json::from_str(text)
            .map_err(|error| Failure::protocol(format!("a message can't be read: {error}")))?;
        match message {
            Message::Event { event } => self.show(event).await,
            Message::Ack { request_id } => {
                self.answered(&request_id);
                Ok(None)
            }
            Message::Error {
                request_id,
                code,
                error,
            } => {
                let known = self
                    .sent
                    .as_ref()
                    .is_some_and(|sent| sent.request_id == request_id);
                if known && may_pass(&code) {
                    // The same input again, a little later, over a new connection.
                    return Err(Failure::new("transport", error));
                }
                if known {
                    note(&format!("what was typed did not arrive: {error} ({code})"));
                }
                self.answered(&request_id);
                Ok(None)
            }
            Message::Unknown => Ok(None),
        }
    }

    fn answered(&mut self, request_id: &str) {
        if self
            .sent
            .as_ref()
            .is_some_and(|sent| sent.request_id == request_id)
        {
            self.sent = None;
        }
    }

    async fn show(&mut self, event: Event) -> Result<Option<Outcome>> {
        if event.seq <= self.cursor {
            return Ok(None);
        }
        if event.seq > self.cursor + 1 && event.kind != "journal.gap" && self.cursor > 0 {
            let message = format!(
                "events {} to {} are missing",
                self.cursor + 1,
                event.seq - 1
            );
            return Err(Failure::new("events_missing", message));
        }
        if event.kind == "journal.gap" {
            note(&format!(
                "output is missing: {}",
                event.reason.as_deref().unwrap_or("a gap")
            ));
        }
        if let Some(bytes) = event.bytes()? {
            if event.seq <= self.replay_until {
                pass_on(&mut self.stdout, &self.replay.pass(&bytes)).await?;
            } else {
                let held = self.replay.finish();
                pass_on(&mut self.stdout, &[held, bytes].concat()).await?;
            }
        }
        self.cursor = event.seq;
        if let Some(said) = self.standstill.look(self.attachment, &event).await {
            // The terminal may be raw.
            note(&format!("{}\r", said.replace('\n', "\r\n")));
        }
        self.exits.look(self.attachment, event).await
    }
}

/// Whether the same input may be taken a little later.
fn may_pass(code: &str) -> bool {
    matches!(
        code,
        "input_buffer_full" | "unavailable" | "sandbox_resume_failed"
    )
}

async fn next_chunk(stdin: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match stdin {
        Some(stdin) => stdin.recv().await,
        None => std::future::pending().await,
    }
}

async fn told(input: &mut Input) -> Result<()> {
    match input {
        Input::Telling(telling) => telling.await,
        Input::Open | Input::Ended | Input::Told => std::future::pending().await,
    }
}
