//! Attempts as real processes: [`crate::process`] behind the driver's words.
//!
//! ```text
//!   spawn   Spawner ─► gate opens ─► exec status ─► a Process that the driver owns
//!   adopt   what the keeper kept of the supervisor before us
//!   output  Pump ─► AttemptOutput ─► the session's journal
//!   end     pidfd ─► sources at their end, or idle ─► who knows the status
//! ```

mod attempt;
mod output;
mod workload;
mod workplace;

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    io,
    os::fd::OwnedFd,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use outlive_api::agent::PumpMode;
use outlive_core::{event::Oom, id::SessionId, limits::KILL_WAIT, session::TerminalSize, spec::Io};
use tokio::{io::Interest, time::timeout};
use tokio_util::task::TaskTracker;

use self::{
    attempt::{Process, SPOOL_SUFFIX},
    workload::Workload,
    workplace::Workplace,
};
use crate::{
    inherit::Inheritance,
    journal::SessionJournal,
    keeper::{ExitRecord, KeeperClient},
    log,
    machine::{AdoptOrder, Adopted, Ended, Machine, SpawnOrder, StartFailure},
    process::{
        self, AttemptKey, ExecOutcome, Pump, SpawnRequest, Spawner, exit, spawn::PATH_DEFAULT,
    },
    standstill::Standstill,
    sys,
};

/// The real machine.
#[derive(Debug)]
pub(crate) struct Processes {
    keeper: KeeperClient,
    spawner: Spawner,
    pump: Pump,
    /// What attempts wrote, all together.
    output_bytes: Arc<AtomicU64>,
    workload: Workload,
    workplace: Workplace,
    /// The sandbox's own variables, on top of the workplace's: those of the launch until the
    /// server says others.
    env: RefCell<BTreeMap<String, String>>,
    /// Attempts of the supervisor before us that no driver asked for yet.
    found: RefCell<BTreeMap<AttemptKey, process::Attempt>>,
    /// Ends of attempts that the keeper holds nothing of: those of earlier runtimes, by name.
    past: RefCell<HashMap<String, ExitRecord>>,
    spools: RefCell<HashMap<String, OwnedFd>>,
    standstill: Rc<Standstill>,
    tasks: TaskTracker,
}

impl Processes {
    /// Takes what a supervisor starts with.
    pub(crate) fn of(inherited: Inheritance, standstill: Rc<Standstill>) -> Self {
        let Inheritance {
            keeper,
            config,
            spawner,
            pump,
            cgroups,
            crowd,
            attempts,
            others,
            exits,
            root,
            isolation: _,
        } = inherited;
        let mut past: HashMap<_, _> = exits
            .into_iter()
            .map(|record| (record.name.clone(), record))
            .collect();
        for attempt in &attempts {
            past.remove(&exit::name(&attempt.key));
        }
        let found = attempts
            .into_iter()
            .map(|it| (it.key.clone(), it))
            .collect();
        let spools = others
            .into_iter()
            .filter(|kept| kept.label.name.ends_with(SPOOL_SUFFIX))
            .map(|kept| (kept.label.name, kept.fd))
            .collect();
        Self {
            keeper,
            spawner,
            pump,
            output_bytes: Arc::default(),
            workload: Workload::of(cgroups, crowd),
            workplace: Workplace::of(&config, root),
            env: RefCell::new(config.env),
            found: RefCell::new(found),
            past: RefCell::new(past),
            spools: RefCell::new(spools),
            standstill,
            tasks: TaskTracker::new(),
        }
    }

    /// Variables of the sandbox for the next attempts: these and no others.
    pub(crate) fn set_env(&self, env: BTreeMap<String, String>) {
        *self.env.borrow_mut() = env;
    }

    /// Whether output moves in the kernel.
    pub(crate) fn is_splicing(&self) -> bool {
        self.pump.mode() == PumpMode::Splice
    }

    /// Whether a supervisor before us froze the workload and nobody thawed it.
    pub(crate) fn is_frozen(&self) -> io::Result<bool> {
        self.workload.is_frozen()
    }

    /// Whether no control group freezes the workload as a whole.
    pub(crate) fn freezes_by_signal(&self) -> bool {
        self.workload.freezes_by_signal()
    }

    /// Kills what sessions left behind and no control group holds: nothing else ends it, where it is
    /// not in a namespace that ends with the keeper.
    pub(crate) async fn kill_rest(&self) -> io::Result<()> {
        self.workload.kill_rest().await
    }

    fn request(&self, order: &SpawnOrder) -> Result<SpawnRequest, StartFailure> {
        let SpawnOrder {
            session,
            number,
            spec,
            size,
            journal: _,
            stop: _,
        } = order;
        let (account, user) = self.workplace.account(spec.user.as_ref())?;
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), PATH_DEFAULT.to_owned()),
            ("HOME".to_owned(), account.home.clone()),
            ("USER".to_owned(), account.name.clone()),
            ("LOGNAME".to_owned(), account.name.clone()),
        ]);
        env.extend(self.env.borrow().clone());
        let mut io = spec.io.clone();
        if let Io::Pty(terminal) = &mut io {
            env.insert("TERM".to_owned(), terminal.term.clone());
            if let Some(TerminalSize { rows, cols }) = size {
                (terminal.rows, terminal.cols) = (*rows, *cols);
            }
        }
        env.extend(spec.env.clone());
        Ok(SpawnRequest {
            key: AttemptKey {
                session: session.clone(),
                number: *number,
            },
            argv: spec.command.clone(),
            env: env.into_iter().collect(),
            cwd: self.workplace.cwd(&account, &spec.cwd),
            io,
            user,
        })
    }

    async fn start_process(self: Rc<Self>, order: SpawnOrder) -> Result<Process, StartFailure> {
        let request = self.request(&order)?;
        let (program, cwd) = (request.argv.first().cloned(), request.cwd.clone());
        let spawned = self.spawner.spawn(request).await.map_err(failure)?;
        let process = Process::of(&self, spawned.attempt, &order.journal).map_err(failure)?;
        let outcome = match spawned.gate.open() {
            Ok(()) => tokio::select! {
                biased;
                outcome = process.exec_outcome() => outcome,
                () = order.stop.cancelled() => Ok(ExecOutcome::Pending),
            },
            Err(error) => Err(error),
        };
        match outcome {
            Ok(ExecOutcome::Running) => Ok(process),
            Err(error) => {
                process.discard().await;
                Err(failure(error))
            }
            Ok(ExecOutcome::Pending) => {
                process.discard().await;
                Err(StartFailure(NOT_REACHED.to_owned()))
            }
            Ok(ExecOutcome::NeverReleased) => {
                process.discard().await;
                Err(StartFailure(
                    "the process ended before its program was reached".to_owned(),
                ))
            }
            Ok(failed @ ExecOutcome::Failed { .. }) => {
                process.discard().await;
                let message = failed.message(program.as_deref().unwrap_or_default(), &cwd);
                Err(StartFailure(message.unwrap_or_default()))
            }
        }
    }

    /// What no driver of this session asked for yet.
    fn take_found(&self, session: &SessionId) -> Vec<process::Attempt> {
        let mut found = self.found.borrow_mut();
        let keys: Vec<_> = found
            .keys()
            .filter(|key| key.session == *session)
            .cloned()
            .collect();
        keys.iter().filter_map(|key| found.remove(key)).collect()
    }

    /// Ends a process whose session is no more.
    async fn bury(&self, attempt: process::Attempt) -> io::Result<()> {
        attempt.abandon();
        let pidfd = sys::watch(Arc::clone(&attempt.pidfd), Interest::READABLE)?;
        drop(timeout(KILL_WAIT, pidfd.readable()).await);
        exit::reap(&attempt)?;
        attempt.forget(&self.keeper).map_err(io::Error::other)?;
        self.workload.remove(&attempt.cgroup)
    }

    async fn find(self: Rc<Self>, order: AdoptOrder) -> io::Result<Adopted<Process>> {
        let key = AttemptKey {
            session: order.session,
            number: order.number,
        };
        let Some(attempt) = self.found.borrow_mut().remove(&key) else {
            // The keeper gets an attempt whole before it is released: this one never was.
            return Ok(Adopted::NeverRan);
        };
        let process = Process::of(&self, attempt, &order.journal)?;
        let outcome = match process.exec_outcome().await {
            Ok(outcome) => outcome,
            Err(error) => {
                process.discard().await;
                return Err(error);
            }
        };
        Ok(match outcome {
            ExecOutcome::Running => Adopted::Ran(process),
            ExecOutcome::Pending => {
                process.discard().await;
                Adopted::Failed(StartFailure(NOT_REACHED.to_owned()))
            }
            ExecOutcome::NeverReleased => {
                process.discard().await;
                Adopted::NeverRan
            }
            failed @ ExecOutcome::Failed { .. } => {
                process.discard().await;
                let message = failed
                    .message("the program", "the directory")
                    .unwrap_or_default();
                Adopted::Failed(StartFailure(message))
            }
        })
    }
}

impl Machine for Processes {
    type Attempt = Process;

    fn spawn(
        self: Rc<Self>,
        order: SpawnOrder,
    ) -> impl Future<Output = Result<Process, StartFailure>> {
        self.start_process(order)
    }

    async fn adopt(self: Rc<Self>, order: AdoptOrder) -> Adopted<Process> {
        match self.find(order).await {
            Ok(adopted) => adopted,
            Err(error) => {
                log::warn(format_args!("an attempt can't be taken over: {error}"));
                Adopted::Lost
            }
        }
    }

    fn leftovers(self: &Rc<Self>, journal: &SessionJournal, session: &SessionId) -> Vec<Process> {
        let mut left = Vec::new();
        for attempt in self.take_found(session) {
            let key = attempt.key.clone();
            let process = Process::of(self, attempt, journal);
            match process.and_then(Process::discarding) {
                Ok(process) => left.push(process),
                Err(error) => log::warn(format_args!("{key}: leftovers are lost: {error}")),
            }
        }
        left
    }

    fn past_end(&self, session: &SessionId, number: u32) -> Option<Ended> {
        let key = AttemptKey {
            session: session.clone(),
            number,
        };
        let past = self.past.borrow();
        past.get(&exit::name(&key)).map(|record| Ended {
            status: record.status,
            oom: Oom::Unknown,
            rusage: Some(record.rusage),
        })
    }

    fn forget_past(&self) {
        let names: Vec<_> = self.past.take().into_keys().collect();
        if let Err(error) = self.keeper.del(&names) {
            // The next supervisor finds them again, and the journals that have them.
            log::warn(format_args!("past exits stay: {error}"));
        }
    }

    fn abandon(self: &Rc<Self>, session: &SessionId) {
        for attempt in self.take_found(session) {
            let around = Rc::clone(self);
            self.tasks.spawn_local(async move {
                let key = attempt.key.clone();
                if let Err(error) = around.bury(attempt).await {
                    log::warn(format_args!("{key}: not buried: {error}"));
                }
            });
        }
    }

    async fn freeze(&self) -> io::Result<()> {
        self.workload.freeze().await
    }

    fn output_bytes(&self) -> u64 {
        self.output_bytes.load(Ordering::Acquire)
    }

    async fn move_output(&self) -> io::Result<()> {
        loop {
            let moved = self.output_bytes();
            self.pump.drain_all().await?;
            // A terminal hands its last bytes on by a thread of the kernel's.
            if self.output_bytes() == moved {
                return Ok(());
            }
        }
    }

    fn thaw(&self) -> io::Result<()> {
        self.workload.thaw()
    }
}

/// Why a start failed whose program was never reached: it was stopped, or took too long.
const NOT_REACHED: &str = "the program was not reached";

fn failure(error: impl std::fmt::Display) -> StartFailure {
    StartFailure(error.to_string())
}
