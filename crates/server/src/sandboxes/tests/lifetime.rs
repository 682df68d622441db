//! How long a sandbox may be there, how many may, and how one goes.

use std::time::Duration;

use outlive_core::{id::Generation, sandbox::Observed};

use super::{Server, Stage, new_sandbox};
use crate::sandboxes::config::ConfigChange;
use crate::{
    agents::tests::create,
    clock,
    sessions::{CallError, SandboxHandle},
};

#[test]
fn ttl_pauses_and_hard_ttl_deletes() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let mut new = new_sandbox();
        new.config.ttl = Some(1);
        let sandbox = server.engine.create(new).await.unwrap();
        let due = sandbox.record().state.expires_at.unwrap();
        sandbox.reaches(Generation::FIRST, Observed::Released).await;
        let late = clock::now().since(due);
        assert!(
            clock::now() >= due && late < Duration::from_millis(900),
            "{late:?}"
        );
        assert_eq!(stage.host.live(), vec![]);
        // Resumed, its time counts anew (case I8).
        sandbox.resume().await.unwrap();
        assert!(sandbox.record().state.expires_at.unwrap() > due);

        let change = ConfigChange {
            ttl: Some(0),
            hard_ttl: Some(1),
            ..ConfigChange::default()
        };
        sandbox.configure(change).await.unwrap();
        assert_eq!(sandbox.record().state.expires_at, None);
        assert!(!sandbox.settled_gone().await);
    });
    assert_eq!(stage.host.disks(), vec![]);
    assert_eq!(stage.host.live(), vec![]);
    server.kill();
}

#[test]
fn a_tenant_has_as_many_as_it_may_and_sees_its_own_only() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let first = server.engine.create(new_sandbox()).await.unwrap();
        for _ in 0..3 {
            server.engine.create(new_sandbox()).await.unwrap();
        }
        let error = server.engine.create(new_sandbox()).await.unwrap_err();
        assert!(
            matches!(error, CallError::QuotaExceeded { .. }),
            "{error:?}"
        );
        let id = first.record().id.clone();
        server.engine.get("acme", &id).unwrap();
        assert_eq!(
            server.engine.get("other", &id).unwrap_err(),
            CallError::NoSandbox
        );
        first.delete().await.unwrap();
        assert_eq!(
            server.engine.get("acme", &id).unwrap_err(),
            CallError::NoSandbox
        );
        assert_eq!(first.delete().await.unwrap_err(), CallError::NoSandbox);
        server.engine.create(new_sandbox()).await.unwrap();
    });
    server.kill();
}

// A session that was created in the moment of the deletion met a runtime that was gone, and its
// client read "try again" for ever.
#[test]
fn calls_that_meet_a_deletion_are_told_that_there_is_no_sandbox() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        for round in 0..20 {
            let sandbox = server.engine.create(new_sandbox()).await.unwrap();
            let calls = (0..8).map(|_| sandbox.call(create()));
            let lists = (0..8).map(|_| sandbox.list());
            let (created, listed, deleted) = tokio::join!(
                futures_util::future::join_all(calls),
                futures_util::future::join_all(lists),
                sandbox.delete(),
            );
            deleted.unwrap();
            let failed = created.into_iter().filter_map(Result::err);
            for error in failed.chain(listed.into_iter().filter_map(Result::err)) {
                assert_eq!(error, CallError::NoSandbox, "round {round}");
            }
        }
    });
    server.kill();
}
