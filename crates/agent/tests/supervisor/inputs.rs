//! Input, its end, signals and sizes, with real processes.
use std::time::Duration;

use crate::supervised::{
    self, Sandbox, argv, eventually, is_alive, on_terminal, sh, status, write,
};
use outlive_api::agent::{Outcome, Request};
use outlive_core::{
    event::{Body, ExitStatus, Stream},
    session::{EofMode, Phase, Rejection},
    spec::DesiredState,
};

const EOF: Option<EofMode> = Some(EofMode::Character);

fn is_new(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Written {
            duplicate: false,
            applied_unknown: false,
            ..
        }
    )
}

// case S64
#[test]
fn cat_ends_after_data_and_eof() {
    let sandbox = Sandbox::launch();
    for tty in [false, true] {
        let spec = argv(&["cat"]);
        let id = sandbox.create(if tty { on_terminal(spec) } else { spec });
        let from = outlive_agent::sys::boot_clock();
        assert!(is_new(&sandbox.call(&write(&id, "a", b"hi\n", EOF))));
        let session = sandbox.wait_for(&id, &[Phase::Exited]);
        assert!(supervised::since(from) < Duration::from_secs(1));
        assert_eq!(status(&session), ExitStatus::Code(0));
        let (stream, expected): (_, &[u8]) = if tty {
            (Stream::Pty, b"hi\r\nhi\r\n")
        } else {
            (Stream::Stdout, b"hi\n")
        };
        assert_eq!(sandbox.output(&id, stream), expected);
        let late = sandbox.write(&id, "late", b"x");
        assert_eq!(
            late,
            Outcome::Rejected(Rejection::NotRunning {
                phase: Phase::Exited
            })
        );
    }
}

#[test]
fn a_terminal_in_the_middle_of_a_line_takes_two_eofs() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(on_terminal(argv(&["cat"])));
    assert!(is_new(&sandbox.call(&write(&id, "a", b"half", EOF))));
    let session = sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(status(&session), ExitStatus::Code(0));
}

#[test]
fn a_raw_terminal_has_no_eof_but_can_be_hung_up() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(on_terminal(sh("stty raw -echo; echo up; exec cat")));
    sandbox.wait_for_output(&id, Stream::Pty, "up");
    assert_eq!(
        sandbox.call(&write(&id, "a", b"", EOF)),
        Outcome::Rejected(Rejection::RawTerminal)
    );
    assert!(is_new(&sandbox.call(&write(
        &id,
        "b",
        b"",
        Some(EofMode::Hangup)
    ))));
    sandbox.wait_for(&id, &[Phase::Exited]);
}

// case S65
#[test]
fn links_come_and_go_without_an_eof() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    for round in 0..3 {
        drop(sandbox.link());
        let line = format!("{round}\n");
        assert!(is_new(&sandbox.write(
            &id,
            &format!("{round}"),
            line.as_bytes()
        )));
        sandbox.wait_for_output(&id, Stream::Stdout, &line);
    }
    assert!(is_new(&sandbox.call(&write(&id, "end", b"", EOF))));
    assert!(matches!(
        sandbox.call(&write(&id, "after", b"x", None)),
        Outcome::Rejected(Rejection::InputClosed | Rejection::NotRunning { .. })
    ));
    sandbox.wait_for(&id, &[Phase::Exited]);
}

// case C5
#[test]
fn a_retried_write_arrives_once() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    assert!(is_new(&sandbox.write(&id, "one", b"once\n")));
    for _ in 0..3 {
        let again = sandbox.write(&id, "one", b"once\n");
        assert!(matches!(
            again,
            Outcome::Written {
                duplicate: true,
                applied_unknown: false,
                ..
            }
        ));
    }
    let conflict = sandbox.write(&id, "one", b"other\n");
    assert_eq!(conflict, Outcome::Rejected(Rejection::InputConflict));
    assert!(is_new(&sandbox.write(&id, "two", b"twice\n")));
    sandbox.wait_for_output(&id, Stream::Stdout, "twice\n");
    assert_eq!(sandbox.output(&id, Stream::Stdout), b"once\ntwice\n");
    let accepted = sandbox.facts(&id);
    let accepted = accepted
        .iter()
        .filter(|it| matches!(it, Body::InputAccepted { .. }))
        .count();
    assert_eq!(accepted, 2);
}

// case C8
#[test]
fn a_write_that_races_with_the_exit_is_answered() {
    let sandbox = Sandbox::launch();
    for round in 0..40 {
        let id = sandbox.create(sh("head -c1 >/dev/null"));
        assert!(is_new(&sandbox.write(&id, "a", b"x")));
        let second = sandbox.write(&id, "b", b"y");
        assert!(
            is_new(&second) || matches!(second, Outcome::Rejected(Rejection::NotRunning { .. })),
            "round {round}: {second:?}"
        );
        sandbox.wait_for(&id, &[Phase::Exited]);
        sandbox.delete(&id);
    }
}

// case C10
#[test]
fn input_for_a_reader_that_does_not_read_is_bounded() {
    let sandbox = Sandbox::launch();
    let mut spec = argv(&["sleep", "600"]);
    spec.lifecycle.stop_grace_period_seconds = Some(1);
    let id = sandbox.create(spec);
    let mut link = sandbox.link();
    let full = (0..5000).find(|round| {
        let outcome = link
            .call(write(&id, &format!("{round}"), &[b'x'; 64], None))
            .unwrap();
        match outcome {
            Outcome::Written { .. } => false,
            Outcome::Rejected(Rejection::InputBufferFull) => true,
            other => panic!("{other:?}"),
        }
    });
    // The pipe takes some writes, the queue 256 more.
    assert!(full.is_some_and(|count| count > 256), "{full:?}");
    let big = vec![0; 4 * 1024 * 1024];
    let refused = link.call(write(&id, "big", &big, None)).unwrap();
    assert_eq!(refused, Outcome::Rejected(Rejection::InputBufferFull));
    let from = outlive_agent::sys::boot_clock();
    assert_eq!(sandbox.signal(&id, 23), Outcome::Done);
    assert!(supervised::since(from) < Duration::from_millis(200));
    let from = outlive_agent::sys::boot_clock();
    assert_eq!(
        sandbox.set_desired(&id, DesiredState::Stopped).phase(),
        Phase::Stopped
    );
    assert!(supervised::since(from) < Duration::from_millis(900));
}

#[test]
fn an_early_receipt_is_known_after_thousands() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    let mut link = sandbox.link();
    for round in 0..5000 {
        loop {
            let request = write(
                &id,
                &format!("{round}"),
                format!("{round}\n").as_bytes(),
                None,
            );
            match link.call(request).unwrap() {
                Outcome::Written {
                    duplicate: false, ..
                } => break,
                Outcome::Rejected(Rejection::InputBufferFull) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    sandbox.wait_for_output(&id, Stream::Stdout, "4999\n");
    for _ in 0..2 {
        let again = sandbox.write(&id, "0", b"0\n");
        assert!(
            matches!(
                again,
                Outcome::Written {
                    duplicate: true,
                    ..
                }
            ),
            "{again:?}"
        );
        sandbox.kill_supervisor();
    }
    let expected = supervised::lines(0..5000, |round| {
        format!(
            "{round}
"
        )
    });
    assert_eq!(sandbox.output(&id, Stream::Stdout), expected.as_bytes());
}

// case S59
#[test]
fn a_large_paste_into_a_terminal_is_echoed_whole() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(on_terminal(sh("stty -echo; echo up; exec cat")));
    sandbox.wait_for_output(&id, Stream::Pty, "up");
    let line = format!("{}\n", "p".repeat(79));
    let paste = line.repeat(13_000);
    assert!(is_new(&sandbox.call(&write(
        &id,
        "paste",
        paste.as_bytes(),
        EOF
    ))));
    sandbox.wait_for(&id, &[Phase::Exited]);
    let expected = format!("up\r\n{}", format!("{}\r\n", "p".repeat(79)).repeat(13_000));
    assert!(sandbox.output(&id, Stream::Pty) == expected.as_bytes());
}

// case S60
#[test]
fn a_paste_into_a_raw_program_that_writes_twice_as_much_completes() {
    let sandbox = Sandbox::launch();
    let script = "stty raw -echo; echo up; head -c 262144 | sed 's/a/aa/g'";
    let id = sandbox.create(on_terminal(sh(script)));
    sandbox.wait_for_output(&id, Stream::Pty, "up");
    assert!(is_new(&sandbox.write(&id, "paste", &vec![b'a'; 262_144])));
    sandbox.wait_for(&id, &[Phase::Exited]);
    let output = sandbox.output(&id, Stream::Pty);
    assert_eq!(
        String::from_utf8(output).unwrap().matches('a').count(),
        524_288
    );
}

// case S62: a pipe takes a line of any length
#[test]
fn a_long_line_passes_a_pipe_whole() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(argv(&["cat"]));
    let line = [vec![b'l'; 8192], vec![b'\n']].concat();
    assert!(is_new(&sandbox.call(&write(&id, "line", &line, EOF))));
    sandbox.wait_for(&id, &[Phase::Exited]);
    assert_eq!(sandbox.output(&id, Stream::Stdout), line);
}

// case S62: a terminal takes 4095 bytes of a line, and the journal says so beforehand
#[test]
fn a_line_that_a_terminal_cuts_is_told_of() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(on_terminal(sh(
        "stty -echo; echo up; head -n 2 | wc -c; stty raw; echo raw; head -c 8192 | wc -c",
    )));
    sandbox.wait_for_output(&id, Stream::Pty, "up");
    let line = |length| [vec![b'l'; length], vec![b'\n']].concat();
    for (input, bytes) in [
        ("fits", line(4095)),
        ("begun", vec![b'l'; 4000]),
        ("cut", line(96)),
    ] {
        assert!(is_new(&sandbox.write(&id, input, &bytes)));
    }
    sandbox.wait_for_output(&id, Stream::Pty, "8192");
    sandbox.wait_for_output(&id, Stream::Pty, "raw");
    assert!(is_new(&sandbox.write(&id, "raw", &vec![b'l'; 8192])));
    sandbox.wait_for(&id, &[Phase::Exited]);
    let told: Vec<_> = sandbox
        .facts(&id)
        .into_iter()
        .filter_map(|body| match body {
            Body::InputAccepted {
                input_id,
                truncated_line,
                ..
            } => Some((input_id, truncated_line)),
            _ => None,
        })
        .collect();
    let told: Vec<_> = told.iter().map(|(id, is)| (id.as_str(), *is)).collect();
    assert_eq!(
        told,
        [
            ("fits", false),
            ("begun", false),
            ("cut", true),
            ("raw", false)
        ]
    );
}

// case S66
#[test]
fn a_slow_reader_gets_everything_and_the_log_stays_small() {
    let sandbox = Sandbox::launch();
    let script = "while head -c 262144 | wc -c | grep -qv '^0$'; do :; done; echo done";
    let id = sandbox.create(sh(&format!("exec 3<&0; {script}")));
    let mut link = sandbox.link();
    let block = vec![b's'; 1024 * 1024];
    for round in 0..10 {
        eventually("room", || {
            match link
                .call(write(&id, &format!("{round}"), &block, None))
                .unwrap()
            {
                Outcome::Written { .. } => Some(()),
                Outcome::Rejected(Rejection::InputBufferFull) => None,
                other => panic!("{other:?}"),
            }
        });
    }
    assert!(is_new(&sandbox.call(&write(&id, "end", b"", EOF))));
    sandbox.wait_for_output(&id, Stream::Stdout, "done");
    assert!(sandbox.log().len() < 4096, "{}", sandbox.log());
}

// case S67
#[test]
fn a_terminals_interrupt_reaches_the_foreground_only() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(on_terminal(argv(&["bash", "--norc", "-i"])));
    assert!(is_new(&sandbox.write(
        &id,
        "a",
        b"sleep 100; echo after-$?\n"
    )));
    let sleeper = eventually("a sleeper in the foreground", || {
        let shell = sandbox.session(&id).attempt()?.pid?;
        let sleeper = u32::try_from(*supervised::children(shell).first()?).ok()?;
        let name = std::fs::read_to_string(format!("/proc/{sleeper}/comm")).ok()?;
        (name.trim() == "sleep").then_some(sleeper)
    });
    assert_eq!(sandbox.signal(&id, 2), Outcome::Done);
    eventually("the sleeper is gone", || (!is_alive(sleeper)).then_some(()));
    assert!(is_new(&sandbox.write(&id, "b", b"echo still-$((40+2))\n")));
    sandbox.wait_for_output(&id, Stream::Pty, "still-42");
    assert_eq!(sandbox.session(&id).phase(), Phase::Running);
}

// case D2
#[test]
fn a_size_that_comes_with_the_start_is_the_size() {
    let sandbox = Sandbox::launch();
    for _ in 0..10 {
        let mut link = sandbox.link();
        let id = supervised::new_id();
        let spec = on_terminal(sh("sleep 0.1; stty size"));
        let created = Box::new(supervised::created(spec));
        link.ask(Request::Create {
            session: id.clone(),
            created,
        })
        .unwrap();
        let resize = Request::Resize {
            session: id.clone(),
            expected: None,
            rows: 43,
            cols: 132,
        };
        link.ask(resize).unwrap();
        for _ in 0..2 {
            let outcome = link.answer().unwrap().outcome;
            assert!(
                matches!(outcome, Outcome::Session(_) | Outcome::Done),
                "{outcome:?}"
            );
        }
        sandbox.wait_for(&id, &[Phase::Exited]);
        assert_eq!(sandbox.output(&id, Stream::Pty), b"43 132\r\n");
    }
}

#[test]
fn input_for_a_program_that_closed_its_end_is_refused() {
    let sandbox = Sandbox::launch();
    let id = sandbox.create(sh("exec 0<&-; echo closed; sleep 100"));
    sandbox.wait_for_output(&id, Stream::Stdout, "closed\n");
    // The first may still be on its way when the end is seen to be closed.
    sandbox.write(&id, "first", b"x");
    let second = sandbox.write(&id, "second", b"x");
    assert_eq!(second, Outcome::Rejected(Rejection::InputClosed));
}
