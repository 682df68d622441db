//! Processes that outlive their leader.

use expect_test::expect;

use crate::world::check;

#[test]
fn descendants_are_left_alone_until_a_stop() {
    check(
        "create policy=always; started; exit 0; +250ms; started; exit 0; stop",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped), backoff(250ms) | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 0         exited#2(stopped), backoff(500ms) | backoff
            stop           desired(stopped) → kill | stopped
        "#]],
    );
}

#[test]
fn descendants_may_be_killed_with_their_leader() {
    check(
        "create descendants=kill policy=always; started; exit 0; +250ms",
        &expect![[r#"
            create descendants=kill policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped), backoff(250ms) → kill | backoff
            +250ms         starting#2(restart_policy) → spawn#2 | starting
        "#]],
    );
}

#[test]
fn a_replacement_reaches_descendants() {
    check(
        "create; started; exit 0; attempt; started; exit 0; replace",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 0         exited#1(stopped) | exited
            attempt        starting#2(attempt_created) → spawn#2 | starting
            started        started#2, ready#2 | running
            exit 0         exited#2(stopped) | exited
            replace        starting#3(attempt_created) → kill, spawn#3 | starting
        "#]],
    );
}
