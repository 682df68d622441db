//! New attempts, with and without replacement.

use expect_test::expect;

use crate::world::check;

#[test]
fn a_second_attempt_is_refused_while_one_runs() {
    check(
        "create; attempt; started; attempt; stop; attempt; exit 0; attempt; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            attempt        refused: session already has a running attempt | starting
            started        started#1, ready#1 | running
            attempt        refused: session already has a running attempt | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            attempt        refused: session already has a running attempt | stopping
            exit 0         exited#1(desired_state_stopped) | stopped
            attempt        starting#2(attempt_created) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_replacement_stops_and_starts() {
    check(
        "create; started; replace; exit sig15; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            replace        stopping#1(attempt_replaced) → term | stopping
            exit sig15     exited#1(attempt_replaced), starting#2(attempt_created) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_replacement_of_nothing_is_a_start() {
    check(
        "create desired=stopped; replace; started; exit 0; replace; started",
        &expect![[r#"
            create desired=stopped created | pending
            replace        starting#1(attempt_created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped) | exited
            replace        starting#2(attempt_created) → kill, spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_replacement_while_stopping_follows_the_stop() {
    check(
        "create; started; stop; replace; exit sig15; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            replace        stopping#1(attempt_replaced) | stopping
            exit sig15     exited#1(desired_state_stopped), starting#2(attempt_created) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn a_stop_during_a_replacement_cancels_the_start() {
    check(
        "create; started; replace; stop; exit sig15; +1h",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            replace        stopping#1(attempt_replaced) → term | stopping
            stop           desired(stopped) | stopping
            exit sig15     exited#1(attempt_replaced) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_replacement_sets_the_desired_state() {
    check(
        "create; started; stop; exit 0; attempt; started; exit 0",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            exit 0         exited#1(desired_state_stopped) | stopped
            attempt        starting#2(attempt_created) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 0         exited#2(stopped) | exited
        "#]],
    );
}
