//! What a session knows about itself: versions, counts, history, receipts, checkpoints.

use outlive_core::{
    event::{AttemptEnd, Body},
    id::{AttemptId, Generation},
    limits::{ATTEMPTS_KEPT_MAX, RESTART_ENTRIES_MAX, START_MESSAGE_BYTES_MAX},
    receipt::{self, Standing},
    session::{CheckpointError, Effect, EofMode, Input, Phase, Rejection, Session},
};

use crate::{
    words::parse_duration,
    world::{Entry, World, session_id},
};

/// The world after a script.
fn after(script: &str) -> World {
    let mut world = World::new();
    for text in script.split(';').map(str::trim) {
        world.step(text);
    }
    world
}

#[test]
fn updates_desired_states_and_attempts_calls_raise_the_version() {
    let version = |script| after(script).session().spec_version();
    assert_eq!(version("create; started; exit 1"), 1);
    assert_eq!(version("create; started; update"), 2);
    assert_eq!(version("create; started; stop; stop; exit 0; start"), 4);
    assert_eq!(version("create; started; exit 0; attempt"), 2);
    assert_eq!(version("create; started; replace"), 2);
    assert_eq!(version("create; started; replace; exit 0; started"), 2);
    assert_eq!(
        version("create; started; stop; replace; exit 0; started"),
        3
    );
    assert_eq!(
        version("create; started; update command=other; exit 0; started"),
        2
    );
    assert_eq!(version("create; started; runtime 2; started"), 1);
}

#[test]
fn restarts_by_policy_are_counted_and_no_others() {
    let restarts = |script| after(script).session().restart_count();
    assert_eq!(restarts("create policy=always; started; exit 1"), 0);
    assert_eq!(restarts("create policy=always; started; exit 1; +250ms"), 1);
    assert_eq!(
        restarts("create policy=always; started; exit 1; +250ms; started; replace; exit 1"),
        1
    );
    assert_eq!(
        restarts("create policy=always; started; exit 1; start; started; exit 1; +250ms"),
        1
    );
    assert_eq!(restarts("create; started; runtime 2; started"), 0);
}

#[test]
fn attempts_belong_to_their_runtime() {
    let world = after("create; started; exit 1; start; started; runtime 2; started");
    let session = world.session();
    let generations: Vec<u64> = session
        .attempts()
        .iter()
        .map(|attempt| attempt.generation.0)
        .collect();
    assert_eq!(generations, [1, 1, 2]);
    assert_eq!(session.generation(), Generation(2));
    assert_eq!(
        session.attempt_id(),
        Some(AttemptId::derive(&session_id(), 3))
    );
}

#[test]
fn a_stop_shows_its_reason_before_the_end_and_after() {
    let mut world = after("create; started");
    assert_eq!(world.session().attempt_reason(), None);
    world.step("stop");
    assert_eq!(
        world.session().attempt_reason(),
        Some("desired_state_stopped")
    );
    world.step("exit sig15");
    assert_eq!(
        world.session().attempt_reason(),
        Some("desired_state_stopped")
    );
    world.step("start");
    assert_eq!(world.session().attempt_reason(), None);
}

#[test]
fn the_pid_and_the_times_of_an_attempt_are_kept() {
    let world = after("create; +1s; started; +1s; exit 0");
    let session = world.session();
    let attempt = session.attempt().expect("an attempt");
    let since_creation = |at: Option<_>| {
        at.map(|at: outlive_core::time::Timestamp| at.since(session.created_at()).as_secs())
    };
    assert_eq!(attempt.pid, Some(100));
    assert_eq!(since_creation(Some(attempt.starting_at)), Some(0));
    assert_eq!(since_creation(attempt.started_at), Some(1));
    assert_eq!(since_creation(attempt.finished_at), Some(2));
}

#[test]
fn the_history_is_bounded_and_numbers_go_on() {
    let mut world = after("create; started");
    for _ in 0..100 {
        world.step("replace");
        world.step("exit 0");
        world.step("started");
    }
    let attempts = world.session().attempts();
    assert_eq!(attempts.len(), ATTEMPTS_KEPT_MAX);
    assert_eq!(attempts.last().map(|attempt| attempt.number), Some(101));
    assert_eq!(attempts.first().map(|attempt| attempt.number), Some(38));
}

#[test]
fn a_crash_loop_without_limit_keeps_a_bounded_window() {
    let mut world = after("create policy=always max=-1 initial=1 longest=1 window=3600");
    let mut largest = 0;
    for _ in 0..4 * RESTART_ENTRIES_MAX {
        world.journal.truncate(2);
        let session = world.session.as_mut().expect("a session");
        for input in [
            Input::Started { pid: 1 },
            Input::Exited {
                end: crate::words::parse_end("1"),
            },
        ] {
            drive(session, world.now, &input);
        }
        world.now = world.now + parse_duration("1ms");
        drive(session, world.now, &Input::DeadlinePassed);
        largest = largest.max(session.checkpoint().len());
    }
    assert_eq!(
        world.session().restart_count(),
        4 * RESTART_ENTRIES_MAX as u64
    );
    assert!(largest < 16 * 1024, "a checkpoint of {largest} bytes");
}

fn drive(session: &mut Session, now: outlive_core::time::Timestamp, input: &Input) {
    let decision = session.decide(now, input).expect("accepted");
    let numbers = session.attempt_numbers(&decision.events);
    for (body, attempt) in decision.events.into_iter().zip(numbers) {
        let seq = session.last_seq() + 1;
        session.apply(&outlive_core::event::Event {
            seq,
            at: now,
            attempt,
            body,
            call: None,
        });
    }
}

#[test]
fn a_joined_window_is_never_more_generous() {
    let mut world = after("create policy=always max=600 initial=1 longest=1 window=3600; started");
    let mut restarts = 0;
    while world.session().phase() != Phase::Failed {
        world.journal.truncate(2);
        let session = world.session.as_mut().expect("a session");
        drive(
            session,
            world.now,
            &Input::Exited {
                end: crate::words::parse_end("1"),
            },
        );
        if session.phase() == Phase::Backoff {
            restarts += 1;
            world.now = world.now + parse_duration("1ms");
            drive(session, world.now, &Input::DeadlinePassed);
            drive(session, world.now, &Input::Started { pid: 1 });
        }
    }
    assert_eq!(restarts, 600);
}

#[test]
fn activity_is_output_input_signals_sizes_starts_and_exits() {
    let world = |step: &str| {
        let mut world = after("create pty; started; +5s");
        world.step(step);
        let session = world.session();
        session
            .last_activity_at()
            .since(session.created_at())
            .as_secs()
    };
    for active in [
        "output 1",
        "write a",
        "eof a",
        "signal 10",
        "resize 5x5",
        "exit 0",
    ] {
        assert_eq!(world(active), 5, "{active}");
    }
    for idle in ["stop", "update", "frozen", "delete"] {
        assert_eq!(world(idle), 0, "{idle}");
    }
}

#[test]
fn output_moves_nothing_but_the_activity() {
    let mut world = after("create; started; +5s");
    let before = world.session().clone();
    world.step("output 7");
    let session = world.session();
    assert_eq!(session.updated_at(), before.updated_at());
    assert_eq!(session.last_activity_at(), world.now);
    assert_eq!(session.phase(), before.phase());
}

#[test]
fn a_supervisor_that_takes_over_does_what_was_left() {
    let left = |script| after(script).session().unfinished();
    assert_eq!(left("create"), [Effect::Spawn { number: 1 }]);
    assert_eq!(left("create; started"), []);
    assert_eq!(left("create; started; stop"), [Effect::Terminate]);
    assert_eq!(left("create; stop"), [Effect::Terminate]);
    assert_eq!(left("create grace=1; started; stop; +1s"), [Effect::Kill]);
    assert_eq!(left("create; started; exit 0"), []);
    assert_eq!(left("create; started; exit 0; delete"), [Effect::Remove]);
    let size = Effect::Resize {
        rows: 50,
        cols: 132,
    };
    assert_eq!(left("create pty; started; resize 50x132"), [size]);
    assert!(after("create; started; eof a").session().input_closed());
}

#[test]
fn a_retry_is_told_from_a_conflict() {
    let world = after("create; started");
    let session = world.session();
    let digest = receipt::digest(1, b"hello", None);
    let eof = receipt::digest(1, b"hello", Some(EofMode::Character));
    let replaced = receipt::digest(2, b"hello", None);
    assert_eq!(session.standing(None, None, digest), Ok(Standing::New));
    assert_eq!(
        session.standing(None, Some(digest), digest),
        Ok(Standing::Duplicate)
    );
    for other in [eof, replaced, receipt::digest(1, b"hullo", None)] {
        assert_eq!(
            session.standing(None, Some(digest), other),
            Err(Rejection::InputConflict)
        );
    }
    // How the end of input is carried out is no content.
    assert_eq!(eof, receipt::digest(1, b"hello", Some(EofMode::Hangup)));
    // A stale attempt comes before a known id, a known id before the process that ended.
    let stale = AttemptId::derive(&session_id(), 9);
    let mismatch = session.standing(Some(&stale), Some(digest), digest);
    assert!(matches!(mismatch, Err(Rejection::AttemptMismatch { .. })));
    let ended = after("create; started; exit 0");
    let known = ended.session().standing(None, Some(digest), digest);
    assert_eq!(known, Ok(Standing::Duplicate));
}

#[test]
fn the_digest_of_the_creation_outlives_every_change() {
    let created = after("create name=a").session().created_digest();
    let changed = after("create name=a; started; update name=b; stop");
    assert_eq!(changed.session().created_digest(), created);
    assert_ne!(changed.session().spec().digest(), created);
}

#[test]
fn a_failed_start_says_why_within_bounds() {
    let mut world = after("create");
    let message = "ü".repeat(START_MESSAGE_BYTES_MAX);
    let step = world
        .give(&Input::StartFailed { message })
        .expect("accepted");
    let Some(Body::AttemptExited(end)) = step.events.first().map(|event| &event.body) else {
        panic!("the attempt ended");
    };
    let AttemptEnd::StartFailed { message } = end else {
        panic!("it never started");
    };
    assert_eq!(message.len(), START_MESSAGE_BYTES_MAX);
}

#[test]
fn what_is_no_checkpoint_is_said_to_be_none() {
    assert!(matches!(
        Session::restore(b""),
        Err(CheckpointError::Malformed(_))
    ));
    assert!(matches!(
        Session::restore(b"\x82\x01\x05"),
        Err(CheckpointError::Malformed(_))
    ));
    assert_eq!(
        Session::restore(b"\x82\x02\x05"),
        Err(CheckpointError::Version(2))
    );
    let whole = after("create; started").session().checkpoint();
    for end in 0..whole.len() {
        Session::restore(&whole[..end]).expect_err("half a checkpoint");
    }
}

/// What version 1 wrote for the session of the test below.
const CHECKPOINT_V1: &str = "\
    820193707365732d30306162636465662d3637380188656275696c64816770726f6772616d60a08201818318\
    1818506e787465726d2d323536636f6c6f728701850105183c18fa19138800183c000a008202834552454144\
    5919753007821a040000001a0001518002f6f6821b19b02c7816bdbe861b782861b5682048451b000000e8d4\
    a510001b000000e8e38bc2801b000000e8e38bc2801b000000e8e38bc280f600820382851b000000e8e38bc2\
    80f68218181850f4f483001b000000e8e38bc280f4f682880101001b000000e8d4a5100018641b000000e8d4\
    a510001b000000e8d4a5100082008382008101f600860201011b000000e8e38bc28018641b000000e8e38bc2\
    80018281821b000000e8d4a5100001010d";

/// Checkpoints are on disk: what an older build wrote, this one reads.
#[test]
fn checkpoints_of_version_1_are_read() {
    let script = "create pty name=build policy=on_failure idle=60 ready=output delay=7; started; \
                  matched; resize 50x132; write a; exit 1; +250ms; started; output 5; stop";
    let bytes: Vec<u8> = (0..CHECKPOINT_V1.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&CHECKPOINT_V1[at..at + 2], 16).expect("hexadecimal"))
        .collect();
    assert_eq!(
        Session::restore(&bytes).as_ref(),
        Ok(after(script).session())
    );
}

// case B4
#[test]
fn eight_ways_to_end_tell_eight_reasons() {
    let ways = [
        "create; started; signal 15; exit sig15",
        "create; started; signal 9; exit sig9",
        "create; started; exit oom",
        "create life=1; started; +1s; exit sig15",
        "create idle=1; started; +1s; exit sig15",
        "create ready=output timeout=1000; started; +1s; exit sig15",
        "create; started; stop; exit sig15",
        "create; started; delete; exit sig15",
    ];
    let mut reasons: Vec<String> = ways.iter().map(|way| cause(&after(way))).collect();
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), ways.len(), "{reasons:?}");
}

/// What the events say about an end: its reason and status, and the limit that passed.
fn cause(world: &World) -> String {
    let told = world.journal.iter().filter_map(|entry| match entry {
        Entry::Event(event) => Some(&event.body),
        Entry::Segment(_) => None,
    });
    let said = told.filter_map(|body| match body {
        Body::AttemptExited(end) => match end {
            AttemptEnd::Exited { status, oom, .. } => {
                Some(format!("{} {status:?} {oom:?}", end.reason()))
            }
            AttemptEnd::StartFailed { .. } | AttemptEnd::RuntimeReplaced => None,
        },
        Body::SessionExpired(expiry) => Some(expiry.as_str().to_owned()),
        _ => None,
    });
    said.collect::<Vec<_>>().join(", ")
}
