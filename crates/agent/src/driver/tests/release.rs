//! The end of a runtime with many sessions, around a fake machine.

use super::*;

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
        world
            .tasks
            .run_until(world.registry.release())
            .await
            .unwrap();
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
