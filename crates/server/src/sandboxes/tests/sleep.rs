//! Frozen sandboxes: who is told what of them, what wakes them, and when they fall asleep.

use std::time::Duration;

use outlive_api::agent::{Request, Write};
use outlive_core::{
    id::{Generation, SessionId},
    sandbox::{Hold, Observed, ReleaseWhy},
    session::{Rejection, ReplaceCurrent, Session},
    spec::DesiredState,
};

use super::{Server, Stage, new_sandbox};
use crate::{
    agents::tests::{create, session},
    clock,
    dialect::supervised::tests::fake::leave_journal,
    sandboxes::config::IdleKind,
    sessions::{CallError, SandboxHandle},
    store::SandboxFilter,
};

#[test]
fn a_frozen_sandbox_is_read_as_it_stands_and_woken_by_what_changes_it() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        let session = SessionId::from_bits(7);
        let signal = Request::Signal {
            session: session.clone(),
            expected: None,
            signal: 15,
        };
        sandbox.suspend().await.unwrap();
        assert!(agent.is_frozen());
        assert_eq!(sandbox.record().state.observed, Observed::Frozen);
        // The store is told a moment later, and lists know all the same.
        let owner = sandbox.owner().clone();
        let page = server.engine.page(&owner, SandboxFilter::default(), 10, 0);
        let listed = page.await.unwrap().records;
        assert_eq!(listed[0].state.observed, Observed::Frozen);
        // Reading never wakes.
        assert_eq!(sandbox.list().await.unwrap(), vec![]);
        sandbox.view(&session).await.unwrap_err();
        assert!(agent.is_frozen());
        sandbox.call(signal).await.unwrap();
        assert!(!agent.is_frozen());
        assert_eq!(sandbox.record().state.generation, Generation::FIRST);
        sandbox.suspend().await.unwrap();
        // A second one changes nothing.
        sandbox.suspend().await.unwrap();
    });
    let id = server.settle()[0].record().id.clone();
    server.kill();
    // The next server leaves it asleep.
    let server = Server::sound(&stage.host);
    let sandbox = server.settle().pop().unwrap();
    assert_eq!(sandbox.record().state.observed, Observed::Frozen);
    assert!(stage.host.agent(&id).unwrap().is_frozen());
    server.kill();
}

// A supervisor that hung held up every look at its sessions, though their files could answer.
#[test]
fn a_supervisor_that_does_not_answer_holds_a_look_up_for_ten_seconds() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        sandbox.call(create()).await.unwrap();
        assert_eq!(sandbox.list().await.unwrap().len(), 1);
        agent.hang();
        tokio::time::pause();
        let from = tokio::time::Instant::now();
        // This supervisor has a session that no file knows.
        assert_eq!(sandbox.list().await.unwrap(), vec![]);
        assert_eq!(from.elapsed().as_secs(), 10);
        let from = tokio::time::Instant::now();
        let error = sandbox.view(&session()).await.unwrap_err();
        assert!(
            matches!(error, CallError::Rejected(Rejection::NotFound)),
            "{error:?}"
        );
        // Half as long once it is known to be silent, which takes as long as the first.
        assert!([5, 10].contains(&from.elapsed().as_secs()));
    });
    server.kill();
}

// Right after a resume, a list left out whatever the new supervisor had not taken over yet.
#[test]
fn a_session_that_is_still_being_opened_is_listed_as_its_files_say() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let id = sandbox.record().id.clone();
        let Request::Create {
            session: made,
            created,
        } = create()
        else {
            unreachable!("it makes a session");
        };
        let place = stage.host.places().of(&id);
        std::fs::create_dir_all(place.journals()).unwrap();
        leave_journal(&place.journal(&made), made, *created);
        sandbox.call(create()).await.unwrap();
        stage.host.agent(&id).unwrap().open_for_ever();
        let listed = sandbox.list().await.unwrap();
        let listed: Vec<_> = listed
            .iter()
            .map(|view| Session::restore(&view.checkpoint).unwrap().id().clone())
            .collect();
        assert_eq!(listed, [session()]);
    });
    server.kill();
}

#[test]
fn a_workload_that_can_t_be_frozen_goes_on_and_the_caller_is_told_why() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        agent.refuse_freezes(1);
        let error = sandbox.suspend().await.unwrap_err();
        assert!(
            matches!(&error, CallError::Unavailable { message, .. } if message.contains("told not to freeze")),
            "{error:?}"
        );
        assert_eq!(sandbox.record().state.observed, Observed::Running);
        assert!(!agent.is_frozen());
        sandbox.suspend().await.unwrap();
    });
    server.kill();
}

/// It was `unavailable`, to be tried again in a second: whoever fills the disk may have taken what
/// the reserve gave, and goes on doing so.
#[test]
fn a_workload_that_can_t_be_frozen_for_a_full_disk_is_told_as_such() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        let agent = stage.host.agent(&sandbox.record().id).unwrap();
        agent.refuse_freezes(1);
        stage.host.fill_disk();
        let error = sandbox.suspend().await.unwrap_err();
        assert!(matches!(error, CallError::DiskFull { .. }), "{error:?}");
        assert_eq!(sandbox.record().state.observed, Observed::Running);
        sandbox.suspend().await.unwrap();
    });
    server.kill();
}

/// A session that could not be made for want of files was 500 `create_session_failed`.
#[test]
fn whatever_fails_in_a_sandbox_for_a_full_disk_is_told_as_such() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        stage
            .host
            .agent(&sandbox.record().id)
            .unwrap()
            .fail_changes();
        for request in changes() {
            let failed = sandbox.call(request).await.unwrap_err();
            assert!(matches!(failed, CallError::Failed { .. }), "{failed:?}");
        }
        stage.host.fill_disk();
        for request in changes() {
            let full = sandbox.call(request).await.unwrap_err();
            assert!(matches!(full, CallError::DiskFull { .. }), "{full:?}");
        }
    });
    server.kill();
}

/// Calls of every kind that writes to a session's journal.
fn changes() -> Vec<Request> {
    let session = session();
    let Request::Create { created, .. } = create() else {
        panic!("a creation creates");
    };
    vec![
        create(),
        Request::Update {
            session: session.clone(),
            spec: Box::new(created.spec),
        },
        Request::SetDesiredState {
            session: session.clone(),
            state: DesiredState::Stopped,
        },
        Request::NewAttempt {
            session: session.clone(),
            replace: ReplaceCurrent::Yes,
        },
        Request::Write {
            session: session.clone(),
            write: Write {
                expected: None,
                input_id: "1".to_owned(),
                data: b"x".to_vec(),
                eof: None,
                durable: false,
            },
        },
        Request::Signal {
            session: session.clone(),
            expected: None,
            signal: 15,
        },
        Request::Resize {
            session,
            expected: None,
            rows: 24,
            cols: 80,
        },
    ]
}

#[test]
fn a_frozen_runtime_that_is_lost_waits_for_a_call() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let sandbox = server.engine.create(new_sandbox()).await.unwrap();
        sandbox.suspend().await.unwrap();
        stage.host.kill(&sandbox.record().id);
        sandbox.reaches(Generation::FIRST, Observed::Released).await;
        assert_eq!(sandbox.record().state.why, Some(ReleaseWhy::RuntimeLost));
        sandbox.call(Request::Health).await.unwrap();
        assert_eq!(sandbox.record().state.generation, Generation(2));
    });
    server.kill();
}

#[test]
fn nobody_there_and_it_sleeps_somebody_there_and_it_does_not() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let mut new = new_sandbox();
        new.config.idle.freeze_after_seconds = Some(1);
        let sandbox = server.engine.create(new).await.unwrap();
        let attached = sandbox.attach(&SessionId::from_bits(1));
        let (doing, sleeps_at) = sandbox.wakefulness();
        assert_eq!(doing.len(), 1);
        assert_eq!(sleeps_at, None);
        drop(attached);
        let left = clock::now();
        let (doing, sleeps_at) = sandbox.wakefulness();
        assert_eq!(doing, vec![]);
        assert!(sleeps_at.unwrap() <= left + Duration::from_secs(1));
        sandbox.reaches(Generation::FIRST, Observed::Frozen).await;
        assert!(clock::now() >= sleeps_at.unwrap());
        // Polling keeps nobody awake, and a call wakes it for another while.
        sandbox.list().await.unwrap();
        assert_eq!(sandbox.record().state.observed, Observed::Frozen);
        sandbox.wake().await.unwrap();
        assert_eq!(sandbox.record().state.observed, Observed::Running);
        sandbox.reaches(Generation::FIRST, Observed::Frozen).await;
    });
    server.kill();
}

// What keeps a sandbox awake named holds of one whose idle rule counts none: it fell asleep under them.
#[test]
fn a_hold_is_named_as_what_keeps_it_awake_where_the_rule_counts_holds() {
    let stage = Stage::set();
    let server = Server::sound(&stage.host);
    server.run(async {
        let now = clock::now();
        let hold = Hold {
            id: "hold-1".to_owned(),
            owner: "ci".to_owned(),
            since: now,
            expires_at: now + Duration::from_hours(1),
        };
        let mut new = new_sandbox();
        new.config.idle.freeze_after_seconds = Some(900);
        let held = server.engine.create(new).await.unwrap();
        held.hold(hold.clone()).await.unwrap();
        let (doing, sleeps_at) = held.wakefulness();
        assert_eq!((doing.len(), &*doing[0].id), (1, "hold-1"));
        assert_eq!(sleeps_at, Some(hold.expires_at + Duration::from_mins(15)));
        let mut new = new_sandbox();
        new.config.idle.freeze_after_seconds = Some(900);
        new.config.idle.counts.remove(&IdleKind::Hold);
        let left = server.engine.create(new).await.unwrap();
        left.hold(hold.clone()).await.unwrap();
        let (doing, sleeps_at) = left.wakefulness();
        assert_eq!(doing, vec![]);
        assert!(sleeps_at.unwrap() < hold.expires_at);
    });
    server.kill();
}
