//! Sessions from their creation to their end, over the link, with real processes.
use std::time::Duration;

use crate::supervised::{
    self, Sandbox, argv, attempt_of, created, eventually, is_alive, new_id, on_terminal, pause, sh,
    status,
};
use outlive_api::{agent::Outcome, agent::Request, record};
use outlive_core::{
    event::{AttemptEnd, Body, ExitStatus, FailReason, StopReason, Stream},
    session::{Phase, Rejection, ReplaceCurrent},
    spec::{Descendants, DesiredState, ReadinessKind, RestartPolicy},
};

/// Every attempt's output comes before its end, and nothing of it after.
fn check_order(sandbox: &Sandbox, id: &outlive_core::id::SessionId) {
    let records = sandbox.records(id);
    let exit = records
        .iter()
        .rposition(|it| it.kind == record::KIND_ATTEMPT_EXITED)
        .unwrap();
    assert!(
        records[exit..]
            .iter()
            .all(|it| it.kind != record::KIND_OUTPUT)
    );
}

#[test]
fn echo_writes_and_exits() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["echo", "hello"]));
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(0));
    assert_eq!(sandbox.output(&id, Stream::Stdout), b"hello\n");
    let records = sandbox.records(&id);
    let seqs: Vec<_> = records.iter().map(|record| record.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    assert!(matches!(
        sandbox.facts(&id).last(),
        Some(Body::AttemptExited(_))
    ));
}

// case S1
#[test]
fn the_output_of_very_short_programs_is_there() {
    let sandbox = Sandbox::launch();
    for round in 0..60 {
        let spec = sh("printf X; exit 3");
        let tty = round % 2 == 1;
        let id = sandbox.create(if tty { on_terminal(spec) } else { spec });
        let session = sandbox.wait_for(&id, &[Phase::Exited]);
        assert_eq!(status(&session), ExitStatus::Code(3));
        let stream = if tty { Stream::Pty } else { Stream::Stdout };
        assert_eq!(sandbox.output(&id, stream), b"X", "round {round}");
        check_order(&sandbox, &id);
        sandbox.delete(&id);
    }
}

// case S2
#[test]
fn the_last_chunk_is_there_when_eight_run_at_once() {
    let sandbox = Sandbox::launch();
    for _ in 0..8 {
        let ids: Vec<_> = (0..8)
            .map(|_| sandbox.create(argv(&["head", "-c", "70000", "/dev/zero"])))
            .collect();
        for id in &ids {
            sandbox.wait_for(id, &[Phase::Exited]);
            assert_eq!(sandbox.output(id, Stream::Stdout).len(), 70_000);
        }
    }
}

// case S4, case S5
#[test]
fn a_terminal_ends_without_an_error_and_in_order() {
    let sandbox = Sandbox::launch();
    for _ in 0..20 {
        let id = sandbox.create(on_terminal(sh("echo ok; exit 7")));
        let session = sandbox.wait_for(&id, &[Phase::Exited]);
        assert_eq!(status(&session), ExitStatus::Code(7));
        assert_eq!(sandbox.output(&id, Stream::Pty), b"ok\r\n");
        check_order(&sandbox, &id);
    }
}

// case S6
#[test]
fn a_descendant_that_still_writes_is_heard() {
    let sandbox = Sandbox::launch();
    let script = "(for i in 1 2 3 4 5 6 7 8; do sleep .08; echo $i; done)& exit 0";
    let id = sandbox.create(sh(script));
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(0));
    assert_eq!(
        sandbox.output(&id, Stream::Stdout),
        b"1\n2\n3\n4\n5\n6\n7\n8\n"
    );
}

// case S7, case F4, case F6
#[test]
fn a_descendant_that_holds_the_pipe_does_not_hold_up_the_exit() {
    let sandbox = Sandbox::launch();
    for descendants in [Descendants::Leave, Descendants::Kill] {
        let mut spec = sh("sleep 300 & echo $!; exit 0");
        spec.lifecycle.descendants = Some(descendants);
        let from = outlive_agent::sys::boot_clock();
        let id = sandbox.create(spec);
        let session = sandbox.wait_for(&id, &[Phase::Exited]);
        let took = supervised::since(from);
        assert!(took < Duration::from_millis(1500), "{took:?}");
        assert_eq!(status(&session), ExitStatus::Code(0));
        let output = String::from_utf8(sandbox.output(&id, Stream::Stdout)).unwrap();
        let sleeper: u32 = output.trim().parse().unwrap();
        assert_eq!(is_alive(sleeper), descendants == Descendants::Leave);
        sandbox.delete(&id);
        eventually("the sleeper is gone", || (!is_alive(sleeper)).then_some(()));
    }
}

// case S8
#[test]
fn a_deletion_is_not_held_up_by_a_pipe() {
    let sandbox = Sandbox::launch();
    // Whenever it comes: to a shell before, while or after it starts the one that holds the pipe.
    for _ in 0..50 {
        let id = sandbox.create(sh("sleep 300 & exit 0"));
        let from = outlive_agent::sys::boot_clock();
        sandbox.delete(&id);
        assert!(supervised::since(from) < Duration::from_secs(6));
        assert!(matches!(
            sandbox.call(&Request::Get(id)),
            Outcome::Rejected(Rejection::NotFound)
        ));
    }
}

// case S9
#[test]
fn a_death_by_signal_is_no_success() {
    let sandbox = Sandbox::launch();
    let mut spec = argv(&["sleep", "60"]);
    spec.lifecycle.restart.policy = Some(RestartPolicy::OnFailure);
    spec.lifecycle.restart.initial_backoff_ms = Some(1);
    let id = sandbox.create(spec);
    assert_eq!(sandbox.signal(&id, 15), Outcome::Done);
    let session = eventually("a second attempt", || {
        let session = sandbox.session(&id);
        let second = session
            .attempt()
            .is_some_and(|it| it.number == 2 && it.pid.is_some());
        second.then_some(session)
    });
    match &session.attempts()[0].end {
        Some(AttemptEnd::Exited {
            status, stop: None, ..
        }) => {
            assert_eq!(
                *status,
                ExitStatus::Signal {
                    signal: 15,
                    core: false
                }
            );
        }
        other => panic!("{other:?}"),
    }
    let session = sandbox.set_desired(&id, DesiredState::Stopped);
    assert_eq!(session.phase(), Phase::Stopped);
    assert_eq!(session.attempt().unwrap().number, 2);
}

// case A11
#[test]
fn both_streams_are_complete_before_the_exit() {
    let sandbox = Sandbox::launch();
    for _ in 0..8 {
        let id = sandbox.create(sh(
            "head -c 1000000 /dev/zero | tr '\\0' a; echo E >&2; exit 3",
        ));
        sandbox.wait_for(&id, &[Phase::Exited]);
        assert_eq!(sandbox.output(&id, Stream::Stdout).len(), 1_000_000);
        assert_eq!(sandbox.output(&id, Stream::Stderr), b"E\n");
        let records = sandbox.records(&id);
        assert_eq!(records.last().unwrap().kind, record::KIND_ATTEMPT_EXITED);
        sandbox.delete(&id);
    }
}

// case S68
#[test]
fn a_stop_reaches_a_child_that_ignores_it() {
    let sandbox = Sandbox::launch();
    let mut spec = sh(
        "trap 'exit 0' TERM; (trap '' TERM; while :; do sleep 0.1; done) & \
                       echo $!; while :; do sleep 0.1; done",
    );
    spec.lifecycle.stop_grace_period_seconds = Some(1);
    let id = sandbox.create(spec);
    let child: u32 = sandbox
        .wait_for_output(&id, Stream::Stdout, "\n")
        .trim()
        .parse()
        .unwrap();
    let session = sandbox.set_desired(&id, DesiredState::Stopped);
    assert_eq!(session.phase(), Phase::Stopped);
    assert!(!is_alive(child));
    assert_eq!(
        session.attempt_reason(),
        Some(StopReason::DesiredStateStopped.as_str())
    );
}

// case S69, case F1
#[test]
fn a_stop_reaches_grandchildren_in_sessions_of_their_own() {
    let sandbox = Sandbox::launch();
    let mut spec = sh("sh -c 'setsid sleep 1001 & echo $!; wait' & wait");
    spec.lifecycle.stop_grace_period_seconds = Some(1);
    let id = sandbox.create(spec);
    let child: u32 = sandbox
        .wait_for_output(&id, Stream::Stdout, "\n")
        .trim()
        .parse()
        .unwrap();
    sandbox.set_desired(&id, DesiredState::Stopped);
    eventually("the grandchild is gone", || {
        (!is_alive(child)).then_some(())
    });
}

// case F2, case F8
#[test]
fn a_lifetime_ends_a_program_that_ignores_it() {
    let sandbox = Sandbox::launch();
    let mut spec = sh("trap '' TERM; while :; do sleep 0.1; done");
    spec.lifecycle.max_lifetime_seconds = Some(1);
    spec.lifecycle.stop_grace_period_seconds = Some(1);
    let from = outlive_agent::sys::boot_clock();
    let id = sandbox.create(spec);
    let session = sandbox.wait_for(&id, &[Phase::Stopped]);
    let took = supervised::since(from);
    assert!(
        took > Duration::from_millis(1900) && took < Duration::from_secs(4),
        "{took:?}"
    );
    assert_eq!(session.attempt_reason(), Some("session_expired"));
    let facts = sandbox.facts(&id);
    assert!(facts.contains(&Body::StopEscalated));
    let again = Request::NewAttempt {
        session: id,
        replace: ReplaceCurrent::No,
    };
    assert_eq!(
        sandbox.call(&again),
        Outcome::Rejected(Rejection::LifetimePassed)
    );
}

#[test]
fn an_idle_session_expires_when_it_is_due() {
    let sandbox = Sandbox::launch();
    let mut spec = sh("for i in 1 2 3 4 5 6; do echo $i; sleep 0.25; done; sleep 100");
    spec.lifecycle.idle_timeout_seconds = Some(1);
    spec.lifecycle.stop_grace_period_seconds = Some(1);
    let id = sandbox.create(spec);
    let session = sandbox.wait_for(&id, &[Phase::Stopped]);
    assert_eq!(sandbox.output(&id, Stream::Stdout), b"1\n2\n3\n4\n5\n6\n");
    assert_eq!(session.attempt_reason(), Some("session_expired"));
}

// case J6
#[test]
fn readiness_does_not_hide_a_crash_loop() {
    let sandbox = Sandbox::launch();
    let mut spec = sh("printf REA; sleep 0.02; printf DY; sleep 0.03; exit 1");
    spec.readiness.kind = Some(ReadinessKind::Output);
    spec.readiness.output = Some("READY".to_owned());
    spec.lifecycle.restart.policy = Some(RestartPolicy::OnFailure);
    spec.lifecycle.restart.max_restarts = Some(3);
    spec.lifecycle.restart.initial_backoff_ms = Some(10);
    spec.lifecycle.restart.max_backoff_ms = Some(50);
    let id = sandbox.create(spec);
    sandbox.wait_for(&id, &[Phase::Failed]);
    let facts = sandbox.facts(&id);
    let count = |wanted: fn(&Body) -> bool| facts.iter().filter(|it| wanted(it)).count();
    assert_eq!(count(|it| matches!(it, Body::SessionReady)), 4);
    assert_eq!(count(|it| matches!(it, Body::AttemptExited(_))), 4);
    assert_eq!(
        facts.last(),
        Some(&Body::SessionFailed(FailReason::RestartLimitExceeded))
    );
}

// case J7
#[test]
fn a_stop_beats_the_restart_policy() {
    let sandbox = Sandbox::launch();
    let mut spec = sh("exit 1");
    spec.lifecycle.restart.policy = Some(RestartPolicy::Always);
    spec.lifecycle.restart.max_restarts = Some(-1);
    spec.lifecycle.restart.initial_backoff_ms = Some(5);
    spec.lifecycle.restart.max_backoff_ms = Some(5);
    for round in 0..20 {
        let id = sandbox.create(spec.clone());
        pause(Duration::from_millis(round));
        let session = sandbox.set_desired(&id, DesiredState::Stopped);
        assert_eq!(session.phase(), Phase::Stopped);
        let number = session.attempt().unwrap().number;
        pause(Duration::from_millis(20));
        let session = sandbox.session(&id);
        assert_eq!(session.phase(), Phase::Stopped);
        assert_eq!(session.attempt().unwrap().number, number);
    }
}

// case J8
#[test]
fn a_stale_attempt_is_refused_everywhere() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(on_terminal(argv(&["cat"])));
    let replace = Request::NewAttempt {
        session: id.clone(),
        replace: ReplaceCurrent::Yes,
    };
    assert!(matches!(sandbox.call(&replace), Outcome::Session(_)));
    let expected = Some(attempt_of(&id, 1));
    let mismatch = Outcome::Rejected(Rejection::AttemptMismatch {
        expected: attempt_of(&id, 1),
        current: Some(attempt_of(&id, 2)),
    });
    let session = id.clone();
    let signal = Request::Signal {
        session,
        expected: expected.clone(),
        signal: 9,
    };
    assert_eq!(sandbox.call(&signal), mismatch);
    let session = id.clone();
    let resize = Request::Resize {
        session,
        expected: expected.clone(),
        rows: 5,
        cols: 5,
    };
    assert_eq!(sandbox.call(&resize), mismatch);
    let mut write = supervised::write(&id, "x", b"x", None);
    if let Request::Write { write, .. } = &mut write {
        write.expected = expected;
    }
    assert_eq!(sandbox.call(&write), mismatch);
    assert_eq!(sandbox.session(&id).phase(), Phase::Running);
}

#[test]
fn what_can_not_start_says_why() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["/no/such/program"]));
    let session = sandbox.session(&id);
    assert_eq!(session.phase(), Phase::Failed);
    match &session.attempt().unwrap().end {
        Some(AttemptEnd::StartFailed { message }) => {
            assert!(message.contains("no such file"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_key_makes_one_session() {
    let sandbox = Sandbox::launch();
    let mut creation = created(argv(&["cat"]));
    creation.idempotency_key = Some("key".to_owned());
    let mut links: Vec<_> = (0..10).map(|_| sandbox.link()).collect();
    for link in &mut links {
        let created = Box::new(creation.clone());
        link.ask(Request::Create {
            session: new_id(),
            created,
        })
        .unwrap();
    }
    let outcomes: Vec<_> = links
        .iter_mut()
        .map(|link| link.answer().unwrap().outcome)
        .collect();
    let made = outcomes
        .iter()
        .filter(|it| matches!(it, Outcome::Session(_)))
        .count();
    assert_eq!(made, 1);
    assert_eq!(sandbox.list().len(), 1);
    let id = sandbox.list()[0].id().clone();
    sandbox.set_desired(&id, DesiredState::Stopped);
    let again = Request::Create {
        session: new_id(),
        created: Box::new(creation.clone()),
    };
    assert!(matches!(sandbox.call(&again), Outcome::Existing(_)));
    creation.spec.name = "other".to_owned();
    let other = Request::Create {
        session: new_id(),
        created: Box::new(creation),
    };
    assert_eq!(
        sandbox.call(&other),
        Outcome::Rejected(Rejection::IdempotencyConflict)
    );
    sandbox.delete(&id);
    assert!(sandbox.list().is_empty());
}

#[test]
fn a_watcher_hears_of_every_move() {
    let sandbox = Sandbox::launch();
    let mut watcher = sandbox.link();
    watcher.ask(Request::Watch).unwrap();
    assert_eq!(watcher.answer().unwrap().outcome, Outcome::Watching);
    let id = sandbox.create(argv(&["echo", "hello"]));
    sandbox.wait_for(&id, &[Phase::Exited]);
    let last = sandbox.records(&id).last().unwrap().seq;
    loop {
        match watcher.answer().unwrap().outcome {
            Outcome::Moved {
                session,
                earliest: 1,
                latest,
            } if session == id => {
                if latest == last {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    sandbox.delete(&id);
    loop {
        match watcher.answer().unwrap().outcome {
            Outcome::Gone { session } => {
                assert_eq!(session, id);
                break;
            }
            Outcome::Moved { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_runtime_is_released_and_replaced() {
    let mut sandbox = Sandbox::launch();
    let active = sandbox.create(argv(&["cat"]));
    let done = sandbox.create(argv(&["true"]));
    sandbox.wait_for(&done, &[Phase::Exited]);
    let pid = sandbox.session(&active).attempt().unwrap().pid.unwrap();
    let keeper = sandbox.keeper_pid();
    assert_eq!(
        sandbox.link().call(Request::Release).unwrap(),
        Outcome::Done
    );
    eventually("the keeper leaves", || (!is_alive(keeper)).then_some(()));
    assert!(!is_alive(pid));
    let facts = sandbox.facts(&active);
    assert_eq!(facts[facts.len() - 2], Body::SessionPaused);
    assert_eq!(
        facts[facts.len() - 1],
        Body::AttemptExited(AttemptEnd::RuntimeReplaced)
    );
    sandbox.replace();
    let session = sandbox.wait_for(&active, &[Phase::Running]);
    assert_eq!(session.generation().0, 2);
    assert_eq!(session.attempt().unwrap().number, 2);
    assert_eq!(sandbox.session(&done).phase(), Phase::Exited);
    let records = sandbox.records(&active);
    let seqs: Vec<_> = records.iter().map(|record| record.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let generations: Vec<_> = records.iter().map(|record| record.generation).collect();
    assert_eq!(generations.iter().filter(|it| **it == 2).count(), 3);
    // The same again for a runtime that was killed.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(sandbox.keeper_pid().cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}

// The rule for descendants: a flood from one of them ends with the drain's limit, not never.
#[test]
fn a_descendant_that_floods_does_not_hold_the_end_up() {
    let sandbox = Sandbox::launch();
    let mut spec = sh("yes & exit 0");
    spec.event_retention.max_bytes = Some(4 << 20);
    let id = sandbox.create(spec);
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(0));
}
