//! A machine without processes, for stories in virtual time: every program does what its test's
//! [`Script`] says, and every call is written down.
//!
//! It keeps the contract of [`Attempt`]: what the real one promises, it promises too, so that
//! what drivers do around it is what they do around real processes.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use outlive_core::{
    event::{ExitStatus, Oom, Stream},
    id::SessionId,
    session::TerminalSize,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{AdoptOrder, Adopted, Attempt, Ended, Machine, SpawnOrder, StartFailure};
use crate::{input::Kind, journal::SessionJournal, process::pty::LineEnds};

/// What programs do.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// How long a start takes.
    pub(crate) start_after: Duration,
    /// How a start ends.
    pub(crate) fails: Option<String>,
    /// How long the first process lives when nobody stops it.
    pub(crate) lives: Duration,
    /// What it writes when it starts.
    pub(crate) writes: Vec<u8>,
    /// Whether it heeds TERM, and after how long.
    pub(crate) heeds_term: Option<Duration>,
    /// How long the rest of its tree lives on after the first process; killed it goes at once.
    pub(crate) tree_lives: Duration,
    /// How it ends by itself.
    pub(crate) status: ExitStatus,
    /// Its first process hangs in the kernel: no kill ends it.
    pub(crate) hangs: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            start_after: Duration::from_millis(1),
            fails: None,
            lives: Duration::from_hours(1),
            writes: Vec::new(),
            heeds_term: Some(Duration::from_millis(1)),
            tree_lives: Duration::ZERO,
            status: ExitStatus::Code(0),
            hangs: false,
        }
    }
}

/// The fake.
#[derive(Debug, Default)]
pub(crate) struct FakeMachine {
    /// What the next programs do.
    pub(crate) script: RefCell<Script>,
    /// Everything that was done, in order.
    pub(crate) calls: Rc<RefCell<Vec<String>>>,
    /// Attempts that live, or whose end nobody took yet.
    pub(crate) alive: RefCell<HashMap<(SessionId, u32), FakeProcess>>,
    /// How attempts of earlier runtimes ended.
    pub(crate) past: RefCell<HashMap<(SessionId, u32), Ended>>,
    /// Trees of ended attempts that the next supervisor finds.
    pub(crate) left: RefCell<HashMap<SessionId, Vec<FakeProcess>>>,
    /// Why nothing can be frozen.
    pub(crate) freeze_fails: RefCell<Option<String>>,
}

/// One fake attempt. Clones are the same process: a supervisor may die and another adopt it.
#[derive(Debug, Clone)]
pub(crate) struct FakeProcess(Rc<State>);

#[derive(Debug)]
struct State {
    number: u32,
    script: Script,
    journal: RefCell<SessionJournal>,
    calls: Rc<RefCell<Vec<String>>>,
    /// When the first process ends or ended, and how.
    end: Cell<(Instant, ExitStatus)>,
    /// When the rest of the tree was killed.
    tree_killed: Cell<Option<Instant>>,
    was_drained: Cell<bool>,
    changed: Notify,
}

impl FakeMachine {
    /// The calls so far, and forgets them.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        self.calls.take()
    }
}

impl Machine for FakeMachine {
    type Attempt = FakeProcess;

    async fn spawn(self: Rc<Self>, order: SpawnOrder) -> Result<FakeProcess, StartFailure> {
        let script = self.script.borrow().clone();
        self.calls
            .borrow_mut()
            .push(format!("spawn {}", order.number));
        tokio::select! {
            () = sleep(script.start_after) => {}
            () = order.stop.cancelled() => return Err(StartFailure("stopped".to_owned())),
        }
        if let Some(message) = script.fails {
            return Err(StartFailure(message));
        }
        let process = FakeProcess(Rc::new(State {
            number: order.number,
            journal: RefCell::new(order.journal),
            calls: Rc::clone(&self.calls),
            end: Cell::new((Instant::now() + script.lives, script.status)),
            tree_killed: Cell::new(None),
            was_drained: Cell::new(false),
            changed: Notify::new(),
            script,
        }));
        let key = (order.session, order.number);
        self.alive.borrow_mut().insert(key, process.clone());
        Ok(process)
    }

    async fn adopt(self: Rc<Self>, order: AdoptOrder) -> Adopted<FakeProcess> {
        self.calls
            .borrow_mut()
            .push(format!("adopt {}", order.number));
        match self.alive.borrow().get(&(order.session, order.number)) {
            Some(process) => {
                process.0.journal.replace(order.journal);
                Adopted::Ran(process.clone())
            }
            None => Adopted::NeverRan,
        }
    }

    fn leftovers(
        self: &Rc<Self>,
        _journal: &SessionJournal,
        session: &SessionId,
    ) -> Vec<FakeProcess> {
        let left = self.left.borrow();
        left.get(session).cloned().unwrap_or_default()
    }

    fn past_end(&self, session: &SessionId, number: u32) -> Option<Ended> {
        self.past.borrow().get(&(session.clone(), number)).copied()
    }

    fn forget_past(&self) {
        self.past.borrow_mut().clear();
    }

    fn abandon(self: &Rc<Self>, session: &SessionId) {
        self.alive.borrow_mut().retain(|(of, _), _| of != session);
        self.calls.borrow_mut().push("abandon".to_owned());
    }

    async fn freeze(&self) -> io::Result<()> {
        self.calls.borrow_mut().push("freeze".to_owned());
        match &*self.freeze_fails.borrow() {
            Some(message) => Err(io::Error::other(message.clone())),
            None => Ok(()),
        }
    }

    fn output_bytes(&self) -> u64 {
        0
    }

    async fn move_output(&self) -> io::Result<()> {
        Ok(())
    }

    fn thaw(&self) -> io::Result<()> {
        self.calls.borrow_mut().push("thaw".to_owned());
        Ok(())
    }
}

impl State {
    fn end_at(&self, at: Instant, signal: u8) {
        if at < self.end.get().0 {
            self.end.set((
                at,
                ExitStatus::Signal {
                    signal,
                    core: false,
                },
            ));
            self.changed.notify_waiters();
        }
    }

    fn tree_end(&self) -> Instant {
        let by_itself = self.end.get().0 + self.script.tree_lives;
        self.tree_killed
            .get()
            .map_or(by_itself, |killed| killed.min(by_itself))
    }

    fn say(&self, what: &str) {
        self.calls
            .borrow_mut()
            .push(format!("{what} {}", self.number));
    }

    async fn until(&self, when: impl Fn(&Self) -> Instant) {
        while Instant::now() < when(self) {
            tokio::select! {
                () = sleep_until(when(self)) => {}
                () = self.changed.notified() => {}
            }
        }
    }
}

impl Attempt for FakeProcess {
    fn pid(&self) -> u32 {
        1000 + self.0.number
    }

    fn start_output(&self) -> io::Result<()> {
        let bytes = self.0.script.writes.clone();
        if bytes.is_empty() {
            return Ok(());
        }
        let journal = self.0.journal.borrow().clone();
        let mut fill = |file: BorrowedFd<'_>, offset: u64, _max: usize| {
            Ok(rustix::io::pwrite(file, &bytes, offset)?)
        };
        let moved = journal.append_output(self.0.number, Stream::Stdout, &mut fill);
        moved.map(|_| ()).map_err(io::Error::other)
    }

    fn resume_output(&self) {}

    fn expect_echo(&self) {}

    fn take_input(&self) -> io::Result<Option<(OwnedFd, Kind)>> {
        Ok(None)
    }

    fn take_spool(&self) -> Option<OwnedFd> {
        None
    }

    fn keep_spool(&self, _spool: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn close_input(&self) -> io::Result<()> {
        self.0.say("close input of");
        Ok(())
    }

    fn eof_character(&self) -> io::Result<Option<u8>> {
        Ok(Some(4))
    }

    fn line_ends(&self) -> io::Result<Option<LineEnds>> {
        Ok(None)
    }

    fn hang_up(self: Rc<Self>) {
        self.0.say("hang up");
    }

    fn terminate(&self) -> io::Result<()> {
        self.0.say("terminate");
        if let Some(after) = self.0.script.heeds_term {
            self.0.end_at(Instant::now() + after, 15);
        }
        Ok(())
    }

    fn kill(&self) -> io::Result<()> {
        self.0.say("kill");
        if self.0.script.hangs {
            return Ok(());
        }
        self.0.end_at(Instant::now(), 9);
        self.0.tree_killed.set(Some(Instant::now()));
        self.0.changed.notify_waiters();
        Ok(())
    }

    fn halt(&self) -> io::Result<()> {
        self.0.say("halt");
        Ok(())
    }

    fn signal(&self, signal: u8) -> io::Result<()> {
        self.0.say(&format!("signal {signal} to"));
        Ok(())
    }

    fn resize(&self, size: TerminalSize) -> io::Result<()> {
        self.0
            .say(&format!("resize {}x{} of", size.rows, size.cols));
        Ok(())
    }

    async fn leader_gone(&self) {
        self.0.until(|state| state.end.get().0).await;
    }

    async fn drained(&self) {
        assert!(
            self.0.script.hangs || Instant::now() >= self.0.end.get().0,
            "drained before the end"
        );
        self.0.was_drained.set(true);
    }

    async fn tree_gone(&self) {
        self.0.until(State::tree_end).await;
    }

    fn is_tree_gone(&self) -> bool {
        Instant::now() >= self.0.tree_end()
    }

    fn is_left(&self) -> bool {
        !self.is_tree_gone()
    }

    fn status(&self) -> Ended {
        assert!(
            self.0.was_drained.get(),
            "the status was asked for before the output was drained"
        );
        Ended {
            status: self.0.end.get().1,
            oom: Oom::Unknown,
            rusage: None,
        }
    }

    fn release(&self) {
        self.0.say("release");
    }
}
