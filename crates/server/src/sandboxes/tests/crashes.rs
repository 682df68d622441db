//! Servers that are killed where they stand, and stores and hosts that refuse.

use std::sync::{Arc, atomic::Ordering};

use outlive_api::agent::Request;
use outlive_core::{
    id::Generation,
    sandbox::{Desired, Observed},
};

use tokio::time::{Instant, sleep};

use super::{Crash, Server, Stage, killed_at_every_step, new_sandbox};
use crate::{limits::NOTE_WAIT, sessions::SandboxHandle};

#[test]
fn a_server_killed_while_it_creates_leaves_no_orphan() {
    let steps = killed_at_every_step(|engine| async move {
        engine.create(new_sandbox()).await.unwrap();
    });
    assert!(steps >= 7, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_deletes_leaves_no_trace() {
    let steps = killed_at_every_step(|engine| async move {
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        sandbox.delete().await.unwrap();
    });
    assert!(steps >= 15, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_pauses_and_resumes_loses_no_sandbox() {
    let steps = killed_at_every_step(|engine| async move {
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        sandbox.resume().await.unwrap();
    });
    assert!(steps >= 20, "{steps} steps");
}

#[test]
fn a_server_killed_while_it_freezes_and_thaws_loses_no_runtime() {
    let steps = killed_at_every_step(|engine| async move {
        let sandbox = engine.create(new_sandbox()).await.unwrap();
        sandbox.suspend().await.unwrap();
        sandbox.resume().await.unwrap();
        sandbox.suspend().await.unwrap();
        sleep(NOTE_WAIT * 2).await;
        sandbox.pause().await.unwrap();
    });
    assert!(steps >= 25, "{steps} steps");
}

#[test]
fn what_was_asked_for_is_on_the_disk_when_it_is_answered() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    let on_disk = || *server.crash.synced.lock().unwrap();
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        assert_eq!(on_disk(), Some(Desired::Running));
        for _ in 0..3 {
            sandbox.suspend().await.unwrap();
            assert_eq!(on_disk(), Some(Desired::Frozen));
            sandbox.resume().await.unwrap();
            assert_eq!(on_disk(), Some(Desired::Running));
        }
        sandbox.pause().await.unwrap();
        assert_eq!(on_disk(), Some(Desired::Released));
    });
    server.kill();
}

// Each freeze was followed by a write of what came of it, which the thaw that followed waited for.
#[test]
fn who_freezes_and_thaws_at_once_has_one_write_for_each() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    let notes = || server.crash.notes.load(Ordering::SeqCst);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let (before, begun) = (notes(), Instant::now());
        let mut asked = 0;
        while begun.elapsed() < NOTE_WAIT / 2 {
            sandbox.suspend().await.unwrap();
            sandbox.resume().await.unwrap();
            asked += 2;
        }
        if begun.elapsed() < NOTE_WAIT {
            assert_eq!(notes() - before, asked);
        }
        // The last is written down a moment later, for whoever reads the store.
        while notes() - before == asked {
            sleep(NOTE_WAIT / 10).await;
        }
    });
    server.kill();
}

#[test]
fn a_running_sandbox_is_taken_over_with_its_generation() {
    let stage = Stage::set();
    let first = Server::sound(&stage.host);
    let sandbox = first
        .run(first.engine.create(new_sandbox()))
        .unwrap()
        .unwrap();
    let id = sandbox.record().id.clone();
    first.kill();
    let second = Server::sound(&stage.host);
    let sandbox = second.settle().pop().unwrap();
    assert_eq!(sandbox.record().state.observed, Observed::Running);
    assert_eq!(sandbox.record().state.generation, Generation::FIRST);
    assert_eq!(stage.host.starts(), vec![(id.clone(), Generation::FIRST)]);
    assert_eq!(stage.host.agent(&id).unwrap().env()["A"], "1");
    second.kill();
}

#[test]
fn a_workload_survives_a_store_that_fails_and_a_host_that_can_t_be_looked_at() {
    let stage = Stage::set();
    let first = Server::sound(&stage.host);
    let sandbox = first
        .run(first.engine.create(new_sandbox()))
        .unwrap()
        .unwrap();
    let id = sandbox.record().id.clone();
    first.kill();
    let crash = Crash::at(usize::MAX);
    crash.puts_refused.store(2, Ordering::SeqCst);
    crash.looks_refused.store(2, Ordering::SeqCst);
    let second = Server::start(&stage.host, Arc::clone(&crash));
    let sandbox = second.settle().pop().unwrap();
    second.run(async {
        // It answers before the store does.
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.generation, Generation::FIRST);
    });
    assert_eq!(stage.host.starts(), vec![(id, Generation::FIRST)]);
    second.kill();
}

#[test]
fn a_runtime_that_answers_is_kept_although_the_store_does_not_hear_of_it() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.pause().await.unwrap();
        // Nothing is started before the store knows of it.
        server.crash.puts_refused.store(1, Ordering::SeqCst);
        sandbox.resume().await.unwrap_err();
        assert_eq!(stage.host.starts().len(), 1);
        // What is started stays, whether the store hears of it or not.
        server.crash.puts_spared.store(1, Ordering::SeqCst);
        server.crash.puts_refused.store(2, Ordering::SeqCst);
        sandbox.resume().await.unwrap();
        assert_eq!(stage.host.starts().len(), 2);
        sandbox.call(Request::Health).await.unwrap();
    });
    server.kill();
}

#[test]
fn nothing_is_called_gone_before_it_is_swept_up() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        server.crash.sweeps_refused.store(2, Ordering::SeqCst);
        sandbox.pause().await.unwrap_err();
        assert_eq!(sandbox.record().state.observed, Observed::Releasing);
        // It is finished without being asked for again.
        sandbox.reaches(Generation::FIRST, Observed::Released).await;
        sandbox.resume().await.unwrap();

        let id = sandbox.record().id.clone();
        server.crash.sweeps_refused.store(2, Ordering::SeqCst);
        stage.host.kill(&id);
        sandbox.reaches(Generation(3), Observed::Running).await;

        server.crash.sweeps_refused.store(1, Ordering::SeqCst);
        sandbox.delete().await.unwrap_err();
        assert!(!sandbox.settled_gone().await);
    });
    assert_eq!(stage.host.disks(), vec![]);
    server.kill();
}
