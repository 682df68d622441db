//! The supervisor dies in the middle of everything, and nothing is lost.
use std::{os::unix::fs::MetadataExt, time::Duration};

use crate::supervised::{
    self, Sandbox, argv, children, eventually, is_alive, kill, new_id, on_terminal, pause, sh,
    status,
};
use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    event::{Body, ExitStatus, Stream},
    session::Phase,
    spec::{DesiredState, RestartPolicy},
};

/// Numbers that are the same in every run and different in every test.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % below
    }
}

fn check_seqs(sandbox: &Sandbox, id: &outlive_core::id::SessionId) {
    let records = sandbox.records(id);
    let first = records.first().map_or(1, |record| record.seq);
    let seqs: Vec<_> = records.iter().map(|record| record.seq).collect();
    let expected: Vec<_> = (first..first + seqs.len() as u64).collect();
    assert!(seqs == expected, "a number is missing or repeated");
}

/// Kills the supervisor; the next one waits for the lock that this answers.
fn take_the_place_of_the_supervisor(sandbox: &Sandbox) -> std::fs::File {
    let lock = std::fs::File::open(sandbox.state().join("supervisor.lock")).unwrap();
    let inode = format!(":{} ", lock.metadata().unwrap().ino());
    let waiting = std::thread::spawn(move || {
        lock.lock().unwrap();
        lock
    });
    eventually("we are next in line", || {
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let ours = |line: &str| line.contains("-> FLOCK") && line.contains(&inode);
        locks.lines().any(ours).then_some(())
    });
    // Else the next one may be first: whoever waits for a lock is woken, and no more.
    let keeper = sandbox.keeper_pid().cast_signed();
    let supervisor = sandbox.supervisor_pid();
    kill(keeper, 19);
    kill(supervisor, 9);
    let lock = waiting.join().unwrap();
    kill(keeper, 18);
    lock
}

#[test]
fn a_flood_through_pipes_survives_kills_byte_by_byte() {
    flood("seq 1 3000000; exit 7", false, 25, 12);
}

#[test]
fn a_flood_through_a_terminal_survives_kills_byte_by_byte() {
    flood("seq 1 300000; exit 7", true, 12, 12);
}

fn flood(script: &str, tty: bool, kills: u64, seed: u64) {
    flood_in(&Sandbox::launch(), script, tty, kills, seed);
}

fn flood_in(sandbox: &Sandbox, script: &str, tty: bool, kills: u64, seed: u64) {
    let script = format!("read go; {script}");
    let mut spec = sh(&script);
    spec.event_retention.max_bytes = Some(1 << 30);
    let spec = if tty { on_terminal(spec) } else { spec };
    let id = sandbox.create(spec);
    let pid = sandbox.session(&id).attempt().unwrap().pid;
    assert!(matches!(
        sandbox.write(&id, "go", b"\n"),
        Outcome::Written { .. }
    ));
    let mut dice = Dice(seed);
    let mut killed = 0;
    while killed < kills && sandbox.session(&id).phase() == Phase::Running {
        pause(Duration::from_millis(1 + dice.roll(40)));
        sandbox.kill_supervisor();
        killed += 1;
    }
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(7));
    assert_eq!(session.attempts().len(), 1);
    assert_eq!(session.attempt().unwrap().pid, pid);
    let last: u32 = script
        .split([' ', ';'])
        .filter_map(|word| word.parse().ok())
        .max()
        .unwrap();
    let newline = if tty { "\r\n" } else { "\n" };
    let mut expected: String = if tty {
        "\r\n".to_owned()
    } else {
        String::new()
    };
    for number in 1..=last {
        expected.push_str(&number.to_string());
        expected.push_str(newline);
    }
    let stream = if tty { Stream::Pty } else { Stream::Stdout };
    let output = sandbox.output(&id, stream);
    assert_eq!(output.len(), expected.len());
    assert!(output == expected.as_bytes(), "the bytes differ");
    check_seqs(sandbox, &id);
    assert!(killed > 0);
}

// case S15
#[test]
fn an_exit_while_nobody_watches_is_recorded_once() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(sh("read line; exit 5"));
    let pid = sandbox.session(&id).attempt().unwrap().pid.unwrap();
    let supervisor = sandbox.supervisor_pid();
    kill(supervisor, 19);
    kill(pid.cast_signed(), 15);
    eventually("the child is a zombie", || (!is_alive(pid)).then_some(()));
    kill(supervisor, 9);
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(
        status(&session),
        ExitStatus::Signal {
            signal: 15,
            core: false
        }
    );
    let exits = sandbox.facts(&id);
    let exits = exits
        .iter()
        .filter(|it| matches!(it, Body::AttemptExited(_)))
        .count();
    assert_eq!(exits, 1);
    eventually("no stray processes", || {
        (children(sandbox.keeper_pid()).len() == 1).then_some(())
    });
}

// A program ended while no supervisor lived, and its keeper was killed before one came. The next
// runtime told that the end is unknown, and ran the program again.
#[test]
fn an_exit_that_only_the_keeper_saw_outlives_the_keeper() {
    only_the_keeper_sees_an_exit(Sandbox::launch());
}

fn only_the_keeper_sees_an_exit(mut sandbox: Sandbox) {
    let id = sandbox.create(argv(&["sleep", "600"]));
    let pid = sandbox.session(&id).attempt().unwrap().pid.unwrap();
    let (exits, keeper) = (sandbox.state().join("exits"), sandbox.keeper_pid());
    let lock = take_the_place_of_the_supervisor(&sandbox);
    kill(pid.cast_signed(), 15);
    eventually("the keeper notes the end", || {
        (std::fs::metadata(&exits).unwrap().len() > 0).then_some(())
    });
    let waiting = children(keeper);
    for pid in [keeper.cast_signed()].iter().chain(&waiting) {
        kill(*pid, 9);
    }
    drop(lock);
    sandbox.replace();
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(session.attempts().len(), 1);
    let killed = ExitStatus::Signal {
        signal: 15,
        core: false,
    };
    assert_eq!(status(&session), killed);
    eventually("what is journalled is forgotten", || {
        (std::fs::metadata(&exits).unwrap().len() == 0).then_some(())
    });
}

// case S16
#[test]
fn a_stop_that_a_supervisor_began_is_completed_by_the_next() {
    let sandbox = Sandbox::launch();
    let mut spec = sh("trap '' TERM; echo up; while :; do sleep 0.05; done");
    spec.lifecycle.stop_grace_period_seconds = Some(2);
    let id = sandbox.create(spec);
    sandbox.wait_for_output(&id, Stream::Stdout, "up");
    let mut link = sandbox.link();
    link.ask(Request::SetDesiredState {
        session: id.clone(),
        state: DesiredState::Stopped,
    })
    .unwrap();
    pause(Duration::from_millis(50));
    sandbox.kill_supervisor();
    let session = sandbox.wait_for(&id, &[Phase::Stopped]);
    assert_eq!(
        status(&session),
        ExitStatus::Signal {
            signal: 9,
            core: false
        }
    );
}

// case S20
#[test]
fn output_goes_on_in_the_same_sequence() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    for round in 0..5 {
        let line = format!("line {round}\n");
        let outcome = sandbox.write(&id, &format!("in-{round}"), line.as_bytes());
        assert!(
            matches!(
                outcome,
                Outcome::Written {
                    duplicate: false,
                    ..
                }
            ),
            "{outcome:?}"
        );
        sandbox.wait_for_output(&id, Stream::Stdout, &line);
        sandbox.kill_supervisor();
    }
    check_seqs(&sandbox, &id);
    assert_eq!(sandbox.session(&id).phase(), Phase::Running);
    let expected = supervised::lines(0..5, |round| {
        format!(
            "line {round}
"
        )
    });
    assert_eq!(sandbox.output(&id, Stream::Stdout), expected.as_bytes());
}

// case S23
#[test]
fn one_flood_holds_up_nobody_after_a_crash() {
    let sandbox = Sandbox::launch();
    let mut spec = argv(&["yes"]);
    spec.event_retention.max_bytes = Some(1 << 20);
    sandbox.create(spec);
    let others: Vec<_> = (0..9).map(|_| sandbox.create(argv(&["cat"]))).collect();
    sandbox.kill_supervisor();
    sandbox.link();
    for (index, id) in others.iter().enumerate() {
        let mut link = sandbox.link();
        let from = outlive_agent::sys::boot_clock();
        let request = supervised::write(id, &format!("in-{index}"), b"x\n", None);
        let outcome = link.call(request).unwrap();
        assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
        let took = supervised::since(from);
        assert!(took < Duration::from_millis(200) || index == 0, "{took:?}");
        sandbox.wait_for_output(id, Stream::Stdout, "x");
    }
}

// case S25, scaled: crashes at random with the policy `always`
#[test]
fn a_crash_storm_keeps_pids_and_limits_right() {
    let sandbox = Sandbox::launch();
    let mut dice = Dice(5);
    let ids: Vec<_> = (0..5)
        .map(|_| {
            let mut spec = argv(&["sleep", "600"]);
            spec.lifecycle.restart.policy = Some(RestartPolicy::Always);
            spec.lifecycle.restart.max_restarts = Some(3);
            spec.lifecycle.restart.initial_backoff_ms = Some(20);
            spec.lifecycle.restart.max_backoff_ms = Some(40);
            sandbox.create(spec)
        })
        .collect();
    for round in 0..40_u64 {
        let index = usize::try_from(dice.roll(5)).unwrap();
        let session = sandbox.session(&ids[index]);
        let live = session.live_attempt().and_then(|attempt| attempt.pid);
        assert_ne!(live, Some(0));
        if let Some(pid) = live {
            kill(pid.cast_signed(), 9);
        }
        if round % 8 == 7 {
            sandbox.kill_supervisor();
        }
        pause(Duration::from_millis(20));
    }
    for id in &ids {
        assert!(sandbox.session(id).restart_count() <= 3);
    }
}

#[test]
fn accepted_input_that_waits_for_the_child_survives_the_supervisor() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(sh(
        "read -r go < /tmp/$$.go 2>/dev/null; sleep 0.5; cat | sha256sum",
    ));
    let data: Vec<u8> = (0..400_000_u32).flat_map(u32::to_le_bytes).collect();
    let outcome = sandbox.call(&supervised::write(
        &id,
        "big",
        &data,
        Some(outlive_core::session::EofMode::Character),
    ));
    assert!(
        matches!(
            outcome,
            Outcome::Written {
                duplicate: false,
                ..
            }
        ),
        "{outcome:?}"
    );
    for _ in 0..3 {
        sandbox.kill_supervisor();
        sandbox.link();
    }
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(0));
    let reference = sandbox.create(sh("cat | sha256sum"));
    let eof = Some(outlive_core::session::EofMode::Character);
    sandbox.call(&supervised::write(&reference, "big", &data, eof));
    sandbox.wait_for(&reference, &[Phase::Exited]);
    let stdout = |id| sandbox.output(id, Stream::Stdout);
    assert_eq!(stdout(&id), stdout(&reference));
    assert!(!stdout(&id).is_empty());
}

#[test]
fn a_creation_that_was_answered_is_there_and_its_key_too() {
    let sandbox = Sandbox::launch();
    let mut created = supervised::created(argv(&["cat"]));
    created.idempotency_key = Some("key".to_owned());
    let first = sandbox.create_as(created.clone());
    sandbox.kill_supervisor();
    let request = Request::Create {
        session: new_id(),
        created: Box::new(created),
    };
    match sandbox.call(&request) {
        Outcome::Existing(view) => {
            let session = outlive_core::session::Session::restore(&view.checkpoint).unwrap();
            assert_eq!(session.id(), &first);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(sandbox.list().len(), 1);
}

// Every input but those that output or anything else followed was unsure after a crash, however
// long ago it had arrived.
#[test]
fn an_input_that_arrived_is_sure_after_every_crash() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["sleep", "600"]));
    for input in ["first", "second"] {
        let outcome = sandbox.write(&id, input, b"x\n");
        assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
        sandbox.kill_supervisor();
        for input in [input, "first"] {
            let outcome = sandbox.write(&id, input, b"x\n");
            let is_sure = matches!(
                outcome,
                Outcome::Written {
                    duplicate: true,
                    applied_unknown: false,
                    ..
                }
            );
            assert!(is_sure, "{input}: {outcome:?}");
        }
    }
}

// Whether an input arrived is unsure when its supervisor was killed behind its receipt. A second
// crash made all but the newest of them sure again.
#[test]
fn unsure_inputs_stay_unsure_over_every_crash() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["sleep", "600"]));
    let inputs = ["first", "second", "third"];
    let note = sandbox.state().join("sessions").join(id.as_str());
    for input in inputs {
        let outcome = sandbox.write(&id, input, b"x\n");
        assert!(matches!(outcome, Outcome::Written { .. }), "{outcome:?}");
        // As a kill leaves it that comes between the receipt and the bytes.
        let lock = take_the_place_of_the_supervisor(&sandbox);
        std::fs::remove_file(note.join("delivered")).unwrap();
        drop(lock);
    }
    for input in inputs {
        let outcome = sandbox.write(&id, input, b"x\n");
        let is_unsure = matches!(
            outcome,
            Outcome::Written {
                duplicate: true,
                applied_unknown: true,
                ..
            }
        );
        assert!(is_unsure, "{input}: {outcome:?}");
    }
    // The next attempt has no such inputs, and the note of them is gone.
    assert!(note.join("unsettled").exists());
    sandbox.call(&Request::SetDesiredState {
        session: id.clone(),
        state: DesiredState::Stopped,
    });
    sandbox.wait_for(&id, &[Phase::Stopped]);
    assert!(!note.join("unsettled").exists());
}

/// What takes root. The test command tells the rest as an ordinary user.
#[cfg(feature = "privileged")]
mod as_root {
    use super::*;

    #[test]
    fn floods_in_namespaces_survive_kills_byte_by_byte() {
        for tty in [false, true] {
            let sandbox = Sandbox::launch_apart();
            let lines = if tty { 200_000 } else { 2_000_000 };
            flood_in(&sandbox, &format!("seq 1 {lines}; exit 7"), tty, 15, 3);
        }
    }

    // The keeper of two users began without what the one before had seen.
    #[test]
    fn an_exit_that_only_the_keeper_of_two_users_saw_outlives_it() {
        only_the_keeper_sees_an_exit(Sandbox::launch_as_two_users());
    }

    // case S13 at the supervisor, in namespaces: exact codes while orphans die
    #[test]
    fn codes_are_exact_in_namespaces() {
        let sandbox = Sandbox::launch_apart();
        let ids: Vec<_> = (1..=40)
            .map(|code| {
                sandbox.create(sh(&format!("(sleep 0.05 &) ; (sleep 0.01 &); exit {code}")))
            })
            .collect();
        for (code, id) in (1..=40).zip(&ids) {
            let session = sandbox.wait_for(id, &[Phase::Exited]);
            assert_eq!(status(&session), ExitStatus::Code(code));
            if code % 10 == 0 {
                sandbox.kill_supervisor();
            }
        }
    }
}
