//! Input, signals, terminal sizes, stale attempts.

use expect_test::expect;

use crate::world::check;

#[test]
fn input_is_accepted_while_a_process_runs() {
    check(
        "create; write early; started; write a; eof b; write c; eof d; exit 0; write e",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            write early    refused: session is not running | starting
            started        started#1, ready#1 | running
            write a        input(a) → write | running
            eof b          input(b+eof) → write | running
            write c        refused: session input is closed | running
            eof d          input(d+eof) → write | running
            exit 0         exited#1(stopped) | exited
            write e        refused: session is not running | exited
        "#]],
    );
}

#[test]
fn input_is_accepted_before_readiness_and_while_stopping() {
    check(
        "create ready=output; started; write a; stop; write b; exit 0; write c",
        &expect![[r#"
            create ready=output created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            write a        input(a) → write | starting
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            write b        input(b) → write | stopping
            exit 0         exited#1(desired_state_stopped) | stopped
            write c        refused: session is not running | stopped
        "#]],
    );
}

#[test]
fn the_eof_character_of_a_terminal_ends_no_input() {
    check(
        "create pty; started; write a; eof b; write c; hangup d; write e",
        &expect![[r#"
            create pty     created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            write a        input(a) → write | running
            eof b          input(b+eof) → write | running
            write c        input(c) → write | running
            hangup d       input(d+eof) → write | running
            write e        refused: session input is closed | running
        "#]],
    );
}

#[test]
fn a_stale_attempt_is_refused() {
    check(
        "create; started; write@1 a; replace; exit sig15; started; write@1 b; signal@1 15; resize@1 5x5; write@2 c",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            write@1 a      input(a) → write | running
            replace        stopping#1(attempt_replaced) → term | stopping
            exit sig15     exited#1(attempt_replaced), starting#2(attempt_created) → spawn#2 | starting
            started        started#2, ready#2 | running
            write@1 b      refused: session attempt mismatch | running
            signal@1 15    refused: session attempt mismatch | running
            resize@1 5x5   refused: session attempt mismatch | running
            write@2 c      input(c) → write | running
        "#]],
    );
}

#[test]
fn signals_need_a_process() {
    check(
        "create; signal 10; started; signal 10; stop; signal 9; exit sig9; signal 10",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            signal 10      refused: session is not running | starting
            started        started#1, ready#1 | running
            signal 10      signal(10) → signal 10 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            signal 9       signal(9) → signal 9 | stopping
            exit sig9      exited#1(desired_state_stopped) | stopped
            signal 10      refused: session is not running | stopped
        "#]],
    );
}

#[test]
fn pipes_have_no_size() {
    check(
        "create; started; resize 24x80",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        resize 24x80   refused: session has no terminal | running
    "#]],
    );
}

// case D2
#[test]
fn a_resize_while_the_process_is_being_started_is_remembered() {
    check(
        "create pty; resize 43x132; started; resize 44x132",
        &expect![[r#"
            create pty     created, starting#1(created) → spawn#1 | starting
            resize 43x132  resized(43x132) | starting
            started        started#1, ready#1 → resize 43x132 | running
            resize 44x132  resized(44x132) → resize 44x132 | running
        "#]],
    );
}

#[test]
fn a_size_belongs_to_its_attempt() {
    check(
        "create pty policy=always; started; resize 43x132; exit 1; resize 44x132; +250ms; started",
        &expect![[r#"
            create pty policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            resize 43x132  resized(43x132) → resize 43x132 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            resize 44x132  refused: session is not running | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}
