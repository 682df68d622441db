//! Readiness: process, delay, output, and giving up.

use expect_test::expect;

use crate::world::check;

#[test]
fn a_delay_longer_than_the_patience_is_never_ready() {
    check(
        "create ready=delay delay=2000 timeout=1000; started; +1s; exit sig15",
        &expect![[r#"
            create ready=delay delay=2000 timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +1s            stopping#1(readiness_timeout) → term | stopping
            exit sig15     exited#1(readiness_timeout), failed(readiness_timeout) | failed
        "#]],
    );
}

#[test]
fn an_exit_before_readiness_is_an_exit() {
    check(
        "create ready=output; started; exit 0; +1h",
        &expect![[r#"
        create ready=output created, starting#1(created) → spawn#1 | starting
        started        started#1 | starting
        exit 0         exited#1(stopped) | exited
        +1h            - | exited
    "#]],
    );
}

// case B4
#[test]
fn not_ready_in_time_is_stopped_killed_and_failed() {
    check(
        "create ready=output timeout=1000 grace=2; started; +999ms; +1ms; +2s; exit sig9",
        &expect![[r#"
            create ready=output timeout=1000 grace=2 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +999ms         - | starting
            +1ms           stopping#1(readiness_timeout) → term | stopping
            +2s            escalated → kill | stopping
            exit sig9      exited#1(readiness_timeout), failed(readiness_timeout) | failed
        "#]],
    );
}

#[test]
fn not_ready_in_time_is_a_failure_whatever_the_code() {
    check(
        "create policy=on_failure ready=output timeout=1000; started; +1s; exit 0; +250ms; started",
        &expect![[r#"
            create policy=on_failure ready=output timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +1s            stopping#1(readiness_timeout) → term | stopping
            exit 0         exited#1(readiness_timeout), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2 | starting
        "#]],
    );
}

// case S76
#[test]
fn readiness_timeouts_back_off_and_each_is_told() {
    check(
        "create policy=on_failure ready=output timeout=1000; started; +1s; exit sig15; +250ms; started; +1s; exit sig15; +500ms; started; +1s; exit sig15; +1s; started",
        &expect![[r#"
            create policy=on_failure ready=output timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +1s            stopping#1(readiness_timeout) → term | stopping
            exit sig15     exited#1(readiness_timeout), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2 | starting
            +1s            stopping#2(readiness_timeout) → term | stopping
            exit sig15     exited#2(readiness_timeout), backoff(500ms) | backoff
            +500ms         starting#3(restart_policy) → spawn#3 | starting
            started        started#3 | starting
            +1s            stopping#3(readiness_timeout) → term | stopping
            exit sig15     exited#3(readiness_timeout), backoff(1000ms) | backoff
            +1s            starting#4(restart_policy) → spawn#4 | starting
            started        started#4 | starting
        "#]],
    );
}

// case S77
#[test]
fn readiness_that_never_comes_ends_in_the_limit() {
    check(
        "create policy=on_failure max=2 ready=output timeout=1000; started; +1s; exit sig15; +250ms; started; +1s; exit sig15; +500ms; started; +1s; exit sig15; +1h",
        &expect![[r#"
            create policy=on_failure max=2 ready=output timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +1s            stopping#1(readiness_timeout) → term | stopping
            exit sig15     exited#1(readiness_timeout), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2 | starting
            +1s            stopping#2(readiness_timeout) → term | stopping
            exit sig15     exited#2(readiness_timeout), backoff(500ms) | backoff
            +500ms         starting#3(restart_policy) → spawn#3 | starting
            started        started#3 | starting
            +1s            stopping#3(readiness_timeout) → term | stopping
            exit sig15     exited#3(readiness_timeout), failed(restart_limit_exceeded) | failed
            +1h            - | failed
        "#]],
    );
}

#[test]
fn readiness_after_the_timeout_comes_too_late() {
    check(
        "create ready=output timeout=1000; started; +1s; matched; exit sig15",
        &expect![[r#"
            create ready=output timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +1s            stopping#1(readiness_timeout) → term | stopping
            matched        - | stopping
            exit sig15     exited#1(readiness_timeout), failed(readiness_timeout) | failed
        "#]],
    );
}
