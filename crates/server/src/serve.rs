//! One server from its start to its end.
//!
//! It ends on SIGTERM or SIGINT: no new connections, open streams are told, and after a few
//! seconds the process leaves. Sandboxes stay: their keepers are nobody's children.

use std::{path::PathBuf, sync::Arc};

use outlive_api::keys::Role;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    app::app,
    auth::{Auth, IssueError},
    catalog::Catalog,
    config::Config,
    data::{DataDir, DataError},
    dialect::supervised::Supervised,
    images::{HostLayers, ImagesDir, Library},
    keys::Keys,
    limits::SHUTDOWN_MAX,
    listen::accept,
    metrics::Metrics,
    rate::Rates,
    runtime::{LauncherRuntime, Places, Runtime},
    sandboxes::{Engine, disk},
    store::{Owner, Store, StoreError, sqlite::SqliteStore},
    templates::{TemplateError, Templates},
    upgrade::Upgrades,
};

/// A server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its data directory can't be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Its store can't be used.
    #[error("{0}")]
    Store(String),
    /// Its templates make no sense.
    #[error("templates: {0}")]
    Templates(String),
    /// Its images can't be used.
    #[error("{0}")]
    Images(String),
    /// The agent's binary is not there.
    #[error("the agent's binary is not usable: {0}")]
    Agent(String),
    /// The address can't be used.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The process can't be set up.
    #[error("can't set up the process: {0}")]
    Process(#[from] std::io::Error),
    /// The operator's key can't be made.
    #[error("can't make the operator's key: {0}")]
    Key(String),
}

impl From<TemplateError> for ServeError {
    fn from(error: TemplateError) -> Self {
        Self::Templates(error.to_string())
    }
}

impl From<StoreError> for ServeError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

/// Runs a server until SIGTERM or SIGINT. Needs a tokio runtime with I/O and time.
pub async fn serve(config: Config) -> Result<(), ServeError> {
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // A terminal that closes does not end a server.
    let mut hangup = signal(SignalKind::hangup())?;
    let running = run(config, stop);
    let mut running = std::pin::pin!(running);
    loop {
        tokio::select! {
            ended = running.as_mut() => return ended,
            _ = terminate.recv() => stopping.cancel(),
            _ = interrupt.recv() => stopping.cancel(),
            _ = hangup.recv() => {}
        }
    }
}

/// Runs a server until `stop` is cancelled.
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), ServeError> {
    raise_file_limit()?;
    let agent = config.agent()?;
    if !agent.is_file() {
        return Err(ServeError::Agent(format!("{} is no file", agent.display())));
    }
    let data = DataDir::open(&config.data)?;
    let reserve = data.reserve();
    let file = data.path().join("outlive.db");
    let sqlite = Arc::new(SqliteStore::open_on(&file, Arc::clone(reserve)).await?);
    let store: Arc<dyn Store> = Arc::<SqliteStore>::clone(&sqlite);
    let places = Places::new(data.path());
    let images = Arc::new(ImagesDir::open(data.path()).map_err(|error| unusable(&error))?);
    let catalog = catalog(&config, &data, sqlite, &images, &stop).await?;
    let runtime = runtime(&config, agent.clone(), &places, images).await;
    let auth = Arc::new(Auth::new(
        Arc::clone(&store),
        Rates::new(config.tenant.requests_per_second_max),
    ));
    operators_key(&data, &auth).await?;

    let tasks = TaskTracker::new();
    let engine = Engine::new(
        Arc::clone(&store),
        Arc::clone(&runtime),
        places,
        tasks.clone(),
        stop.clone(),
        config.tenant,
        Arc::clone(reserve),
    );
    let found = engine.take_up().await?;
    let listener = listen(config.listen).await?;
    let address = listener.local_addr()?;
    let expiring =
        tokio_util::task::AbortOnDropHandle::new(tasks.spawn(Arc::clone(&auth).expire()));
    let connections = TaskTracker::new();
    let metrics = Arc::<Metrics>::default();
    let supervised = Supervised::new(
        Arc::new(engine.clone()),
        Arc::clone(&metrics),
        stop.clone(),
        connections.clone(),
    );
    let upgrades = Upgrades::new(engine.clone(), agent);
    tasks.spawn(disk::watch(engine.clone()));
    tasks.spawn(Arc::clone(reserve).watch(stop.clone()));
    let app = app(
        engine,
        Arc::clone(&auth),
        Keys { auth, store },
        supervised,
        metrics,
        upgrades,
        catalog,
    );
    let accepting = accept(listener, app, stop.clone(), connections.clone());
    data.write_endpoint(&format!("http://{address}"))?;
    tracing::info!(%address, sandboxes = found, data = %data.path().display(), "serving");

    accepting.await;
    drop(expiring);
    data.remove_endpoint()?;
    wait_for(&connections, &tasks).await;
    if let Err(error) = runtime.leave().await {
        tracing::warn!(%error, "what sandboxes share is left on this host");
    }
    tracing::info!("stopped; sandboxes go on");
    Ok(())
}

/// What runs sandboxes; what earlier ones left on this host is gone afterwards.
async fn runtime(
    config: &Config,
    agent: PathBuf,
    places: &Places,
    images: Arc<ImagesDir>,
) -> Arc<dyn Runtime> {
    let host = Arc::new(HostLayers::new(images, PathBuf::from("/")));
    let runtime = LauncherRuntime::new(agent, places.clone(), host, config.runtime, config.pool);
    let runtime = runtime.await;
    if let Err(error) = runtime.tidy().await {
        tracing::error!(%error, "what sandboxes left on this host is not tidied up");
    }
    Arc::new(runtime)
}

/// Templates and images; layers that a killed server left are gone afterwards.
async fn catalog(
    config: &Config,
    data: &DataDir,
    store: Arc<SqliteStore>,
    images: &Arc<ImagesDir>,
    stop: &CancellationToken,
) -> Result<Catalog, ServeError> {
    let usual = data.path().join("templates.yaml");
    let templates = Templates::read(config.templates.as_deref(), &usual)?;
    let library = Library::new(Arc::clone(images), store, stop.clone());
    library.sweep().await.map_err(|error| unusable(&error))?;
    Ok(Catalog::new(Arc::new(library), templates))
}

fn unusable(error: &impl ToString) -> ServeError {
    ServeError::Images(error.to_string())
}

/// Waits for what is going on, for a while.
async fn wait_for(connections: &TaskTracker, tasks: &TaskTracker) {
    connections.close();
    tasks.close();
    let ended = async {
        connections.wait().await;
        tasks.wait().await;
    };
    if timeout(SHUTDOWN_MAX, ended).await.is_err() {
        tracing::info!("some connections did not end in time");
    }
}

async fn listen(address: std::net::SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Listen { address, source })
}

/// The key in `admin.token` is valid afterwards.
async fn operators_key(data: &DataDir, auth: &Auth) -> Result<(), ServeError> {
    if let Some(key) = data.admin_token()?
        && auth.knows(&key).await?
    {
        return Ok(());
    }
    let owner = Owner::parse("default").ok_or_else(|| ServeError::Key("no owner".to_owned()))?;
    let issued = auth
        .issue(owner, Role::Admin, "operator".to_owned(), None)
        .await;
    let (_, key) = issued.map_err(|error| match error {
        IssueError::Store(error) => error.into(),
        IssueError::Random(error) => ServeError::Key(error.to_string()),
    })?;
    data.write_admin_token(&key)?;
    Ok(())
}

/// Every stream is a descriptor: use as many as we may.
fn raise_file_limit() -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(())
}
