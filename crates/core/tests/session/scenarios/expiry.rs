//! Idle timeout and lifetime.

use expect_test::expect;

use crate::world::check;

// case B4
#[test]
fn idleness_ends_a_session() {
    check(
        "create idle=10; started; +9s; output 5; +9s; write a; +9s; signal 10; +9s; +1s; exit sig15; +1h",
        &expect![[r#"
            create idle=10 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            +9s            - | running
            output 5       output(5) | running
            +9s            - | running
            write a        input(a) → write | running
            +9s            - | running
            signal 10      signal(10) → signal 10 | running
            +9s            - | running
            +1s            expired(idle_timeout), stopping#1(session_expired) → term | stopping
            exit sig15     exited#1(session_expired) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn idleness_runs_only_while_an_attempt_lives() {
    check(
        "create idle=10 policy=always initial=60000 longest=60000; started; exit 1; +60s; started; +10s; exit sig15; +1h",
        &expect![[r#"
            create idle=10 policy=always initial=60000 longest=60000 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(60000ms) | backoff
            +60s           starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            +10s           expired(idle_timeout), stopping#2(session_expired) → term | stopping
            exit sig15     exited#2(session_expired) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn no_attachment_and_no_readiness_is_activity() {
    check(
        "create idle=10 ready=delay delay=9000; started; +10s",
        &expect![[r#"
            create idle=10 ready=delay delay=9000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +10s           ready#1; expired(idle_timeout), stopping#1(session_expired) → term | stopping
        "#]],
    );
}

// case B4
#[test]
fn a_lifetime_ends_a_session() {
    check(
        "create life=60 policy=always; started; output 5; +60s; exit sig15; +1h; start; attempt; update life=60; update life=36000; started",
        &expect![[r#"
            create life=60 policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            output 5       output(5) | running
            +60s           expired(max_lifetime), stopping#1(session_expired) → term | stopping
            exit sig15     exited#1(session_expired) | stopped
            +1h            - | stopped
            start          refused: session lifetime has passed | stopped
            attempt        refused: session lifetime has passed | stopped
            update life=60 refused: session lifetime has passed | stopped
            update life=36000 updated, starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_lifetime_ends_a_backoff() {
    check(
        "create life=60 policy=always initial=50000 longest=50000; started; +20s; exit 1; +1h",
        &expect![[r#"
            create life=60 policy=always initial=50000 longest=50000 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            +20s           - | running
            exit 1         exited#1(crashed), backoff(50000ms) | backoff
            +1h            expired(max_lifetime) → kill | stopped
        "#]],
    );
}

#[test]
fn a_lifetime_that_passed_forbids_a_restart() {
    check(
        "create life=60 grace=100 ready=output timeout=59000 policy=always; started; +59s; +2s; exit sig15; +1h",
        &expect![[r#"
            create life=60 grace=100 ready=output timeout=59000 policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +59s           stopping#1(readiness_timeout) → term | stopping
            +2s            - | stopping
            exit sig15     exited#1(readiness_timeout), expired(max_lifetime) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_lifetime_that_passed_during_a_replacement_forbids_the_start() {
    check(
        "create life=60 grace=100; started; +59s; replace; +2s; exit sig15; +1h",
        &expect![[r#"
            create life=60 grace=100 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            +59s           - | running
            replace        stopping#1(attempt_replaced) → term | stopping
            +2s            - | stopping
            exit sig15     exited#1(attempt_replaced), expired(max_lifetime) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_lifetime_has_nothing_to_end_in_an_ended_session() {
    check(
        "create life=60; started; exit 0; +1h; start",
        &expect![[r#"
            create life=60 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped) | exited
            +1h            - | exited
            start          refused: session lifetime has passed | exited
        "#]],
    );
}
