//! Update of the specification.

use expect_test::expect;

use crate::world::check;

#[test]
fn an_update_of_the_policy_leaves_the_process_alone() {
    check(
        "create; started; update policy=always grace=3; exit 1; +250ms",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            update policy=always grace=3 updated | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
        "#]],
    );
}

#[test]
fn an_update_of_the_command_replaces_the_process() {
    check(
        "create; started; update command=other; exit sig15; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            update command=other updated, stopping#1(spec_replaced) → term | stopping
            exit sig15     exited#1(spec_replaced), starting#2(spec_updated) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn an_update_of_the_streams_replaces_the_process() {
    check(
        "create; started; resize 50x100; update pty; exit sig15; started; resize 50x100",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            resize 50x100  refused: session has no terminal | running
            update pty     updated, stopping#1(spec_replaced) → term | stopping
            exit sig15     exited#1(spec_replaced), starting#2(spec_updated) → spawn#2 | starting
            started        started#2, ready#2 | running
            resize 50x100  resized(50x100) → resize 50x100 | running
        "#]],
    );
}

#[test]
fn an_update_of_readiness_replaces_the_process() {
    check(
        "create; started; update ready=output; exit sig15; started; matched",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            update ready=output updated, stopping#1(spec_replaced) → term | stopping
            exit sig15     exited#1(spec_replaced), starting#2(spec_updated) → spawn#2 | starting
            started        started#2 | starting
            matched        ready#2 | running
        "#]],
    );
}

#[test]
fn an_update_may_stop() {
    check(
        "create; started; update desired=stopped; exit sig15; +1h",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            update desired=stopped updated, stopping#1(desired_state_stopped) → term | stopping
            exit sig15     exited#1(desired_state_stopped) | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn an_update_starts_what_does_not_run() {
    check(
        "create; started; exit 0; update; started",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        exit 0         exited#1(stopped) | exited
        update         updated, starting#2(desired_state_running) → spawn#2 | starting
        started        started#2, ready#2 | running
    "#]],
    );
}

#[test]
fn an_update_during_backoff_starts_at_once() {
    check(
        "create policy=always; started; exit 1; update policy=always; started",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            update policy=always updated, starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn an_update_during_backoff_may_stop() {
    check(
        "create policy=always; started; exit 1; update desired=stopped; +1h",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            update desired=stopped updated → kill | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn an_update_during_a_stop_starts_afterwards() {
    check(
        "create; started; stop; update; exit 0; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            update         updated | stopping
            exit 0         exited#1(desired_state_stopped), starting#2(desired_state_running) → spawn#2 | starting
            started        started#2, ready#2 | running
        "#]],
    );
}

#[test]
fn an_update_of_retention_applies_at_once() {
    check(
        "create; started; update bytes=1000000",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        update bytes=1000000 updated → set retention | running
    "#]],
    );
}

#[test]
fn the_name_of_a_named_session_stays() {
    check(
        "create handle=build name=build; started; update name=other; update name=build",
        &expect![[r#"
            create handle=build name=build created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            update name=other refused: the name of a named session can't be changed | running
            update name=build updated | running
        "#]],
    );
}

/// It was killed after the grace of the specification that took the place of its own.
#[test]
fn an_attempt_ends_by_the_grace_of_its_own_specification() {
    check(
        "create grace=5; started; update command=other grace=1; +1s; +4s; exit sig9; \
         started; update command=other grace=1 desired=stopped; +1s",
        &expect![[r#"
            create grace=5 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            update command=other grace=1 updated, stopping#1(spec_replaced) → term | stopping
            +1s            - | stopping
            +4s            escalated → kill | stopping
            exit sig9      exited#1(spec_replaced), starting#2(spec_updated) → spawn#2 | starting
            started        started#2, ready#2 | running
            update command=other grace=1 desired=stopped updated, stopping#2(desired_state_stopped) → term | stopping
            +1s            escalated → kill | stopping
        "#]],
    );
    // A stop that is under way keeps its grace.
    check(
        "create grace=5; started; stop; update grace=1; +4s; update grace=9; +1s",
        &expect![[r#"
            create grace=5 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            update grace=1 updated | stopping
            +4s            - | stopping
            update grace=9 updated | stopping
            +1s            escalated → kill | stopping
        "#]],
    );
    // One that lives on under a new specification has that one's.
    check(
        "create grace=1; started; update grace=5; stop; +1s; +4s",
        &expect![[r#"
            create grace=1 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            update grace=5 updated | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            +1s            - | stopping
            +4s            escalated → kill | stopping
        "#]],
    );
}
