//! The backends of one host, `namespace`, `two-uid` and `process`: all are `outlive-agent launch` with
//! another word in its configuration.
//!
//! The server may be killed while a launcher works. The launcher's standard error is a file that
//! the server locked before it started it; the lock lives as long as the launcher does, so the
//! next server can tell "still starting" from "nothing there".

mod choice;
mod copy;
mod layers;
mod limits;
mod network;
mod program;
mod remove;
mod told;
mod waiting;

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use outlive_api::{
    launch::{Cidr, Copied, Isolation, IsolationTier, LaunchOutcome, Limits, RuntimeKind},
    network::NetworkMode,
};
use outlive_core::id::SandboxId;
use outlive_journal::{put_path, sync_path};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub use self::choice::RuntimeChoice;
use self::{
    choice::warning,
    program::{Kept, Program, launcher_failed, launcher_works, locked_log, tell},
    told::{Plan, encoded, launch_config, newest, newest_message, path_text, user},
    waiting::Launchers,
};
use super::{
    Capabilities, Disk, Place, Places, Progress, Restore, RestoreError, Runtime, RuntimeError,
    RuntimeFuture, Start, Started, Whose,
    host::{Host, admit_user},
    open_files::held_open,
    quota::Quotas,
    tier::{Otherwise, backend, enough, reached_by, weaker},
    usage::{Usage, usage},
};
use crate::{
    agents::keeper::Keeper,
    ids,
    images::{HostLayer, HostLayers},
    limits::{LAUNCH_MAX, SWEEP_MAX},
    sandboxes::config::SandboxConfig,
};

/// See the module.
#[derive(Debug)]
pub(crate) struct LauncherRuntime {
    agent: Program,
    launchers: Launchers,
    places: Places,
    host: Arc<HostLayers>,
    choice: RuntimeChoice,
    /// Addresses of sandboxes.
    pool: Cidr,
    /// What the agent found out about this host.
    able: Host,
    /// What the file system of the data folder does.
    quotas: Quotas,
    /// Set once the host turned out to lack what `namespace` needs.
    fell_back: AtomicBool,
    /// What the newest launch reached.
    isolation: Mutex<Option<Isolation>>,
    /// What has the rules of networks be there.
    held: Mutex<Option<Kept>>,
}

impl LauncherRuntime {
    /// With this agent binary, which finds a place for sandboxes and looks at the host first.
    pub(crate) async fn new(
        agent: PathBuf,
        places: Places,
        host: Arc<HostLayers>,
        choice: RuntimeChoice,
        pool: Cidr,
    ) -> Self {
        let agent = Program::new(agent);
        agent.settle().await;
        let able = match agent.probe(places.root()).await {
            Ok(able) => able,
            Err(error) => {
                tracing::error!(%error, "what this host can do is unknown; nothing beyond the least is promised");
                Host::default()
            }
        };
        let falls_back = choice == RuntimeChoice::Auto && able.cannot_isolate();
        if falls_back {
            tracing::warn!(off = ?able.off, "{}", warning(able.next_best()));
        }
        let launchers = Launchers::new(agent.clone());
        launchers.have_one_wait();
        Self {
            agent,
            launchers,
            places,
            host,
            choice,
            pool,
            quotas: Quotas::of(&able),
            able,
            fell_back: AtomicBool::new(falls_back),
            isolation: Mutex::new(None),
            held: Mutex::new(None),
        }
    }

    fn kind(&self) -> RuntimeKind {
        match self.choice {
            RuntimeChoice::Process => RuntimeKind::Process,
            RuntimeChoice::TwoUid => RuntimeKind::TwoUid,
            RuntimeChoice::Auto if self.fell_back.load(Ordering::Relaxed) => self.able.next_best(),
            RuntimeChoice::Auto | RuntimeChoice::Namespace => RuntimeKind::Namespace,
        }
    }

    async fn begin(&self, start: Start<'_>) -> Result<Started, RuntimeError> {
        let usual = self.kind();
        let (kind, otherwise) = backend(self.choice, usual, self.able.next_best(), start.made)?;
        match (self.launch(&start, kind).await, otherwise) {
            (Err(RuntimeError::Launch(failure)), Otherwise::FallBack) if failure.unsupported => {
                self.fell_back.store(true, Ordering::Relaxed);
                let kind = self.able.next_best();
                tracing::warn!(%failure, "{}", warning(kind));
                self.launch(&start, kind).await
            }
            (Err(RuntimeError::Launch(failure)), Otherwise::Fail)
                if failure.unsupported || kind != usual =>
            {
                Err(match start.made {
                    Some(made) => weaker(made, failure.to_string()),
                    None => failure.into(),
                })
            }
            (launched, _) => launched,
        }
    }

    async fn launch(&self, start: &Start<'_>, kind: RuntimeKind) -> Result<Started, RuntimeError> {
        let place = self.places.of(start.sandbox);
        let log = locked_log(&place)?;
        // Should its program have to start, it does while what it is told is gathered.
        let (told, launcher) =
            tokio::join!(self.plan(start, kind, &place), self.launchers.take(&log));
        let launcher = launcher?;
        // Held until the keeper lives, which then says by itself that it uses the layer.
        let (message, _layer) = told?;
        let kept = place.launch_config();
        let sync = {
            let kept = kept.clone();
            blocking(move || sync_path(&kept))
        };
        let (answer, synced) = tokio::join!(launcher.carry_out(&message, &log, LAUNCH_MAX), sync);
        let answer = answer?;
        synced?.map_err(file("syncing", &kept))?;
        let launched = match minicbor::decode(&answer) {
            Ok(LaunchOutcome::Started(launched)) => launched,
            Ok(LaunchOutcome::Failed(failure)) => return Err(failure.into()),
            Err(error) => {
                return Err(launcher_failed(
                    &format!("its answer is unreadable: {error}"),
                    &log,
                ));
            }
        };
        // What an error leaves is ended by whoever asked for the start.
        let tier = launched.isolation.tier;
        enough(start.made, tier)?;
        let state = place.state();
        let keeper = Keeper::find(&state)
            .map_err(file("looking for the keeper of", &state))?
            .ok_or_else(|| launcher_failed("its keeper is gone again", &log))?;
        if kind == self.kind() {
            *self
                .isolation
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(launched.isolation);
        }
        Ok(Started { keeper, tier })
    }

    /// What the launcher is told, which is written down before it is, and the layer that it counts
    /// on.
    async fn plan(
        &self,
        start: &Start<'_>,
        kind: RuntimeKind,
        place: &Place,
    ) -> Result<(Vec<u8>, Option<Arc<HostLayer>>), RuntimeError> {
        let (image, layer) = self.image(start, kind).await?;
        let config = launch_config(Plan {
            start,
            kind,
            image,
            network: self.network_of(kind, start.config),
            pool: self.pool,
            quota: self.quota_of(kind, start.config)?,
            place,
        })?;
        let message = encoded(&config)?;
        // What a later server needs to sweep up after this launch, whatever becomes of it.
        let kept = place.launch_config();
        put_path(&kept, &message).map_err(file("writing", &kept))?;
        Ok((message, layer))
    }

    /// Removes what a runtime that is gone left in the kernel.
    async fn sweep(&self, sandbox: &SandboxId) -> Result<(), RuntimeError> {
        let place = self.places.of(sandbox);
        let Some(message) = newest_message(&place)? else {
            return Ok(()); // Nothing was ever launched.
        };
        let log = locked_log(&place)?;
        self.agent.run("sweep", &message, &log, SWEEP_MAX).await?;
        // Namespaces and mounts went with the keeper; these names are left.
        remove(&place.state().join("agent.sock"))?;
        remove(&place.state().join("keeper.pid"))
    }

    async fn find(place: &Place) -> Result<Option<Keeper>, RuntimeError> {
        let state = place.state();
        let mut waited = Duration::ZERO;
        loop {
            // What a launcher that still works has written down may be no keeper yet, or never
            // become one.
            if !launcher_works(place)? || waited >= LAUNCH_MAX {
                return Keeper::find(&state).map_err(file("looking for the keeper of", &state));
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
        let kind = self.kind();
        let tier = reached_by(kind);
        let disk_limit = match kind {
            RuntimeKind::Namespace if self.quotas.are_right() => Some("quota"),
            RuntimeKind::Namespace => Some("checked"),
            RuntimeKind::Process | RuntimeKind::TwoUid => None,
        };
        match known {
            Some(isolation) => Capabilities {
                runtime: kind.name(),
                isolation: isolation.tier.name(),
                journal_protected: isolation.journal_protected,
                disk_limit,
                off: isolation.off,
            },
            None => Capabilities {
                runtime: kind.name(),
                isolation: tier.name(),
                journal_protected: tier != IsolationTier::None,
                disk_limit,
                off: self.able.off_in(tier),
            },
        }
    }

    fn tidy(&self) -> RuntimeFuture<'_, ()> {
        Box::pin(async move {
            let groups = self.tidy_groups().await;
            self.tidy_networks().await.and(groups)
        })
    }

    fn leave(&self) -> RuntimeFuture<'_, ()> {
        Box::pin(self.leave_networks())
    }

    fn get_ready(&self) {
        self.launchers.have_one_wait();
    }

    fn admit(&self, config: &SandboxConfig) -> Result<(), RuntimeError> {
        match self.kind() {
            RuntimeKind::Namespace => {
                self.able.admit(config)?;
                admit_user(&user(config)?, ids::shared())
            }
            kind @ (RuntimeKind::Process | RuntimeKind::TwoUid) => {
                self.able.admit_host(kind, config)?;
                self.able.admit_limits(config)
            }
        }
    }

    fn network(&self, config: &SandboxConfig, made: Option<IsolationTier>) -> NetworkMode {
        let kind = match backend(self.choice, self.kind(), self.able.next_best(), made) {
            Ok((kind, _)) => kind,
            Err(_refused) => RuntimeKind::Namespace, // It has what it had.
        };
        self.network_of(kind, config)
    }

    fn connected(&self, sandbox: &SandboxId) -> Result<Option<NetworkMode>, RuntimeError> {
        self.connected_now(sandbox)
    }

    fn catch_up<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            self.catch_up_egress(sandbox, config).await?;
            self.catch_up_limits(sandbox, config).await
        })
    }

    fn limit<'a>(
        &'a self,
        sandbox: &'a SandboxId,
        config: &'a SandboxConfig,
    ) -> RuntimeFuture<'a, ()> {
        Box::pin(self.change_limits(sandbox, config))
    }

    fn limits(&self, sandbox: &SandboxId) -> Result<Option<Limits>, RuntimeError> {
        let launched = newest(&self.places.of(sandbox))?;
        Ok(launched.map(|launched| launched.limits))
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

    fn told(&self, sandbox: &SandboxId) -> Result<Option<IsolationTier>, RuntimeError> {
        let told = newest(&self.places.of(sandbox))?;
        Ok(told.map(|config| reached_by(config.runtime)))
    }

    fn start<'a>(&'a self, start: Start<'a>) -> RuntimeFuture<'a, Started> {
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
        give_up: &'a CancellationToken,
    ) -> RuntimeFuture<'a, Copied> {
        Box::pin(self.copy_disk(from, to, progress, give_up))
    }

    fn has_quota(&self, sandbox: &SandboxId, in_force: Option<u64>) -> bool {
        self.quotas.hold(&self.places.of(sandbox), in_force)
    }

    fn counted(&self, sandbox: &SandboxId) -> Option<u64> {
        self.quotas.counted(&self.places.of(sandbox))
    }

    fn usage<'a>(&'a self, sandbox: &'a SandboxId, entries_max: u64) -> RuntimeFuture<'a, Usage> {
        Box::pin(async move {
            // `/tmp` lies in it, too.
            let place = self.places.of(sandbox);
            let (disk, state) = (place.disk(), place.state());
            let keeper = Keeper::find(&state).map_err(file("looking for the keeper of", &state))?;
            blocking(move || {
                let named = usage(&disk, entries_max).map_err(file("measuring", &disk))?;
                let held = keeper.map(|keeper| held_open(keeper.pid()));
                Ok(named.with(held.unwrap_or_default()))
            })
            .await?
        })
    }

    fn restore<'a>(
        &'a self,
        restore: Restore<'a>,
        progress: &'a Progress,
        give_up: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Copied, RestoreError>> {
        Box::pin(self.restore_disk(restore, progress, give_up))
    }

    fn delete<'a>(&'a self, whose: Whose<'a>) -> RuntimeFuture<'a, ()> {
        Box::pin(async move {
            let place = self.places.of_disk(whose);
            // Whoever still copies to it would make anew what is removed.
            Self::find(&place).await?;
            remove::remove(&self.agent, place.dir().to_owned()).await
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    // Whom a launcher writes down at once may not be ready, or never become a keeper: a server that
    // starts meanwhile must not take it for a runtime.
    #[tokio::test]
    async fn who_is_written_down_is_no_keeper_before_its_launcher_is_gone() {
        let data = tempfile::tempdir().unwrap();
        let place = Places::new(data.path()).of(&SandboxId::from_bits(1));
        fs::create_dir_all(place.state()).unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let started = stat.rsplit(')').next().unwrap().split_whitespace().nth(19);
        let named = format!("{} {}\n", std::process::id(), started.unwrap());
        fs::write(place.state().join("keeper.pid"), named).unwrap();
        let lock = locked_log(&place).unwrap();
        let mut found = Box::pin(LauncherRuntime::find(&place));
        assert!((&mut found).now_or_never().is_none());
        drop(lock);
        let keeper = found.await.unwrap().unwrap();
        assert_eq!(keeper.pid().unsigned_abs(), std::process::id());
    }
}
