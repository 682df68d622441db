//! A call that comes again, because whoever carried it out was killed before the answer.

use expect_test::expect;
use outlive_core::{limits::CALLS_KEPT_MAX, session::Session};

use crate::world::{World, check};

// A supervisor was killed after a stop. The next one was asked again, and stopped what somebody
// else had started meanwhile.
#[test]
fn a_stop_that_comes_again_does_not_stop_what_was_started_since() {
    check(
        "create; started; a: stop; exit sig15; b: start; started; a@3: stop; c: stop",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            a: stop        desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            exit sig15     exited#1(desired_state_stopped) | stopped
            b: start       desired(running), starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
            a@3: stop      carried out before | running
            c: stop        desired(stopped), stopping#2(desired_state_stopped) → term | stopping
        "#]],
    );
}

#[test]
fn a_replacement_that_comes_again_replaces_nothing() {
    check(
        "create; started; a: replace; a@4: replace; exit sig15; started; a@4: replace",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            a: replace     stopping#1(attempt_replaced) → term | stopping
            a@4: replace   carried out before | stopping
            exit sig15     exited#1(attempt_replaced), starting#2(attempt_created) → spawn#2 | starting
            started        started#2, ready#2 | running
            a@4: replace   carried out before | running
        "#]],
    );
}

#[test]
fn signals_sizes_and_specifications_come_once_too() {
    check(
        "create pty; started; a: signal 10; b: resize 50x132; a@4: signal 10; b@4: resize 50x132; \
         c: update pty max=7; c@4: update pty max=7",
        &expect![[r#"
            create pty     created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            a: signal 10   signal(10) → signal 10 | running
            b: resize 50x132 resized(50x132) → resize 50x132 | running
            a@4: signal 10 carried out before | running
            b@4: resize 50x132 carried out before | running
            c: update pty max=7 updated | running
            c@4: update pty max=7 carried out before | running
        "#]],
    );
}

// What did not happen may happen the second time.
#[test]
fn a_call_that_was_refused_is_decided_anew() {
    check(
        "create; started; a: attempt; exit 0; a@4: attempt",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            a: attempt     refused: session already has a running attempt | running
            exit 0         exited#1(stopped) | exited
            a@4: attempt   starting#2(attempt_created) → spawn#2 | starting
        "#]],
    );
}

#[test]
fn a_new_runtime_knows_the_calls_of_the_old_one() {
    check(
        "create policy=always; started; a: replace; runtime 2; started; a@4: replace",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            a: replace     stopping#1(attempt_replaced) → term | stopping
            runtime 2      exited#1(runtime_replaced), starting#2(runtime_recovered) → spawn#2 | starting
            started        started#2, ready#2 | running
            a@4: replace   carried out before | running
        "#]],
    );
}

/// After `a`, so many signals that the session remembers them and nothing before.
fn forgotten() -> World {
    let mut world = World::new();
    for text in ["create", "started", "a: signal 10"] {
        world.step(text);
    }
    for number in 0..CALLS_KEPT_MAX {
        world.step(&format!("s{number}: signal 10"));
    }
    world
}

#[test]
fn what_nobody_remembers_is_neither_done_nor_denied() {
    let mut world = forgotten();
    // It was event 5, and sent when event 4 was known.
    assert_eq!(world.step("a@4: signal 10"), "unknown");
    // Whoever doesn't know what the session was like at first is not promised anything.
    assert_eq!(world.step("b@0: signal 10"), "unknown");
    assert_eq!(world.step("s0@4: signal 10"), "carried out before");
    // It was sent when all that is forgotten was known already: it would be remembered.
    assert_eq!(world.step("b@5: signal 10"), "signal(10) → signal 10");
    // A call that comes for the first time can't have been carried out.
    assert_eq!(world.step("c: signal 10"), "signal(10) → signal 10");
}

#[test]
fn what_is_remembered_of_calls_is_bounded() {
    let mut world = forgotten();
    let bytes = world.session().checkpoint().len();
    for number in 0..1000 {
        world.step(&format!("t{number}: signal 10"));
    }
    // Numbers of events need some more digits.
    let grown = world.session().checkpoint().len() - bytes;
    assert!(grown < 3 * CALLS_KEPT_MAX, "{grown} bytes more");
}

#[test]
fn a_checkpoint_of_a_build_that_remembered_no_calls_is_read() {
    let mut world = World::new();
    world.step("create");
    let session = world.session();
    let mut bytes = session.checkpoint();
    // Version, then an array of 21: the last are the calls, `[[], 0]`.
    assert!(bytes.ends_with(&[0x82, 0x80, 0x00]));
    assert_eq!(bytes[2], 0x80 + 21);
    bytes.truncate(bytes.len() - 3);
    bytes[2] = 0x80 + 20;
    assert_eq!(Session::restore(&bytes).as_ref(), Ok(session));
}
