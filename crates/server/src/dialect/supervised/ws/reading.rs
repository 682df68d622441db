//! The reading side of every WebSocket: pings answered, messages queued for the worker, the end
//! noticed.
//!
//! ```text
//!  socket ─► frames ──┬─ ping ──────────────► pong, to the writer
//!                     ├─ message ─► room? ──► queue of the worker
//!                     │              └ none: the socket is not read until there is
//!                     └─ close, nonsense ───► closing
//!            └─ end of the client's side ───► closing, once what it asked is answered
//! ```
//! A client that sends faster than its requests are carried out is slowed down by its own socket:
//! none of them is refused here, so none is missing between others. While the socket is not read
//! its pongs can't be heard either, and silence says nothing about the client.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{Instant, timeout},
};

use super::{
    frame::{Close, Message, Opcode, Reader, append_frame},
    order::Marks,
};
use crate::limits::{
    MESSAGE_BYTES_MAX, PONG_MAX, WS_COMMANDS_MAX, WS_END_MAX, WS_REQUEST_BYTES_MAX, WS_REQUESTS_MAX,
};

/// What is known of the client, by its reader and its writer.
#[derive(Debug)]
pub(in super::super) struct Peer {
    opened: Instant,
    /// When something was last heard of it, milliseconds after `opened`.
    heard_ms: AtomicU64,
    /// Whether what it sends is left where it is.
    waits: AtomicBool,
}

impl Peer {
    /// One that was just heard.
    pub(in super::super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            heard_ms: AtomicU64::new(0),
            waits: AtomicBool::new(false),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn heard(&self) {
        self.heard_ms.store(self.elapsed_ms(), Ordering::Relaxed);
    }

    /// Whether it should have been heard for too long.
    pub(super) fn is_silent(&self) -> bool {
        let silent_ms = self
            .elapsed_ms()
            .saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        !self.waits.load(Ordering::Relaxed) && u128::from(silent_ms) >= PONG_MAX.as_millis()
    }
}

/// A message that waits for the worker.
#[derive(Debug)]
pub(in super::super) struct Asked<Q> {
    /// What the client asks.
    pub(in super::super) request: Q,
    /// How many refusals of inputs the client had seen when it sent this.
    pub(in super::super) seen: u64,
    /// Its share of the bytes that may wait.
    _budget: OwnedSemaphorePermit,
}

/// The messages that wait, for their worker.
pub(in super::super) type Requests<Q> = mpsc::Receiver<Asked<Q>>;

/// What a connection makes of what it hears: `Q` for its worker, `C` for its writer.
#[derive(Debug)]
pub(in super::super) struct Ear<Q, C> {
    /// Reads a message, or ends the connection.
    pub(in super::super) request: fn(BytesMut) -> Result<Q, Close>,
    /// A whole frame that is to be written.
    pub(in super::super) frame: fn(Vec<u8>) -> C,
}

/// See the module.
pub(in super::super) struct Reading<'a, R, Q, C> {
    socket: R,
    peer: &'a Peer,
    marks: &'a Marks,
    ear: Ear<Q, C>,
    commands: mpsc::Sender<C>,
    /// Nothing more is taken once the connection is closing.
    requests: Option<mpsc::Sender<Asked<Q>>>,
    /// Bounds the bytes of the requests that wait.
    budget: Arc<Semaphore>,
    closing: watch::Sender<Option<Close>>,
}

/// The close that was asked for, when it is.
pub(in super::super) type Closing = watch::Receiver<Option<Close>>;

impl<'a, R: AsyncRead + Unpin, Q, C> Reading<'a, R, Q, C> {
    /// The reader of a socket, the queue that it fills, and how it says that the end is asked for.
    pub(in super::super) fn new(
        socket: R,
        peer: &'a Peer,
        marks: &'a Marks,
        commands: mpsc::Sender<C>,
        ear: Ear<Q, C>,
    ) -> (Self, Requests<Q>, Closing) {
        let (requests, asked) = mpsc::channel(WS_REQUESTS_MAX);
        let (closing, closed) = watch::channel(None);
        let reading = Self {
            socket,
            peer,
            marks,
            ear,
            commands,
            requests: Some(requests),
            budget: Arc::new(Semaphore::new(WS_REQUEST_BYTES_MAX)),
            closing,
        };
        (reading, asked, closed)
    }

    /// Reads until the peer is gone, or until it has sent its last and the writer is done with it:
    /// it may read on. `early` was read together with the handshake.
    pub(in super::super) async fn run(mut self, early: Bytes) {
        let mut buffer = BytesMut::from(early);
        let mut frames = Reader::new(MESSAGE_BYTES_MAX);
        loop {
            while self.requests.is_some() {
                match frames.next(&mut buffer) {
                    Ok(Some(message)) => self.take(message).await,
                    Ok(None) => break,
                    Err(close) => self.close(close),
                }
            }
            if self.requests.is_none() {
                buffer.clear();
            }
            buffer.reserve(8 * 1024);
            match self.socket.read_buf(&mut buffer).await {
                Ok(0) => return self.heard_all().await,
                Err(_) => return,
                Ok(_) => self.peer.heard(),
            }
        }
    }

    async fn take(&mut self, message: Message) {
        match message {
            Message::Pong(payload) => self.marks.saw(&payload),
            Message::Ping(payload) => {
                let mut pong = Vec::new();
                append_frame(Opcode::Pong, &payload, &mut pong);
                if self.commands.send((self.ear.frame)(pong)).await.is_err() {
                    self.requests = None; // The writer ended: nobody answers any more.
                }
            }
            Message::Close => self.close(Close::new(Close::NORMAL, "")),
            Message::Data(data) => self.queue(data).await,
        }
    }

    /// Waits until there is room.
    async fn queue(&mut self, message: BytesMut) {
        // A message is never longer than all that may wait.
        let bytes = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let request = match (self.ear.request)(message) {
            Ok(request) => request,
            Err(close) => return self.close(close),
        };
        let Some(requests) = &self.requests else {
            return;
        };
        let budget = Arc::clone(&self.budget);
        self.peer.waits.store(true, Ordering::Relaxed);
        let taken = match tokio::join!(budget.acquire_many_owned(bytes), requests.reserve()) {
            (Ok(budget), Ok(place)) => {
                place.send(Asked {
                    request,
                    seen: self.marks.seen(),
                    _budget: budget,
                });
                true
            }
            (Err(_), _) | (_, Err(_)) => false,
        };
        self.peer.heard();
        self.peer.waits.store(false, Ordering::Relaxed);
        if !taken {
            self.requests = None; // The worker ended: so does the connection.
        }
    }

    /// The client ended its side, with or without a close frame.
    async fn heard_all(mut self) {
        if self.requests.take().is_some() {
            tokio::select! {
                () = all_answered(&self.budget, &self.commands) => {}
                () = self.closing.closed() => return,
            }
            self.close(Close::new(Close::NORMAL, "the client's side ended"));
        }
        self.closing.closed().await;
    }

    fn close(&mut self, close: Close) {
        self.requests = None;
        self.closing.send_replace(Some(close));
    }
}

/// Returns once the worker has nothing left and the writer has its last answer, or it takes too
/// long.
async fn all_answered<C>(budget: &Semaphore, commands: &mpsc::Sender<C>) {
    let answered = async {
        let all = u32::try_from(WS_REQUEST_BYTES_MAX).unwrap_or(u32::MAX);
        budget.acquire_many(all).await.is_ok()
            && commands.reserve_many(WS_COMMANDS_MAX).await.is_ok()
    };
    if timeout(WS_END_MAX, answered).await != Ok(true) {
        tracing::debug!("a WebSocket's client that ended its side misses answers");
    }
}
