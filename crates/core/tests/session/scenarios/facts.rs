//! Facts that come at the wrong time, or twice.

use expect_test::expect;

use crate::world::check;

#[test]
fn facts_without_an_attempt_mean_nothing() {
    check(
        "create desired=stopped; started; start_failed; matched; exit 1; thawed; released; deadline",
        &expect![[r#"
            create desired=stopped created | pending
            started        - | pending
            start_failed   - | pending
            matched        - | pending
            exit 1         - | pending
            thawed         - | pending
            released       - | pending
            deadline       - | pending
        "#]],
    );
}

#[test]
fn facts_told_twice_mean_nothing() {
    check(
        "create; started; started; exit 0; exit 0; started",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            started        - | running
            exit 0         exited#1(stopped) | exited
            exit 0         - | exited
            started        - | exited
        "#]],
    );
}
