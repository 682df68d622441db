//! The two backends of one host, `namespace` and `process`: both are `outlive-agent launch` with
//! another word in its configuration.
//!
//! The server may be killed while a launcher works. The launcher's standard error is a file that
//! the server locked before it started it; the lock lives as long as the launcher does, so the
//! next server can tell "still starting" from "nothing there".

mod copy;

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use outlive_api::{
    launch::{
        Cidr, Copied, CopiedSessions, Image, Isolation, LaunchConfig, LaunchFailure, LaunchOutcome,
        Limits, NetworkMode as LaunchNetwork, RuntimeKind, User, WayOut,
    },
    network::NetworkMode,
};
use outlive_core::id::SandboxId;
use outlive_journal::{remove_tree, replace_path};
use rustix::fs::{FlockOperation, flock};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    time::{sleep, timeout},
};

use super::{
    Capabilities, Disk, Place, Places, Progress, Restore, RestoreError, Runtime, RuntimeError,
    RuntimeFuture, Start, Whose,
    host::{Host, admit_process, admit_user},
};
use crate::{
    agents::keeper::Keeper,
    ids,
    images::{HostLayer, HostLayers, LayerError, at, layer_path},
    limits::{
        EGRESS_MAX, LAUNCH_ANSWER_BYTES_MAX, LAUNCH_LOG_BYTES_SHOWN, LAUNCH_MAX, PIDS_DEFAULT,
        PROBE_MAX, SWEEP_MAX,
    },
    sandboxes::{
        config::{SandboxConfig, bytes_of, millicores_of},
        network::translate,
    },
};

/// Said aloud when `namespace` can't be had and was not insisted on.
const NO_ISOLATION: &str = "this host can't isolate sandboxes; using runtime `process`: \
                            NO ISOLATION between sandboxes, and none from the host";

/// Which backend a server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RuntimeChoice {
    /// `namespace` where the host allows it, else `process`, said aloud.
    #[default]
    Auto,
    /// Nested namespaces, or nothing.
    Namespace,
    /// No isolation.
    Process,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LauncherRuntime {
    agent: PathBuf,
    places: Places,
    host: Arc<HostLayers>,
    choice: RuntimeChoice,
    /// Addresses of sandboxes.
    pool: Cidr,
    /// What the agent found out about this host.
    able: Host,
    /// Set once the host turned out to lack what `namespace` needs.
    fell_back: AtomicBool,
    /// What the newest launch reached.
    isolation: Mutex<Option<Isolation>>,
}

impl LauncherRuntime {
    /// With this agent binary, which looks at the host first.
    pub(crate) async fn new(
        agent: PathBuf,
        places: Places,
        host: Arc<HostLayers>,
        choice: RuntimeChoice,
        pool: Cidr,
    ) -> Self {
        let able = match probe(&agent).await {
            Ok(able) => able,
            Err(error) => {
                tracing::error!(%error, "what this host can do is unknown; nothing beyond the least is promised");
                Host::default()
            }
        };
        let falls_back = choice == RuntimeChoice::Auto && able.cannot_isolate();
        if falls_back {
            tracing::warn!(off = ?able.off, "{NO_ISOLATION}");
        }
        Self {
            agent,
            places,
            host,
            choice,
            pool,
            able,
            fell_back: AtomicBool::new(falls_back),
            isolation: Mutex::new(None),
        }
    }

    fn kind(&self) -> RuntimeKind {
        match self.choice {
            RuntimeChoice::Process => RuntimeKind::Process,
            RuntimeChoice::Auto if self.fell_back.load(Ordering::Relaxed) => RuntimeKind::Process,
            RuntimeChoice::Auto | RuntimeChoice::Namespace => RuntimeKind::Namespace,
        }
    }

    async fn begin(&self, start: Start<'_>) -> Result<Keeper, RuntimeError> {
        let kind = self.kind();
        match self.launch(&start, kind).await {
            Err(RuntimeError::Launch(failure))
                if failure.unsupported
                    && kind == RuntimeKind::Namespace
                    && self.choice == RuntimeChoice::Auto =>
            {
                self.fell_back.store(true, Ordering::Relaxed);
                tracing::warn!(%failure, "{NO_ISOLATION}");
                self.launch(&start, RuntimeKind::Process).await
            }
            other => other,
        }
    }

    async fn launch(&self, start: &Start<'_>, kind: RuntimeKind) -> Result<Keeper, RuntimeError> {
        let place = self.places.of(start.sandbox);
        // Held until the keeper lives, which then says by itself that it uses the layer.
        let (image, _layer) = self.image(start, kind).await?;
        let config = self.launch_config(start, kind, image, &place)?;
        let message = encoded(&config)?;
        // What a later server needs to sweep up after this launch, whatever becomes of it.
        let kept = place.launch_config();
        replace_path(&kept, &message).map_err(file("writing", &kept))?;
        let log = locked_log(&place)?;
        let answer = match self.run("launch", &message, &log, LAUNCH_MAX).await {
            Ok(answer) => answer,
            Err(error) => return Err(launcher_failed(&error.to_string(), log)),
        };
        let launched = match minicbor::decode(&answer) {
            Ok(LaunchOutcome::Started(launched)) => launched,
            Ok(LaunchOutcome::Failed(failure)) => return Err(failure.into()),
            Err(error) => {
                return Err(launcher_failed(
                    &format!("its answer is unreadable: {error}"),
                    log,
                ));
            }
        };
        let state = place.state();
        let keeper = Keeper::find(&state)
            .map_err(file("looking for the keeper of", &state))?
            .ok_or_else(|| launcher_failed("its keeper is gone again", log))?;
        *self
            .isolation
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(launched.isolation);
        Ok(keeper)
    }

    /// What the root is made of, and the layer of the image `host` while a launch counts on it.
    async fn image(
        &self,
        start: &Start<'_>,
        kind: RuntimeKind,
    ) -> Result<(Image, Option<Arc<HostLayer>>), RuntimeError> {
        match (kind, &start.config.image) {
            (RuntimeKind::Namespace, None) => {
                let layer = self.host_layer().await?;
                let image = Image::Host {
                    layer: path_text(layer.path())?,
                };
                Ok((image, Some(layer)))
            }
            (RuntimeKind::Namespace, Some(image)) => {
                let layers = image
                    .layers
                    .iter()
                    .rev()
                    .map(|layer| path_text(&layer_path(self.host.images(), *layer)))
                    .collect::<Result<_, _>>()?;
                Ok((Image::Layers(layers), None))
            }
            (RuntimeKind::Process, None) => {
                let layer = String::new();
                Ok((Image::Host { layer }, None))
            }
            (RuntimeKind::Process, Some(image)) => Err(RuntimeError::Limits(format!(
                "runtime `process` shows the host's own files: it can't show image {}",
                image.name
            ))),
        }
    }

    async fn host_layer(&self) -> Result<Arc<HostLayer>, RuntimeError> {
        let host = Arc::clone(&self.host);
        match blocking(move || host.current()).await? {
            // Such a host lacks what this runtime needs.
            Err(error @ LayerError::NotMerged { .. }) => Err(LaunchFailure {
                step: "making the image `host`".to_owned(),
                message: error.to_string(),
                unsupported: true,
            }
            .into()),
            made => Ok(made?),
        }
    }

    /// Removes versions of the image `host` that no runtime uses any more.
    async fn sweep_layers(&self) {
        if !self.host.may_be_swept() {
            return;
        }
        let (host, places) = (Arc::clone(&self.host), self.places.clone());
        match blocking(move || host.sweep(|| layers_in_use(&places))).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "old layers are left"),
            Err(error) => tracing::error!(%error, "old layers are left"),
        }
    }

    fn spawn(&self, verb: &str, log: &File) -> io::Result<Child> {
        Command::new(&self.agent)
            .arg(verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone()?)
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", self.agent.display()))
            })
    }

    /// Runs the agent's binary. It is not killed with us: what it began it may finish, and the
    /// next server finds it.
    async fn run(
        &self,
        verb: &str,
        message: &[u8],
        log: &File,
        within: Duration,
    ) -> io::Result<Vec<u8>> {
        let mut child = self.spawn(verb, log)?;
        match timeout(within, converse(&mut child, message)).await {
            Ok(answer) => answer,
            Err(_elapsed) => {
                child.kill().await?;
                Err(io::Error::from(io::ErrorKind::TimedOut))
            }
        }
    }

    /// Removes what a runtime that is gone left in the kernel.
    async fn sweep(&self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let kept = place.launch_config();
        let message = match fs::read(&kept) {
            Ok(message) => message,
            // Nothing was ever launched.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(file("reading", &kept)(error)),
        };
        let log = locked_log(&place)?;
        match self.run("sweep", &message, &log, SWEEP_MAX).await {
            Ok(_said) => {}
            Err(error) => return Err(launcher_failed(&error.to_string(), log)),
        }
        // Namespaces and mounts went with the keeper; these names are left.
        remove(&place.state().join("agent.sock"))?;
        remove(&place.state().join("keeper.pid"))
    }

    /// Changes the rules of a sandbox that was launched with some.
    async fn change_egress(
        &self,
        sandbox: &SandboxId,
        config: &SandboxConfig,
    ) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let kept = place.launch_config();
        let message = fs::read(&kept).map_err(file("reading", &kept))?;
        let unreadable = |error: minicbor::decode::Error| RuntimeError::Launcher {
            message: format!("{}: {error}", kept.display()),
        };
        let mut launched: LaunchConfig = minicbor::decode(&message).map_err(unreadable)?;
        let Some(way_out) = &mut launched.way_out else {
            return Ok(()); // It runs with another network; the next generation has this one.
        };
        way_out.egress = egress(config)?;
        let message = encoded(&launched)?;
        replace_path(&kept, &message).map_err(file("writing", &kept))?;
        let path = place.egress_log();
        let log = open_log(&path)?;
        log.set_len(0).map_err(file("clearing", &path))?;
        match self.run("egress", &message, &log, EGRESS_MAX).await {
            Ok(_said) => Ok(()),
            Err(error) => Err(launcher_failed(&error.to_string(), log)),
        }
    }

    fn launch_config(
        &self,
        start: &Start<'_>,
        kind: RuntimeKind,
        image: Image,
        place: &Place,
    ) -> Result<LaunchConfig, RuntimeError> {
        let of_image = start.config.image.as_ref().map(|image| &image.settings);
        let network = match kind {
            RuntimeKind::Namespace => self.able.network(start.config),
            RuntimeKind::Process => NetworkMode::Host,
        };
        Ok(LaunchConfig {
            sandbox: start.sandbox.clone(),
            generation: start.generation,
            directory: path_text(place.dir())?,
            runtime: kind,
            ids: match kind {
                RuntimeKind::Namespace => ids::of_slot(start.slot),
                RuntimeKind::Process => None,
            },
            image,
            network: match network {
                NetworkMode::None => LaunchNetwork::None,
                NetworkMode::Host => LaunchNetwork::Host,
                NetworkMode::Bridge => LaunchNetwork::Bridge,
            },
            hostname: start.sandbox.as_str().to_owned(),
            env: start.config.env(),
            user: user(start.config)?,
            cwd: of_image.and_then(|of| of.cwd.clone()).unwrap_or_default(),
            limits: limits(start)?,
            copied_sessions: CopiedSessions::Refuse,
            way_out: match network {
                NetworkMode::None | NetworkMode::Host => None,
                NetworkMode::Bridge => Some(WayOut {
                    pool: self.pool,
                    preferred: start.slot,
                    egress: egress(start.config)?,
                }),
            },
        })
    }

    async fn find(place: &Place) -> Result<Option<Keeper>, RuntimeError> {
        let state = place.state();
        let mut waited = Duration::ZERO;
        loop {
            // The lock is looked at first: a launcher that ends in between has left its keeper.
            let working = launcher_works(place)?;
            let found = Keeper::find(&state).map_err(file("looking for the keeper of", &state))?;
            if found.is_some() || !working || waited >= LAUNCH_MAX {
                return Ok(found);
            }
            let pause = Duration::from_millis(10);
            sleep(pause).await;
            waited += pause;
        }
    }
}

impl Runtime for LauncherRuntime {
    fn capabilities(&self) -> Capabilities {
        let known = self
            .isolation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let (runtime, tier, protected) = match self.kind() {
            RuntimeKind::Namespace => ("namespace", "nested", true),
            RuntimeKind::Process => ("process", "none", false),
        };
        match known {
            Some(isolation) => Capabilities {
                runtime,
                isolation: isolation.tier.name(),
                journal_protected: isolation.journal_protected,
                off: isolation.off,
            },
            None => Capabilities {
                runtime,
                isolation: tier,
                journal_protected: protected,
                off: self.able.off.clone(),
            },
        }
    }

    fn admit(&self, config: &SandboxConfig) -> Result<(), RuntimeError> {
        match self.kind() {
            RuntimeKind::Namespace => {
                self.able.admit(config)?;
                admit_user(&user(config)?, ids::shared())
            }
            RuntimeKind::Process => {
                admit_process(config)?;
                self.able.admit_limits(config)
            }
        }
    }

    fn network(&self, config: &SandboxConfig) -> NetworkMode {
        match self.kind() {
            RuntimeKind::Namespace => self.able.network(config),
            RuntimeKind::Process => NetworkMode::Host,
        }
    }

    fn reach<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(self.change_egress(sandbox, config))
    }

    fn provision<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            let place = self.places.of_disk(whose);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(place.dir())
                .map_err(file("creating", place.dir()))
        })
    }

    fn start<'a>(&'a self, start: Start<'a>) -> RuntimeFuture<'a, Keeper> {
        Box::pin(async move {
            let started = self.begin(start).await;
            self.sweep_layers().await;
            started
        })
    }

    fn running<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, Option<Keeper>> {
        Box::pin(async move { Self::find(&self.places.of(sandbox)).await })
    }

    fn release<'a>(&'a self, sandbox: &'a SandboxId) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            self.sweep(sandbox).await?;
            self.sweep_layers().await;
            Ok(())
        })
    }

    fn copy<'a>(
        &'a self,
        from: Disk<'a>,
        to: Disk<'a>,
        progress: &'a Progress,
    ) -> RuntimeFuture<'a, Copied> {
        Box::pin(self.copy_disk(from, to, progress))
    }

    fn restore<'a>(
        &'a self,
        restore: Restore<'a>,
        progress: &'a Progress,
    ) -> BoxFuture<'a, Result<Copied, RestoreError>> {
        Box::pin(self.restore_disk(restore, progress))
    }

    fn delete<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            let place = self.places.of_disk(whose);
            // Whoever still copies to it would make anew what is removed.
            Self::find(&place).await?;
            let dir = place.dir().to_owned();
            blocking(move || remove_tree(&dir).map_err(file("removing", &dir))).await?
        })
    }
}

/// Work with files, off the threads that serve.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, RuntimeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| RuntimeError::Launcher {
            message: error.to_string(),
        })
}

/// The layers of the image `host` that a runtime has mounted or may be mounting.
fn layers_in_use(places: &Places) -> Result<BTreeSet<PathBuf>, LayerError> {
    let mut used = BTreeSet::new();
    for place in places.all().map_err(at("reading", places.root()))? {
        let kept = place.launch_config();
        let message = match fs::read(&kept) {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(at("reading", &kept)(error)),
        };
        let Ok(LaunchConfig {
            image: Image::Host { layer },
            ..
        }) = minicbor::decode(&message)
        else {
            continue;
        };
        // What can't be looked at is taken to live.
        let gone = launcher_works(&place).is_ok_and(|works| !works)
            && Keeper::find(&place.state()).is_ok_and(|keeper| keeper.is_none());
        if !gone {
            used.insert(PathBuf::from(layer));
        }
    }
    Ok(used)
}

fn path_text(path: &Path) -> Result<String, RuntimeError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        RuntimeError::Limits("the data directory's path is not valid UTF-8".to_owned())
    })
}

/// Gives a child of ours all that it will hear.
async fn tell(child: &mut Child, message: &[u8]) -> io::Result<()> {
    match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(message).await,
        None => Ok(()),
    }
}

async fn converse(child: &mut Child, message: &[u8]) -> io::Result<Vec<u8>> {
    tell(child, message).await?;
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let bound = LAUNCH_ANSWER_BYTES_MAX as u64;
        stdout.take(bound).read_to_end(&mut answer).await?;
    }
    let status = child.wait().await?;
    if !status.success() {
        return Err(io::Error::other(format!("it ended with {status}")));
    }
    Ok(answer)
}

fn limits(start: &Start<'_>) -> Result<Limits, RuntimeError> {
    let asked = start.config.resources.clone().unwrap_or_default();
    let unreadable = |what: &str| RuntimeError::Limits(format!("resources.{what} is unreadable"));
    let memory = asked
        .memory
        .map(|text| bytes_of(&text).ok_or_else(|| unreadable("memory")))
        .transpose()?;
    let cpu = asked
        .cpu
        .map(|text| {
            millicores_of(&text)
                .and_then(|milli| u32::try_from(milli).ok())
                .ok_or_else(|| unreadable("cpu"))
        })
        .transpose()?;
    let pids = asked
        .pids
        .map(|pids| u32::try_from(pids).map_err(|_| unreadable("pids")))
        .transpose()?;
    Ok(Limits {
        memory_bytes_max: memory,
        pids_max: pids,
        cpu_millis_max: cpu,
        pids_wished: Some(PIDS_DEFAULT),
    })
}

fn encoded(config: &LaunchConfig) -> Result<Vec<u8>, RuntimeError> {
    minicbor::to_vec(config).map_err(|error| RuntimeError::Launcher {
        message: error.to_string(),
    })
}

/// Whom a sandbox's sessions run as that name nobody.
fn user(config: &SandboxConfig) -> Result<User, RuntimeError> {
    let of_image = config.image.as_ref().and_then(|image| image.settings.user);
    let of_image = of_image.map(|ids| ids.to_string());
    match config.user.as_ref().or(of_image.as_ref()) {
        Some(text) => {
            User::parse(text).map_err(|problem| RuntimeError::Limits(format!("user {problem}")))
        }
        None => Ok(User::ROOT),
    }
}

/// The rules of a sandbox.
fn egress(config: &SandboxConfig) -> Result<outlive_api::launch::Egress, RuntimeError> {
    let network = config.network.as_ref();
    let asked = network.and_then(|network| network.egress.clone());
    translate(&asked.unwrap_or_default())
        .map_err(|error| RuntimeError::Limits(error.message.to_string()))
}

/// Has the agent look at the host.
async fn probe(agent: &Path) -> io::Result<Host> {
    let run = Command::new(agent)
        .arg("probe")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let done = timeout(PROBE_MAX, run).await??;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(io::Error::other(format!(
            "{}: {}",
            done.status,
            said.trim()
        )));
    }
    Ok(Host::parse(&String::from_utf8_lossy(&done.stdout)))
}

fn open_log(path: &Path) -> Result<File, RuntimeError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(file("opening", path))
}

/// Opens the launcher's log and locks it. Fails while another launcher works.
fn locked_log(place: &Place) -> Result<File, RuntimeError> {
    let path = place.launch_log();
    let log = open_log(&path)?;
    flock(&log, FlockOperation::NonBlockingLockExclusive)
        .map_err(io::Error::from)
        .map_err(file("locking", &path))?;
    log.set_len(0).map_err(file("clearing", &path))?;
    Ok(log)
}

fn launcher_works(place: &Place) -> Result<bool, RuntimeError> {
    let path = place.launch_log();
    let log = match File::open(&path) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(file("opening", &path)(error)),
    };
    match flock(&log, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(file("locking", &path)(error.into())),
    }
}

fn launcher_failed(how: &str, mut log: File) -> RuntimeError {
    let mut said = String::new();
    let read = log.seek(SeekFrom::Start(0)).and_then(|_| {
        (&mut log)
            .take(LAUNCH_LOG_BYTES_SHOWN)
            .read_to_string(&mut said)
    });
    if let Err(error) = read {
        tracing::debug!(%error, "a launcher's log can't be read");
    }
    RuntimeError::Launcher {
        message: format!("{how}; it said: {}", said.trim()),
    }
}

fn remove(path: &Path) -> Result<(), RuntimeError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(file("removing", path)(error)),
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RuntimeError {
    let path = path.to_owned();
    move |source| RuntimeError::File {
        action,
        path,
        source,
    }
}
