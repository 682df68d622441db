//! Exit and restart: the policy, the window, the delays, the limit.

use expect_test::expect;

use crate::world::check;

#[test]
fn without_a_policy_an_exit_is_the_end() {
    check(
        "create; started; exit 0; +1h",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        exit 0         exited#1(stopped) | exited
        +1h            - | exited
    "#]],
    );
}

#[test]
fn an_exit_tells_why() {
    check(
        "create; started; exit 0; start; started; exit 1; start; started; exit 137; start; started; exit sig15; start; started; exit sig9; start; started; exit oom; start; started; exit unknown",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped) | exited
            start          desired(running), starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 1         exited#2(crashed) | exited
            start          desired(running), starting#3(desired_state_running) → spawn#3 | starting
            started        started#3, ready#3 | running
            exit 137       exited#3(killed) | exited
            start          desired(running), starting#4(desired_state_running) → spawn#4 | starting
            started        started#4, ready#4 | running
            exit sig15     exited#4(killed) | exited
            start          desired(running), starting#5(desired_state_running) → spawn#5 | starting
            started        started#5, ready#5 | running
            exit sig9      exited#5(killed) | exited
            start          desired(running), starting#6(desired_state_running) → spawn#6 | starting
            started        started#6, ready#6 | running
            exit oom       exited#6(killed) | exited
            start          desired(running), starting#7(desired_state_running) → spawn#7 | starting
            started        started#7, ready#7 | running
            exit unknown   exited#7(unknown) | exited
        "#]],
    );
}

// case S9
#[test]
fn a_death_by_signal_is_a_failure_and_no_zero() {
    check(
        "create policy=on_failure; started; exit sig15; +250ms; started; stop; exit sig15; +1h",
        &expect![[r#"
            create policy=on_failure created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit sig15     exited#1(killed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            stop           desired(stopped), stopping#2(desired_state_stopped) → term | stopping
            exit sig15     exited#2(desired_state_stopped) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn on_failure_leaves_a_clean_exit_alone() {
    check(
        "create policy=on_failure; started; exit 0",
        &expect![[r#"
        create policy=on_failure created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        exit 0         exited#1(stopped) | exited
    "#]],
    );
}

#[test]
fn what_nobody_knows_is_no_success() {
    check(
        "create policy=on_failure; started; exit unknown",
        &expect![[r#"
            create policy=on_failure created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit unknown   exited#1(unknown), backoff(250ms) | backoff
        "#]],
    );
}

#[test]
fn always_follows_every_exit() {
    check(
        "create policy=always; started; exit 0; +250ms; started; exit 0; +499ms; +1ms",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 0         exited#2(stopped), backoff(500ms) | backoff
            +499ms         - | backoff
            +1ms           starting#3(restart_policy) → spawn#3 | starting
        "#]],
    );
}

// case S74
#[test]
fn the_first_crash_waits_the_initial_backoff_and_the_second_twice_that() {
    check(
        "create policy=on_failure; started; exit 1; +249ms; +1ms; started; exit 1; +499ms; +1ms",
        &expect![[r#"
            create policy=on_failure created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +249ms         - | backoff
            +1ms           starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 1         exited#2(crashed), backoff(500ms) | backoff
            +499ms         - | backoff
            +1ms           starting#3(restart_policy) → spawn#3 | starting
        "#]],
    );
}

#[test]
fn delays_double_up_to_the_longest_and_then_the_limit_fails_the_session() {
    check(
        "create policy=always max=3 initial=50 longest=150; started; exit 1; +50ms; started; exit 1; +100ms; started; exit 1; +150ms; started; exit 1; +1h",
        &expect![[r#"
            create policy=always max=3 initial=50 longest=150 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(50ms) | backoff
            +50ms          starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 1         exited#2(crashed), backoff(100ms) | backoff
            +100ms         starting#3(restart_policy) → spawn#3 | starting
            started        started#3, ready#3 | running
            exit 1         exited#3(crashed), backoff(150ms) | backoff
            +150ms         starting#4(restart_policy) → spawn#4 | starting
            started        started#4, ready#4 | running
            exit 1         exited#4(crashed), failed(restart_limit_exceeded) | failed
            +1h            - | failed
        "#]],
    );
}

// case J6
#[test]
fn a_crash_loop_that_gets_ready_each_time_still_runs_into_the_limit() {
    check(
        "create policy=on_failure ready=output; started; output 6; matched; +100ms; exit 1; +250ms; started; matched; +100ms; exit 1; +500ms; started; matched; +100ms; exit 1; +1s; started; matched; +100ms; exit 1; +2s; started; matched; +100ms; exit 1; +4s; started; matched; +100ms; exit 1; +1h",
        &expect![[r#"
            create policy=on_failure ready=output created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            output 6       output(6) | starting
            matched        ready#1 | running
            +100ms         - | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2 | starting
            matched        ready#2 | running
            +100ms         - | running
            exit 1         exited#2(crashed), backoff(500ms) | backoff
            +500ms         starting#3(restart_policy) → spawn#3 | starting
            started        started#3 | starting
            matched        ready#3 | running
            +100ms         - | running
            exit 1         exited#3(crashed), backoff(1000ms) | backoff
            +1s            starting#4(restart_policy) → spawn#4 | starting
            started        started#4 | starting
            matched        ready#4 | running
            +100ms         - | running
            exit 1         exited#4(crashed), backoff(2000ms) | backoff
            +2s            starting#5(restart_policy) → spawn#5 | starting
            started        started#5 | starting
            matched        ready#5 | running
            +100ms         - | running
            exit 1         exited#5(crashed), backoff(4000ms) | backoff
            +4s            starting#6(restart_policy) → spawn#6 | starting
            started        started#6 | starting
            matched        ready#6 | running
            +100ms         - | running
            exit 1         exited#6(crashed), failed(restart_limit_exceeded) | failed
            +1h            - | failed
        "#]],
    );
}

// case S75
#[test]
fn a_clean_exit_every_twenty_seconds_is_no_crash_loop() {
    check(
        "create policy=always; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started; +20s; exit 0; +250ms; started",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            +20s           - | running
            exit 0         exited#1(stopped), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            +20s           - | running
            exit 0         exited#2(stopped), backoff(250ms) | backoff
            +250ms         starting#3(restart_policy) → spawn#3 | starting
            started        started#3, ready#3 | running
            +20s           - | running
            exit 0         exited#3(stopped), backoff(250ms) | backoff
            +250ms         starting#4(restart_policy) → spawn#4 | starting
            started        started#4, ready#4 | running
            +20s           - | running
            exit 0         exited#4(stopped), backoff(250ms) | backoff
            +250ms         starting#5(restart_policy) → spawn#5 | starting
            started        started#5, ready#5 | running
            +20s           - | running
            exit 0         exited#5(stopped), backoff(250ms) | backoff
            +250ms         starting#6(restart_policy) → spawn#6 | starting
            started        started#6, ready#6 | running
            +20s           - | running
            exit 0         exited#6(stopped), backoff(250ms) | backoff
            +250ms         starting#7(restart_policy) → spawn#7 | starting
            started        started#7, ready#7 | running
            +20s           - | running
            exit 0         exited#7(stopped), backoff(250ms) | backoff
            +250ms         starting#8(restart_policy) → spawn#8 | starting
            started        started#8, ready#8 | running
            +20s           - | running
            exit 0         exited#8(stopped), backoff(250ms) | backoff
            +250ms         starting#9(restart_policy) → spawn#9 | starting
            started        started#9, ready#9 | running
            +20s           - | running
            exit 0         exited#9(stopped), backoff(250ms) | backoff
            +250ms         starting#10(restart_policy) → spawn#10 | starting
            started        started#10, ready#10 | running
            +20s           - | running
            exit 0         exited#10(stopped), backoff(250ms) | backoff
            +250ms         starting#11(restart_policy) → spawn#11 | starting
            started        started#11, ready#11 | running
        "#]],
    );
}

#[test]
fn stable_resets_the_delay_and_not_the_count() {
    check(
        "create policy=always max=2 initial=1000 longest=4000 window=3600; started; exit 1; +1s; started; +10s; exit 1; +1s; started; +10s; exit 1",
        &expect![[r#"
            create policy=always max=2 initial=1000 longest=4000 window=3600 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(1000ms) | backoff
            +1s            starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            +10s           - | running
            exit 1         exited#2(crashed), backoff(1000ms) | backoff
            +1s            starting#3(restart_policy) → spawn#3 | starting
            started        started#3, ready#3 | running
            +10s           - | running
            exit 1         exited#3(crashed), failed(restart_limit_exceeded) | failed
        "#]],
    );
}

#[test]
fn stable_is_not_less_than_the_longest_backoff() {
    check(
        "create policy=always initial=1000 longest=20000 window=3600; started; exit 1; +1s; started; +19s; exit 1; +2s; started; +20s; exit 1",
        &expect![[r#"
            create policy=always initial=1000 longest=20000 window=3600 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(1000ms) | backoff
            +1s            starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            +19s           - | running
            exit 1         exited#2(crashed), backoff(2000ms) | backoff
            +2s            starting#3(restart_policy) → spawn#3 | starting
            started        started#3, ready#3 | running
            +20s           - | running
            exit 1         exited#3(crashed), backoff(1000ms) | backoff
        "#]],
    );
}

#[test]
fn restarts_leave_the_window_with_time() {
    check(
        "create policy=always max=1 window=10; started; exit 1; +250ms; started; +10s; exit 1; +250ms; started; exit 1",
        &expect![[r#"
            create policy=always max=1 window=10 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            +10s           - | running
            exit 1         exited#2(crashed), backoff(250ms) | backoff
            +250ms         starting#3(restart_policy) → spawn#3 | starting
            started        started#3, ready#3 | running
            exit 1         exited#3(crashed), failed(restart_limit_exceeded) | failed
        "#]],
    );
}

#[test]
fn no_limit_is_no_limit() {
    check(
        "create policy=always max=-1 initial=1 longest=1; started; exit 1; +1ms; started; exit 1; +1ms; started; exit 1; +1ms; started; exit 1; +1ms; started; exit 1; +1ms; started; exit 1; +1ms; started; exit 1; +1ms",
        &expect![[r#"
            create policy=always max=-1 initial=1 longest=1 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(1ms) | backoff
            +1ms           starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 1         exited#2(crashed), backoff(1ms) | backoff
            +1ms           starting#3(restart_policy) → spawn#3 | starting
            started        started#3, ready#3 | running
            exit 1         exited#3(crashed), backoff(1ms) | backoff
            +1ms           starting#4(restart_policy) → spawn#4 | starting
            started        started#4, ready#4 | running
            exit 1         exited#4(crashed), backoff(1ms) | backoff
            +1ms           starting#5(restart_policy) → spawn#5 | starting
            started        started#5, ready#5 | running
            exit 1         exited#5(crashed), backoff(1ms) | backoff
            +1ms           starting#6(restart_policy) → spawn#6 | starting
            started        started#6, ready#6 | running
            exit 1         exited#6(crashed), backoff(1ms) | backoff
            +1ms           starting#7(restart_policy) → spawn#7 | starting
            started        started#7, ready#7 | running
            exit 1         exited#7(crashed), backoff(1ms) | backoff
            +1ms           starting#8(restart_policy) → spawn#8 | starting
        "#]],
    );
}

#[test]
fn a_failed_start_is_tried_again_under_a_policy() {
    check(
        "create policy=on_failure max=1; start_failed; +250ms; start_failed; +1h",
        &expect![[r#"
            create policy=on_failure max=1 created, starting#1(created) → spawn#1 | starting
            start_failed   exited#1(start_failed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            start_failed   exited#2(start_failed), failed(restart_limit_exceeded) | failed
            +1h            - | failed
        "#]],
    );
}

// Two pauses in a minute failed a session that was never restarted once.
#[test]
fn a_restart_that_a_release_cut_off_does_not_count() {
    check(
        "create policy=always max=2 initial=1000 longest=8000; started; exit 1; frozen; released; runtime 2; started; exit 1; frozen; released; runtime 3; started; exit 1; +1s; started; exit 1; runtime 4; started; exit 1; +2s; started; exit 1",
        &expect![[r#"
            create policy=always max=2 initial=1000 longest=8000 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(1000ms) | backoff
            frozen         paused | paused
            released       - | paused
            runtime 2      starting#2(runtime_recovered) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 1         exited#2(crashed), backoff(1000ms) | backoff
            frozen         paused | paused
            released       - | paused
            runtime 3      starting#3(runtime_recovered) → spawn#3 | starting
            started        started#3, ready#3 | running
            exit 1         exited#3(crashed), backoff(1000ms) | backoff
            +1s            starting#4(restart_policy) → spawn#4 | starting
            started        started#4, ready#4 | running
            exit 1         exited#4(crashed), backoff(2000ms) | backoff
            runtime 4      starting#5(runtime_recovered) → spawn#5 | starting
            started        started#5, ready#5 | running
            exit 1         exited#5(crashed), backoff(2000ms) | backoff
            +2s            starting#6(restart_policy) → spawn#6 | starting
            started        started#6, ready#6 | running
            exit 1         exited#6(crashed), failed(restart_limit_exceeded) | failed
        "#]],
    );
}

#[test]
fn a_start_by_hand_forgets_the_window() {
    check(
        "create policy=always max=1; started; exit 1; +250ms; started; exit 1; attempt; started; exit 1; +250ms; started; exit 1; start; started; exit 1",
        &expect![[r#"
            create policy=always max=1 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 1         exited#2(crashed), failed(restart_limit_exceeded) | failed
            attempt        starting#3(attempt_created) → spawn#3 | starting
            started        started#3, ready#3 | running
            exit 1         exited#3(crashed), backoff(250ms) | backoff
            +250ms         starting#4(restart_policy) → spawn#4 | starting
            started        started#4, ready#4 | running
            exit 1         exited#4(crashed), failed(restart_limit_exceeded) | failed
            start          desired(running), starting#5(desired_state_running) → spawn#5 | starting
            started        started#5, ready#5 | running
            exit 1         exited#5(crashed), backoff(250ms) | backoff
        "#]],
    );
}

#[test]
fn a_start_by_hand_ends_the_backoff() {
    check(
        "create policy=always; started; exit 1; start; started; +1h",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            start          desired(running), starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
            +1h            - | running
        "#]],
    );
}
