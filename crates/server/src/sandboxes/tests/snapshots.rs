//! Snapshots: taken, used, put back and removed, with a server that is killed at every step.

use super::{
    super::{
        config::ConfigChange,
        snapshots::{NewSnapshot, SnapshotUse},
    },
    *,
};

/// Nobody looks at it.
fn progress() -> Progress {
    Progress::unseen()
}

fn named(name: &str) -> NewSnapshot {
    NewSnapshot {
        name: Some(name.to_owned()),
        ..NewSnapshot::default()
    }
}

impl Engine {
    async fn take(&self, source: &Arc<Sandbox>) -> SnapshotRecord {
        let taken = self.snapshot(source, NewSnapshot::default(), progress());
        taken.await.unwrap()
    }

    async fn used(&self, id: &SnapshotId) -> SnapshotUse {
        self.use_snapshot("acme", id).await.unwrap()
    }

    async fn put_back(&self, sandbox: &Arc<Sandbox>, id: &SnapshotId) -> Result<(), CallError> {
        self.restore(sandbox, self.used(id).await, progress()).await
    }
}

#[track_caller]
fn assert_conflict<T: std::fmt::Debug>(result: Result<T, CallError>, expected: &str) {
    match result {
        Err(CallError::Conflict { reason, .. }) => assert_eq!(reason, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_killed_while_it_takes_a_snapshot_leaves_a_whole_one_or_none() {
    let steps = killed_at_every_step_on(
        |engine, host| async move {
            let source = engine.create(new_sandbox()).await.unwrap();
            host.write(&source.record().id, "kept");
            engine.take(&source).await;
        },
        |stage, server, at| {
            for id in stage.host.snapshots() {
                assert_eq!(stage.host.text(Whose::Snapshot(&id)), "kept", "{at}");
                let found = server.engine.find_snapshot("acme", &id);
                let found = server.runtime.block_on(found).unwrap();
                assert_eq!((found.files, found.bytes), (1, 4), "{at}");
            }
        },
    );
    assert!(steps >= 14, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_makes_a_sandbox_of_a_snapshot_leaves_a_whole_one_or_none() {
    let steps = killed_at_every_step_on(
        |engine, host| async move {
            let source = engine.create(new_sandbox()).await.unwrap();
            host.write(&source.record().id, "kept");
            let snapshot = engine.take(&source).await;
            let used = engine.used(&snapshot.id).await;
            let made = engine.create_from(new_sandbox(), used, progress()).await;
            assert_eq!(made.unwrap().record().state.observed, Observed::Running);
        },
        |stage, server, at| {
            for sandbox in server.settle() {
                let id = sandbox.record().id.clone();
                // The first is killed before anything was written to it, too.
                let text = stage.host.text(Whose::Sandbox(&id));
                assert!(
                    text == "kept" || stage.host.snapshots().is_empty(),
                    "{at}: {text:?}"
                );
            }
        },
    );
    assert!(steps >= 25, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_restores_is_followed_by_one_that_finishes_it() {
    let steps = killed_at_every_step_on(
        |engine, host| async move {
            let sandbox = engine.create(new_sandbox()).await.unwrap();
            let id = sandbox.record().id.clone();
            host.write(&id, "old");
            let snapshot = engine.take(&sandbox).await;
            host.write(&id, "new");
            engine.put_back(&sandbox, &snapshot.id).await.unwrap();
            assert_eq!(host.text(Whose::Sandbox(&id)), "old");
            host.write(&id, "after");
        },
        |stage, server, at| {
            for sandbox in server.settle() {
                let state = sandbox.record().state.clone();
                assert_eq!(
                    (state.restoring, state.desired),
                    (None, Desired::Running),
                    "{at}"
                );
                // Its runtime is another one as soon as the files are others.
                let text = stage.host.text(Whose::Sandbox(&sandbox.record().id));
                let replaced = state.generation > Generation::FIRST;
                assert!(replaced || text != "after", "{at}: {text}");
            }
        },
    );
    assert!(steps >= 25, "{steps} steps");
}

#[test]
fn a_snapshot_outlives_its_source_and_makes_as_many_sandboxes_as_one_likes() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let source = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&source.record().id).unwrap();
        stage.host.write(&source.record().id, "kept");
        let snapshot = server.engine.take(&source).await;
        assert!(!agent.is_frozen(), "the source goes on");
        assert_eq!(source.record().state.generation, Generation::FIRST);
        stage.host.write(&source.record().id, "later");
        source.delete().await.unwrap();
        for _ in 0..2 {
            let used = server.engine.used(&snapshot.id).await;
            let made = server.engine.create_from(new_sandbox(), used, progress());
            let made = made.await.unwrap().record();
            assert_eq!(stage.host.text(Whose::Sandbox(&made.id)), "kept");
            assert_eq!(made.state.generation, Generation::FIRST);
        }
        let deleted = server.engine.delete_snapshot("acme", &snapshot.id).await;
        deleted.unwrap();
        let again = server.engine.delete_snapshot("acme", &snapshot.id).await;
        assert_eq!(again.unwrap_err(), CallError::NoSnapshot);
    });
    stage.check(&server, "at the end");
    server.kill();
}

#[test]
fn a_resting_source_is_not_woken_and_a_failed_copy_leaves_nothing() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let source = server.engine.create(new_sandbox()).await.unwrap();
        source.suspend().await.unwrap();
        server.engine.take(&source).await;
        assert_eq!(source.record().state.observed, Observed::Frozen);
        source.pause().await.unwrap();
        server.engine.take(&source).await;
        assert_eq!(source.record().state.observed, Observed::Released);
        stage.host.fail_copies(1);
        let failed = server.engine.snapshot(&source, named("a"), progress());
        let failed = failed.await.unwrap_err();
        assert!(matches!(failed, CallError::Failed { .. }), "{failed:?}");
        // Its name and its place are free again.
        let again = server.engine.snapshot(&source, named("a"), progress());
        again.await.unwrap();
    });
    stage.check(&server, "after the failure");
    server.kill();
}

#[test]
fn a_restore_goes_back_to_the_files_and_on_with_the_next_generation() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let id = sandbox.record().id.clone();
        let text = || stage.host.text(Whose::Sandbox(&id));
        stage.host.write(&id, "old");
        let snapshot = server.engine.take(&sandbox).await.id;
        stage.host.write(&id, "new");
        server.engine.put_back(&sandbox, &snapshot).await.unwrap();
        assert_eq!(text(), "old");
        assert_eq!(sandbox.record().state.generation, Generation(2));
        assert_eq!(sandbox.record().state.observed, Observed::Running);
        // What stands still has no processes to go back to, and what is paused stays so.
        sandbox.suspend().await.unwrap();
        for _ in 0..2 {
            stage.host.write(&id, "new");
            server.engine.put_back(&sandbox, &snapshot).await.unwrap();
            assert_eq!(text(), "old");
            assert_eq!(sandbox.record().state.observed, Observed::Released);
        }
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.generation, Generation(3));
        // One that can't be done changes nothing but the generation.
        stage.host.write(&id, "new");
        stage.host.fail_copies(1);
        let failed = server.engine.put_back(&sandbox, &snapshot).await;
        let failed = failed.unwrap_err();
        assert!(failed.to_string().contains("told not to copy"), "{failed}");
        assert_eq!(text(), "new");
        assert_eq!(sandbox.record().state.generation, Generation(4));
        assert_eq!(sandbox.record().state.observed, Observed::Running);
    });
    server.kill();
}

#[test]
fn a_snapshot_that_is_being_used_is_not_deleted() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        let snapshot = engine.take(&sandbox).await.id;
        stage.host.copies.hold();
        let making = engine.create_from(new_sandbox(), engine.used(&snapshot).await, progress());
        let trying = async {
            stage.host.copies.entered().await;
            let deleted = engine.delete_snapshot("acme", &snapshot).await;
            assert_conflict(deleted, "snapshot_in_use");
            stage.host.copies.let_go();
        };
        let (made, ()) = tokio::join!(making, trying);
        made.unwrap();
        stage.host.copies.hold();
        let restoring = engine.put_back(&sandbox, &snapshot);
        let trying = async {
            stage.host.copies.entered().await;
            let deleted = engine.delete_snapshot("acme", &snapshot).await;
            assert_conflict(deleted, "snapshot_in_use");
            stage.host.copies.let_go();
        };
        let (restored, ()) = tokio::join!(restoring, trying);
        restored.unwrap();
        engine.delete_snapshot("acme", &snapshot).await.unwrap();
    });
    server.kill();
}

// A source that was copied used to take no command at all until the copy was done.
#[test]
fn a_source_that_is_copied_is_seen_and_takes_commands_in_turn() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        let source = engine.create(new_sandbox()).await.unwrap();
        stage.host.copies.hold();
        let (progress, mut seen) = Progress::new(None);
        stage.host.write(&source.record().id, "four");
        let forking = engine.fork(&source, ConfigChange::default(), progress);
        let looking = async {
            stage.host.copies.entered().await;
            let halfway = seen
                .wait_for(|copying| copying.copied.bytes > 0)
                .await
                .unwrap()
                .copied
                .bytes;
            assert_eq!(halfway, 2);
            assert_eq!(source.record().state.observed, Observed::Running);
            assert_eq!(source.list().await.unwrap(), vec![]);
            let pausing = source.pause();
            let going = async { stage.host.copies.let_go() };
            let (paused, ()) = tokio::join!(pausing, going);
            paused.unwrap();
            assert_eq!(source.record().state.observed, Observed::Released);
        };
        let (forked, ()) = tokio::join!(forking, looking);
        forked.unwrap();
    });
    server.kill();
}

#[test]
fn names_places_and_snapshots_are_a_tenant_s_own() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        let source = engine.create(new_sandbox()).await.unwrap();
        let first = engine
            .snapshot(&source, named("base"), progress())
            .await
            .unwrap();
        let same = engine.snapshot(&source, named("base"), progress()).await;
        assert_conflict(same, "name_taken");
        engine.take(&source).await;
        engine.take(&source).await;
        let more = engine
            .snapshot(&source, NewSnapshot::default(), progress())
            .await;
        assert!(
            matches!(more, Err(CallError::QuotaExceeded { .. })),
            "{more:?}"
        );

        let other = Owner::parse("other").unwrap();
        assert_eq!(engine.snapshots(&other, None).await.unwrap(), vec![]);
        for refused in [
            engine.find_snapshot("other", &first.id).await.map(drop),
            engine.use_snapshot("other", &first.id).await.map(drop),
            engine.delete_snapshot("other", &first.id).await,
        ] {
            assert_eq!(refused.unwrap_err(), CallError::NoSnapshot);
        }
        let mine = engine.snapshots(&first.owner, Some(&first.sandbox)).await;
        assert_eq!(mine.unwrap().len(), 3);
        let mut new = new_sandbox();
        new.owner = other;
        let theirs = engine.create(new).await.unwrap();
        let theirs = engine.snapshot(&theirs, named("base"), progress()).await;
        assert_eq!(theirs.unwrap().name.as_deref(), Some("base"));
    });
    server.kill();
}

#[test]
fn a_snapshot_goes_when_its_time_has_come() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        let source = engine.create(new_sandbox()).await.unwrap();
        engine.take(&source).await;
        let new = NewSnapshot {
            expires_at: Some(clock::now() + Duration::from_millis(300)),
            ..NewSnapshot::default()
        };
        let brief = engine.snapshot(&source, new, progress()).await.unwrap();
        engine.find_snapshot("acme", &brief.id).await.unwrap();
        while engine.find_snapshot("acme", &brief.id).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(clock::now() >= brief.expires_at.unwrap());
        let left = engine.snapshots(&brief.owner, None).await.unwrap();
        assert_eq!(left.len(), 1);
        while stage.host.snapshots().len() > 1 {
            tokio::task::yield_now().await;
        }
    });
    server.kill();
}

// It was found, listed and used until its files were removed: five seconds after whoever had it.
#[test]
fn a_snapshot_whose_time_has_come_is_gone_for_all_but_who_uses_it() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        let source = engine.create(new_sandbox()).await.unwrap();
        stage.host.write(&source.record().id, "kept");
        let expiring = |name, millis| NewSnapshot {
            expires_at: Some(clock::now() + Duration::from_millis(millis)),
            ..named(name)
        };
        let brief = engine.snapshot(&source, expiring("brief", 300), progress());
        let brief = brief.await.unwrap();
        let used = engine.used(&brief.id).await;
        while !brief.has_expired(clock::now()) {
            tokio::task::yield_now().await;
        }
        for refused in [
            engine.find_snapshot("acme", &brief.id).await.map(drop),
            engine.use_snapshot("acme", &brief.id).await.map(drop),
            engine.delete_snapshot("acme", &brief.id).await,
        ] {
            assert_eq!(refused, Err(CallError::NoSnapshot));
        }
        assert_eq!(engine.snapshots(&brief.owner, None).await.unwrap(), vec![]);
        // Who began before has all of it.
        assert_eq!(stage.host.snapshots(), std::slice::from_ref(&brief.id));
        let made = engine.create_from(new_sandbox(), used, progress()).await;
        let made = made.unwrap().record().id.clone();
        assert_eq!(stage.host.text(Whose::Sandbox(&made)), "kept");
        // Whenever it is looked the next time, the files go.
        let next = engine.snapshot(&source, expiring("next", 3_600_000), progress());
        let next = next.await.unwrap();
        while stage.host.snapshots() != std::slice::from_ref(&next.id) {
            tokio::task::yield_now().await;
        }
    });
    server.kill();
}
