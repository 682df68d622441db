//! Freezing and thawing around a fake machine, in virtual time.

use outlive_core::event::Body;

use super::*;

/// Shorter than programs live by themselves.
const LONG: Duration = Duration::from_mins(30);

impl World {
    pub(super) async fn freeze(&self) -> Outcome {
        self.tasks.run_until(self.registry.freeze()).await
    }

    async fn thaw(&self) -> Outcome {
        self.tasks.run_until(self.registry.thaw()).await
    }

    async fn release(&self) {
        self.tasks.run_until(self.registry.release()).await.unwrap();
    }

    /// Goes on as a supervisor does that finds a standstill.
    async fn go_on_freezing(&self) {
        let freezing = Rc::clone(&self.registry).go_on_freezing();
        self.tasks.run_until(freezing).await;
    }

    fn is_shut(&self) -> bool {
        self.registry.standstill().is_shut()
    }

    async fn list(&self) -> Outcome {
        self.call(Request::List).await
    }

    /// The journal's events but output, by their names.
    fn facts(&self, id: &SessionId) -> Vec<Body> {
        let path = self.directory.path().join(id.as_str());
        let mut reader = outlive_journal::Reader::open(&path).unwrap();
        let (earliest, latest) = reader.window().unwrap();
        reader
            .read_after(earliest - 1, latest, 1 << 20, 1000)
            .unwrap()
            .iter()
            .filter(|record| record.kind != outlive_api::record::KIND_OUTPUT)
            .map(|record| outlive_api::record::body(&record.payload).unwrap())
            .collect()
    }

    fn count(&self, id: &SessionId, what: &Body) -> usize {
        self.facts(id).iter().filter(|it| *it == what).count()
    }
}

fn signal(id: &SessionId) -> Request {
    Request::Signal {
        session: id.clone(),
        expected: None,
        signal: 10,
    }
}

#[test]
fn a_frozen_session_is_shown_and_left_alone_until_the_thaw() {
    tell(async {
        let world = World::new();
        let before = world.create(raw()).await;
        let id = before.id().clone();
        assert_eq!(world.freeze().await, Outcome::Done);
        let frozen = world.get(&id).await;
        assert_eq!(frozen.phase(), Phase::Paused);
        assert_eq!(frozen.last_activity_at(), before.last_activity_at());
        assert_eq!(
            world.call(signal(&id)).await,
            Outcome::Rejected(Rejection::Frozen)
        );
        let list = world.list().await;
        world.work(LONG).await;
        assert_eq!(world.list().await, list);
        assert_eq!(world.thaw().await, Outcome::Done);
        let thawed = world.get(&id).await;
        assert_eq!(thawed.phase(), Phase::Running);
        assert_eq!(thawed.last_activity_at(), before.last_activity_at());
        assert_eq!(thawed.attempt(), before.attempt());
        assert_eq!(world.call(signal(&id)).await, Outcome::Done);
        assert_eq!(
            world.machine.take_calls(),
            ["spawn 1", "freeze", "thaw", "signal 10 to 1"]
        );
    });
}

#[test]
fn freezing_and_thawing_again_changes_nothing() {
    tell(async {
        let world = World::new();
        let id = world.create(raw()).await.id().clone();
        assert_eq!(world.thaw().await, Outcome::Done);
        for _ in 0..2 {
            assert_eq!(world.freeze().await, Outcome::Done);
        }
        for _ in 0..2 {
            assert_eq!(world.thaw().await, Outcome::Done);
        }
        assert_eq!(world.count(&id, &Body::SessionPaused), 1);
        assert_eq!(world.count(&id, &Body::SessionResumed), 1);
        let calls = world.machine.take_calls();
        assert_eq!(calls, ["spawn 1", "freeze", "thaw"]);
    });
}

#[test]
fn what_cannot_be_frozen_runs_as_before_and_says_why() {
    tell(async {
        let world = World::new();
        let id = world.create(raw()).await.id().clone();
        *world.machine.freeze_fails.borrow_mut() = Some("one hangs in the kernel".to_owned());
        let Outcome::Failed { message } = world.freeze().await else {
            panic!("it was frozen");
        };
        assert!(message.contains("one hangs in the kernel"), "{message}");
        assert!(!world.is_shut());
        assert_eq!(world.get(&id).await.phase(), Phase::Running);
        assert_eq!(world.call(signal(&id)).await, Outcome::Done);
        assert_eq!(world.count(&id, &Body::SessionPaused), 1);
        assert_eq!(world.count(&id, &Body::SessionResumed), 1);
        let calls = world.machine.take_calls();
        let expected = ["spawn 1", "freeze", "thaw", "signal 10 to 1"];
        assert_eq!(calls, expected);
        *world.machine.freeze_fails.borrow_mut() = None;
        assert_eq!(world.freeze().await, Outcome::Done);
    });
}

#[test]
fn a_start_comes_to_its_end_first() {
    tell(async {
        let world = World::new();
        world.script(|it| it.start_after = Duration::from_secs(1));
        let from = Instant::now();
        let (created, frozen) = tokio::join!(world.create(raw()), async {
            world.work(Duration::from_millis(10)).await;
            world.freeze().await
        });
        assert_eq!(frozen, Outcome::Done);
        assert!(from.elapsed() >= Duration::from_secs(1));
        assert!(created.attempt().unwrap().started_at.is_some());
        let calls = world.machine.take_calls();
        assert_eq!(calls, ["spawn 1", "freeze"]);
    });
}

#[test]
fn a_start_that_hangs_is_not_waited_for_and_nothing_is_frozen() {
    tell(async {
        let world = World::new();
        world.script(|it| it.start_after = Duration::from_secs(100));
        let frozen = async {
            world.work(Duration::from_millis(10)).await;
            let from = Instant::now();
            let outcome = world.freeze().await;
            assert!(from.elapsed() < Duration::from_secs(3));
            outcome
        };
        let id = SessionId::from_bits(1);
        let (created, frozen) = tokio::join!(world.create(raw()), frozen);
        let Outcome::Failed { message } = frozen else {
            panic!("it was frozen");
        };
        assert!(message.contains(id.as_str()), "{message}");
        assert_eq!(created.phase(), Phase::Running, "the start went on");
        assert_eq!(world.machine.take_calls(), ["spawn 1", "thaw"]);
    });
}

#[test]
fn clocks_of_all_kinds_stand_still() {
    tell(async {
        let world = World::new();
        let mut crashing = raw();
        crashing.lifecycle.restart.policy = Some(RestartPolicy::Always);
        crashing.lifecycle.restart.initial_backoff_ms = Some(10_000);
        crashing.lifecycle.restart.max_backoff_ms = Some(10_000);
        world.script(|it| it.lives = Duration::from_millis(1));
        let crashing = world.create(crashing).await.id().clone();
        world.wait_for(&crashing, Phase::Backoff).await;
        world.script(|it| it.lives = 10 * LONG);
        let mut waiting = raw();
        waiting.readiness.kind = Some(ReadinessKind::Delay);
        waiting.readiness.delay_ms = Some(10_000);
        waiting.readiness.timeout_ms = Some(20_000);
        let mut idle = raw();
        idle.lifecycle.idle_timeout_seconds = Some(30);
        let mut stubborn = raw();
        stubborn.lifecycle.stop_grace_period_seconds = Some(10);
        let waiting = world.create_starting(waiting).await;
        let idle = world.create(idle).await.id().clone();
        world.script(|it| it.heeds_term = None);
        let stubborn = world.create(stubborn).await.id().clone();
        let stop = world.begin(Request::SetDesiredState {
            session: stubborn.clone(),
            state: DesiredState::Stopped,
        });
        world.wait_for(&stubborn, Phase::Stopping).await;
        let all = [&crashing, &waiting, &idle, &stubborn];

        assert_eq!(world.freeze().await, Outcome::Done);
        world.work(LONG).await;
        for id in all {
            assert_eq!(world.get(id).await.phase(), Phase::Paused);
        }
        assert!(!stop.is_finished(), "the stop is not over");
        assert_eq!(world.thaw().await, Outcome::Done);
        let phases = [
            Phase::Backoff,
            Phase::Starting,
            Phase::Running,
            Phase::Stopping,
        ];
        for (id, phase) in all.into_iter().zip(phases) {
            assert_eq!(world.get(id).await.phase(), phase);
        }
        world.work(Duration::from_secs(9)).await;
        for (id, phase) in all.into_iter().zip(phases) {
            assert_eq!(world.get(id).await.phase(), phase);
        }
        world.wait_for(&crashing, Phase::Running).await;
        world.wait_for(&waiting, Phase::Running).await;
        world.wait_for(&stubborn, Phase::Stopped).await;
        world.wait_for(&idle, Phase::Stopped).await;
        let stopped = session_of(world.tasks.run_until(stop).await.unwrap());
        assert_eq!(stopped.phase(), Phase::Stopped);
    });
}

#[test]
fn a_lifetime_that_passed_while_frozen_ends_at_the_thaw() {
    tell(async {
        let world = World::new();
        let mut spec = raw();
        spec.lifecycle.max_lifetime_seconds = Some(60);
        let id = world.create(spec).await.id().clone();
        assert_eq!(world.freeze().await, Outcome::Done);
        world.work(LONG).await;
        assert_eq!(world.get(&id).await.phase(), Phase::Paused);
        assert_eq!(world.thaw().await, Outcome::Done);
        let session = world.wait_for(&id, Phase::Stopped).await;
        assert_eq!(
            session.attempt_reason(),
            Some(StopReason::SessionExpired.as_str())
        );
    });
}

#[test]
fn what_ends_while_frozen_is_followed_up_at_the_thaw() {
    tell(async {
        let world = World::new();
        world.script(|it| it.heeds_term = Some(Duration::from_millis(50)));
        let id = world.create(raw()).await.id().clone();
        let replace = world.begin(Request::NewAttempt {
            session: id.clone(),
            replace: ReplaceCurrent::Yes,
        });
        world.wait_for(&id, Phase::Stopping).await;
        assert_eq!(world.freeze().await, Outcome::Done);
        // The end of the old attempt was under way already.
        world.work(Duration::from_secs(1)).await;
        let session = world.get(&id).await;
        assert_eq!(session.phase(), Phase::Paused);
        assert_eq!(session.attempt().unwrap().number, 2);
        assert!(!replace.is_finished());
        let calls = world.machine.take_calls();
        assert!(!calls.contains(&"spawn 2".to_owned()), "{calls:?}");
        assert_eq!(world.thaw().await, Outcome::Done);
        let session = session_of(world.tasks.run_until(replace).await.unwrap());
        assert_eq!(session.phase(), Phase::Running);
        assert!(world.machine.take_calls().contains(&"spawn 2".to_owned()));
    });
}

#[test]
fn a_release_of_what_is_frozen_pauses_it_no_second_time() {
    tell(async {
        let world = World::new();
        let id = world.create(raw()).await.id().clone();
        assert_eq!(world.freeze().await, Outcome::Done);
        world.release().await;
        assert_eq!(world.count(&id, &Body::SessionPaused), 1);
        assert_eq!(
            world.freeze().await,
            Outcome::Rejected(Rejection::Releasing)
        );
        let calls = world.machine.take_calls();
        assert!(calls.ends_with(&["kill 1".to_owned(), "release 1".to_owned()]));
        // The next runtime is not frozen, and recovers what was active.
        let next = World::on(
            Rc::default(),
            Rc::clone(&world.directory),
            Generation::FIRST.next(),
        );
        assert!(!next.is_shut());
        next.wait_for(&id, Phase::Running).await;
    });
}

#[test]
fn a_supervisor_that_follows_goes_on_with_the_freeze_wherever_it_was_cut_short() {
    // Virtual milliseconds: in every state of a freeze, and after it.
    for cut in [1, 2, 5, 20, 60, 1000] {
        tell(async move {
            let world = World::new();
            world.script(|it| it.start_after = Duration::from_millis(1));
            let first = world.create(raw()).await.id().clone();
            world.script(|it| it.start_after = Duration::from_millis(50));
            let registry = Rc::clone(&world.registry);
            world
                .tasks
                .run_until(async {
                    let second = tokio::task::spawn_local({
                        let registry = Rc::clone(&registry);
                        async move { registry.call(creation(2), None).await }
                    });
                    sleep(Duration::from_millis(10)).await;
                    tokio::task::spawn_local(async move { registry.freeze().await });
                    sleep(Duration::from_millis(cut)).await;
                    drop(second);
                })
                .await;
            let next = world.successor();
            drop(world);
            assert!(next.is_shut(), "after {cut} ms");
            next.go_on_freezing().await;
            assert_eq!(next.get(&first).await.phase(), Phase::Paused);
            assert_eq!(next.count(&first, &Body::SessionPaused), 1);
            assert_eq!(next.freeze().await, Outcome::Done);
            assert_eq!(next.thaw().await, Outcome::Done);
            assert_eq!(next.get(&first).await.attempts().len(), 1);
            assert_eq!(next.count(&first, &Body::SessionResumed), 1);
            next.wait_for(&SessionId::from_bits(2), Phase::Running)
                .await;
        });
    }
}

#[test]
fn a_supervisor_that_cannot_go_on_with_a_freeze_does_not_thaw() {
    tell(async {
        let world = World::new();
        let id = world.create(raw()).await.id().clone();
        assert_eq!(world.freeze().await, Outcome::Done);
        *world.machine.freeze_fails.borrow_mut() = Some("not now".to_owned());
        world.machine.take_calls();
        let next = world.successor();
        next.go_on_freezing().await;
        assert!(next.is_shut());
        assert_eq!(next.get(&id).await.phase(), Phase::Paused);
        assert_eq!(next.machine.take_calls(), ["adopt 1", "freeze"]);
        // Asked for it, it says so, and then everything runs.
        assert!(matches!(next.freeze().await, Outcome::Failed { .. }));
        assert_eq!(next.get(&id).await.phase(), Phase::Running);
    });
}

#[test]
fn a_journal_that_says_frozen_is_believed() {
    tell(async {
        let world = World::new();
        let id = world.create(raw()).await.id().clone();
        let other = world.create(raw()).await.id().clone();
        assert_eq!(world.freeze().await, Outcome::Done);
        // A thaw that told one session only, and whose note was lost.
        world.registry.standstill().forget().unwrap();
        let next = world.successor();
        next.get(&id).await;
        next.get(&other).await;
        assert!(next.is_shut());
        next.go_on_freezing().await;
        assert_eq!(next.thaw().await, Outcome::Done);
        assert_eq!(next.get(&id).await.phase(), Phase::Running);
        assert_eq!(next.get(&other).await.phase(), Phase::Running);
    });
}

#[test]
fn old_events_go_by_age_while_frozen() {
    tell(async {
        let world = World::new();
        let mut spec = raw();
        spec.event_retention.max_age_seconds = Some(60);
        let id = world.create(spec).await.id().clone();
        assert_eq!(world.freeze().await, Outcome::Done);
        let earliest = |outcome| match outcome {
            Outcome::Session(view) => view.earliest,
            other => panic!("{other:?}"),
        };
        assert_eq!(earliest(world.call(Request::Get(id.clone())).await), 1);
        world.work(Duration::from_mins(5)).await;
        assert!(earliest(world.call(Request::Get(id)).await) > 1);
    });
}

#[test]
fn who_only_stands_still_and_goes_on_costs_no_sync() {
    tell(async {
        let world = World::new();
        let _held = world.syncer.hold();
        for _ in 0..100 {
            world.create(raw()).await;
        }
        let before = world.syncer.figures().0;
        for _ in 0..2 {
            assert_eq!(world.freeze().await, Outcome::Done);
            assert_eq!(world.thaw().await, Outcome::Done);
        }
        world.work(Duration::from_secs(1)).await;
        assert_eq!(world.syncer.figures().0 - before, 0);
    });
}

#[test]
fn output_is_on_the_disk_when_a_freeze_is_answered() {
    tell(async {
        let world = World::new();
        let _held = world.syncer.hold();
        world.script(|it| it.writes = b"last words\n".to_vec());
        world.create(raw()).await;
        let before = world.syncer.figures().0;
        assert_eq!(world.freeze().await, Outcome::Done);
        assert_eq!(world.syncer.figures().0 - before, 1);
    });
}

fn creation(n: u64) -> Request {
    let created = Created {
        spec: raw().validate().unwrap(),
        idempotency_key: None,
        handle: None,
        kind: None,
    };
    Request::Create {
        session: SessionId::from_bits(n),
        created: Box::new(created),
    }
}
