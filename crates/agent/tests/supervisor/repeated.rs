//! A supervisor dies after it carried a call out and before anybody heard: the call comes again, to
//! the next one, and is not carried out again.
use crate::supervised::{
    Sandbox, argv, attempt_of, eventually, kill, on_terminal, session_of, sh, status,
};
use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    event::{Body, ExitStatus, StopReason, Stream},
    id::SessionId,
    limits::CALLS_KEPT_MAX,
    session::{CallId, CallMark, Phase, ReplaceCurrent, Session},
    spec::DesiredState,
};

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// A call as its caller knows it.
struct Call {
    id: u8,
    request: Request,
}

impl Call {
    /// Sends it, and hears no answer.
    fn send(&self, sandbox: &Sandbox) {
        let mark = CallMark {
            id: CallId([self.id; 16]),
            again_after: None,
        };
        let request = self.request.clone();
        sandbox.link().ask_as(Some(mark), request).unwrap();
    }

    /// Sends it again; it was first sent when this event was known.
    fn send_again(&self, sandbox: &Sandbox, after: u64) -> Outcome {
        let mark = CallMark {
            id: CallId([self.id; 16]),
            again_after: Some(after),
        };
        // A link to one that is about to die gives no answer.
        eventually("an answer", || {
            let mut link = sandbox.link();
            link.call_as(Some(mark), self.request.clone()).ok()
        })
    }
}

fn set(id: &SessionId, state: DesiredState) -> Request {
    Request::SetDesiredState {
        session: id.clone(),
        state,
    }
}

fn replace(id: &SessionId) -> Request {
    Request::NewAttempt {
        session: id.clone(),
        replace: ReplaceCurrent::Yes,
    }
}

/// Returns once this is in the journal.
fn journalled(sandbox: &Sandbox, id: &SessionId, what: impl Fn(&Body) -> bool) {
    eventually("it is in the journal", || {
        sandbox.facts(id).iter().any(&what).then_some(())
    });
}

fn count(sandbox: &Sandbox, id: &SessionId, what: impl Fn(&&Body) -> bool) -> usize {
    sandbox.facts(id).iter().filter(what).count()
}

fn pid(session: &Session) -> i32 {
    let attempt = session.live_attempt().unwrap();
    attempt.pid.unwrap().cast_signed()
}

/// Long enough for what a story does meanwhile: nothing waits for it to pass.
fn with_long_grace(script: &str) -> outlive_core::spec::RawSpec {
    let mut spec = sh(script);
    spec.lifecycle.stop_grace_period_seconds = Some(600);
    spec
}

// The stop was carried out, its supervisor killed before the answer, and the attempt that somebody
// else had started in between was stopped by the repetition.
#[test]
fn a_stop_that_comes_again_leaves_alone_what_somebody_else_started() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    let known = sandbox.session(&id).last_seq();
    let stop = Call {
        id: 1,
        request: set(&id, DesiredState::Stopped),
    };
    stop.send(&sandbox);
    sandbox.wait_for(&id, &[Phase::Stopped]);
    sandbox.kill_supervisor();
    let started = sandbox.set_desired(&id, DesiredState::Running);
    assert_eq!(started.attempts().len(), 2);

    let answered = session_of(stop.send_again(&sandbox, known));
    assert_eq!(answered.phase(), Phase::Running);
    assert_eq!(pid(&answered), pid(&started));
    assert_eq!(answered.spec_version(), started.spec_version());
    let stops = |it: &&Body| matches!(it, Body::DesiredState(DesiredState::Stopped));
    assert_eq!(count(&sandbox, &id, stops), 1);
}

#[test]
fn a_replacement_that_a_supervisor_began_is_answered_by_the_next_and_happens_once() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(with_long_grace("trap '' TERM; echo up; read never"));
    sandbox.wait_for_output(&id, Stream::Stdout, "up");
    let before = sandbox.session(&id);
    let replace = Call {
        id: 1,
        request: replace(&id),
    };
    replace.send(&sandbox);
    let is_replaced = |it: &Body| *it == Body::AttemptStopping(StopReason::AttemptReplaced);
    journalled(&sandbox, &id, is_replaced);
    sandbox.kill_supervisor();
    sandbox.wait_for(&id, &[Phase::Stopping]);
    // It is answered when the new attempt runs, which waits for the old one's end.
    let answered = std::thread::scope(|scope| {
        let answer = scope.spawn(|| replace.send_again(&sandbox, before.last_seq()));
        kill(pid(&before), 9);
        session_of(answer.join().unwrap())
    });
    assert_eq!(answered.phase(), Phase::Running);
    assert_eq!(answered.attempts().len(), 2);

    sandbox.kill_supervisor();
    let again = session_of(replace.send_again(&sandbox, before.last_seq()));
    assert_eq!(pid(&again), pid(&answered));
    assert_eq!(count(&sandbox, &id, |it| is_replaced(it)), 1);
}

// Killed between the journal and what it says: a keeper that stands still holds the start up.
#[test]
fn an_attempt_that_was_journalled_and_not_started_is_started_once() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["true"]));
    let known = sandbox.wait_for(&id, &[Phase::Exited]).last_seq();
    let call = Call {
        id: 1,
        request: replace(&id),
    };
    let (keeper, supervisor) = (sandbox.keeper_pid().cast_signed(), sandbox.supervisor_pid());
    kill(keeper, SIGSTOP);
    call.send(&sandbox);
    let starts = |it: &Body| matches!(it, Body::AttemptStarting(_));
    eventually("the second start is in the journal", || {
        (count(&sandbox, &id, |it| starts(it)) == 2).then_some(())
    });
    kill(supervisor, 9);
    kill(keeper, SIGCONT);
    let answered = session_of(call.send_again(&sandbox, known));
    assert_eq!(answered.attempts().len(), 2);
    let ended = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&ended), ExitStatus::Code(0));
    assert_eq!(count(&sandbox, &id, |it| starts(it)), 2);
}

// Whoever asked heard "not known", or the program heard the signal twice.
#[test]
fn signals_and_sizes_that_come_again_are_answered_and_told_once() {
    let sandbox = Sandbox::launch();
    let script = "trap 'echo heard' USR1; echo up; while :; do read line; done";
    let id = sandbox.create(on_terminal(sh(script)));
    sandbox.wait_for_output(&id, Stream::Pty, "up");
    let known = sandbox.session(&id).last_seq();
    let expected = Some(attempt_of(&id, 1));
    let signal = Call {
        id: 1,
        request: Request::Signal {
            session: id.clone(),
            expected: expected.clone(),
            signal: 10,
        },
    };
    let resize = Call {
        id: 2,
        request: Request::Resize {
            session: id.clone(),
            expected,
            rows: 50,
            cols: 132,
        },
    };
    signal.send(&sandbox);
    sandbox.wait_for_output(&id, Stream::Pty, "heard");
    resize.send(&sandbox);
    let is_told = |it: &Body| matches!(it, Body::SignalSent { .. } | Body::TerminalResized { .. });
    eventually("both are in the journal", || {
        (count(&sandbox, &id, |it| is_told(it)) == 2).then_some(())
    });
    sandbox.kill_supervisor();
    for call in [&signal, &resize] {
        assert_eq!(call.send_again(&sandbox, known), Outcome::Done);
    }
    assert_eq!(count(&sandbox, &id, |it| is_told(it)), 2);
}

#[test]
fn a_call_that_never_arrived_is_carried_out_when_it_comes_again() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    let known = sandbox.session(&id).last_seq();
    sandbox.kill_supervisor();
    let stop = Call {
        id: 1,
        request: set(&id, DesiredState::Stopped),
    };
    let stopped = session_of(stop.send_again(&sandbox, known));
    assert_eq!(stopped.phase(), Phase::Stopped);
}

#[test]
fn a_call_that_nobody_remembers_is_not_carried_out_again() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    let known = sandbox.session(&id).last_seq();
    let signal = |id_of: u8| Call {
        id: id_of,
        request: Request::Signal {
            session: id.clone(),
            expected: None,
            signal: 18,
        },
    };
    let calls = u8::try_from(CALLS_KEPT_MAX).unwrap() + 1;
    for number in 0..calls {
        signal(number).send(&sandbox);
        eventually("it is in the journal", || {
            let sent = count(&sandbox, &id, |it| matches!(it, Body::SignalSent { .. }));
            (sent == usize::from(number) + 1).then_some(())
        });
    }
    sandbox.kill_supervisor();
    assert_eq!(signal(0).send_again(&sandbox, known), Outcome::Forgotten);
    assert_eq!(signal(1).send_again(&sandbox, known), Outcome::Done);
    let sent = count(&sandbox, &id, |it| matches!(it, Body::SignalSent { .. }));
    assert_eq!(sent, usize::from(calls));
}

#[test]
fn the_next_runtime_knows_the_calls_of_the_one_before() {
    let mut sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["sleep", "600"]));
    let known = sandbox.session(&id).last_seq();
    let call = Call {
        id: 1,
        request: replace(&id),
    };
    call.send(&sandbox);
    let second = eventually("the second attempt", || {
        let session = sandbox.session(&id);
        let is_second = session.attempts().len() == 2 && session.phase() == Phase::Running;
        is_second.then_some(session)
    });
    sandbox.call(&Request::Release);
    eventually("the runtime ends", || {
        (!crate::supervised::is_alive(sandbox.keeper_pid())).then_some(())
    });
    sandbox.replace();
    let session = session_of(call.send_again(&sandbox, known));
    assert_eq!(session.spec_version(), second.spec_version());
    let replaced = |it: &&Body| **it == Body::AttemptStopping(StopReason::AttemptReplaced);
    assert_eq!(count(&sandbox, &id, replaced), 1);
}
