//! Attempts as real processes: [`crate::process`] behind the driver's words.
//!
//! ```text
//!   spawn   Spawner ─► gate opens ─► exec status ─► a Process that the driver owns
//!   adopt   what the keeper kept of the supervisor before us
//!   output  Pump ─► AttemptOutput (the sink of one attempt) ─► the session's journal
//!   end     pidfd ─► sources at their end, or idle ─► who knows the status
//! ```

mod workplace;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use outlive_api::agent::PumpMode;
use outlive_core::{
    event::{ExitStatus, Oom, Stream},
    hash::StableHasher,
    id::SessionId,
    limits::KILL_WAIT,
    session::TerminalSize,
    spec::Io,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;

use self::workplace::Workplace;
use crate::{
    inherit::Inheritance,
    input::Kind,
    journal::SessionJournal,
    keeper::{ExitRecord, KeeperClient, Label},
    limits::{
        DRAIN_IDLE, DRAIN_MAX, EXEC_WAIT, FREEZE_LOOK_PAUSE, FREEZE_LOOKS, FREEZE_WAIT,
        STOP_WALK_PAUSE, TREE_WALK_PAUSE,
    },
    log,
    machine::{AdoptOrder, Adopted, Attempt, Ended, Machine, SpawnOrder, StartFailure},
    process::{
        self, AttemptKey, Crowd, ExecOutcome, OutputSink, Pump, SinkError, SourceEnd, SourceId,
        SpawnRequest, Spawner,
        cgroup::{self, Frozen, WorkloadCgroups},
        exit,
        pty::{self, LineEnds},
        pump::Fill,
        spawn::PATH_DEFAULT,
    },
    standstill::Standstill,
    sys,
};

const SIGINT: u8 = 2;
const SIGQUIT: u8 = 3;
const SIGTERM: u8 = 15;
const SIGSTOP: u8 = 19;
const SIGWINCH: u8 = 28;

/// The real machine.
#[derive(Debug)]
pub(crate) struct Processes {
    keeper: KeeperClient,
    spawner: Spawner,
    pump: Pump,
    cgroups: WorkloadCgroups,
    crowd: Crowd,
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
            cgroups,
            crowd,
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
        self.cgroups.is_set_frozen()
    }

    /// Whether no control group freezes the workload as a whole.
    pub(crate) fn freezes_by_signal(&self) -> bool {
        self.cgroups.unified().is_none()
    }

    /// Kills what sessions left behind and no control group holds: nothing else ends it, where it is
    /// not in a namespace that ends with the keeper.
    pub(crate) async fn kill_rest(&self) -> io::Result<()> {
        if !self.freezes_by_signal() {
            return Ok(());
        }
        let all_gone = async {
            while !self.crowd.kill()? {
                sleep(STOP_WALK_PAUSE).await;
            }
            Ok(())
        };
        timeout(KILL_WAIT, all_gone)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn until_it_stands_still(&self) -> io::Result<()> {
        let Some(events) = self.cgroups.events()? else {
            while !self.crowd.stop_running()? {
                sleep(STOP_WALK_PAUSE).await;
            }
            return Ok(());
        };
        let events = sys::watch(Arc::new(events), Interest::PRIORITY)?;
        for _ in 0..FREEZE_LOOKS {
            if cgroup::stands_still(events.get_ref().as_fd())? {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
        // A change after a look is reported, but the kernel may keep the report for 10 ms.
        while !cgroup::stands_still(events.get_ref().as_fd())? {
            if let Ok(reported) = timeout(FREEZE_LOOK_PAUSE, events.ready(Interest::PRIORITY)).await
            {
                reported?.clear_ready();
            }
        }
        Ok(())
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
                outcome = exec_outcome(&process) => outcome,
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

    /// Ends a process whose session is no more.
    async fn bury(&self, attempt: process::Attempt) -> io::Result<()> {
        attempt.abandon();
        let pidfd = sys::watch(Arc::clone(&attempt.pidfd), Interest::READABLE)?;
        drop(timeout(KILL_WAIT, pidfd.readable()).await);
        exit::reap(&attempt)?;
        attempt.forget(&self.keeper).map_err(io::Error::other)?;
        self.cgroups.remove(&attempt.cgroup)
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
        let outcome = match exec_outcome(&process).await {
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
        let mut found = self.found.borrow_mut();
        let keys: Vec<_> = found
            .keys()
            .filter(|key| key.session == *session)
            .cloned()
            .collect();
        for key in keys {
            if let Some(attempt) = found.remove(&key) {
                let process = Process::of(self, attempt, journal);
                match process.and_then(Process::discarding) {
                    Ok(process) => left.push(process),
                    Err(error) => log::warn(format_args!("{key}: leftovers are lost: {error}")),
                }
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
        let mut found = self.found.borrow_mut();
        let keys: Vec<_> = found
            .keys()
            .filter(|key| key.session == *session)
            .cloned()
            .collect();
        for attempt in keys.iter().filter_map(|key| found.remove(key)) {
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
        self.cgroups.set_frozen(Frozen::Yes)?;
        timeout(FREEZE_WAIT, self.until_it_stands_still())
            .await
            .unwrap_or_else(|_| {
                let message = format!("some still run after {} s", FREEZE_WAIT.as_secs());
                Err(io::Error::new(io::ErrorKind::TimedOut, message))
            })
    }

    fn thaw(&self) -> io::Result<()> {
        if self.cgroups.set_frozen(Frozen::No)? {
            return Ok(());
        }
        self.crowd.go_on()
    }
}

/// Why a start failed whose program was never reached: it was stopped, or took too long.
const NOT_REACHED: &str = "the program was not reached";

fn failure(error: impl std::fmt::Display) -> StartFailure {
    StartFailure(error.to_string())
}

/// One attempt's processes.
#[derive(Debug)]
pub(crate) struct Process {
    around: Rc<Processes>,
    attempt: RefCell<process::Attempt>,
    key: AttemptKey,
    pid: u32,
    outer_pid: u32,
    pidfd: AsyncFd<Arc<OwnedFd>>,
    output: Arc<AttemptOutput>,
    sources: RefCell<Vec<SourceId>>,
    spool: RefCell<Option<OwnedFd>>,
    has_spool: Cell<bool>,
    is_drained: Cell<bool>,
    is_killed: Cell<bool>,
    killed: Notify,
    is_reaped: Cell<bool>,
}

impl Process {
    fn of(
        around: &Rc<Processes>,
        attempt: process::Attempt,
        journal: &SessionJournal,
    ) -> io::Result<Self> {
        let pidfd = match sys::watch(Arc::clone(&attempt.pidfd), Interest::READABLE) {
            Ok(pidfd) => pidfd,
            Err(error) => {
                attempt.abandon(); // Nobody would see its end.
                return Err(error);
            }
        };
        let key = attempt.key.clone();
        let spool = around.spools.borrow_mut().remove(&spool_name(&key));
        let output = AttemptOutput {
            journal: journal.clone(),
            number: key.number,
            open: AtomicUsize::new(attempt.sources.len()),
            moved: AtomicU64::new(0),
            changed: Notify::new(),
        };
        Ok(Self {
            around: Rc::clone(around),
            pid: attempt.pid,
            outer_pid: attempt.outer_pid,
            pidfd,
            output: Arc::new(output),
            sources: RefCell::default(),
            has_spool: Cell::new(spool.is_some()),
            spool: RefCell::new(spool),
            is_drained: Cell::new(false),
            is_killed: Cell::new(false),
            killed: Notify::new(),
            is_reaped: Cell::new(false),
            attempt: RefCell::new(attempt),
            key,
        })
    }

    /// Throws away what is written from now on: its end is in the journal.
    fn discarding(self) -> io::Result<Self> {
        let sources = std::mem::take(&mut self.attempt.borrow_mut().sources);
        for source in sources {
            let sink: Arc<dyn OutputSink> = Arc::clone(&self.output) as _;
            let lane = lane_of(&self.key.session);
            let id = self.around.pump.attach_discarding(lane, source, sink)?;
            self.sources.borrow_mut().push(id);
        }
        self.is_drained.set(true);
        self.close_output_at_its_end();
        Ok(self)
    }

    /// Lets go of a process that never became the program it was meant to be.
    async fn discard(self) {
        if let Err(error) = self.kill() {
            log::warn(format_args!("{}: it is not killed: {error}", self.key));
        }
        if timeout(KILL_WAIT, self.leader_gone()).await.is_err() {
            log::warn(format_args!("{}: it hangs in the kernel", self.key));
        }
        self.release();
    }

    fn terminal(&self) -> Option<Arc<OwnedFd>> {
        self.attempt.borrow().terminal.clone()
    }

    fn signal_all(&self, signal: u8) -> io::Result<()> {
        if self.is_reaped.get() && !self.has_group() {
            return Ok(()); // Its number may be somebody else's by now.
        }
        self.attempt
            .borrow()
            .cgroup
            .signal_all(self.outer_pid, signal)
            .map(|_| ())
    }

    fn has_group(&self) -> bool {
        self.attempt.borrow().cgroup.is_group()
    }

    fn try_release(&self) -> io::Result<()> {
        let is_gone = !self.is_left();
        // Without a group the leader's number is what its descendants are found by: as long as
        // some are left it stays unreaped, so that nobody else gets the number.
        if is_gone || self.has_group() {
            exit::reap(&self.attempt.borrow())?;
            self.is_reaped.set(true);
        }
        if is_gone {
            self.close_sources()?;
            self.around.cgroups.remove(&self.attempt.borrow().cgroup)?;
            self.attempt
                .borrow()
                .forget(&self.around.keeper)
                .map_err(io::Error::other)?;
        }
        if self.has_spool.get() {
            let names = [spool_name(&self.key)];
            self.around.keeper.del(&names).map_err(io::Error::other)?;
        }
        Ok(())
    }

    async fn drain(&self) -> io::Result<()> {
        let mut cap = Instant::now() + DRAIN_MAX;
        while self.output.open() > 0 {
            // Who stands still is no more silent than who was not asked.
            if !self.is_tree_gone() {
                self.until_it_may_run().await;
            }
            let turns = self.around.standstill.turns();
            let moved = self.output.moved();
            // What is there goes first: idle counts from an empty pipe.
            // A pump that is busy for so long is no reason to wait longer.
            if let Ok(drained) = timeout_at(cap, self.drain_sources()).await {
                drained?;
            }
            if self.around.standstill.turns() != turns || self.output.journal.is_stalled() {
                cap = Instant::now() + DRAIN_MAX; // A full disk is not the child's silence.
            } else if Instant::now() >= cap {
                break;
            }
            let until = cap.min(Instant::now() + DRAIN_IDLE);
            let is_silent = timeout_at(until, self.output.changed_since(moved))
                .await
                .is_err()
                && self.around.standstill.turns() == turns;
            if is_silent && self.output.moved() == moved && !self.output.journal.is_stalled() {
                break;
            }
        }
        self.discard_sources().await?;
        if self.output.open() > 0 {
            self.close_output_at_its_end();
            return Ok(());
        }
        let closed = self.key.close_output(&self.around.keeper);
        closed.map_err(io::Error::other)
    }

    /// Has what the sources hold moved, each once there is room for it, and throws away what is
    /// written to them after that: whoever was left behind must not die of writing.
    async fn discard_sources(&self) -> io::Result<()> {
        let sources = self.sources.borrow().clone();
        for source in sources {
            self.around.pump.discard(source).await?;
        }
        Ok(())
    }

    /// The keeper's copies go with the last writer, or with the attempt.
    fn close_output_at_its_end(&self) {
        let (key, output) = (self.key.clone(), Arc::clone(&self.output));
        let keeper = self.around.keeper.clone();
        self.around.tasks.spawn_local(async move {
            output.ended().await;
            if let Err(error) = key.close_output(&keeper) {
                log::warn(format_args!("{key}: its output stays open: {error}"));
            }
        });
    }

    /// Gives up what is left of the sources.
    fn close_sources(&self) -> io::Result<()> {
        for source in self.sources.take() {
            self.around.pump.close(source)?;
        }
        self.output.close();
        Ok(())
    }

    /// Waits as long as it stands still, unless it was killed.
    async fn until_it_may_run(&self) {
        while !self.is_killed.get() && self.around.standstill.is_shut() {
            tokio::select! {
                () = self.around.standstill.opened() => {}
                () = self.killed.notified() => {}
            }
        }
    }

    /// Lets the sources go, each once what it holds is in the journal: on a full disk that is when
    /// there is space again, and until then they can be resumed.
    async fn detach_sources(&self) -> io::Result<()> {
        let sources = self.sources.borrow().clone();
        for source in sources {
            let detached = self.around.pump.detach(source).await;
            self.sources.borrow_mut().retain(|other| *other != source);
            detached?;
        }
        Ok(())
    }

    async fn drain_sources(&self) -> io::Result<()> {
        let sources = self.sources.borrow().clone();
        for source in sources {
            self.around.pump.drain(source).await?;
        }
        Ok(())
    }

    async fn wait_for_tree(&self) -> io::Result<()> {
        let events = self.attempt.borrow().cgroup.events()?;
        let Some(events) = events else {
            // There is no group that tells: look again until the walk finds nobody.
            while !self.is_tree_gone() {
                sleep(TREE_WALK_PAUSE).await;
                self.until_it_may_run().await;
            }
            return Ok(());
        };
        let events = sys::watch(Arc::new(events), Interest::PRIORITY)?;
        while !self.is_tree_gone() {
            events.ready(Interest::PRIORITY).await?.clear_ready();
        }
        Ok(())
    }
}

impl Attempt for Process {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn start_output(&self) -> io::Result<()> {
        let sources = std::mem::take(&mut self.attempt.borrow_mut().sources);
        for source in sources {
            let sink: Arc<dyn OutputSink> = Arc::clone(&self.output) as _;
            let lane = lane_of(&self.key.session);
            self.sources
                .borrow_mut()
                .push(self.around.pump.attach(lane, source, sink)?);
        }
        Ok(())
    }

    fn resume_output(&self) {
        for source in self.sources.borrow().iter() {
            if let Err(error) = self.around.pump.resume(*source) {
                log::warn(format_args!("{}: output can't go on: {error}", self.key));
            }
        }
    }

    fn expect_echo(&self) {
        for source in self.sources.borrow().iter() {
            if let Err(error) = self.around.pump.typed(*source) {
                log::debug(format_args!("{}: the pump was not told: {error}", self.key));
            }
        }
    }

    fn take_input(&self) -> io::Result<Option<(OwnedFd, Kind)>> {
        let mut attempt = self.attempt.borrow_mut();
        match (attempt.stdin.take(), &attempt.terminal) {
            (Some(pipe), _) => Ok(Some((pipe, Kind::Pipe))),
            (None, Some(master)) => {
                Ok(Some((master.as_fd().try_clone_to_owned()?, Kind::Terminal)))
            }
            (None, None) => Ok(None),
        }
    }

    fn take_spool(&self) -> Option<OwnedFd> {
        self.spool.take()
    }

    fn keep_spool(&self, spool: BorrowedFd<'_>) -> io::Result<()> {
        let label = Label {
            name: spool_name(&self.key),
            pid: 0,
            note: 0,
        };
        self.has_spool.set(true);
        self.around
            .keeper
            .put(&[(label, spool)])
            .map_err(io::Error::other)
    }

    fn close_input(&self) -> io::Result<()> {
        let mut attempt = self.attempt.borrow_mut();
        attempt
            .close_input(&self.around.keeper)
            .map_err(io::Error::other)
    }

    fn eof_character(&self) -> io::Result<Option<u8>> {
        let Some(master) = self.terminal() else {
            return Ok(None);
        };
        Ok(match pty::eof_character(&*master)? {
            pty::EofCharacter::Byte(byte) => Some(byte),
            pty::EofCharacter::None => None,
        })
    }

    fn line_ends(&self) -> io::Result<Option<LineEnds>> {
        match self.terminal() {
            Some(master) => pty::line_ends(&*master),
            None => Ok(None),
        }
    }

    fn hang_up(self: Rc<Self>) {
        let tasks = self.around.tasks.clone();
        tasks.spawn_local(async move {
            if let Err(error) = self.detach_sources().await {
                log::warn(format_args!("{}: output was lost: {error}", self.key));
            }
            self.output.close();
            let closed = self
                .attempt
                .borrow_mut()
                .close_terminal(&self.around.keeper);
            if let Err(error) = closed {
                log::warn(format_args!("{}: not hung up: {error}", self.key));
            }
        });
    }

    fn terminate(&self) -> io::Result<()> {
        self.signal_all(SIGTERM)
    }

    fn kill(&self) -> io::Result<()> {
        self.is_killed.set(true);
        self.killed.notify_waiters();
        if self.is_reaped.get() && !self.has_group() {
            return Ok(()); // Its number may be somebody else's by now.
        }
        self.attempt
            .borrow()
            .cgroup
            .kill_tree(self.outer_pid)
            .map(|_| ())
    }

    fn halt(&self) -> io::Result<()> {
        self.signal_all(SIGSTOP)
    }

    async fn move_output(&self) -> io::Result<()> {
        loop {
            let moved = self.output.moved();
            self.drain_sources().await?;
            // A terminal hands its last bytes on by a thread of the kernel's.
            if self.output.moved() == moved || self.output.journal.is_stalled() {
                return Ok(());
            }
        }
    }

    fn signal(&self, signal: u8) -> io::Result<()> {
        match (signal, self.terminal()) {
            (SIGINT | SIGQUIT, Some(master)) => sys::pty_signal(master.as_fd(), signal),
            (SIGWINCH, Some(master)) => {
                match sys::pty_foreground(master.as_fd())? {
                    group if group > 1 => sys::kill_group(group, signal),
                    _ => Ok(()), // Nobody is in the foreground.
                }
            }
            _ => self.signal_all(signal),
        }
    }

    fn resize(&self, size: TerminalSize) -> io::Result<()> {
        match self.terminal() {
            Some(master) => pty::resize(&*master, size.rows, size.cols),
            None => Ok(()),
        }
    }

    async fn leader_gone(&self) {
        match self.pidfd.readable().await {
            // It stays readable for ever: nothing to clear.
            Ok(guard) => drop(guard),
            Err(_) => std::future::pending().await, // The runtime ends, and we with it.
        }
    }

    async fn drained(&self) {
        if self.is_drained.get() {
            return;
        }
        if let Err(error) = self.drain().await {
            log::warn(format_args!("{}: not drained: {error}", self.key));
        }
        self.is_drained.set(true);
    }

    async fn tree_gone(&self) {
        if let Err(error) = self.wait_for_tree().await {
            log::warn(format_args!(
                "{}: its tree can't be watched: {error}",
                self.key
            ));
        }
    }

    fn is_tree_gone(&self) -> bool {
        if self.is_reaped.get() && !self.has_group() {
            return true;
        }
        match self.attempt.borrow().cgroup.populated(self.outer_pid) {
            Ok(populated) => !populated,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true, // It was removed.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => true,
            Err(error) => {
                log::warn(format_args!(
                    "{}: its tree can't be seen: {error}",
                    self.key
                ));
                true
            }
        }
    }

    fn is_left(&self) -> bool {
        // Without a group a daemon may not be found; that it holds the output tells of it.
        let is_held = || !self.has_group() && !self.is_killed.get() && self.output.open() > 0;
        !self.is_tree_gone() || is_held()
    }

    fn status(&self) -> Ended {
        let attempt = self.attempt.borrow();
        let oom = attempt.cgroup.oom().unwrap_or_else(|error| {
            log::warn(format_args!("{}: {error}", self.key));
            Oom::Unknown
        });
        match exit::look(&attempt, &self.around.keeper) {
            Ok(exit::Life::Ended(end)) => Ended {
                status: end.status,
                oom,
                rusage: end.rusage,
            },
            // Never a made-up number.
            Ok(exit::Life::Running) => Ended {
                status: ExitStatus::Unknown,
                oom,
                rusage: None,
            },
            Err(error) => {
                log::warn(format_args!("{}: its status is lost: {error}", self.key));
                Ended {
                    status: ExitStatus::Unknown,
                    oom,
                    rusage: None,
                }
            }
        }
    }

    fn release(&self) {
        if let Err(error) = self.try_release() {
            log::warn(format_args!("{}: not released cleanly: {error}", self.key));
        }
    }
}

/// Waits until exec succeeded or failed; `Pending` when neither comes within [`EXEC_WAIT`].
async fn exec_outcome(process: &Process) -> io::Result<ExecOutcome> {
    timeout(EXEC_WAIT, exec_finished(process))
        .await
        .unwrap_or(Ok(ExecOutcome::Pending))
}

async fn exec_finished(process: &Process) -> io::Result<ExecOutcome> {
    let attempt = &process.attempt;
    let status = attempt.borrow().exec_status.as_fd().try_clone_to_owned()?;
    let status = sys::watch(Arc::new(status), Interest::READABLE)?;
    loop {
        let mut guard = status.readable().await?;
        match attempt.borrow().exec_status.look()? {
            // Readable because the gate opened; its end is another event.
            ExecOutcome::Pending => guard.clear_ready(),
            outcome => return Ok(outcome),
        }
    }
}

const SPOOL_SUFFIX: &str = "/input-spool";

fn spool_name(key: &AttemptKey) -> String {
    format!("{key}{SPOOL_SUFFIX}")
}

fn lane_of(session: &SessionId) -> u64 {
    StableHasher::new()
        .piece(session.as_str().as_bytes())
        .finish64()
}

/// Where one attempt's output goes.
#[derive(Debug)]
struct AttemptOutput {
    journal: SessionJournal,
    number: u32,
    /// Sources that are not at their end.
    open: AtomicUsize,
    moved: AtomicU64,
    changed: Notify,
}

impl AttemptOutput {
    fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Acquire)
    }

    fn close(&self) {
        self.open.store(0, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Resolves when all sources ended, or were closed.
    async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.open() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// Resolves when more moved than `moved`, or all sources ended.
    async fn changed_since(&self, moved: u64) {
        loop {
            let changed = self.changed.notified();
            if self.open() == 0 || self.moved() != moved {
                return;
            }
            changed.await;
        }
    }
}

impl OutputSink for AttemptOutput {
    fn append(&self, stream: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError> {
        self.journal.append_output(self.number, stream, fill)
    }

    fn progress(&self, _stream: Stream, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    fn ended(&self, stream: Stream, end: SourceEnd) {
        match end {
            SourceEnd::Eof => {}
            SourceEnd::Failed(error) => {
                log::warn(format_args!(
                    "{stream:?} of an attempt can't be read: {error}"
                ));
            }
            SourceEnd::SinkBroken(error) => {
                log::warn(format_args!(
                    "{stream:?} of an attempt can't be written: {error}"
                ));
            }
        }
        let was = self
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| {
                Some(open.saturating_sub(1))
            });
        if was.is_ok() {
            self.changed.notify_waiters();
        }
    }
}
