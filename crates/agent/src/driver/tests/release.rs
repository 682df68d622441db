//! The end of a runtime with many sessions, around a fake machine.

use super::*;

async fn release(world: &World) {
    let releasing = world.registry.release();
    world.tasks.run_until(releasing).await.unwrap();
}

/// Each journal was synced by itself: a sandbox with 4,000 commands that were over took half a
/// minute to be deleted, and so did its pause.
#[test]
fn a_release_syncs_what_is_over_all_together() {
    tell(async {
        let world = World::new();
        let _held = world.syncer.hold();
        let mut ids = Vec::new();
        for _ in 0..12 {
            let id = world.create(raw()).await.id().clone();
            world.stop(&id).await;
            ids.push(id);
        }
        let before = world.syncer.figures().0;
        release(&world).await;
        assert_eq!(world.syncer.figures().0 - before, 1);
        // Each is sealed: the next runtime goes on without a gap in its numbers.
        let next = World::on(
            Rc::default(),
            Rc::clone(&world.directory),
            Generation::FIRST.next(),
        );
        for id in ids {
            assert_eq!(next.get(&id).await.phase(), Phase::Stopped);
        }
    });
}

/// Journals that are about to be removed were written to the disk first.
#[test]
fn a_runtime_whose_journals_nobody_needs_waits_for_no_disk() {
    tell(async {
        let world = World::new();
        let _held = world.syncer.hold();
        let (lives, over) = (world.create(raw()).await, world.create(raw()).await);
        world.wait_for(lives.id(), Phase::Running).await;
        world.stop(over.id()).await;
        let before = world.syncer.figures().0;
        world.syncer.retire();
        release(&world).await;
        assert_eq!(world.syncer.figures().0, before);
        let calls = world.machine.take_calls();
        assert!(calls.contains(&"kill 1".to_owned()), "{calls:?}");
    });
}
