//! A context's WebSocket: what its process writes as text, its end, and input, signals and sizes
//! the other way.
//!
//! ```text
//!  socket ─► read ──┬─ ping ────────────────────────► commands ─┐
//!                   ├─ message ─► queue ─► work ─► answers ─────┤
//!                   └─ close, nonsense ─► closing ──────────────┤
//!  socket ◄──────────────────────────── write ◄─────────────────┴── journal: output, the end
//! ```
//! A command is shown from its beginning, so that a client that creates it and attaches then
//! misses nothing; an interpreter from now on. `?after=` goes on behind an event. The connection
//! ends with the process; closing it never ends the process or its input.

use std::pin::pin;

use axum::{extract::Request as HttpRequest, response::Response};
use bytes::{Bytes, BytesMut};
use outlive_api::{
    agent::Request,
    context::{ContextClientMessage, ContextServerMessage},
    error::{Action, ApiError, ErrorEnvelope},
    limits::{INPUT_BYTES_MAX, REQUEST_ID_CHARS_MAX},
    session::{ResizeRequest, SignalRequest},
};
use outlive_core::{
    event::Kind,
    session::{EofMode, Phase, Session},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Interval, sleep, timeout},
};

use super::{
    super::{
        call::may_write,
        control::{parse_resize, parse_signal},
        cursor,
        ws::{
            self, Talk,
            frame::{Close, Opcode, append_frame},
            handshake,
            order::Marks,
            reading::{Asked, Closing, Ear, Peer, Reading, Requests},
            writer::{WriteError, Writer},
        },
    },
    call::{InContext, context_error},
    show::Show,
    watch::{Ended, Told, Watch},
};
use crate::{
    http::{extract::Query, reply::Failure},
    limits::{CLOSE_WAIT_MAX, FIRST_FRAME_DELAY, WS_COMMANDS_MAX, WS_END_MAX},
};

/// Attaches to the context: the server sends `ContextServerMessage`s, the client
/// `ContextClientMessage`s. A command is shown from its beginning, an interpreter from now on.
/// Closing ends neither the process nor its input. Wakes the sandbox unless the process ended.
#[utoipa::path(
    get,
    path = "/api/v1/sandboxes/{id}/contexts/{ctx_id}/ws",
    operation_id = "attachContext",
    tag = "contexts",
    params(
        ("id" = String, Path, description = "The sandbox"),
        ("ctx_id" = String, Path, description = "The context"),
        ("after" = Option<u64>, Query, description = "Go on after this event. Not in the vendor's API"),
        ("hold" = Option<bool>, Query, description = "`false`: don't keep the sandbox from falling asleep"),
    ),
    responses(
        (status = 101, description = "Messages follow, as text: `ContextServerMessage` from here, `ContextClientMessage` from there"),
        (status = "default", description = "An error", body = ErrorEnvelope),
    ),
)]
pub(super) async fn attach(
    at: InContext,
    query: Query,
    mut request: HttpRequest,
) -> Result<Response, Failure> {
    let action = Action::AttachContext;
    let accept = handshake::check(request.method(), request.headers())?;
    let after = query.number("after", 0, u64::MAX)?;
    let hold = match query.get("hold") {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(ApiError::invalid("hold must be true or false").into()),
    };
    let mut session = at.now(action).await?;
    if !is_over(&session) && may_write(&at.caller).is_ok() {
        let woken = at.sandbox.wake().await;
        woken.map_err(|error| context_error(action, error))?;
        session = at.now(action).await?;
    }
    let from = match (after, session.kind()) {
        (None, Some(Kind::Interpreter { .. })) => None,
        (None, Some(Kind::Command) | None) => Some(0),
        (Some(after), _) => {
            let tail = at.sandbox.tail(&at.session).await;
            let tail = tail.map_err(|error| context_error(action, error))?;
            let tail = *tail.borrow();
            Some(cursor::resolve(Some(after), &tail)?)
        }
    };
    let mut watch = Watch::start(&at, action, from).await?;
    if !hold {
        watch.let_sleep();
    }
    let talk = Attached {
        show: Show::new(&session, watch.latest()),
        watch,
        at: at.clone(),
    };
    Ok(ws::switch(&at.state, &mut request, accept, talk)?)
}

/// Whether nothing of it runs or will run by itself.
fn is_over(session: &Session) -> bool {
    matches!(
        session.phase(),
        Phase::Exited | Phase::Failed | Phase::Stopped
    )
}

struct Attached {
    at: InContext,
    watch: Watch,
    show: Show,
}

/// What the writer is given beside output.
enum Command {
    /// Whole frames.
    Frames(Vec<u8>),
    /// The interpreter's readiness after this input is told.
    Expect { request_id: String, lines: usize },
}

impl Talk for Attached {
    async fn run<R, W>(self, reader: R, writer: W, early: Bytes)
    where
        R: AsyncRead + Unpin + Send,
        W: AsyncWrite + Unpin + Send,
    {
        let (peer, marks) = (Peer::new(), Marks::default());
        let (commands, commands_in) = mpsc::channel(WS_COMMANDS_MAX);
        let ear = Ear {
            request: Ok,
            frame: Command::Frames,
        };
        let (reading, requests, closing) =
            Reading::new(reader, &peer, &marks, commands.clone(), ear);
        let writing = Writing {
            socket: Writer::new(writer),
            watch: self.watch,
            show: self.show,
            commands: commands_in,
            closing,
            peer: &peer,
            pings: ws::pings(),
        };
        // In a box, so that what it holds goes with it: the worker ends when nobody asks any more.
        let mut reading = Box::pin(reading.run(early));
        let mut working = pin!(work(&self.at, &marks, requests, commands));
        let mut writing = Box::pin(writing.run());
        let (mut read, mut worked) = (false, false);
        loop {
            tokio::select! {
                biased;
                () = &mut reading => { read = true; break }
                () = &mut writing => break,
                () = &mut working, if !worked => worked = true,
            }
        }
        drop(writing);
        // What was asked before the client left is carried out; the close frame is waited for.
        let end = async {
            if !worked && !self.at.caller.revoked.is_cancelled() {
                working.await;
            }
        };
        let goodbye = async {
            if !read && timeout(CLOSE_WAIT_MAX, reading).await.is_err() {
                tracing::debug!("a context's client did not close its side");
            }
        };
        let both = async { tokio::join!(goodbye, end) };
        if timeout(WS_END_MAX, both).await.is_err() {
            tracing::debug!("a context's WebSocket was given up");
        }
    }
}

/// Carries requests out, one after the other, also when nobody is left to take the answers.
async fn work(
    at: &InContext,
    marks: &Marks,
    mut requests: Requests<BytesMut>,
    commands: mpsc::Sender<Command>,
) {
    while let Some(asked) = requests.recv().await {
        let frames = answer(at, marks, &asked, &commands).await;
        if commands.send(Command::Frames(frames)).await.is_err() {
            tracing::trace!("a request was carried out for a client that left");
        }
    }
}

async fn answer(
    at: &InContext,
    marks: &Marks,
    asked: &Asked<BytesMut>,
    commands: &mpsc::Sender<Command>,
) -> Vec<u8> {
    let parsed = match serde_json::from_slice(&asked.request) {
        Ok(parsed) => parsed,
        Err(error) => {
            let error = ApiError::invalid(format!("invalid message: {error}"));
            return frame(&answered(None, &Err(error)));
        }
    };
    let action = Action::AttachContext;
    match parsed {
        ContextClientMessage::Input {
            request_id,
            data,
            data_base64,
            eof,
        } => {
            if let Err(behind) = marks.admit(asked.seen) {
                return frame(&answered(request_id, &Err(behind)));
            }
            let done = input(at, commands, request_id.as_ref(), data, data_base64, eof).await;
            let mut frames = frame(&answered(request_id, &done));
            marks.note(&done, &mut frames);
            frames
        }
        ContextClientMessage::Signal { request_id, signal } => {
            let signal = SignalRequest {
                signal,
                expected_attempt_id: None,
            };
            let request = parse_signal(&at.session, &signal);
            frame(&answered(request_id, &ask(at, action, request).await))
        }
        ContextClientMessage::Resize {
            request_id,
            rows,
            cols,
        } => {
            let size = ResizeRequest {
                rows,
                cols,
                expected_attempt_id: None,
            };
            let request = parse_resize(&at.session, &size);
            frame(&answered(request_id, &ask(at, action, request).await))
        }
    }
}

async fn ask(
    at: &InContext,
    action: Action,
    request: Result<Request, ApiError>,
) -> Result<(), ApiError> {
    at.call(action, request?).await.map(drop)
}

async fn input(
    at: &InContext,
    commands: &mpsc::Sender<Command>,
    request_id: Option<&String>,
    data: Option<String>,
    data_base64: Option<String>,
    eof: Option<bool>,
) -> Result<(), ApiError> {
    if request_id.is_some_and(|id| id.chars().count() > REQUEST_ID_CHARS_MAX) {
        return Err(ApiError::invalid(format!(
            "request_id is longer than {REQUEST_ID_CHARS_MAX} characters"
        )));
    }
    let data = match (data, data_base64) {
        (Some(data), None) => data.into_bytes(),
        (None, Some(text)) => base64_simd::STANDARD
            .decode_to_vec(text.as_bytes())
            .map_err(|_| ApiError::invalid("data_base64 is not standard base64"))?,
        (None, None) => Vec::new(),
        (Some(_), Some(_)) => return Err(ApiError::invalid("give data or data_base64")),
    };
    let eof = (eof == Some(true)).then_some(EofMode::Character);
    if data.is_empty() && eof.is_none() {
        return Err(ApiError::invalid("data is required"));
    }
    if data.len() > INPUT_BYTES_MAX {
        return Err(ApiError::too_large(format!(
            "input is larger than {INPUT_BYTES_MAX} bytes"
        )));
    }
    let lines = data.split(|byte| *byte == b'\n').count() - 1;
    if let Some(request_id) = request_id.filter(|_| lines > 0) {
        // Before the write: its answer may come at once.
        let expect = Command::Expect {
            request_id: request_id.clone(),
            lines,
        };
        if commands.send(expect).await.is_err() {
            tracing::trace!("nobody waits for the interpreter any more");
        }
    }
    let written = at.write(Action::WriteContext, None, data, eof).await;
    written.map(drop)
}

fn answered(request_id: Option<String>, done: &Result<(), ApiError>) -> ContextServerMessage {
    let request_id = request_id.filter(|id| !id.is_empty());
    match done {
        Ok(()) => ContextServerMessage::Ack { request_id },
        Err(error) => ContextServerMessage::Error {
            request_id,
            error: error.message.to_string(),
            code: error.code.as_str().to_owned(),
        },
    }
}

fn frame(message: &ContextServerMessage) -> Vec<u8> {
    let mut out = Vec::new();
    // Texts and numbers, which always can be written.
    let text = serde_json::to_vec(message).unwrap_or_default();
    append_frame(Opcode::Text, &text, &mut out);
    out
}

/// The writing side: ends with a close frame, or when the peer is gone.
struct Writing<'a, W> {
    socket: Writer<W>,
    watch: Watch,
    show: Show,
    commands: mpsc::Receiver<Command>,
    closing: Closing,
    peer: &'a Peer,
    pings: Interval,
}

/// How a connection ended.
enum Over {
    Gone,
    /// Close, after what is left of a frame.
    Close(Close, Vec<u8>),
}

impl<W: AsyncWrite + Unpin> Writing<'_, W> {
    async fn run(mut self) {
        // Some clients lose what comes in one read with the answer to their handshake.
        sleep(FIRST_FRAME_DELAY).await;
        let over = loop {
            if let Err(over) = self.turn().await {
                break over;
            }
        };
        let Over::Close(close, rest) = over else {
            return;
        };
        if let Err(error) = self.socket.close(&rest, &close).await {
            tracing::debug!(%error, code = close.code, "a context's WebSocket ended without its close frame");
        }
    }

    async fn turn(&mut self) -> Result<(), Over> {
        if let Some(done) = self.show.known_end(self.watch.cursor()) {
            return self.finish(done).await;
        }
        tokio::select! {
            biased;
            close = ws::closed(&mut self.closing) => Err(Over::Close(close, Vec::new())),
            Some(command) = self.commands.recv() => match command {
                Command::Frames(frames) => self.write(&frames).await,
                Command::Expect { request_id, lines } => {
                    self.show.expect(request_id, lines);
                    Ok(())
                }
            },
            _ = self.pings.tick() => self.ping().await,
            told = self.watch.next() => match told {
                Ok(told) => self.tell(told).await,
                Err(ended) => Err(Over::Close(ended.into(), Vec::new())),
            },
        }
    }

    async fn tell(&mut self, told: Vec<Told>) -> Result<(), Over> {
        for told in told {
            let mut frames = Vec::new();
            let end = self.show.tell(told, &mut |message| {
                frames.extend_from_slice(&frame(message));
            });
            self.write(&frames).await?;
            if let Some(done) = end {
                return self.finish(done).await;
            }
        }
        Ok(())
    }

    /// The process ended: that is said, and the connection ends.
    async fn finish(&mut self, done: ContextServerMessage) -> Result<(), Over> {
        self.write(&frame(&done)).await?;
        let close = Close::new(Close::NORMAL, "context exited");
        Err(Over::Close(close, Vec::new()))
    }

    async fn ping(&mut self) -> Result<(), Over> {
        if self.socket.is_gone(self.peer) {
            return Err(Over::Close(self.too_slow("no pong"), Vec::new()));
        }
        let mut frame = Vec::new();
        append_frame(Opcode::Ping, b"", &mut frame);
        self.write(&frame).await
    }

    async fn write(&mut self, frames: &[u8]) -> Result<(), Over> {
        match self.socket.write(frames).await {
            Ok(()) => Ok(()),
            Err(WriteError::Gone) => Err(Over::Gone),
            Err(WriteError::Stalled(written)) => {
                let rest = frames.get(written..).unwrap_or_default().to_vec();
                Err(Over::Close(self.too_slow("too slow"), rest))
            }
        }
    }

    fn too_slow(&self, what: &str) -> Close {
        let last = self.watch.cursor();
        Close::new(Close::TRY_AGAIN, format!("{what}; last seq {last}"))
    }
}

impl From<Ended> for Close {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Deleted => Self::new(Self::NORMAL, "context deleted"),
            Ended::Stopped => Self::new(Self::AWAY, "server going away"),
            Ended::Revoked => Self::new(Self::POLICY, "key revoked"),
            Ended::NoRoom(error) => Self::new(Self::AWAY, error.to_string()),
            Ended::Failed(message) => {
                tracing::warn!(message, "a journal can't be followed");
                Self::new(Self::INTERNAL, "events can't be read")
            }
        }
    }
}
