//! Freezing: the clocks of a session stand still, all but its lifetime.

use expect_test::expect;

use crate::world::check;

#[test]
fn frozen_sessions_show_paused_and_go_on() {
    check(
        "create; started; frozen; frozen; +1h; thawed; thawed",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            frozen         paused | paused
            frozen         - | paused
            +1h            - | paused
            thawed         resumed | running
            thawed         - | running
        "#]],
    );
}

#[test]
fn frozen_time_does_not_count_for_the_grace() {
    check(
        "create grace=10; started; stop; +4s; frozen; +1h; thawed; +5s; +1s; exit sig9",
        &expect![[r#"
            create grace=10 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            +4s            - | stopping
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed | stopping
            +5s            - | stopping
            +1s            escalated → kill | stopping
            exit sig9      exited#1(desired_state_stopped) | stopped
        "#]],
    );
}

#[test]
fn frozen_time_does_not_count_for_a_backoff() {
    check(
        "create policy=always initial=1000; started; exit 1; +400ms; frozen; +1h; thawed; +599ms; +1ms",
        &expect![[r#"
            create policy=always initial=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(1000ms) | backoff
            +400ms         - | backoff
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed | backoff
            +599ms         - | backoff
            +1ms           starting#2(restart_policy) → spawn#2 | starting
        "#]],
    );
}

#[test]
fn frozen_time_does_not_count_for_readiness() {
    check(
        "create ready=delay delay=1000; started; +400ms; frozen; +1h; thawed; +599ms; +1ms",
        &expect![[r#"
            create ready=delay delay=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +400ms         - | starting
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed | starting
            +599ms         - | starting
            +1ms           ready#1 | running
        "#]],
    );
}

#[test]
fn frozen_time_does_not_count_for_the_readiness_timeout() {
    check(
        "create ready=output timeout=1000; started; +400ms; frozen; +1h; thawed; +599ms; +1ms",
        &expect![[r#"
            create ready=output timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +400ms         - | starting
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed | starting
            +599ms         - | starting
            +1ms           stopping#1(readiness_timeout) → term | stopping
        "#]],
    );
}

#[test]
fn frozen_time_does_not_count_for_idleness_and_freezing_is_no_activity() {
    check(
        "create idle=10; started; +4s; frozen; +1h; thawed; +5s; +1s",
        &expect![[r#"
            create idle=10 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            +4s            - | running
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed | running
            +5s            - | running
            +1s            expired(idle_timeout), stopping#1(session_expired) → term | stopping
        "#]],
    );
}

#[test]
fn frozen_time_is_no_stable_time() {
    check(
        "create policy=always longest=1000; started; exit 1; +250ms; started; frozen; +1h; thawed; exit 1",
        &expect![[r#"
            create policy=always longest=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed | running
            exit 1         exited#2(crashed), backoff(500ms) | backoff
        "#]],
    );
}

#[test]
fn frozen_time_does_not_empty_the_restart_window() {
    check(
        "create policy=always max=1; started; exit 1; +250ms; started; frozen; +1h; thawed; exit 1",
        &expect![[r#"
            create policy=always max=1 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed | running
            exit 1         exited#2(crashed), failed(restart_limit_exceeded) | failed
        "#]],
    );
}

#[test]
fn a_lifetime_that_falls_due_while_frozen_fires_at_the_thaw() {
    check(
        "create life=60 ready=output timeout=1000; started; frozen; +1h; thawed; exit sig15",
        &expect![[r#"
            create life=60 ready=output timeout=1000 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed, expired(max_lifetime), stopping#1(session_expired) → term | stopping
            exit sig15     exited#1(session_expired) | stopped
        "#]],
    );
}

#[test]
fn a_lifetime_that_falls_due_in_a_frozen_backoff_fires_at_the_thaw() {
    check(
        "create life=60 policy=always; started; exit 1; frozen; +1h; thawed; +1h",
        &expect![[r#"
            create life=60 policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            frozen         paused | paused
            +1h            - | paused
            thawed         resumed, expired(max_lifetime) → kill | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn ended_sessions_do_not_freeze() {
    check(
        "create; started; exit 0; frozen; thawed",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        exit 0         exited#1(stopped) | exited
        frozen         - | exited
        thawed         - | exited
    "#]],
    );
}

#[test]
fn killed_while_frozen_waits_for_the_thaw_to_restart() {
    check(
        "create policy=always; started; frozen; +1h; exit sig9; +1h; thawed; +250ms",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            frozen         paused | paused
            +1h            - | paused
            exit sig9      exited#1(killed), backoff(250ms) | paused
            +1h            - | paused
            thawed         resumed | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
        "#]],
    );
}

#[test]
fn a_deletion_while_frozen_kills_at_once() {
    check(
        "create grace=10; started; frozen; +1h; delete; delete; exit sig9",
        &expect![[r#"
            create grace=10 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            frozen         paused | paused
            +1h            - | paused
            delete         stopping#1(session_deleted), escalated → kill | paused
            delete         - | paused
            exit sig9      exited#1(session_deleted), deleted → remove | stopped
        "#]],
    );
    check(
        "create grace=10; started; delete; frozen; +1h; delete; exit sig9",
        &expect![[r#"
            create grace=10 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            delete         stopping#1(session_deleted) → term | stopping
            frozen         paused | paused
            +1h            - | paused
            delete         escalated → kill | paused
            exit sig9      exited#1(session_deleted), deleted → remove | stopped
        "#]],
    );
    check(
        "create; frozen; delete; start_failed",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            frozen         paused | paused
            delete         stopping#1(session_deleted), escalated → kill | paused
            start_failed   exited#1(start_failed), deleted → remove | stopped
        "#]],
    );
}
