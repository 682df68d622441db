//! Forks of a sandbox.

use std::time::Duration;

use outlive_core::{id::Generation, sandbox::Observed};

use super::{Server, Stage, killed_at_every_step, new_sandbox};
use crate::{clock, runtime::Progress, sandboxes::config::ConfigChange, store::SandboxFilter};

#[test]
fn a_server_killed_while_it_forks_leaves_a_whole_copy_or_none() {
    let steps = killed_at_every_step(|engine| async move {
        let source = engine.create(new_sandbox()).await.unwrap();
        let progress = Progress::unseen();
        let fork = engine
            .fork(&source, ConfigChange::default(), progress)
            .await;
        fork.unwrap().resume().await.unwrap();
    });
    assert!(steps >= 15, "{steps} steps");
}

#[test]
fn a_fork_is_a_sandbox_of_its_own_and_its_source_goes_on() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let mut new = new_sandbox();
        (new.config.ttl, new.config.hard_ttl) = (Some(1000), Some(2000));
        let source = server.engine.create(new).await.unwrap();
        let progress = Progress::unseen();
        let change = ConfigChange {
            hard_ttl: Some(60),
            ..ConfigChange::default()
        };
        let fork = server.engine.fork(&source, change, progress).await.unwrap();
        let agent = stage.host.agent(&source.record().id).unwrap();
        assert!(!agent.is_frozen());
        assert_eq!(source.record().state.observed, Observed::Running);
        let child = fork.record();
        assert_eq!(child.state.observed, Observed::Released);
        assert_eq!(child.state.generation, Generation::FIRST);
        assert_eq!(child.config.env_vars["A"], "1");
        // Deadlines are not inherited.
        assert_eq!((child.config.ttl, child.state.expires_at), (None, None));
        let left = child.state.hard_expires_at.unwrap().since(clock::now());
        assert!(left <= Duration::from_mins(1), "{left:?}");
        // A source that sleeps is not woken for it.
        source.suspend().await.unwrap();
        let progress = Progress::unseen();
        let change = ConfigChange::default();
        server.engine.fork(&source, change, progress).await.unwrap();
        assert!(agent.is_frozen());
        assert_eq!(source.record().state.observed, Observed::Frozen);
    });
    server.kill();
}

// It was listed as one that goes, under an id that nobody was found by.
#[test]
fn a_sandbox_is_listed_once_its_copy_is_whole() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        let source = engine.create(new_sandbox()).await.unwrap();
        let owner = source.record().owner.clone();
        let listed = async || {
            let page = engine.page(&owner, SandboxFilter::default(), 10, 0).await;
            page.unwrap().total
        };
        stage.host.copies.hold();
        let change = ConfigChange::default();
        let forking = engine.fork(&source, change, Progress::unseen());
        let looking = async {
            stage.host.copies.entered().await;
            assert_eq!(listed().await, 1);
            stage.host.copies.let_go();
        };
        let (forked, ()) = tokio::join!(forking, looking);
        forked.unwrap();
        assert_eq!(listed().await, 2);
        // One whose copy failed is removed.
        stage.host.fail_copies(1);
        let failed = engine.fork(&source, ConfigChange::default(), Progress::unseen());
        failed.await.unwrap_err();
        while listed().await != 2 {
            tokio::task::yield_now().await;
        }
    });
    server.kill();
}
