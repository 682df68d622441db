//! A supervisor without sessions' processes: it speaks the whole link protocol over a real
//! socket, remembers what it carried out, and breaks the link wherever a test says.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use outlive_api::agent::{
    Call, Health, Hello, LINK_VERSION, Outcome, PumpMode, Reply, Request, SessionView, Welcome,
    Write,
};
use outlive_core::{
    id::{AttemptId, Generation, SandboxId, SessionId},
    session::{CallId, CallMark, Rejection},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream, unix::OwnedWriteHalf},
    sync::{Notify, watch},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// No cut.
const NEVER: usize = usize::MAX;

/// A supervisor that was killed loses its connections and keeps its sessions: this is what it
/// keeps.
#[derive(Debug, Default)]
struct Kept {
    sessions: BTreeMap<SessionId, u64>,
    inputs: HashSet<(SessionId, String)>,
    /// Calls that were carried out.
    calls: HashSet<CallId>,
    /// It is of a build that remembers none.
    forgets: bool,
    done: Vec<Request>,
    env: BTreeMap<String, String>,
    /// The kernel keeps a workload frozen whatever becomes of its supervisor.
    frozen: bool,
    /// So many freezes are refused from now on.
    freezes_refused: u32,
    /// Changes of sessions fail.
    changes_fail: bool,
    /// It reads calls and answers none.
    hangs: bool,
    /// It has not taken over any session yet.
    opens: bool,
}

#[derive(Debug)]
struct Shared {
    sandbox: SandboxId,
    generation: Generation,
    kept: Mutex<Kept>,
    /// Bytes that may still be read before the link is cut.
    read_left: AtomicUsize,
    /// Bytes that may still be written before the link is cut.
    write_left: AtomicUsize,
    left: Notify,
    /// It stands still: it says nothing, to nobody.
    stopped: watch::Sender<bool>,
}

impl Shared {
    async fn until_it_goes_on(&self) {
        let mut stopped = self.stopped.subscribe();
        // Its sender lives as long as this.
        drop(stopped.wait_for(|stopped| !stopped).await);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
#[derive(Debug)]
pub struct FakeAgent {
    shared: Arc<Shared>,
    socket: PathBuf,
    tasks: TaskTracker,
    serving: Option<AbortOnDropHandle<()>>,
}

impl FakeAgent {
    /// Listens on `state_dir/agent.sock`.
    pub fn listen(
        state_dir: &Path,
        sandbox: SandboxId,
        generation: Generation,
    ) -> io::Result<Self> {
        let mut this = Self {
            shared: Arc::new(Shared {
                sandbox,
                generation,
                kept: Mutex::new(Kept::default()),
                read_left: AtomicUsize::new(NEVER),
                write_left: AtomicUsize::new(NEVER),
                left: Notify::new(),
                stopped: watch::Sender::new(false),
            }),
            socket: state_dir.join("agent.sock"),
            tasks: TaskTracker::new(),
            serving: None,
        };
        this.restart()?;
        Ok(this)
    }

    /// Kills the supervisor: the socket and every link are gone.
    pub fn kill(&mut self) {
        drop(self.serving.take());
    }

    /// Starts another supervisor over the same sessions.
    pub fn restart(&mut self) -> io::Result<()> {
        self.kill();
        match std::fs::remove_file(&self.socket) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = UnixListener::bind(&self.socket)?;
        let shared = Arc::clone(&self.shared);
        let serving = self.tasks.spawn(accept(listener, shared));
        self.serving = Some(AbortOnDropHandle::new(serving));
        Ok(())
    }

    /// Cuts the link once this many more bytes were read from it. The next link is whole.
    pub fn cut_after_read(&self, bytes: usize) {
        self.shared.read_left.store(bytes, Ordering::SeqCst);
    }

    /// Cuts the link once this many more bytes were written to it. The next link is whole.
    pub fn cut_after_written(&self, bytes: usize) {
        self.shared.write_left.store(bytes, Ordering::SeqCst);
    }

    /// What was carried out, in order: no reads, no repeated inputs or creations.
    pub fn done(&self) -> Vec<Request> {
        self.shared.kept().done.clone()
    }

    /// The sandbox's variables as they were told last.
    pub fn env(&self) -> BTreeMap<String, String> {
        self.shared.kept().env.clone()
    }

    /// Whether its workload stands still.
    pub fn is_frozen(&self) -> bool {
        self.shared.kept().frozen
    }

    /// The next freezes fail.
    pub fn refuse_freezes(&self, count: u32) {
        self.shared.kept().freezes_refused = count;
    }

    /// Changes of sessions fail from now on.
    pub fn fail_changes(&self) {
        self.shared.kept().changes_fail = true;
    }

    /// It is of a build that remembers no calls.
    pub fn forget_calls(&self) {
        self.shared.kept().forgets = true;
    }

    /// From now on it reads calls and answers none.
    pub fn hang(&self) {
        self.shared.kept().hangs = true;
    }

    /// From now on it says nothing, to nobody, as if it were stopped by a signal. What reaches it
    /// waits for it to go on.
    pub fn stop(&self) {
        self.shared.stopped.send_replace(true);
    }

    /// It goes on after a stop.
    pub fn go_on(&self) {
        self.shared.stopped.send_replace(false);
    }

    /// From now on its sessions are still being opened: it names them, and lists none.
    pub fn open_for_ever(&self) {
        self.shared.kept().opens = true;
    }

    /// Returns once it was asked to leave.
    pub async fn released(&self) {
        self.shared.left.notified().await;
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let mut links = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        links.spawn(async move {
            // A link that ends is what these tests are about.
            drop(serve(stream, &shared).await);
        });
    }
}

async fn serve(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let hello: Hello = decode(&read_frame(&mut reader, shared).await?)?;
    shared.until_it_goes_on().await;
    let version = if hello.versions.contains(&LINK_VERSION) {
        LINK_VERSION
    } else {
        0
    };
    let (frozen, forgets) = {
        let kept = shared.kept();
        (kept.frozen, kept.forgets)
    };
    let welcome = Welcome {
        version,
        sandbox: shared.sandbox.clone(),
        generation: shared.generation,
        pump: PumpMode::Splice,
        build: "fake".to_owned(),
        frozen,
        remembers_calls: !forgets,
        discards: !forgets,
    };
    write_frame(&mut writer, shared, &welcome).await?;
    loop {
        let call: Call = decode(&read_frame(&mut reader, shared).await?)?;
        shared.until_it_goes_on().await;
        let leaves = matches!(call.request, Request::Release | Request::Discard);
        for outcome in answers(&call.request, call.mark, shared) {
            let reply = Reply {
                number: call.number,
                outcome,
            };
            write_frame(&mut writer, shared, &reply).await?;
        }
        if leaves {
            shared.left.notify_one();
        }
    }
}

fn answers(request: &Request, mark: Option<CallMark>, shared: &Shared) -> Vec<Outcome> {
    let mut kept = shared.kept();
    if kept.hangs {
        return Vec::new();
    }
    match request {
        Request::Watch => {
            let mut named: Vec<_> = kept
                .sessions
                .iter()
                .map(|(session, latest)| Outcome::Moved {
                    session: session.clone(),
                    earliest: 1,
                    latest: *latest,
                })
                .collect();
            named.push(Outcome::Watching);
            named
        }
        other => vec![answer(other, mark, &mut kept)],
    }
}

fn answer(request: &Request, mark: Option<CallMark>, kept: &mut Kept) -> Outcome {
    if kept.frozen && changes_a_session(request) {
        return Outcome::Rejected(Rejection::Frozen);
    }
    if kept.changes_fail && changes_a_session(request) {
        return Outcome::Failed {
            message: "told to fail".to_owned(),
        };
    }
    let is_new = kept.forgets || mark.is_none_or(|mark| kept.calls.insert(mark.id));
    match request {
        Request::List if kept.opens => Outcome::Sessions(Vec::new()),
        Request::List => Outcome::Sessions(kept.sessions.values().copied().map(view).collect()),
        Request::Health => Outcome::Health(Health::default()),
        Request::Get(session) => found(kept, session),
        Request::Create { session, .. } => {
            if !kept.sessions.contains_key(session) {
                kept.sessions.insert(session.clone(), 1);
                kept.done.push(request.clone());
            }
            found(kept, session)
        }
        Request::Write { session, write } => wrote(request, session, write, kept),
        Request::Delete(session) => {
            if kept.sessions.remove(session).is_some() {
                kept.done.push(request.clone());
                Outcome::Done
            } else {
                Outcome::Rejected(Rejection::NotFound)
            }
        }
        Request::Configure { env } => {
            kept.env.clone_from(env);
            Outcome::Done
        }
        Request::Update { session, .. }
        | Request::SetDesiredState { session, .. }
        | Request::NewAttempt { session, .. } => {
            if is_new {
                kept.done.push(request.clone());
            }
            found(kept, session)
        }
        Request::Freeze => froze(kept),
        Request::Thaw => {
            kept.frozen = false;
            kept.done.push(Request::Thaw);
            Outcome::Done
        }
        Request::Signal { .. }
        | Request::Resize { .. }
        | Request::Release
        | Request::Discard
        | Request::Upgrade { .. }
        | Request::Watch => {
            if is_new {
                kept.done.push(request.clone());
            }
            Outcome::Done
        }
    }
}

fn changes_a_session(request: &Request) -> bool {
    matches!(
        request,
        Request::Create { .. }
            | Request::Write { .. }
            | Request::Delete(_)
            | Request::Update { .. }
            | Request::SetDesiredState { .. }
            | Request::NewAttempt { .. }
            | Request::Signal { .. }
            | Request::Resize { .. }
    )
}

fn froze(kept: &mut Kept) -> Outcome {
    if let Some(left) = kept.freezes_refused.checked_sub(1) {
        kept.freezes_refused = left;
        return Outcome::Failed {
            message: "told not to freeze".to_owned(),
        };
    }
    kept.frozen = true;
    kept.done.push(Request::Freeze);
    Outcome::Done
}

fn wrote(request: &Request, session: &SessionId, write: &Write, kept: &mut Kept) -> Outcome {
    let new = kept
        .inputs
        .insert((session.clone(), write.input_id.clone()));
    if new {
        kept.done.push(request.clone());
    }
    Outcome::Written {
        attempt: AttemptId::derive(session, 1),
        duplicate: !new,
        applied_unknown: false,
    }
}

fn found(kept: &Kept, session: &SessionId) -> Outcome {
    match kept.sessions.get(session) {
        Some(latest) => Outcome::Session(Box::new(view(*latest))),
        None => Outcome::Rejected(Rejection::NotFound),
    }
}

fn view(latest: u64) -> SessionView {
    SessionView {
        checkpoint: Vec::new(),
        earliest: 1,
        latest,
    }
}

fn decode<T: for<'b> minicbor::Decode<'b, ()>>(bytes: &[u8]) -> io::Result<T> {
    minicbor::decode(bytes).map_err(io::Error::other)
}

async fn read_frame<R: AsyncReadExt + Unpin>(
    reader: &mut R,
    shared: &Shared,
) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    read_some(reader, &mut prefix, shared).await?;
    let mut bytes = vec![0; u32::from_le_bytes(prefix) as usize];
    read_some(reader, &mut bytes, shared).await?;
    Ok(bytes)
}

async fn read_some<R: AsyncReadExt + Unpin>(
    reader: &mut R,
    bytes: &mut [u8],
    shared: &Shared,
) -> io::Result<()> {
    for byte in bytes {
        spend(&shared.read_left)?;
        *byte = reader.read_u8().await?;
    }
    Ok(())
}

async fn write_frame<M: minicbor::Encode<()>>(
    writer: &mut OwnedWriteHalf,
    shared: &Shared,
    message: &M,
) -> io::Result<()> {
    let body = minicbor::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    for byte in length.to_le_bytes().into_iter().chain(body) {
        spend(&shared.write_left)?;
        writer.write_u8(byte).await?;
    }
    Ok(())
}

/// Takes one byte's leave; the last one cuts the link and makes the next link whole.
fn spend(left: &AtomicUsize) -> io::Result<()> {
    match left.load(Ordering::SeqCst) {
        NEVER => Ok(()),
        0 => {
            left.store(NEVER, Ordering::SeqCst);
            Err(io::ErrorKind::ConnectionReset.into())
        }
        some => {
            left.store(some - 1, Ordering::SeqCst);
            Ok(())
        }
    }
}
