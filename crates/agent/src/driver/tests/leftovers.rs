//! What ended attempts leave behind, and who lets it go.

use super::*;
use crate::limits::{LEFTOVERS_ALL_MAX, LEFTOVERS_MAX};

/// Where programs live so long, and leave somebody behind for an hour.
fn leaving_trees(lives: Duration) -> World {
    let world = World::new();
    world.script(|it| {
        it.lives = lives;
        it.tree_lives = Duration::from_hours(1);
    });
    world
}

#[test]
fn a_session_leaves_no_more_trees_behind_than_it_may() {
    tell(async {
        let world = leaving_trees(Duration::from_millis(10));
        let id = world.create(raw()).await.id().clone();
        world.wait_for(&id, Phase::Exited).await;
        let again = || Request::NewAttempt {
            session: id.clone(),
            replace: ReplaceCurrent::No,
        };
        for _ in 0..LEFTOVERS_MAX {
            session_of(world.call(again()).await);
            world.wait_for(&id, Phase::Exited).await;
        }
        let calls = world.machine.take_calls();
        let kills: Vec<_> = calls.iter().filter(|it| it.starts_with("kill")).collect();
        assert_eq!(kills, ["kill 1"]);
        // What is gone is let go for good with the next end.
        session_of(world.call(again()).await);
        world.wait_for(&id, Phase::Exited).await;
        assert!(world.machine.take_calls().contains(&"release 1".to_owned()));
    });
}

// A stop kills what ended attempts left behind, once it is in the journal. A supervisor that was
// killed in between left it to nobody.
#[test]
fn what_a_stop_did_not_come_to_kill_is_killed_by_the_next_supervisor() {
    tell(async {
        let world = leaving_trees(Duration::from_millis(10));
        let id = world.create(raw()).await.id().clone();
        world.wait_for(&id, Phase::Exited).await;
        let tree = world.machine.alive.borrow()[&(id.clone(), 1)].clone();
        let left = || HashMap::from([(id.clone(), vec![tree.clone()])]);
        world.machine.left.replace(left());

        // Nobody stopped the session: what it left lives on.
        let world = world.successor();
        world.wait_for(&id, Phase::Exited).await;
        world.machine.take_calls();
        // As a kill leaves it that comes right behind the journal.
        world.machine.left.take();
        let world = world.successor();
        world.stop(&id).await;
        assert_eq!(world.machine.take_calls(), Vec::<String>::new());
        world.machine.left.replace(left());
        let world = world.successor();
        world.wait_for(&id, Phase::Stopped).await;
        assert_eq!(world.machine.take_calls(), ["kill 1", "release 1"]);
    });
}

#[test]
fn all_sessions_together_leave_no_more_trees_behind_than_they_may() {
    tell(async {
        let world = leaving_trees(Duration::from_millis(1));
        let mut ids = Vec::new();
        for number in 0..LEFTOVERS_ALL_MAX {
            if number % LEFTOVERS_MAX == 0 {
                ids.push(world.create(raw()).await.id().clone());
            } else {
                let session = ids.last().unwrap().clone();
                let replace = ReplaceCurrent::No;
                session_of(world.call(Request::NewAttempt { session, replace }).await);
            }
            world.wait_for(ids.last().unwrap(), Phase::Exited).await;
        }
        let kills = || {
            let calls = world.machine.take_calls();
            calls.iter().filter(|it| it.starts_with("kill")).count()
        };
        assert_eq!(kills(), 0);
        let one_more = world.create(raw()).await.id().clone();
        world.wait_for(&one_more, Phase::Exited).await;
        assert_eq!(kills(), 1);
        // A session that is deleted makes room.
        assert_eq!(
            world.call(Request::Delete(ids.swap_remove(0))).await,
            Outcome::Done
        );
        assert!(kills() > 0);
        let another = world.create(raw()).await.id().clone();
        world.wait_for(&another, Phase::Exited).await;
        assert_eq!(kills(), 0);
    });
}
