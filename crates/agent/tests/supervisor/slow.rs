//! A keeper that answers late, journals that open late: whoever waits is told the truth.
use std::{fs, path::PathBuf};

use crate::{
    link::Link,
    supervised::{Sandbox, argv, eventually, is_alive, kill},
};
use outlive_api::agent::{Outcome, Request};
use outlive_core::{event::Stream, id::SessionId, session::Phase};

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

// An answer of the keeper that came after its ten seconds passed for the answer to the next
// question.
#[test]
fn an_answer_that_comes_late_is_no_answer_to_another_question() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    let (keeper, supervisor) = (sandbox.keeper_pid(), sandbox.supervisor_pid());
    kill(keeper.cast_signed(), SIGSTOP);
    let mut link = sandbox.link();
    link.ask(Request::Health).unwrap();
    eventually("the supervisor gives up", || {
        (!is_alive(supervisor.unsigned_abs())).then_some(())
    });
    kill(keeper.cast_signed(), SIGCONT);
    let outcome = sandbox.write(&id, "a", b"on\n");
    assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
    sandbox.wait_for_output(&id, Stream::Stdout, "on\n");
    assert_ne!(sandbox.supervisor_pid(), supervisor);
    let log = sandbox.log();
    assert!(
        log.contains("no answer of the keeper can be trusted"),
        "{log}"
    );
    match sandbox.call(&Request::Health) {
        Outcome::Health(health) => assert_eq!(health.supervisor_starts, 2),
        other => panic!("{other:?}"),
    }
}

/// Journals that don't open before somebody says so. In order: the first are opened at once, the
/// others wait for them.
struct Held {
    pipes: Vec<PathBuf>,
    waiting: Vec<SessionId>,
}

impl Held {
    /// Holds as many as are opened at once; opening meets a file that nobody writes to.
    fn of(sandbox: &Sandbox) -> Self {
        let entries = fs::read_dir(sandbox.state().join("sessions")).unwrap();
        let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        let waiting = folders.split_off(4);
        let id = |folder: &PathBuf| SessionId::parse(folder.file_name()?.to_str()?).ok();
        let pipes = folders.iter().map(|folder| {
            let pipe = folder.join("receipts-000000000001.run");
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &pipe,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                0,
            )
            .unwrap();
            pipe
        });
        Self {
            pipes: pipes.collect(),
            waiting: waiting.iter().map(|it| id(it).unwrap()).collect(),
        }
    }

    fn let_go(&self) {
        for pipe in &self.pipes {
            drop(fs::File::options().write(true).open(pipe).unwrap());
        }
    }
}

/// What the watcher is told until `what` comes.
fn told_until(link: &mut Link, what: impl Fn(&Outcome) -> bool) -> Vec<Outcome> {
    let mut told = Vec::new();
    while !told.last().is_some_and(&what) {
        told.push(link.answer().unwrap().outcome);
    }
    told
}

// A server that watched a supervisor before its journals were open took the sessions for deleted
// and ended their streams.
#[test]
fn whoever_watches_before_the_journals_are_open_takes_no_session_for_deleted() {
    let sandbox = Sandbox::launch();
    for _ in 0..6 {
        sandbox.create(argv(&["cat"]));
    }
    let held = Held::of(&sandbox);
    sandbox.kill_supervisor();
    let mut link = sandbox.link();
    link.ask(Request::Watch).unwrap();
    let first = told_until(&mut link, |it| *it == Outcome::Watching);
    held.let_go();
    let [waiting, _] = held.waiting.as_slice() else {
        panic!("{:?}", held.waiting);
    };
    let opened = |it: &Outcome| matches!(it, Outcome::Moved { session, latest: 1.., .. } if session == waiting);
    let rest = told_until(&mut link, opened);

    for id in &held.waiting {
        let named =
            |it: &Outcome| matches!(it, Outcome::Moved { session, latest: 0, .. } if session == id);
        assert!(first.iter().any(named), "{id}: {first:?}");
    }
    let gone = |it: &&Outcome| matches!(it, Outcome::Gone { .. });
    assert_eq!(first.iter().chain(&rest).find(gone), None);
    for id in &held.waiting {
        assert_eq!(sandbox.session(id).phase(), Phase::Running);
    }
}
