//! Drivers around a fake machine, in virtual time: what takes seconds takes none, and a race is a
//! number that can be repeated.

mod deletion;
mod leftovers;
mod past;
mod release;
mod standstill;

use std::{
    cell::Cell,
    collections::{BTreeSet, HashMap},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    event::{AttemptEnd, Created, ExitStatus, StopReason},
    id::{Generation, SandboxId, SessionId},
    limits::KILL_WAIT,
    session::{Phase, Rejection, ReplaceCurrent, Session},
    spec::{DesiredState, RawSpec, ReadinessKind, RestartPolicy},
};
use tokio::{
    task::{JoinHandle, LocalSet},
    time::{Instant, sleep},
};
use tokio_util::task::TaskTracker;

use super::Surroundings;
use crate::{
    clock::Clock,
    figures::Figures,
    journal::JournalSurroundings,
    machine::fake::{FakeMachine, Script},
    registry::Registry,
    reserve::Reserve,
    standstill::Standstill,
    sync::Syncer,
    tails::Tails,
};

/// A supervisor without link, keeper or processes.
struct World {
    machine: Rc<FakeMachine>,
    registry: Rc<Registry<FakeMachine>>,
    directory: Rc<tempfile::TempDir>,
    generation: Generation,
    syncer: Syncer,
    ids: Cell<u64>,
    /// Its tasks; they die with it.
    tasks: LocalSet,
}

fn raw() -> RawSpec {
    RawSpec {
        command: Some(vec!["program".to_owned()]),
        ..RawSpec::default()
    }
}

impl World {
    fn new() -> Self {
        Self::on(
            Rc::default(),
            Rc::new(tempfile::tempdir().unwrap()),
            Generation::FIRST,
        )
    }

    fn on(machine: Rc<FakeMachine>, directory: Rc<tempfile::TempDir>, of: Generation) -> Self {
        let clock = Arc::new(Clock::of_tokio());
        let syncer = Syncer::inline();
        let standstill = Standstill::find(directory.path(), &SandboxId::from_bits(1), of).unwrap();
        let around = Rc::new(Surroundings {
            machine: Rc::clone(&machine),
            generation: of,
            clock: Arc::clone(&clock),
            journals: JournalSurroundings {
                clock,
                syncer: syncer.clone(),
                tails: Arc::new(Tails::default()),
                boot_id: [7; 16],
                generation: of,
            },
            reserve: Reserve::none(),
            tasks: TaskTracker::new(),
            figures: Rc::new(Figures::default()),
            leftovers: Rc::default(),
            standstill: Rc::clone(&standstill),
        });
        let tasks = LocalSet::new();
        let registry = Registry::new(around, directory.path().to_owned());
        {
            let _context = tasks.enter();
            registry.open_all().unwrap();
        }
        Self {
            machine,
            registry,
            directory,
            generation: of,
            syncer,
            ids: Cell::new(1),
            tasks,
        }
    }

    /// Another supervisor of the same runtime; this one is dead.
    fn successor(&self) -> Self {
        Self::on(
            Rc::clone(&self.machine),
            Rc::clone(&self.directory),
            self.generation,
        )
    }

    /// Programs from now on do this.
    fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.machine.script.borrow_mut());
    }

    async fn create(&self, spec: RawSpec) -> Session {
        let id = SessionId::from_bits(self.ids.replace(self.ids.get() + 1));
        let spec = spec.validate().unwrap();
        let created = Box::new(Created {
            spec,
            idempotency_key: None,
            handle: None,
            kind: None,
        });
        session_of(
            self.call(Request::Create {
                session: id,
                created,
            })
            .await,
        )
    }

    /// Creates a session that is long in getting ready: its process runs, and that is all.
    async fn create_starting(&self, spec: RawSpec) -> SessionId {
        let session = self.create(spec).await;
        assert_eq!(session.phase(), Phase::Starting);
        session.id().clone()
    }

    /// Calls, and lets the supervisor work until the answer.
    async fn call(&self, request: Request) -> Outcome {
        self.tasks
            .run_until(self.registry.call(request, None))
            .await
    }

    /// Has a call be under way, whose answer is waited for later.
    fn begin(&self, request: Request) -> JoinHandle<Outcome> {
        let registry = Rc::clone(&self.registry);
        self.tasks
            .spawn_local(async move { registry.call(request, None).await })
    }

    /// Lets the supervisor work for a while.
    async fn work(&self, span: Duration) {
        self.tasks.run_until(sleep(span)).await;
    }

    async fn get(&self, id: &SessionId) -> Session {
        session_of(self.call(Request::Get(id.clone())).await)
    }

    async fn stop(&self, id: &SessionId) -> Session {
        let state = DesiredState::Stopped;
        let request = Request::SetDesiredState {
            session: id.clone(),
            state,
        };
        session_of(self.call(request).await)
    }

    async fn wait_for(&self, id: &SessionId, phase: Phase) -> Session {
        for _ in 0..100_000 {
            let session = self.get(id).await;
            if session.phase() == phase {
                return session;
            }
            self.work(Duration::from_millis(1)).await;
        }
        panic!(
            "{id} never came to {phase:?}, it is {:?}",
            self.get(id).await.phase()
        );
    }
}

fn session_of(outcome: Outcome) -> Session {
    match outcome {
        Outcome::Session(view) => Session::restore(&view.checkpoint).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Tells a story in virtual time.
fn tell(story: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(story);
}

#[test]
fn a_creation_is_answered_when_its_process_runs() {
    tell(async {
        let world = World::new();
        world.script(|it| it.start_after = Duration::from_secs(2));
        let from = Instant::now();
        let session = world.create(raw()).await;
        assert!(from.elapsed() >= Duration::from_secs(2));
        assert_eq!(session.phase(), Phase::Running);
        assert_eq!(session.attempt().unwrap().pid, Some(1001));
    });
}

#[test]
fn a_start_that_fails_is_answered_too() {
    tell(async {
        let world = World::new();
        world.script(|it| it.fails = Some("no such file".to_owned()));
        assert_eq!(world.create(raw()).await.phase(), Phase::Failed);
    });
}

#[test]
fn a_stop_waits_for_the_whole_tree_and_others_do_not_wait_for_it() {
    tell(async {
        let world = World::new();
        world.script(|it| {
            it.heeds_term = Some(Duration::from_millis(5));
            it.tree_lives = Duration::from_mins(1);
        });
        let mut spec = raw();
        spec.lifecycle.stop_grace_period_seconds = Some(3);
        let id = world.create(spec).await.id().clone();
        let from = Instant::now();
        let stop = world.stop(&id);
        let other = async {
            world.work(Duration::from_millis(100)).await;
            let session = world.get(&id).await;
            assert_eq!(session.phase(), Phase::Stopping);
            let signal = Request::Signal {
                session: id.clone(),
                expected: None,
                signal: 10,
            };
            assert_eq!(world.call(signal).await, Outcome::Done);
            assert!(from.elapsed() < Duration::from_millis(300));
        };
        let (session, ()) = tokio::join!(stop, other);
        assert_eq!(session.phase(), Phase::Stopped);
        assert!(from.elapsed() >= Duration::from_secs(3));
        let calls = world.machine.take_calls();
        assert_eq!(
            calls,
            [
                "spawn 1",
                "terminate 1",
                "signal 10 to 1",
                "kill 1",
                "release 1"
            ]
        );
    });
}

#[test]
fn a_start_that_hangs_can_be_stopped() {
    tell(async {
        let world = World::new();
        world.script(|it| it.start_after = Duration::from_hours(1));
        let mut spec = raw();
        spec.lifecycle.stop_grace_period_seconds = Some(3);
        let id = SessionId::from_bits(1);
        let from = Instant::now();
        let stop = async {
            world.work(Duration::from_millis(10)).await;
            world.stop(&id).await
        };
        let (_, stopped) = tokio::join!(world.create(spec), stop);
        assert_eq!(stopped.phase(), Phase::Stopped);
        assert!(from.elapsed() < Duration::from_secs(4));
    });
}

// A process in the kernel's hands (state D) made a stop wait until the disk answered.
#[test]
fn a_stop_does_not_wait_for_a_process_that_hangs_in_the_kernel() {
    tell(async {
        let world = World::new();
        world.script(|it| {
            it.hangs = true;
            it.heeds_term = None;
        });
        let mut spec = raw();
        spec.lifecycle.stop_grace_period_seconds = Some(2);
        let id = world.create(spec).await.id().clone();
        let from = Instant::now();
        let stopped = world.stop(&id).await;
        assert_eq!(stopped.phase(), Phase::Stopped);
        assert!(from.elapsed() < Duration::from_secs(2) + 2 * KILL_WAIT);
        let end = stopped.attempt().and_then(|attempt| attempt.end.clone());
        assert!(matches!(
            end,
            Some(AttemptEnd::Exited {
                status: ExitStatus::Unknown,
                ..
            })
        ));
    });
}

#[test]
fn a_replacement_starts_only_after_the_end() {
    tell(async {
        let world = World::new();
        world.script(|it| it.heeds_term = Some(Duration::from_secs(1)));
        let id = world.create(raw()).await.id().clone();
        let refused = Request::NewAttempt {
            session: id.clone(),
            replace: ReplaceCurrent::No,
        };
        let outcome = world.call(refused).await;
        assert_eq!(outcome, Outcome::Rejected(Rejection::AlreadyRunning));
        let replace = Request::NewAttempt {
            session: id.clone(),
            replace: ReplaceCurrent::Yes,
        };
        let session = session_of(world.call(replace).await);
        assert_eq!(session.phase(), Phase::Running);
        assert_eq!(session.attempt().unwrap().number, 2);
        let calls = world.machine.take_calls();
        assert_eq!(calls, ["spawn 1", "terminate 1", "release 1", "spawn 2"]);
    });
}

#[test]
fn a_stop_that_meets_a_start_ends_it() {
    tell(async {
        let world = World::new();
        world.script(|it| it.start_after = Duration::from_millis(50));
        let spec = raw();
        let id = SessionId::from_bits(1);
        let (created, stopped) = tokio::join!(world.create(spec), async {
            world.work(Duration::from_millis(20)).await;
            world.stop(&id).await
        });
        assert_eq!(stopped.phase(), Phase::Stopped);
        assert_eq!(created.phase(), Phase::Stopped);
        assert_eq!(
            stopped.attempt_reason(),
            Some(StopReason::DesiredStateStopped.as_str())
        );
    });
}

#[test]
fn backoff_grows_and_the_limit_holds_also_over_crashes_of_the_supervisor() {
    tell(async {
        let mut world = World::new();
        world.script(|it| {
            it.lives = Duration::from_millis(10);
            it.status = ExitStatus::Code(1);
        });
        let mut spec = raw();
        spec.lifecycle.restart.policy = Some(RestartPolicy::OnFailure);
        spec.lifecycle.restart.max_restarts = Some(3);
        let from = Instant::now();
        let id = world.create(spec).await.id().clone();
        for _ in 0..4 {
            world.work(Duration::from_millis(100)).await;
            world = world.successor();
        }
        let session = world.wait_for(&id, Phase::Failed).await;
        assert_eq!(session.restart_count(), 3);
        assert!(from.elapsed() >= Duration::from_millis(250 + 500 + 1000));
    });
}

#[test]
fn readiness_in_the_output_is_seen_and_its_timeout_too() {
    tell(async {
        let world = World::new();
        world.script(|it| it.writes = b"...READY...".to_vec());
        let mut spec = raw();
        spec.readiness.kind = Some(ReadinessKind::Output);
        spec.readiness.output = Some("READY".to_owned());
        spec.readiness.timeout_ms = Some(5000);
        let id = world.create(spec.clone()).await.id().clone();
        world.wait_for(&id, Phase::Running).await;
        world.script(|it| it.writes = b"...REA...".to_vec());
        let from = Instant::now();
        let id = world.create(spec).await.id().clone();
        let session = world.wait_for(&id, Phase::Failed).await;
        assert!(from.elapsed() >= Duration::from_secs(5));
        assert_eq!(session.attempt_reason(), Some("readiness_timeout"));
    });
}

#[test]
fn whatever_the_order_a_session_comes_to_rest_and_no_two_attempts_overlap() {
    for seed in 0..100_u64 {
        tell(race(seed));
    }
}

/// Calls, exits and crashes of the supervisor in an order that the seed decides.
async fn race(seed: u64) {
    let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut roll = move |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % below
    };
    let mut world = World::new();
    world.machine.script.replace(Script {
        start_after: Duration::from_millis(roll(20)),
        lives: Duration::from_millis(5 + roll(100)),
        heeds_term: (roll(2) == 0).then(|| Duration::from_millis(roll(30))),
        tree_lives: Duration::from_millis(roll(60)),
        status: ExitStatus::Code(u8::try_from(roll(2)).unwrap()),
        ..Script::default()
    });
    let mut spec = raw();
    spec.lifecycle.restart.policy = Some(match roll(3) {
        0 => RestartPolicy::Never,
        1 => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    });
    spec.lifecycle.restart.initial_backoff_ms = Some(10);
    spec.lifecycle.stop_grace_period_seconds = Some(1);
    let id = world.create(spec).await.id().clone();
    for _ in 0..12 {
        let session = id.clone();
        let request = match roll(6) {
            0 => Request::SetDesiredState {
                session,
                state: DesiredState::Stopped,
            },
            1 => Request::SetDesiredState {
                session,
                state: DesiredState::Running,
            },
            2 => Request::NewAttempt {
                session,
                replace: ReplaceCurrent::Yes,
            },
            3 => Request::Signal {
                session,
                expected: None,
                signal: 1,
            },
            4 => {
                world = world.successor();
                Request::Get(session)
            }
            _ => Request::Get(session),
        };
        world.begin(request);
        world.work(Duration::from_millis(roll(25))).await;
    }
    // Every call is in the mailbox: the stop is the last word.
    world.work(Duration::from_millis(1)).await;
    let session = world.stop(&id).await;
    assert_eq!(session.phase(), Phase::Stopped, "seed {seed}");
    check_overlap(seed, &world.machine.take_calls());
    let delete = world.call(Request::Delete(id)).await;
    assert_eq!(delete, Outcome::Done, "seed {seed}");
}

fn check_overlap(seed: u64, calls: &[String]) {
    let mut running = BTreeSet::new();
    for call in calls {
        if let Some(number) = call.strip_prefix("spawn ") {
            running.insert(number.to_owned());
        } else if let Some(number) = call.strip_prefix("release ") {
            running.remove(number);
        }
        assert!(running.len() <= 1, "seed {seed}: two attempts at once");
    }
    assert!(running.is_empty(), "seed {seed}: {running:?}");
}
