//! The supervisor's side of the link: one unix socket, any number of servers one after another.
//!
//! ```text
//!   accept ─► hello ─► read frames ─► one task per call ─┐
//!                                      Watch ─► Moved,Gone ├─► replies (bounded) ─► socket
//! ```
//! A call that waits for a child never holds up another: each has its own task, and replies go
//! out in whatever order they come. A link that sends faster than we answer is not read for a
//! while; a link that doesn't read its replies makes only its own calls wait.

mod codec;
mod pace;

use std::{io, rc::Rc, sync::Arc};

use outlive_api::agent::{Call, Hello, LINK_VERSION, Outcome, Reply, Request, Welcome};
use outlive_core::session::CallMark;
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Semaphore, mpsc},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    limits::{
        LINK_CALLS_MAX, LINK_HELLO_WAIT, LINK_NEWS_BURST, LINK_NEWS_EVERY, LINK_REPLIES_MAX,
        LINK_REQUEST_BYTES_MAX, LINKS_MAX,
    },
    log,
    tails::{Move, Watcher},
};
use pace::Pace;

/// Who answers the calls.
pub(crate) trait Service: 'static {
    /// The answer to `hello`; the link closes after a version 0.
    fn welcome(&self, hello: &Hello) -> Welcome;
    /// Answers one call. [`Request::Watch`] never comes here.
    fn call(
        self: Rc<Self>,
        request: Request,
        mark: Option<CallMark>,
    ) -> impl Future<Output = Outcome>;
    /// Starts to watch the journals' tails.
    fn watch(&self) -> Result<Watcher, String>;
}

/// The version to speak with a server, 0 when none fits.
pub(crate) fn choose_version(hello: &Hello) -> u32 {
    if hello.versions.contains(&LINK_VERSION) {
        LINK_VERSION
    } else {
        0
    }
}

/// Accepts links until `stop`; then lets the replies that are ready go out.
pub(crate) async fn serve<S: Service>(
    listener: UnixListener,
    service: Rc<S>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let links = Arc::new(Semaphore::new(LINKS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let Ok(permit) = Arc::clone(&links).try_acquire_owned() else {
                    log::warn(format_args!("a link was closed: {LINKS_MAX} are open"));
                    continue;
                };
                let link = Link {
                    service: Rc::clone(&service),
                    tasks: tasks.clone(),
                    stop: stop.clone(),
                };
                tasks.spawn_local(async move {
                    if let Err(error) = link.run(stream).await {
                        log::warn(format_args!("a link ended: {error}"));
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                log::warn(format_args!("a link could not be accepted: {error}"));
                // Out of descriptors or memory: others must end first, asking at once is no use.
                tokio::time::sleep(LINK_HELLO_WAIT / 50).await;
            }
        }
    }
}

struct Link<S> {
    service: Rc<S>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<S: Service> Link<S> {
    async fn run(self, stream: UnixStream) -> io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::with_capacity(16 * 1024, read);
        let hello = timeout(LINK_HELLO_WAIT, codec::read_frame(&mut read))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no hello came"))??;
        let Some(hello) = hello else { return Ok(()) };
        let welcome = self.service.welcome(&codec::decode(&hello)?);
        write.write_all(&codec::encode(&welcome)?).await?;
        if welcome.version == 0 {
            return Ok(());
        }
        let (replies, outbox) = mpsc::channel(LINK_REPLIES_MAX);
        let closed = CancellationToken::new();
        self.tasks
            .spawn_local(write_replies(write, outbox, closed.clone()));
        let result = self.read_calls(read, &replies, &closed).await;
        closed.cancel();
        result
    }

    async fn read_calls(
        &self,
        mut read: BufReader<OwnedReadHalf>,
        replies: &mpsc::Sender<Vec<u8>>,
        closed: &CancellationToken,
    ) -> io::Result<()> {
        let calls = Arc::new(Semaphore::new(LINK_CALLS_MAX));
        let bytes = Arc::new(Semaphore::new(LINK_REQUEST_BYTES_MAX as usize));
        loop {
            let frame = tokio::select! {
                frame = codec::read_frame(&mut read) => frame?,
                () = closed.cancelled() => return Ok(()),
                () = self.stop.cancelled() => return Ok(()),
            };
            let Some(frame) = frame else { return Ok(()) };
            let Call {
                number,
                request,
                mark,
            } = codec::decode(&frame)?;
            let size = u32::try_from(frame.len())
                .unwrap_or(u32::MAX)
                .min(LINK_REQUEST_BYTES_MAX);
            drop(frame);
            // Both semaphores live as long as this loop and are never closed.
            let Ok(call) = Arc::clone(&calls).acquire_owned().await else {
                return Ok(());
            };
            let Ok(room) = Arc::clone(&bytes).acquire_many_owned(size).await else {
                return Ok(());
            };
            let replies = replies.clone();
            if matches!(request, Request::Watch) {
                match self.service.watch() {
                    Ok(watcher) => {
                        let closed = closed.clone();
                        self.tasks
                            .spawn_local(watch(watcher, number, replies, closed));
                    }
                    Err(message) => send(&replies, number, Outcome::Failed { message }).await,
                }
                continue;
            }
            let service = Rc::clone(&self.service);
            self.tasks.spawn_local(async move {
                let outcome = service.call(request, mark).await;
                drop((call, room));
                send(&replies, number, outcome).await;
            });
        }
    }
}

async fn watch(
    watcher: Watcher,
    number: u64,
    replies: mpsc::Sender<Vec<u8>>,
    closed: CancellationToken,
) {
    let mut moves = watcher.take();
    let mut first = true;
    let mut pace = Pace::new(LINK_NEWS_EVERY, LINK_NEWS_BURST);
    loop {
        let mut batch = Vec::new();
        for one in moves {
            let outcome = match one {
                Move::Moved {
                    session,
                    earliest,
                    latest,
                } => Outcome::Moved {
                    session,
                    earliest,
                    latest,
                },
                Move::Gone(session) => Outcome::Gone { session },
            };
            append(&mut batch, number, outcome);
        }
        if first {
            append(&mut batch, number, Outcome::Watching);
            first = false;
        }
        if replies.send(batch).await.is_err() {
            return; // The link is closed.
        }
        let pause = pace.told(Instant::now());
        let news = async {
            if !pause.is_zero() {
                watcher.rest(pause).await;
            }
            watcher.next().await
        };
        moves = tokio::select! {
            moves = news => moves,
            () = closed.cancelled() => return,
        };
    }
}

async fn send(replies: &mpsc::Sender<Vec<u8>>, number: u64, outcome: Outcome) {
    let mut frame = Vec::new();
    append(&mut frame, number, outcome);
    // When the link is closed, nobody waits for this answer any more.
    drop(replies.send(frame).await);
}

fn append(frames: &mut Vec<u8>, number: u64, outcome: Outcome) {
    let frame = codec::encode(&Reply { number, outcome }).or_else(|error| {
        codec::encode(&Reply {
            number,
            outcome: Outcome::Failed {
                message: error.to_string(),
            },
        })
    });
    match frame {
        Ok(mut frame) => frames.append(&mut frame),
        Err(error) => log::warn(format_args!("an answer has no encoding: {error}")),
    }
}

async fn write_replies(
    mut write: OwnedWriteHalf,
    mut outbox: mpsc::Receiver<Vec<u8>>,
    closed: CancellationToken,
) {
    while let Some(mut frames) = outbox.recv().await {
        while frames.len() < 64 * 1024
            && let Ok(mut more) = outbox.try_recv()
        {
            frames.append(&mut more);
        }
        if let Err(error) = write.write_all(&frames).await {
            log::debug(format_args!(
                "a link's replies could not be written: {error}"
            ));
            closed.cancel();
            return;
        }
    }
}
