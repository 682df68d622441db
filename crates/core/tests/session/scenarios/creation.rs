//! Creation: what starts, and what the first answer can say.

use expect_test::expect;

use crate::world::check;

#[test]
fn a_session_starts_before_its_creation_is_answered() {
    check(
        "create; started",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
    "#]],
    );
}

#[test]
fn a_session_that_waits_for_a_delay_is_starting_until_then() {
    check(
        "create ready=delay delay=500; started; +499ms; +1ms",
        &expect![[r#"
            create ready=delay delay=500 created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            +499ms         - | starting
            +1ms           ready#1 | running
        "#]],
    );
}

#[test]
fn a_session_that_waits_for_output_is_starting_until_it_is_seen() {
    check(
        "create ready=output; started; output 5; matched; matched",
        &expect![[r#"
            create ready=output created, starting#1(created) → spawn#1 | starting
            started        started#1 | starting
            output 5       output(5) | starting
            matched        ready#1 | running
            matched        - | running
        "#]],
    );
}

#[test]
fn output_seen_before_the_start_was_told_is_not_forgotten() {
    check(
        "create ready=output; matched; started",
        &expect![[r#"
        create ready=output created, starting#1(created) → spawn#1 | starting
        matched        ready#1 | starting
        started        started#1 | running
    "#]],
    );
}

#[test]
fn a_program_that_does_not_exist_fails_the_session() {
    check(
        "create; start_failed",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        start_failed   exited#1(start_failed), failed(start_failed) | failed
    "#]],
    );
}

#[test]
fn a_session_may_be_created_stopped() {
    check(
        "create desired=stopped; +1h; start; started",
        &expect![[r#"
            create desired=stopped created | pending
            +1h            - | pending
            start          desired(running), starting#1(desired_state_running) → spawn#1 | starting
            started        started#1, ready#1 | running
        "#]],
    );
}
