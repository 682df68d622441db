//! The supervisor of one sandbox: a current-thread runtime, a driver for each session, and the
//! link to the server. The pump, the spawner and the disk have threads of their own.
//!
//! It holds no truth: everything it knows is in the journals and, for what runs, in the keeper.
//! So it may be killed at any moment, and the next one goes on.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd},
    path::Path,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use outlive_api::agent::{Health, Hello, Outcome, PumpMode, Request, Welcome};
use outlive_core::{
    id::{Generation, SandboxId},
    session::CallMark,
};
use tokio::{io::Interest, net::UnixListener, task::LocalSet, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clock::Clock,
    driver::Surroundings,
    figures::Figures,
    inherit::{self, Inheritance},
    journal::JournalSurroundings,
    keeper::KeeperClient,
    limits::OPENS_AT_ONCE,
    link::{self, Service},
    log, owner,
    processes::Processes,
    registry::Registry,
    reserve::Reserve,
    standstill::Standstill,
    sync::Syncer,
    sys,
    tails::{Tails, Watcher},
};

/// The state directory: the working directory, named by that alone, since the directories above it may
/// belong to somebody who lets no other user through.
const STATE: &str = ".";

/// How long replies may take to leave once the supervisor ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// Exit code after a panic.
const PANICKED: i32 = 70;

/// Serves until the runtime ends or another supervisor takes over.
pub fn main() -> anyhow::Result<()> {
    std::panic::set_hook(Box::new(|panic| {
        // A task that is gone would be missed by nobody: the keeper starts another supervisor,
        // which finds everything in place.
        log::warn(format_args!("{panic}"));
        sys::exit_now(PANICKED);
    }));
    let keeper = inherit::keeper()?;
    let state = Path::new(STATE);
    // Until the process ends: threads may write to journals as long.
    let _lock = owner::lock(state).context("the state directory's lock")?;
    // Whatever needs no word from the keeper, which may still be on its way.
    let sandbox = std::env::args().nth(1).context("whose supervisor?")?;
    owner::claim_new(state, &SandboxId::parse(&sandbox)?)?;
    let reserve = Reserve::keep(state);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(OPENS_AT_ONCE)
        .build()
        .context("the runtime")?;
    let inherited = Inheritance::take(keeper)?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, supervise(inherited, reserve));
    // Drivers that still wait are dropped where they stand, as a kill would drop them.
    drop(local);
    runtime.shutdown_background();
    result
}

async fn supervise(inherited: Inheritance, reserve: Reserve) -> anyhow::Result<()> {
    let state = Path::new(STATE);
    let (sandbox, generation) = (
        inherited.config.sandbox.clone(),
        inherited.config.generation,
    );
    let keeper = inherited.keeper.clone();
    owner::claim(state, &sandbox, inherited.config.copied_sessions)?;
    let standstill = Standstill::find(state, &sandbox, generation).context("the standstill")?;
    let machine = Processes::of(inherited, Rc::clone(&standstill));
    if machine
        .is_frozen()
        .context("whether the workload is frozen")?
    {
        standstill.shut().context("the standstill")?;
    }
    let clock = Arc::new(Clock::system());
    let tails = Arc::new(Tails::default());
    let syncer = Syncer::new();
    let around = Rc::new(Surroundings {
        machine: Rc::new(machine),
        generation,
        clock: Arc::clone(&clock),
        journals: JournalSurroundings {
            clock,
            syncer: syncer.clone(),
            tails: Arc::clone(&tails),
            boot_id: boot_id().context("the boot's id")?,
            generation,
        },
        reserve,
        tasks: TaskTracker::new(),
        figures: Rc::new(Figures::default()),
        leftovers: Rc::default(),
        standstill,
    });
    let registry = Registry::new(Rc::clone(&around), state.join("sessions"));
    registry.open_all().context("the sessions")?;
    if around.standstill.is_shut() {
        let freezing = Rc::clone(&registry).go_on_freezing();
        around.tasks.spawn_local(freezing);
    }
    let listener = listen(state).context("the link's socket")?;
    keeper.ready().context("telling the keeper")?;
    bring_up_to_date(&keeper);
    let stop = CancellationToken::new();
    let supervisor = Supervisor {
        sandbox,
        generation,
        keeper,
        around,
        registry,
        tails,
        syncer,
        stop: stop.clone(),
    };
    let links = TaskTracker::new();
    let supervisor = Rc::new(supervisor);
    let keeper_gone = Rc::clone(&supervisor).outlive_keeper();
    supervisor.around.tasks.spawn_local(keeper_gone);
    link::serve(listener, supervisor, links.clone(), stop).await;
    links.close();
    if timeout(FAREWELL, links.wait()).await.is_err() {
        log::warn(format_args!("a link did not take its last replies"));
    }
    Ok(())
}

/// After an upgrade the keeper still runs the old executable. The new one has just proved itself,
/// and nothing waits for an answer yet: the keeper changes now.
fn bring_up_to_date(keeper: &KeeperClient) {
    let changed = keeper.status().and_then(|status| {
        if status.outdated {
            keeper.reexec()
        } else {
            Ok(())
        }
    });
    if let Err(error) = changed {
        // It goes on as it was, and so does everything else; its status tells.
        log::warn(format_args!("the keeper was not replaced: {error}"));
    }
}

/// Changes with every start of the machine.
fn boot_id() -> std::io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(std::io::Error::other)?;
    Ok(number.to_be_bytes())
}

async fn keeper_hangs_up(keeper: &KeeperClient) -> std::io::Result<()> {
    // Hanging up is reported whatever is asked for; answers are not.
    let socket = sys::watch(Arc::new(keeper.socket()?), Interest::PRIORITY)?;
    loop {
        let mut guard = socket.ready(Interest::PRIORITY).await?;
        if guard.ready().is_read_closed() || guard.ready().is_error() {
            return Ok(());
        }
        guard.clear_ready();
    }
}

/// A path of any length: the socket is bound through its directory's descriptor.
fn listen(state: &Path) -> std::io::Result<UnixListener> {
    let directory = std::fs::File::open(state)?;
    let path = format!("/proc/self/fd/{}/agent.sock", directory.as_fd().as_raw_fd());
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // The first supervisor.
        Err(error) => return Err(error),
    }
    UnixListener::bind(&path)
}

struct Supervisor {
    sandbox: SandboxId,
    generation: Generation,
    keeper: KeeperClient,
    around: Rc<Surroundings<Processes>>,
    registry: Rc<Registry<Processes>>,
    tails: Arc<Tails>,
    syncer: Syncer,
    stop: CancellationToken,
}

impl Service for Supervisor {
    fn welcome(&self, hello: &Hello) -> Welcome {
        let version = if hello.sandbox == self.sandbox {
            link::choose_version(hello)
        } else {
            0 // A foreign server must not speak to these sessions.
        };
        Welcome {
            version,
            sandbox: self.sandbox.clone(),
            generation: self.generation,
            pump: if self.around.machine.is_splicing() {
                PumpMode::Splice
            } else {
                PumpMode::Copy
            },
            build: env!("CARGO_PKG_VERSION").to_owned(),
            frozen: self.around.standstill.is_shut(),
            remembers_calls: true,
            discards: true,
        }
    }

    async fn call(self: Rc<Self>, request: Request, mark: Option<CallMark>) -> Outcome {
        match request {
            Request::Configure { env } => self.configure(env),
            Request::Release => self.release().await,
            Request::Discard => {
                self.syncer.retire();
                self.release().await
            }
            Request::Upgrade { path } => self.upgrade(&path),
            Request::Health => self.health(),
            Request::Freeze => self.registry.freeze().await,
            Request::Thaw => self.registry.thaw().await,
            request => self.registry.call(request, mark).await,
        }
    }

    fn watch(&self) -> Result<Watcher, String> {
        self.tails.watch().map_err(|error| error.to_string())
    }
}

impl Supervisor {
    fn configure(&self, env: BTreeMap<String, String>) -> Outcome {
        self.around.machine.set_env(env);
        Outcome::Done
    }

    async fn release(&self) -> Outcome {
        if let Err(error) = self.registry.release().await {
            return Outcome::Failed {
                message: format!("a session was not released: {error}"),
            };
        }
        if let Err(error) = self.around.machine.kill_rest().await {
            log::warn(format_args!("some processes may be left: {error}"));
        }
        match self.keeper.leave() {
            Ok(()) => {
                self.end_soon();
                Outcome::Done
            }
            Err(error) => Outcome::Failed {
                message: error.to_string(),
            },
        }
    }

    fn upgrade(&self, path: &str) -> Outcome {
        let upgraded = std::fs::File::open(path)
            .map_err(anyhow::Error::from)
            .and_then(|exe| Ok(self.keeper.upgrade(exe.as_fd())?));
        match upgraded {
            Ok(()) => {
                self.end_soon();
                Outcome::Done
            }
            Err(error) => Outcome::Failed {
                message: format!("{path}: {error:#}"),
            },
        }
    }

    fn health(&self) -> Outcome {
        let (syncs, spent) = self.syncer.figures();
        let keeper = match self.keeper.status() {
            Ok(status) => status,
            Err(error) => {
                return Outcome::Failed {
                    message: error.to_string(),
                };
            }
        };
        let figures = &self.around.figures;
        Outcome::Health(Health {
            attempts: figures.attempts(),
            restarts: figures.restarts(),
            journal_bytes: self.registry.journal_bytes(),
            syncs,
            sync_us: u64::try_from(spent.as_micros()).unwrap_or(u64::MAX),
            damaged: figures.damaged(),
            supervisor_starts: keeper.supervisor_starts,
            keeper_reexecs: keeper.reexecs,
            freezes_by_signal: self.around.machine.freezes_by_signal(),
        })
    }

    /// Without its keeper a runtime is lost: what it runs could never be taken over again.
    ///
    /// Every attempt ends with it, and the journals say so. In namespaces of its own the kernel
    /// ends everything at once, and the next runtime finds what was journalled.
    async fn outlive_keeper(self: Rc<Self>) {
        match keeper_hangs_up(&self.keeper).await {
            Ok(()) => log::warn(format_args!("the keeper is gone")),
            Err(error) => {
                log::warn(format_args!("the keeper can't be watched: {error}"));
                return;
            }
        }
        if let Err(error) = self.registry.release().await {
            log::warn(format_args!("a session was not released: {error}"));
        }
        self.stop.cancel();
    }

    /// Ends once the answer to the call at hand is on its way.
    fn end_soon(&self) {
        let stop = self.stop.clone();
        self.around.tasks.spawn_local(async move {
            tokio::task::yield_now().await;
            stop.cancel();
        });
    }
}
