//! Stop and start by desired state.

use expect_test::expect;

use crate::world::check;

#[test]
fn a_stop_asks_waits_and_kills() {
    check(
        "create grace=2; started; stop; +1999ms; +1ms; +1h; exit sig9",
        &expect![[r#"
            create grace=2 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            +1999ms        - | stopping
            +1ms           escalated → kill | stopping
            +1h            - | stopping
            exit sig9      exited#1(desired_state_stopped) | stopped
        "#]],
    );
}

#[test]
fn a_stop_that_is_obeyed_needs_no_kill() {
    check(
        "create; started; stop; +10ms; exit sig15; +1h",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            +10ms          - | stopping
            exit sig15     exited#1(desired_state_stopped) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_stop_is_told_each_time() {
    check(
        "create; started; stop; stop; exit 0; stop; stop",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            stop           desired(stopped) | stopping
            exit 0         exited#1(desired_state_stopped) | stopped
            stop           desired(stopped) → kill | stopped
            stop           desired(stopped) → kill | stopped
        "#]],
    );
}

#[test]
fn a_stop_of_an_exited_session_is_stopped_and_empties_the_tree() {
    check(
        "create; started; exit 0; stop",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        exit 0         exited#1(stopped) | exited
        stop           desired(stopped) → kill | stopped
    "#]],
    );
}

// case J7
#[test]
fn a_signal_is_no_stop() {
    check(
        "create policy=always; started; signal 15; exit sig15; +250ms; started",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            signal 15      signal(15) → signal 15 | running
            exit sig15     exited#1(killed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

// case J7
#[test]
fn a_stop_during_backoff_cancels_the_restart() {
    check(
        "create policy=always; started; exit 1; +100ms; stop; +1h",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +100ms         - | backoff
            stop           desired(stopped) → kill | stopped
            +1h            - | stopped
        "#]],
    );
}

// case J7
#[test]
fn a_stop_right_after_the_exit_beats_the_restart() {
    check(
        "create policy=always; started; exit 1; +1ms; stop; +1h",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +1ms           - | backoff
            stop           desired(stopped) → kill | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_stop_beats_the_policy_while_the_attempt_is_ending() {
    check(
        "create policy=always; started; stop; exit 1; +1h",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            exit 1         exited#1(desired_state_stopped) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_stop_while_the_process_is_being_started_reaches_it_when_it_runs() {
    check(
        "create; stop; started; exit sig15",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
        started        started#1 → term | stopping
        exit sig15     exited#1(desired_state_stopped) | stopped
    "#]],
    );
}

#[test]
fn a_stop_while_the_process_is_being_started_and_the_start_fails() {
    check(
        "create; stop; start_failed",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
        start_failed   exited#1(start_failed) | stopped
    "#]],
    );
}

#[test]
fn a_stop_while_starting_is_escalated_before_the_process_runs() {
    check(
        "create grace=1; stop; +1s; started; exit sig9",
        &expect![[r#"
            create grace=1 created, starting#1(created) → spawn#1 | starting
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            +1s            escalated → kill | stopping
            started        started#1 → kill | stopping
            exit sig9      exited#1(desired_state_stopped) | stopped
        "#]],
    );
}

#[test]
fn a_stop_overtakes_a_readiness_timeout() {
    check(
        "create policy=always ready=output timeout=1000; started; +1s; stop; exit sig15; +1h",
        &expect![[r#"
            create policy=always ready=output timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +1s            stopping#1(readiness_timeout) → term | stopping
            stop           desired(stopped) | stopping
            exit sig15     exited#1(readiness_timeout) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn start_while_running_starts_nothing() {
    check(
        "create; started; start",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        start          desired(running) | running
    "#]],
    );
}

#[test]
fn start_while_stopping_starts_when_the_old_one_is_gone() {
    check(
        "create; started; stop; start; exit sig15; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            start          desired(running) | stopping
            exit sig15     exited#1(desired_state_stopped), starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn start_and_stop_again_while_stopping_stays_stopped() {
    check(
        "create; started; stop; start; stop; exit sig15; +1h",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            start          desired(running) | stopping
            stop           desired(stopped) | stopping
            exit sig15     exited#1(desired_state_stopped) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn start_after_an_exit_and_after_a_failure() {
    check(
        "create; started; exit 1; start; start_failed; start; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed) | exited
            start          desired(running), starting#2(desired_state_running) → spawn#2 | starting
            start_failed   exited#2(start_failed), failed(start_failed) | failed
            start          desired(running), starting#3(desired_state_running) → spawn#3 | starting
            started        started#3, ready#3 | running
        "#]],
    );
}
