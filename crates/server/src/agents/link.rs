//! One connection to one supervisor: handshake, numbered calls, the watch.
//!
//! A reader and a writer run as one task, so that when either ends, the other is over too. Only
//! then do the waiting calls learn of it. Hence "not sent" is certain: no byte of such a call
//! can be written any more.
//!
//! How long a call takes is nobody's business here; that nothing at all comes while calls wait is
//! told by [`Link::quiet`].

use std::{
    collections::HashMap,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use outlive_api::agent::{
    Call, FRAME_BYTES_MAX, Hello, LINK_VERSION, Outcome, Reply, Request, Welcome,
};
use outlive_core::{id::SandboxId, session::CallMark};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::{Notify, mpsc, oneshot},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::tails::Tails;
use crate::limits::{LINK_PENDING_MAX, LINK_QUEUE_MAX, LINK_QUIET_MAX};

/// The number of the call that watches.
const WATCH: u64 = 0;

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The socket failed or ended.
    #[error("the link failed: {0}")]
    Io(#[from] io::Error),
    /// A message could not be read.
    #[error("a message of the supervisor is malformed: {0}")]
    Decode(#[from] minicbor::decode::Error),
    /// A message could not be written.
    #[error("a message could not be encoded: {0}")]
    Encode(String),
    /// A frame is longer than both sides agreed.
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// The supervisor speaks none of our versions.
    #[error("the supervisor (build {build}) speaks another version of the link")]
    Version {
        /// Its build.
        build: String,
    },
    /// Somebody else answers at this socket.
    #[error("the supervisor of {found} answers instead of {wanted}'s")]
    WrongSandbox {
        /// Whom we meant.
        wanted: SandboxId,
        /// Who it is.
        found: SandboxId,
    },
}

/// The link broke under a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The call did not leave.
    NotSent,
    /// It may have arrived and may have been carried out.
    Unknown,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    outgoing: mpsc::Sender<Outgoing>,
    pending: Arc<Pending>,
    next: AtomicU64,
    heard: Arc<Heard>,
    called: Notify,
    closed: CancellationToken,
    welcome: Welcome,
}

/// How many frames came.
#[derive(Debug, Default)]
struct Heard(AtomicU64);

#[derive(Debug)]
struct Outgoing {
    frame: Vec<u8>,
    sent: Arc<AtomicBool>,
}

/// Calls that wait for their answers; nothing once the link is closed.
#[derive(Debug)]
struct Pending(Mutex<Option<HashMap<u64, oneshot::Sender<Outcome>>>>);

impl Pending {
    fn any(&self) -> bool {
        self.waiting()
            .as_ref()
            .is_some_and(|waiting| !waiting.is_empty())
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Outcome>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Connects to `state/agent.sock` and shakes hands.
    pub(crate) async fn connect(
        state_dir: &Path,
        sandbox: &SandboxId,
        tails: Arc<Tails>,
        tasks: &TaskTracker,
    ) -> Result<Self, LinkError> {
        let stream = connect_in(state_dir).await?;
        Self::over(stream, sandbox, tails, tasks).await
    }

    /// Shakes hands over a stream that stands.
    pub(crate) async fn over<S>(
        stream: S,
        sandbox: &SandboxId,
        tails: Arc<Tails>,
        tasks: &TaskTracker,
    ) -> Result<Self, LinkError>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, mut writer) = tokio::io::split(stream);
        let mut reader = BufReader::new(reader);
        let welcome = shake_hands(&mut reader, &mut writer, sandbox).await?;
        if welcome.version != LINK_VERSION {
            return Err(LinkError::Version {
                build: welcome.build,
            });
        }
        if welcome.sandbox != *sandbox {
            return Err(LinkError::WrongSandbox {
                wanted: sandbox.clone(),
                found: welcome.sandbox,
            });
        }
        let watch = frame(&Call {
            number: WATCH,
            request: Request::Watch,
            mark: None,
        })?;
        writer.write_all(&watch).await?;
        tails.begin();

        let (outgoing, queue) = mpsc::channel(LINK_QUEUE_MAX);
        let pending = Arc::new(Pending(Mutex::new(Some(HashMap::new()))));
        let closed = CancellationToken::new();
        let heard = Arc::new(Heard::default());
        let reading = Reading {
            pending: Arc::clone(&pending),
            heard: Arc::clone(&heard),
            tails,
        };
        tasks.spawn(run(reader, writer, queue, reading, closed.clone()));
        Ok(Self {
            outgoing,
            pending,
            next: AtomicU64::new(WATCH + 1),
            heard,
            called: Notify::new(),
            closed,
            welcome,
        })
    }

    /// Who answers.
    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Returns once the link is closed.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// How many frames came.
    pub(super) fn heard(&self) -> u64 {
        self.heard.0.load(Ordering::Relaxed)
    }

    /// Returns once calls wait and nothing has come for [`LINK_QUIET_MAX`]; tells what was heard
    /// before.
    pub(super) async fn quiet(&self) -> u64 {
        loop {
            self.called.notified().await;
            while self.pending.any() {
                let heard = self.heard();
                sleep(LINK_QUIET_MAX).await;
                if self.pending.any() && self.heard() == heard {
                    self.called.notify_one(); // They wait on, and are looked at the next time.
                    return heard;
                }
            }
        }
    }

    /// Closes it.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }

    /// Sends a call and waits for its answer.
    pub(crate) async fn call(
        &self,
        request: Request,
        mark: Option<CallMark>,
    ) -> Result<Outcome, Lost> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let call = Call {
            number,
            request,
            mark,
        };
        let frame = match frame(&call) {
            Ok(frame) => frame,
            Err(error) => {
                return Ok(Outcome::Failed {
                    message: error.to_string(),
                });
            }
        };
        let (answer, answered) = oneshot::channel();
        {
            let mut waiting = self.pending.waiting();
            let Some(waiting) = waiting.as_mut() else {
                return Err(Lost::NotSent);
            };
            if waiting.len() >= LINK_PENDING_MAX {
                return Ok(Outcome::Failed {
                    message: "too many calls are under way".to_owned(),
                });
            }
            waiting.insert(number, answer);
        }
        self.called.notify_one();
        let guard = Forget {
            pending: &self.pending,
            number,
        };
        let sent = Arc::new(AtomicBool::new(false));
        let outgoing = Outgoing {
            frame,
            sent: Arc::clone(&sent),
        };
        if self.outgoing.send(outgoing).await.is_err() {
            return Err(Lost::NotSent);
        }
        let outcome = answered.await;
        drop(guard);
        outcome.map_err(|_closed| {
            if sent.load(Ordering::Acquire) {
                Lost::Unknown
            } else {
                Lost::NotSent
            }
        })
    }
}

/// A caller that gives up frees its place.
struct Forget<'a> {
    pending: &'a Pending,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.pending.waiting().as_mut() {
            waiting.remove(&self.number);
        }
    }
}

/// What comes over a link goes here.
struct Reading {
    pending: Arc<Pending>,
    heard: Arc<Heard>,
    tails: Arc<Tails>,
}

async fn run<R, W>(
    reader: R,
    writer: W,
    queue: mpsc::Receiver<Outgoing>,
    reading: Reading,
    closed: CancellationToken,
) where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let ended = tokio::select! {
        ended = read(reader, &reading) => ended,
        ended = write(writer, queue) => ended,
        () = closed.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a link ended");
    }
    // Both halves are dropped by now: what was not sent never will be.
    reading.pending.waiting().take();
    closed.cancel();
}

async fn read<R: AsyncRead + Unpin>(mut reader: R, to: &Reading) -> Result<(), LinkError> {
    let Reading {
        pending,
        heard,
        tails,
    } = to;
    loop {
        let reply: Reply = minicbor::decode(&read_frame(&mut reader).await?)?;
        heard.0.fetch_add(1, Ordering::Relaxed);
        if reply.number == WATCH {
            watched(reply.outcome, tails);
            continue;
        }
        let waiting = pending
            .waiting()
            .as_mut()
            .and_then(|waiting| waiting.remove(&reply.number));
        let Some(waiting) = waiting else {
            continue; // Its caller gave up.
        };
        if waiting.send(reply.outcome).is_err() {
            tracing::trace!("a caller gave up just before its answer");
        }
    }
}

fn watched(outcome: Outcome, tails: &Tails) {
    match outcome {
        Outcome::Moved {
            session,
            earliest,
            latest,
        } => tails.moved(&session, earliest, latest),
        Outcome::Gone { session } => tails.gone(&session),
        Outcome::Watching => tails.named_all(),
        other => tracing::warn!(?other, "the watch gave an answer that is none of its own"),
    }
}

async fn write<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut queue: mpsc::Receiver<Outgoing>,
) -> Result<(), LinkError> {
    while let Some(call) = queue.recv().await {
        // From here on the call may arrive.
        call.sent.store(true, Ordering::Release);
        writer.write_all(&call.frame).await?;
    }
    Ok(())
}

fn frame<M: minicbor::Encode<()>>(message: &M) -> Result<Vec<u8>, LinkError> {
    let mut bytes = vec![0; 4];
    minicbor::encode(message, &mut bytes).map_err(|error| LinkError::Encode(error.to_string()))?;
    let length = bytes.len() - 4;
    match u32::try_from(length) {
        Ok(prefix) if length <= FRAME_BYTES_MAX => {
            bytes[..4].copy_from_slice(&prefix.to_le_bytes());
            Ok(bytes)
        }
        _ => Err(LinkError::TooLong(length)),
    }
}

async fn read_frame<R: AsyncRead + Unpin>(reader: &mut R) -> Result<Vec<u8>, LinkError> {
    let length = reader.read_u32_le().await? as usize;
    if length > FRAME_BYTES_MAX {
        return Err(LinkError::TooLong(length));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Returns once the supervisor greets somebody who comes anew, whatever it thinks of the version.
pub(super) async fn greeted(state_dir: &Path, sandbox: &SandboxId) -> Result<(), LinkError> {
    let (mut reader, mut writer) = connect_in(state_dir).await?.into_split();
    shake_hands(&mut reader, &mut writer, sandbox)
        .await
        .map(drop)
}

async fn shake_hands(
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    sandbox: &SandboxId,
) -> Result<Welcome, LinkError> {
    let hello = Hello {
        versions: vec![LINK_VERSION],
        sandbox: sandbox.clone(),
    };
    writer.write_all(&frame(&hello)?).await?;
    Ok(minicbor::decode(&read_frame(reader).await?)?)
}

/// A socket's path may be 107 bytes long at most and a data directory's may be longer: connect
/// through the directory's descriptor.
async fn connect_in(state_dir: &Path) -> io::Result<UnixStream> {
    let dir: OwnedFd = rustix::fs::open(
        state_dir,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let stream =
        UnixStream::connect(format!("/proc/self/fd/{}/agent.sock", dir.as_raw_fd())).await?;
    drop(dir);
    Ok(stream)
}
