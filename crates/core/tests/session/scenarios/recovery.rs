//! Release of a runtime, and what the next one finds.

use expect_test::expect;

use outlive_core::session::Phase;

use crate::world::{World, check};

#[test]
fn a_release_ends_the_attempt_and_the_next_runtime_starts_another() {
    check(
        "create; started; frozen; released; +1h; runtime 2; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            frozen         paused | paused
            released       exited#1(runtime_replaced) | suspended
            +1h            - | suspended
            runtime 2      starting#2(runtime_recovered) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_release_of_a_frozen_session_tells_no_second_pause() {
    check(
        "create; started; frozen; +1h; released; runtime 2",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            frozen         paused | paused
            +1h            - | paused
            released       exited#1(runtime_replaced) | suspended
            runtime 2      starting#2(runtime_recovered) → spawn#2 | starting
        "#]],
    );
}

#[test]
fn a_release_without_a_freeze_tells_the_pause_itself() {
    check(
        "create; started; released; runtime 2",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        released       paused, exited#1(runtime_replaced) | suspended
        runtime 2      starting#2(runtime_recovered) → spawn#2 | starting
    "#]],
    );
}

#[test]
fn a_lost_runtime_is_told_by_the_next_one() {
    check(
        "create; started; runtime 2; started; runtime 2",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            runtime 2      exited#1(runtime_replaced), starting#2(runtime_recovered) → spawn#2 | starting
            started        started#2, ready#2 | running
            runtime 2      - | running
        "#]],
    );
}

#[test]
fn a_runtime_lost_while_frozen() {
    check(
        "create; started; frozen; runtime 2; started; +1h",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            frozen         paused | paused
            runtime 2      exited#1(runtime_replaced), starting#2(runtime_recovered) → spawn#2 | starting
            started        started#2, ready#2 | running
            +1h            - | running
        "#]],
    );
}

#[test]
fn recovery_may_keep_a_session_stopped() {
    check(
        "create recovery=stop; started; runtime 2; +1h; start; started",
        &expect![[r#"
            create recovery=stop created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            runtime 2      exited#1(runtime_replaced), stopped by recovery policy | stopped
            +1h            - | stopped
            start          desired(running), starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn what_was_not_active_stays_as_it_is() {
    check(
        "create; started; exit 0; released; runtime 2; start; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped) | exited
            released       - | exited
            runtime 2      - | exited
            start          desired(running), starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn what_was_never_to_be_started_is_stopped_in_the_next_runtime() {
    check(
        "create desired=stopped; released; runtime 2; start; started",
        &expect![[r#"
            create desired=stopped created | pending
            released       - | pending
            runtime 2      - | stopped
            start          desired(running), starting#1(desired_state_running) → spawn#1 | starting
            started        started#1, ready#1 | running
        "#]],
    );
}

// A session that waited for its restart was shown as `paused` as long as its sandbox was released.
#[test]
fn what_stood_still_when_its_runtime_went_is_shown_as_suspended() {
    for (script, phase) in [
        (
            "create policy=always; started; exit 1; frozen; released",
            Phase::Suspended,
        ),
        ("create; started; frozen", Phase::Suspended),
        ("create; frozen", Phase::Suspended),
        ("create; started; frozen; released", Phase::Suspended),
        ("create; started; exit 0; frozen; released", Phase::Exited),
        ("create desired=stopped; frozen; released", Phase::Pending),
    ] {
        let mut world = World::new();
        for step in script.split("; ") {
            world.step(step);
        }
        assert_eq!(world.session().without_runtime().phase(), phase, "{script}");
    }
}

#[test]
fn a_failed_session_is_not_recovered() {
    check(
        "create; start_failed; runtime 2",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        start_failed   exited#1(start_failed), failed(start_failed) | failed
        runtime 2      - | failed
    "#]],
    );
}

#[test]
fn a_stopped_session_is_not_recovered() {
    check(
        "create; started; stop; exit 0; runtime 2",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
        exit 0         exited#1(desired_state_stopped) | stopped
        runtime 2      - | stopped
    "#]],
    );
}

#[test]
fn a_stop_under_way_is_over_when_the_runtime_goes() {
    check(
        "create; started; stop; runtime 2",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
        runtime 2      exited#1(runtime_replaced) | stopped
    "#]],
    );
}

#[test]
fn a_replacement_under_way_is_recovered_as_one_attempt() {
    check(
        "create; started; replace; runtime 2; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            replace        stopping#1(attempt_replaced) → term | stopping
            runtime 2      exited#1(runtime_replaced), starting#2(runtime_recovered) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_deletion_under_way_is_over_when_the_runtime_goes() {
    check(
        "create; started; delete; runtime 2",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        delete         stopping#1(session_deleted) → term | stopping
        runtime 2      exited#1(runtime_replaced), deleted → remove | stopped
    "#]],
    );
}

#[test]
fn a_backoff_is_recovered_at_once() {
    check(
        "create policy=always; started; exit 1; frozen; released; +1h; runtime 2; started",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            frozen         paused | paused
            released       - | paused
            +1h            - | paused
            runtime 2      starting#2(runtime_recovered) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_backoff_may_be_kept_stopped() {
    check(
        "create policy=always recovery=stop; started; exit 1; runtime 2; +1h",
        &expect![[r#"
            create policy=always recovery=stop created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            runtime 2      stopped by recovery policy | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn recovery_keeps_the_restart_window() {
    check(
        "create policy=always max=1; started; exit 1; +250ms; started; runtime 2; started; exit 1",
        &expect![[r#"
            create policy=always max=1 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            runtime 2      exited#2(runtime_replaced), starting#3(runtime_recovered) → spawn#3 | starting
            started        started#3, ready#3 | running
            exit 1         exited#3(crashed), failed(restart_limit_exceeded) | failed
        "#]],
    );
}

#[test]
fn a_lifetime_that_passed_forbids_recovery() {
    check(
        "create life=60; started; frozen; released; +1h; runtime 2; +1h",
        &expect![[r#"
            create life=60 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            frozen         paused | paused
            released       exited#1(runtime_replaced) | suspended
            +1h            - | suspended
            runtime 2      expired(max_lifetime) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_start_under_way_is_recovered() {
    check(
        "create; runtime 2; started",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        runtime 2      exited#1(runtime_replaced), starting#2(runtime_recovered) → spawn#2 | starting
        started        started#2, ready#2 | running
    "#]],
    );
}
