//! The workload stands still and goes on: same processes, same bytes, no CPU meanwhile.
use std::{fs, time::Duration};

use crate::supervised::{
    Sandbox, argv, eventually, is_alive, on_terminal, pause, sh, since, status,
};
use outlive_api::agent::{Health, Outcome, Request};
use outlive_core::{
    event::{Body, ExitStatus, Stream},
    id::SessionId,
    session::{Phase, Rejection, Session},
    spec::DesiredState,
};

/// Counts for ever, one line a number.
const COUNT: &str = "i=0; while :; do i=$((i+1)); echo $i; done";

impl Sandbox {
    pub(crate) fn freeze(&self) {
        assert_eq!(self.call(&Request::Freeze), Outcome::Done, "{}", self.log());
    }

    pub(crate) fn thaw(&self) {
        assert_eq!(self.call(&Request::Thaw), Outcome::Done, "{}", self.log());
    }

    fn health(&self) -> Health {
        match self.call(&Request::Health) {
            Outcome::Health(health) => health,
            other => panic!("{other:?}"),
        }
    }

    fn pid(&self, id: &SessionId) -> u32 {
        self.session(id).attempt().unwrap().pid.unwrap()
    }

    fn count(&self, id: &SessionId, what: &Body) -> usize {
        self.facts(id).iter().filter(|it| *it == what).count()
    }

    /// Waits until the session wrote more than it has now.
    fn wait_for_more(&self, id: &SessionId) {
        let from = self.session(id).last_seq();
        eventually("more output", || {
            (self.session(id).last_seq() > from + 2).then_some(())
        });
    }

    /// Everything that a server can see of all sessions.
    fn everything(&self) -> Outcome {
        self.call(&Request::List)
    }
}

/// How often a process was given a CPU.
fn turns_of(pid: u32) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status
        .lines()
        .filter(|line| line.contains("ctxt_switches"))
        .map(str::to_owned)
        .collect()
}

/// Works until this thread has used so much CPU: as long, whoever wants a CPU gets a turn.
fn work(span: Duration) {
    let used = || {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(
            used.tv_sec.cast_unsigned(),
            u32::try_from(used.tv_nsec).unwrap(),
        )
    };
    let until = used() + span;
    while used() < until {
        std::hint::spin_loop();
    }
}

/// Counting, from 1 on, and nothing else.
fn check_count(output: &[u8], newline: &str) {
    let text = String::from_utf8_lossy(output);
    let mut rest = &*text;
    let mut number = 0_u32;
    while !rest.is_empty() {
        number += 1;
        let line = format!("{number}{newline}");
        let Some(after) = rest.strip_prefix(&line) else {
            // The kill may have come in the middle of the last line.
            assert!(line.starts_with(rest), "{number}: {:?}", rest.get(..20));
            break;
        };
        rest = after;
    }
    assert!(number > 1);
}

fn stop(sandbox: &Sandbox, id: &SessionId) -> Session {
    sandbox.set_desired(id, DesiredState::Stopped);
    sandbox.wait_for(id, &[Phase::Stopped])
}

#[test]
fn floods_go_on_where_they_stood_still_byte_by_byte() {
    freeze_floods(&Sandbox::launch());
}

fn freeze_floods(sandbox: &Sandbox) {
    let mut spec = sh(COUNT);
    spec.event_retention.max_bytes = Some(1 << 30);
    let pipe = sandbox.create(spec.clone());
    let terminal = sandbox.create(on_terminal(spec));
    let pids = [sandbox.pid(&pipe), sandbox.pid(&terminal)];
    for _ in 0..25 {
        sandbox.wait_for_more(&pipe);
        sandbox.wait_for_more(&terminal);
        sandbox.freeze();
        let before = sandbox.everything();
        work(Duration::from_millis(5));
        assert_eq!(sandbox.everything(), before);
        sandbox.thaw();
    }
    assert_eq!([sandbox.pid(&pipe), sandbox.pid(&terminal)], pids);
    for (id, stream, newline) in [
        (&pipe, Stream::Stdout, "\n"),
        (&terminal, Stream::Pty, "\r\n"),
    ] {
        assert_eq!(stop(sandbox, id).attempts().len(), 1);
        check_count(&sandbox.output(id, stream), newline);
        assert_eq!(sandbox.count(id, &Body::SessionPaused), 25);
        assert_eq!(sandbox.count(id, &Body::SessionResumed), 25);
    }
}

#[test]
fn what_is_frozen_gets_no_cpu() {
    no_cpu(&Sandbox::launch());
}

fn no_cpu(sandbox: &Sandbox) {
    // A shell that starts programs all the time, and one that spins.
    let forking = sandbox.create(sh("while :; do (echo a; true) | cat; done"));
    let spinning = sandbox.create(sh("while :; do :; done"));
    sandbox.wait_for_more(&forking);
    sandbox.freeze();
    let pids = [sandbox.pid(&forking), sandbox.pid(&spinning)];
    let before = pids.map(turns_of);
    let sessions = sandbox.everything();
    work(Duration::from_millis(100));
    assert_eq!(pids.map(turns_of), before);
    assert_eq!(sandbox.everything(), sessions);
    sandbox.thaw();
    sandbox.wait_for_more(&forking);
    eventually("it runs", || (turns_of(pids[1]) != before[1]).then_some(()));
}

// case A1, at the agent: after each thaw large and small answers come, all of them and at once
// case S81, at the agent
#[test]
fn answers_of_all_sizes_come_after_every_thaw() {
    let sandbox = Sandbox::launch();
    let script = "while read line; do case $line in \
        BIG) head -c 8000 /dev/zero | tr '\\0' b; echo;; \
        *) echo 012345678;; esac; done";
    let id = sandbox.create(sh(script));
    let answer = "b".repeat(8000) + "\n012345678\n012345678\n012345678\n";
    for cycle in 0..20 {
        sandbox.freeze();
        assert_eq!(
            sandbox.write(&id, "early", b"s\n"),
            Outcome::Rejected(Rejection::Frozen)
        );
        sandbox.thaw();
        let from = outlive_agent::sys::boot_clock();
        for (part, line) in ["BIG\n", "s\n", "s\n", "s\n"].iter().enumerate() {
            let input = format!("{cycle}-{part}");
            let outcome = sandbox.write(&id, &input, line.as_bytes());
            assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
        }
        let whole = answer.repeat(cycle + 1);
        eventually("all answers", || {
            let output = sandbox.output(&id, Stream::Stdout);
            (output.len() >= whole.len()).then(|| assert!(output == whole.as_bytes()))
        });
        assert!(since(from) < Duration::from_secs(2), "cycle {cycle}");
    }
}

// case S82, at the agent
#[test]
fn the_list_while_frozen_is_the_list_before() {
    let sandbox = Sandbox::launch();
    let done = sandbox.create(argv(&["true"]));
    sandbox.wait_for(&done, &[Phase::Exited]);
    for spec in [argv(&["cat"]), on_terminal(argv(&["cat"]))] {
        sandbox.create(spec);
    }
    let facts = |session: &Session| {
        (
            session.id().clone(),
            session.attempts().to_vec(),
            session.last_activity_at(),
            session.spec().clone(),
        )
    };
    let before: Vec<_> = sandbox.list().iter().map(facts).collect();
    sandbox.freeze();
    let list = sandbox.list();
    assert_eq!(list.iter().map(facts).collect::<Vec<_>>(), before);
    let phases: Vec<_> = list.iter().map(Session::phase).collect();
    assert_eq!(phases, [Phase::Exited, Phase::Paused, Phase::Paused]);
    sandbox.thaw();
    let list = sandbox.list();
    assert_eq!(list.iter().map(facts).collect::<Vec<_>>(), before);
}

#[test]
fn a_supervisor_killed_while_frozen_is_followed_by_one_that_does_not_thaw() {
    outlives_supervisors(&Sandbox::launch());
}

fn outlives_supervisors(sandbox: &Sandbox) {
    let id = sandbox.create(sh("read go; echo went $go; exit 7"));
    let pid = sandbox.pid(&id);
    assert!(!sandbox.link().frozen);
    sandbox.freeze();
    for _ in 0..3 {
        sandbox.kill_supervisor();
        assert!(sandbox.link().frozen);
        assert_eq!(sandbox.session(&id).phase(), Phase::Paused);
        assert_eq!(
            sandbox.write(&id, "go", b"on\n"),
            Outcome::Rejected(Rejection::Frozen)
        );
        sandbox.freeze();
    }
    assert_eq!(sandbox.count(&id, &Body::SessionPaused), 1);
    sandbox.thaw();
    assert!(!sandbox.link().frozen);
    assert_eq!(sandbox.pid(&id), pid);
    assert!(matches!(
        sandbox.write(&id, "go", b"on\n"),
        Outcome::Written { .. }
    ));
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(7));
    assert_eq!(sandbox.output(&id, Stream::Stdout), b"went on\n");
}

#[test]
fn supervisors_killed_anywhere_in_a_freeze_or_a_thaw_lose_nothing() {
    let sandbox = Sandbox::launch();
    let mut spec = sh(COUNT);
    spec.event_retention.max_bytes = Some(1 << 30);
    let ids: Vec<_> = (0..4).map(|_| sandbox.create(spec.clone())).collect();
    let pids: Vec<_> = ids.iter().map(|id| sandbox.pid(id)).collect();
    for round in 0..24_u64 {
        let mut link = sandbox.link();
        let asked = link.ask(if round % 2 == 0 {
            Request::Freeze
        } else {
            Request::Thaw
        });
        asked.unwrap();
        // Later in each round: before, in the middle, after.
        pause(Duration::from_micros(round / 2 * 400));
        sandbox.kill_supervisor();
        if round % 2 == 0 {
            sandbox.freeze();
            for id in &ids {
                assert_eq!(sandbox.session(id).phase(), Phase::Paused);
            }
            assert!(sandbox.link().frozen);
        } else {
            sandbox.thaw();
            sandbox.wait_for_more(&ids[0]);
        }
    }
    for (id, pid) in ids.iter().zip(pids) {
        assert_eq!(sandbox.pid(id), pid);
        assert_eq!(stop(&sandbox, id).attempts().len(), 1);
        check_count(&sandbox.output(id, Stream::Stdout), "\n");
        let paused = sandbox.count(id, &Body::SessionPaused);
        assert_eq!(sandbox.count(id, &Body::SessionResumed), paused);
    }
}

#[test]
fn what_is_frozen_can_be_deleted_and_released() {
    let sandbox = Sandbox::launch();
    let deleted = sandbox.create(sh("trap '' TERM; while :; do sleep 1; done"));
    let released = sandbox.create(on_terminal(argv(&["cat"])));
    let pids = [sandbox.pid(&deleted), sandbox.pid(&released)];
    sandbox.freeze();
    sandbox.delete(&deleted);
    assert!(!is_alive(pids[0]));
    let keeper = sandbox.keeper_pid();
    let outcome = sandbox.link().call(Request::Release).unwrap();
    assert_eq!(outcome, Outcome::Done);
    eventually("the keeper leaves", || (!is_alive(keeper)).then_some(()));
    assert!(!is_alive(pids[1]));
    assert_eq!(sandbox.count(&released, &Body::SessionPaused), 1);
}

#[test]
fn a_deletion_under_way_ends_with_a_freeze() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(sh("trap '' TERM; echo up; while :; do sleep 1; done"));
    eventually("it heeds no TERM", || {
        (sandbox.output(&id, Stream::Stdout) == b"up\n").then_some(())
    });
    let pid = sandbox.pid(&id);
    let mut link = sandbox.link();
    link.ask(Request::Delete(id.clone())).unwrap();
    eventually("it is asked to end", || {
        sandbox.session(&id).stopping().map(drop)
    });
    sandbox.freeze();
    assert_eq!(link.answer().unwrap().outcome, Outcome::Done);
    assert!(!is_alive(pid));
}

#[test]
fn a_keeper_killed_while_frozen_takes_the_processes_along() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    let pid = sandbox.pid(&id);
    sandbox.freeze();
    crate::supervised::kill(sandbox.keeper_pid().cast_signed(), 9);
    eventually("the process goes", || (!is_alive(pid)).then_some(()));
}

#[test]
fn a_hundred_sessions_that_only_stand_still_take_no_sync() {
    let sandbox = Sandbox::launch();
    for _ in 0..100 {
        sandbox.create(argv(&["cat"]));
    }
    sandbox.freeze();
    let before = sandbox.health().syncs;
    sandbox.thaw();
    sandbox.freeze();
    assert_eq!(sandbox.health().syncs, before);
}

#[test]
fn a_session_that_ended_leaves_its_descendants_their_output_over_a_freeze() {
    let sandbox = Sandbox::launch();
    // The leader ended; its child holds the output, and is silent for long because it stands
    // still.
    let id = sandbox.create(sh("(sleep 0.1; echo late) & exit 3"));
    sandbox.freeze();
    pause(Duration::from_millis(400));
    sandbox.thaw();
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(3));
    assert_eq!(sandbox.output(&id, Stream::Stdout), b"late\n");
}

/// What takes root. The test command tells the rest as an ordinary user.
#[cfg(feature = "privileged")]
mod as_root {
    use super::*;

    /// The one process whose last word is this.
    fn process_of(mark: &str) -> u32 {
        eventually(mark, || {
            let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
                let pid = entry.unwrap().file_name().to_str()?.parse::<u32>().ok()?;
                let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let words = String::from_utf8_lossy(&words).into_owned();
                words.ends_with(&format!("{mark}\0")).then_some(pid)
            });
            match pids.collect::<Vec<_>>().as_slice() {
                [pid] => Some(*pid),
                _ => None,
            }
        })
    }

    #[test]
    fn floods_in_namespaces_go_on_where_they_stood_still() {
        freeze_floods(&Sandbox::launch_apart());
    }

    #[test]
    fn floods_without_control_groups_go_on_where_they_stood_still() {
        let sandbox = Sandbox::launch_without_groups();
        assert!(sandbox.health().freezes_by_signal);
        freeze_floods(&sandbox);
    }

    #[test]
    fn what_is_frozen_without_control_groups_gets_no_cpu() {
        no_cpu(&Sandbox::launch_without_groups());
    }

    // Where no control group held a daemon, a freeze reached its leader's session and process group
    // only, and the daemon went on.
    #[test]
    fn daemons_without_control_groups_stand_still_too() {
        let sandboxes = [
            Sandbox::launch_without_groups(),
            Sandbox::launch_apart_without_groups(),
        ];
        for (number, sandbox) in sandboxes.into_iter().enumerate() {
            assert!(sandbox.health().freezes_by_signal);
            let mark = format!("daemon-{}-{number}", std::process::id());
            // Orphan of a subshell that ended, in a session of its own, with a child in another.
            let id = sandbox.create(sh(&format!(
                "(setsid sh -c 'setsid sh -c \"while :; do :; done\" child-of-{mark} & \
                    while :; do (true); done' the-{mark} &); exec sleep 600"
            )));
            let daemons = [
                process_of(&format!("the-{mark}")),
                process_of(&format!("child-of-{mark}")),
            ];
            sandbox.freeze();
            let before = daemons.map(turns_of);
            work(Duration::from_millis(100));
            assert_eq!(daemons.map(turns_of), before);
            sandbox.thaw();
            for (pid, before) in daemons.into_iter().zip(before) {
                eventually("it runs", || (turns_of(pid) != before).then_some(()));
            }
            assert_eq!(sandbox.session(&id).phase(), Phase::Running);
            drop(sandbox);
            for pid in daemons {
                eventually("it ends with its runtime", || {
                    (!is_alive(pid)).then_some(())
                });
            }
        }
    }

    #[test]
    fn a_supervisor_killed_while_frozen_by_signal_is_followed_by_one_that_does_not_thaw() {
        outlives_supervisors(&Sandbox::launch_without_groups());
    }
}
