//! A sandbox on a host that keeps processes apart less than before.

use super::*;

// A server on a host with namespaces made a sandbox and was killed; the next one could not have
// namespaces and had fallen back to plain processes. The workload woke up as the host's own root.
#[test]
fn a_sandbox_is_never_started_with_less_isolation_than_it_was_made_with() {
    let stage = Stage::set();
    let first = Server::sound(&stage.host);
    let id = first
        .run(async {
            let sandbox = first.engine.create(new_sandbox()).await.unwrap();
            sandbox.pause().await.unwrap();
            sandbox.record().id.clone()
        })
        .unwrap();
    first.kill();

    stage.host.reach(IsolationTier::None);
    let second = Server::sound(&stage.host);
    second.run(async {
        let sandbox = second.engine.get("acme", &id).unwrap();
        assert_refused(&sandbox.resume().await.unwrap_err());
        assert_eq!(sandbox.record().state.observed, Observed::Failed);
        assert_refused(&sandbox.call(Request::Health).await.unwrap_err());
        assert_eq!(stage.host.starts().len(), 1);
        // It is seen, copied no weaker than it is, and new ones get what there is.
        let owner = Owner::parse("acme").unwrap();
        let everything = SandboxFilter::default();
        let page = second.engine.page(&owner, everything, 9, 0);
        assert_eq!(page.await.unwrap().total, 1);
        let progress = Progress::unseen();
        let forked = second
            .engine
            .fork(&sandbox, ConfigChange::default(), progress);
        let forked = forked.await.unwrap();
        assert_refused(&forked.resume().await.unwrap_err());
        let new = second.engine.create(new_sandbox()).await.unwrap();
        assert_eq!(new.record().isolation, Some(IsolationTier::None));
        for gone in [forked, new] {
            gone.delete().await.unwrap();
        }
    });
    second.kill();

    stage.host.reach(IsolationTier::Nested);
    let third = Server::sound(&stage.host);
    third.run(async {
        let sandbox = third.engine.get("acme", &id).unwrap();
        sandbox.resume().await.unwrap();
        assert_eq!(sandbox.record().isolation, Some(IsolationTier::Nested));
    });
    third.kill();
}

/// The server is killed at every step of a first start and of a resume, on a host that loses its
/// namespaces with it.
#[test]
fn no_kill_makes_a_server_forget_the_isolation_of_a_sandbox() {
    for step in 0..1000 {
        let stage = Stage::set();
        let first = Server::start(&stage.host, Crash::at(step));
        let told = first.run(async {
            let sandbox = first.engine.create(new_sandbox()).await.unwrap();
            sandbox.pause().await.unwrap();
            sandbox.resume().await.unwrap();
        });
        first.kill();
        let started = stage.host.starts().len();
        for live in stage.host.live() {
            stage.host.kill(&live);
        }
        stage.host.reach(IsolationTier::None);
        let second = Server::sound(&stage.host);
        second.run(async {
            for sandbox in second.engine.all() {
                match sandbox.resume().await {
                    Err(error) => assert_refused(&error),
                    // Nothing of it ever ran.
                    Ok(()) => assert_eq!(started, 0, "killed at step {step}"),
                }
            }
        });
        second.kill();
        if told.is_some() {
            assert!(step > 4, "the story has steps");
            return;
        }
    }
    panic!("the story never ends");
}

fn assert_refused(error: &CallError) {
    let CallError::ResumeFailed { message } = error else {
        panic!("{error:?}");
    };
    assert!(message.contains("made with isolation nested"), "{message}");
    assert!(message.contains("`outlive doctor`"), "{message}");
}
