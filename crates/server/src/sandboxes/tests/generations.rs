//! Runtimes of a sandbox, one after the other: what begins the next, and what fails to.

use outlive_api::agent::Request;
use outlive_core::{id::Generation, sandbox::Observed};

use super::{Server, Stage, new_sandbox};
use crate::sandboxes::config::ConfigChange;
use crate::sessions::{CallError, SandboxHandle};

#[test]
fn a_runtime_that_keeps_dying_young_waits_before_it_is_started_again() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let id = sandbox.record().id.clone();
        stage.host.kill(&id);
        sandbox.reaches(Generation(2), Observed::Running).await;
        stage.host.kill(&id);
        // The second death is seen before the third generation is begun.
        sandbox.reaches(Generation(2), Observed::Starting).await;
        sandbox.reaches(Generation(3), Observed::Running).await;
    });
    server.kill();
}

#[test]
fn generations_rise_by_one_with_each_resume() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        for generation in 1..4 {
            let record = sandbox.record();
            assert_eq!(record.state.generation, Generation(generation));
            assert_eq!(record.state.observed, Observed::Running);
            sandbox.pause().await.unwrap();
            assert_eq!(sandbox.record().state.observed, Observed::Released);
            assert_eq!(stage.host.live(), vec![]);
            // A second pause changes nothing, a second resume neither.
            sandbox.pause().await.unwrap();
            sandbox.resume().await.unwrap();
            sandbox.resume().await.unwrap();
        }
    });
    server.kill();
}

#[test]
fn a_runtime_that_died_is_replaced_at_once() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let id = sandbox.record().id.clone();
        stage.host.kill(&id);
        sandbox.reaches(Generation(2), Observed::Running).await;
        // And so is one that died while no server looked.
    });
    let id = server.settle()[0].record().id.clone();
    server.kill();
    stage.host.kill(&id);
    let server = Server::sound(&stage.host);
    let sandbox = server.settle().pop().unwrap();
    assert_eq!(sandbox.record().state.generation, Generation(3));
    stage.check(&server, "after the death");
    server.kill();
}

#[test]
fn a_call_wakes_a_sandbox_unless_it_may_not() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        // Reading never wakes.
        assert_eq!(sandbox.list().await.unwrap(), vec![]);
        assert_eq!(sandbox.record().state.observed, Observed::Released);
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.generation, Generation(2));

        let change = ConfigChange {
            auto_resume: Some(false),
            ..ConfigChange::default()
        };
        sandbox.configure(change).await.unwrap();
        sandbox.call(Request::Health).await.unwrap();
        sandbox.pause().await.unwrap();
        let refused = sandbox.call(Request::Health).await.unwrap_err();
        assert!(
            matches!(refused, CallError::Unavailable { .. }),
            "{refused:?}"
        );
        assert_eq!(sandbox.record().state.observed, Observed::Released);
        sandbox.resume().await.unwrap();
        sandbox.call(Request::Health).await.unwrap();
    });
    server.kill();
}

#[test]
fn a_hundred_calls_at_once_wake_a_sandbox_once() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        let calls = (0..100).map(|_| sandbox.call(Request::Health));
        for answer in futures_util::future::join_all(calls).await {
            answer.unwrap();
        }
        assert_eq!(sandbox.record().state.generation, Generation(2));
        assert_eq!(stage.host.starts().len(), 2);
    });
    server.kill();
}

#[test]
fn a_sandbox_that_does_not_start_leaves_no_trace() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        stage.host.fail_starts(1);
        let error = server.engine.create(new_sandbox()).await.unwrap_err();
        assert!(matches!(error, CallError::ResumeFailed { .. }), "{error:?}");
    });
    stage.check(&server, "after the failure");
    assert_eq!(stage.host.disks(), vec![]);
    server.kill();
}

#[test]
fn a_wake_that_fails_is_told_and_the_next_one_tries_again() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        stage.host.fail_starts(1);
        let error = sandbox.call(Request::Health).await.unwrap_err();
        assert!(matches!(error, CallError::ResumeFailed { .. }), "{error:?}");
        assert_eq!(sandbox.record().state.observed, Observed::Failed);
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.observed, Observed::Running);
    });
    server.kill();
}
