//! One open WebSocket.
//!
//! ```text
//!  socket ─► read ──┬─ ping ───────────────────────► commands ─┐
//!                   ├─ message ─► queue ─► work ─► answers ────┤
//!                   └─ close, nonsense ─► closing ─────────────┤
//!  socket ◄───────────────────────────── write ◄───────────────┴── follower: events
//! ```
//! All three run in one task: pings are answered while a request is carried out and while a replay
//! is sent, and requests are read during both, until as many wait as may ([`super::reading`]). What
//! was read is carried out although the client closes right after it, unless its key was revoked.

use std::pin::pin;

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        call::InSession,
        feed::Slice,
        follow::{End, Follower, Next},
    },
    frame::{Close, Opcode, append_frame},
    order::Marks,
    reading::{Closing, Ear, Peer, Reading, Requests},
    requests::{self, Request},
    writer::{WriteError, Writer},
};
use crate::limits::{
    CLOSE_WAIT_MAX, FIRST_FRAME_DELAY, PING_INTERVAL, WS_COMMANDS_MAX, WS_END_MAX, WS_PIECE_BYTES,
};
use crate::sessions::Awake;

/// What a socket needs to be served.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) at: InSession,
    pub(super) follower: Follower,
    pub(super) stop: CancellationToken,
    /// Kept until the socket is closed.
    pub(super) awake: Awake,
}

/// What the writer is given beside events.
#[derive(Debug)]
enum Command {
    /// An answer to a request: a whole frame.
    Answer(Vec<u8>),
    /// A pong: a whole frame.
    Pong(Vec<u8>),
}

impl Connection {
    /// Serves it until it ends. `early` was read together with the handshake.
    pub(super) async fn run(
        self,
        reader: impl AsyncRead + Unpin,
        writer: impl AsyncWrite + Unpin,
        early: Bytes,
    ) {
        let _awake = self.awake;
        let (peer, marks) = (Peer::new(), Marks::default());
        let (commands, commands_in) = mpsc::channel(WS_COMMANDS_MAX);
        let revoked = self.at.caller.revoked.clone();
        let ear = Ear {
            request: requests::read,
            frame: Command::Pong,
        };
        let (reading, requests, closing) =
            Reading::new(reader, &peer, &marks, commands.clone(), ear);
        // In a box, so that what it holds goes with it: the worker ends when nobody asks any more.
        let mut reading = Box::pin(reading.run(early));
        let mut working = pin!(work(&self.at, &marks, requests, commands));
        let writing = Writing {
            socket: Writer::new(writer),
            follower: self.follower,
            peer: &peer,
            commands: commands_in,
            answers: Vec::new(),
            closing,
            pings: pings(),
            stop: self.stop.clone(),
            revoked: revoked.clone(),
        };
        let mut writing = Box::pin(writing.run());
        let (mut read, mut wrote, mut worked) = (false, false, false);
        while !(read || wrote) {
            tokio::select! {
                biased;
                // Whoever may not go on carries nothing more out, and is not waited for long.
                () = revoked.cancelled() => break,
                () = self.stop.cancelled() => break,
                () = &mut reading => read = true,
                () = &mut writing => wrote = true,
                () = &mut working, if !worked => worked = true,
            }
        }
        let goodbye = async {
            if read {
                drop(writing); // The peer is gone: there is nobody to write to.
                return;
            }
            if !wrote {
                writing.await;
            }
            // It may still have to take the close frame; a socket that is dropped with unread
            // bytes is reset, and the frame with it.
            if timeout(CLOSE_WAIT_MAX, reading).await.is_err() {
                tracing::debug!("a WebSocket's client did not close its side");
            }
        };
        let rest = async {
            if !worked {
                tokio::select! {
                    biased;
                    () = revoked.cancelled() => {}
                    () = working => {}
                }
            }
        };
        let end = async { tokio::join!(goodbye, rest) };
        if timeout(WS_END_MAX, end).await.is_err() {
            tracing::debug!("a WebSocket was given up");
        }
    }
}

pub(in super::super) fn pings() -> Interval {
    let mut pings = interval(PING_INTERVAL);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset();
    pings
}

/// Carries requests out, one after the other, also when nobody is left to take the answers.
async fn work(
    at: &InSession,
    marks: &Marks,
    mut requests: Requests<Request>,
    commands: mpsc::Sender<Command>,
) {
    while let Some(asked) = requests.recv().await {
        let answer = asked.request.answer(at, marks, asked.seen).await;
        if commands.send(Command::Answer(answer)).await.is_err() {
            tracing::trace!("a request was carried out for a client that left");
        }
    }
}

/// The writing side: ends with a close frame, or when the peer is gone.
struct Writing<'a, W> {
    socket: Writer<W>,
    follower: Follower,
    peer: &'a Peer,
    commands: mpsc::Receiver<Command>,
    /// Answers that came while events were written.
    answers: Vec<u8>,
    closing: Closing,
    pings: Interval,
    stop: CancellationToken,
    revoked: CancellationToken,
}

/// What the writer does next.
enum Turn {
    Events(Slice),
    Command(Command),
    Answers,
    Ping,
    Close(Close),
}

/// How a turn ended the connection.
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
            let turn = self.turn().await;
            if let Err(over) = self.perform(turn).await {
                break over;
            }
        };
        let Over::Close(close, rest) = over else {
            return;
        };
        // What is shared with others is given back; only the goodbye is left to do.
        let Self {
            mut socket,
            follower,
            ..
        } = self;
        drop(follower);
        if let Err(error) = socket.close(&rest, &close).await {
            tracing::debug!(%error, code = close.code, "a WebSocket ended without its close frame");
        }
    }

    async fn turn(&mut self) -> Turn {
        tokio::select! {
            biased;
            close = closed(&mut self.closing) => Turn::Close(close),
            () = self.stop.cancelled() => Turn::Close(going_away()),
            () = self.revoked.cancelled() => Turn::Close(key_revoked()),
            () = std::future::ready(()), if !self.answers.is_empty() => Turn::Answers,
            Some(command) = self.commands.recv() => Turn::Command(command),
            _ = self.pings.tick() => Turn::Ping,
            next = self.follower.next() => match next {
                Next::Events(slice) => Turn::Events(slice),
                Next::End(end) => Turn::Close(end.into()),
            },
        }
    }

    async fn perform(&mut self, turn: Turn) -> Result<(), Over> {
        match turn {
            Turn::Events(slice) => self.events(&slice).await,
            Turn::Command(Command::Pong(frame)) => self.frame(&frame).await,
            Turn::Command(Command::Answer(frame)) => {
                self.answers.extend_from_slice(&frame);
                self.answer().await
            }
            Turn::Answers => self.answer().await,
            Turn::Ping => self.ping(self.sent()).await,
            Turn::Close(close) => Err(self.last_words(close)),
        }
    }

    /// A close behind the answers that were not written yet.
    fn last_words(&mut self, close: Close) -> Over {
        Over::Close(close, std::mem::take(&mut self.answers))
    }

    /// Writes the answers that are there.
    async fn answer(&mut self) -> Result<(), Over> {
        while let Ok(more) = self.commands.try_recv() {
            let (Command::Answer(frame) | Command::Pong(frame)) = more;
            self.answers.extend_from_slice(&frame);
        }
        let frames = std::mem::take(&mut self.answers);
        // What an operation caused is journalled before its answer; show it first.
        if let Some(slice) = self.follower.ready() {
            self.events(&slice).await?;
        }
        self.frame(&frames).await
    }

    async fn ping(&mut self, last: u64) -> Result<(), Over> {
        if self.socket.is_gone(self.peer) {
            return Err(Over::Close(too_slow("no pong", last), Vec::new()));
        }
        let mut frame = Vec::new();
        append_frame(Opcode::Ping, b"", &mut frame);
        self.frame(&frame).await
    }

    /// Writes events piece by piece, and looks around in between: a slow client takes its time.
    async fn events(&mut self, slice: &Slice) -> Result<(), Over> {
        let bytes = slice.bytes();
        let mut begin = 0;
        while begin < bytes.len() {
            let upto = bytes.len().min(begin + WS_PIECE_BYTES);
            let end = slice.event_at(upto).map_or(bytes.len(), |(_, end)| end);
            let piece = bytes.get(begin..end).unwrap_or_default();
            match self.socket.write(piece).await {
                Ok(()) => begin = end,
                Err(WriteError::Gone) => return Err(Over::Gone),
                Err(WriteError::Stalled(written)) => {
                    // The frame that is half way out has to be finished before another may follow.
                    let written = begin + written;
                    let (last, end) = slice
                        .event_at(written)
                        .unwrap_or_else(|| (slice.before(), written));
                    let rest = bytes.get(written..end).unwrap_or_default().to_vec();
                    return Err(Over::Close(too_slow("too slow", last), rest));
                }
            }
            if begin < bytes.len() {
                let last = slice
                    .event_at(begin)
                    .map_or_else(|| slice.before(), |(seq, _)| seq);
                self.look_around(last).await?;
            }
        }
        Ok(())
    }

    /// What can't wait until all events of a slice are written; `last` is written already.
    async fn look_around(&mut self, last: u64) -> Result<(), Over> {
        let close = self.closing.borrow().clone();
        if let Some(close) = close.or_else(|| self.ended()) {
            return Err(self.last_words(close));
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Pong(frame) => self.frame(&frame).await?,
                // What it was the cause of may be among the events to come.
                Command::Answer(frame) => self.answers.extend_from_slice(&frame),
            }
        }
        match self.pings.tick().now_or_never() {
            Some(_) => self.ping(last).await,
            None => Ok(()),
        }
    }

    fn ended(&self) -> Option<Close> {
        if self.revoked.is_cancelled() {
            Some(key_revoked())
        } else {
            self.stop.is_cancelled().then(going_away)
        }
    }

    /// Writes whole frames that are no events.
    async fn frame(&mut self, frames: &[u8]) -> Result<(), Over> {
        match self.socket.write(frames).await {
            Ok(()) => Ok(()),
            Err(WriteError::Gone) => Err(Over::Gone),
            Err(WriteError::Stalled(written)) => {
                let rest = frames.get(written..).unwrap_or_default().to_vec();
                let close = too_slow("too slow", self.sent());
                Err(Over::Close(close, rest))
            }
        }
    }

    /// The last event that was written in full.
    const fn sent(&self) -> u64 {
        self.follower.cursor()
    }
}

fn going_away() -> Close {
    Close::new(Close::AWAY, "server going away")
}

fn key_revoked() -> Close {
    Close::new(Close::POLICY, "key revoked")
}

fn too_slow(what: &str, last: u64) -> Close {
    Close::new(Close::TRY_AGAIN, format!("{what}; last seq {last}"))
}

/// The close that was asked for, when it is.
pub(in super::super) async fn closed(closing: &mut Closing) -> Close {
    let close = match closing.wait_for(Option::is_some).await {
        Ok(close) => close.clone(),
        // The reading side ends the connection by itself when it ends.
        Err(_) => None,
    };
    match close {
        Some(close) => close,
        None => std::future::pending().await,
    }
}

impl From<End> for Close {
    fn from(end: End) -> Self {
        match end {
            End::Deleted => Self::new(Self::NORMAL, "session deleted"),
            End::Exited => Self::new(Self::NORMAL, "attempt exited"),
            End::Expired { earliest } => Self::new(
                Self::TRY_AGAIN,
                format!("event cursor expired; earliest available sequence is {earliest}"),
            ),
            End::Failed(message) => {
                tracing::warn!(message, "a journal can't be followed");
                Self::new(Self::INTERNAL, "events can't be read")
            }
        }
    }
}
