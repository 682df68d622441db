//! Deletion.

use expect_test::expect;

use crate::world::check;

#[test]
fn a_deletion_stops_first() {
    check(
        "create; started; delete; start; delete; exit sig15; delete; start",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            delete         stopping#1(session_deleted) → term | stopping
            start          refused: session is being deleted | stopping
            delete         - | stopping
            exit sig15     exited#1(session_deleted), deleted → remove | stopped
            delete         refused: session not found | stopped
            start          refused: session not found | stopped
        "#]],
    );
}

#[test]
fn a_deletion_of_an_ended_session_is_at_once() {
    check(
        "create; started; exit 0; delete",
        &expect![[r#"
        create         created, starting#1(created) → spawn#1 | starting
        started        started#1, ready#1 | running
        exit 0         exited#1(stopped) | exited
        delete         deleted → kill, remove | stopped
    "#]],
    );
}

#[test]
fn a_deletion_during_a_stop_waits_for_it() {
    check(
        "create policy=always; started; stop; delete; exit sig15; +1h",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            stop           desired(stopped), stopping#1(desired_state_stopped) → term | stopping
            delete         stopping#1(session_deleted) | stopping
            exit sig15     exited#1(desired_state_stopped), deleted → remove | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_deletion_during_backoff_beats_the_restart() {
    check(
        "create policy=always; started; exit 1; delete; +1h",
        &expect![[r#"
            create policy=always created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            exit 1         exited#1(crashed), backoff(250ms) | backoff
            delete         deleted → kill, remove | stopped
            +1h            - | stopped
        "#]],
    );
}

#[test]
fn a_deletion_kills_after_the_grace() {
    check(
        "create grace=1; started; delete; +1s; exit sig9",
        &expect![[r#"
            create grace=1 created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            delete         stopping#1(session_deleted) → term | stopping
            +1s            escalated → kill | stopping
            exit sig9      exited#1(session_deleted), deleted → remove | stopped
        "#]],
    );
}

#[test]
fn a_deletion_beats_a_replacement() {
    check(
        "create; started; replace; delete; exit sig15; +1h",
        &expect![[r#"
            create         created, starting#1(created) → spawn#1 | starting
            started        started#1, ready#1 | running
            replace        stopping#1(attempt_replaced) → term | stopping
            delete         stopping#1(session_deleted) | stopping
            exit sig15     exited#1(attempt_replaced), deleted → remove | stopped
            +1h            - | stopped
        "#]],
    );
}
