//! Sandboxes that are deleted: what their runtime is told, and while their disk is copied.

use super::{
    super::{config::ConfigChange, snapshots::NewSnapshot},
    *,
};

/// A long copy of a sandbox's disk goes on when the sandbox is deleted: what comes of the two.
async fn deleted_under<T>(
    host: &FakeHost,
    sandbox: &Sandbox,
    copying: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    host.copies.hold();
    let deleting = async {
        host.copies.entered().await;
        // Longer than a short copy may take: nothing else has anything to do meanwhile.
        tokio::time::pause();
        let given_up = async {
            host.copies.left().await;
            tokio::time::resume();
        };
        let (deleted, ()) = tokio::join!(sandbox.delete(), given_up);
        deleted.unwrap();
    };
    let (copied, ()) = tokio::join!(copying, deleting);
    host.copies.let_go();
    copied
}

/// The deletion was refused after five seconds, for as long as the copy took.
#[test]
fn a_sandbox_that_is_copied_is_deleted_and_its_copy_given_up() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        for rests in [false, true] {
            let source = engine.create(new_sandbox()).await.unwrap();
            if rests {
                source.pause().await.unwrap();
            }
            let change = ConfigChange::default();
            let forking = engine.fork(&source, change, Progress::unseen());
            let forked = deleted_under(&stage.host, &source, forking).await;
            assert!(matches!(forked, Err(CallError::NoSandbox)), "{forked:?}");

            let source = engine.create(new_sandbox()).await.unwrap();
            let taking = engine.snapshot(&source, NewSnapshot::default(), Progress::unseen());
            let taken = deleted_under(&stage.host, &source, taking).await;
            assert!(matches!(taken, Err(CallError::NoSandbox)), "{taken:?}");
        }
    });
    stage.check(&server, "after all");
    assert_eq!(stage.host.disks(), vec![]);
    server.kill();
}

#[test]
fn a_sandbox_that_is_put_back_is_deleted_and_not_started_before() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let engine = &server.engine;
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        let taking = engine.snapshot(&sandbox, NewSnapshot::default(), Progress::unseen());
        let snapshot = taking.await.unwrap().id;
        let used = engine.use_snapshot("acme", &snapshot).await.unwrap();
        let restoring = engine.restore(&sandbox, used, Progress::unseen());
        let restored = deleted_under(&stage.host, &sandbox, restoring).await;
        assert!(
            matches!(restored, Err(CallError::NoSandbox)),
            "{restored:?}"
        );
        assert_eq!(stage.host.starts().len(), 1);
        // The snapshot is whole, and nobody's any more.
        engine.delete_snapshot("acme", &snapshot).await.unwrap();
    });
    stage.check(&server, "after all");
    assert_eq!(stage.host.disks(), vec![]);
    server.kill();
}

/// What the runtime of a sandbox was told when it was to leave.
async fn told_to_leave(host: &FakeHost, sandbox: &Sandbox) -> Vec<Request> {
    let agent = host.agent(&sandbox.record().id).unwrap();
    sandbox.delete().await.unwrap();
    let leaves = |told: &Request| matches!(told, Request::Release | Request::Discard);
    agent.done().into_iter().filter(leaves).collect()
}

#[test]
fn a_runtime_of_a_sandbox_that_is_deleted_need_not_save_its_journals() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let told = told_to_leave(&stage.host, &sandbox).await;
        assert_eq!(told, [Request::Discard]);
        // That of an older build would not know what it is told.
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        agent.forget_calls();
        agent.cut_after_written(0);
        sandbox.list().await.unwrap();
        let told = told_to_leave(&stage.host, &sandbox).await;
        assert_eq!(told, [Request::Release]);
    });
    stage.check(&server, "after all");
    server.kill();
}
