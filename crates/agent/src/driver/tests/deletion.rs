//! Deletions where everything stands still, around a fake machine.

use super::*;

#[test]
fn a_frozen_session_can_be_deleted() {
    tell(async {
        let world = World::new();
        world.script(|it| it.heeds_term = None);
        let id = world.create(raw()).await.id().clone();
        assert_eq!(world.freeze().await, Outcome::Done);
        let from = Instant::now();
        assert_eq!(world.call(Request::Delete(id)).await, Outcome::Done);
        assert!(from.elapsed() < Duration::from_secs(1));
        let calls = world.machine.take_calls();
        let expected = ["spawn 1", "freeze", "kill 1", "release 1"];
        assert_eq!(calls, expected);
    });
}

#[test]
fn a_frozen_start_that_waits_can_be_deleted() {
    tell(async {
        let world = World::new();
        world.script(|it| it.heeds_term = Some(Duration::from_millis(50)));
        let id = world.create(raw()).await.id().clone();
        let replaced = world.begin(Request::NewAttempt {
            session: id.clone(),
            replace: ReplaceCurrent::Yes,
        });
        world.wait_for(&id, Phase::Stopping).await;
        assert_eq!(world.freeze().await, Outcome::Done);
        world.work(Duration::from_secs(1)).await;
        assert_eq!(world.get(&id).await.attempt().unwrap().number, 2);
        assert_eq!(world.call(Request::Delete(id)).await, Outcome::Done);
        let replaced = world.tasks.run_until(replaced).await.unwrap();
        assert_eq!(replaced, Outcome::Rejected(Rejection::NotFound));
    });
}

// Whoever deleted a session that a freeze met waited until somebody thawed it.
#[test]
fn a_deletion_that_a_freeze_meets_ends_at_once() {
    tell(async {
        let world = World::new();
        world.script(|it| it.heeds_term = None);
        let id = world.create(raw()).await.id().clone();
        let other = world.create(raw()).await.id().clone();
        let deleted = world.begin(Request::Delete(id.clone()));
        world.wait_for(&id, Phase::Stopping).await;
        let from = Instant::now();
        assert_eq!(world.freeze().await, Outcome::Done);
        let deleted = world.tasks.run_until(deleted).await.unwrap();
        assert_eq!(deleted, Outcome::Done);
        assert!(from.elapsed() < Duration::from_secs(1));
        assert_eq!(world.get(&other).await.phase(), Phase::Paused);
    });
}
