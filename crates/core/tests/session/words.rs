//! The words of scripts: inputs, specifications, ends, durations.

use std::time::Duration;

use outlive_core::{
    event::{AttemptEnd, ExitStatus, Oom},
    id::{AttemptId, Generation},
    session::{CallId, CallMark, EofMode, Input, ReplaceCurrent},
    spec::{
        Descendants, DesiredState, IoMode, RawSpec, ReadinessKind, RestartPolicy, RuntimeRecovery,
        SessionSpec,
    },
};

use crate::world::session_id;

/// `a:` before an input is the call `a`; `a@4:` is the same call sent again by someone who knew of
/// event 4 when it was first sent.
pub(crate) fn parse_mark(head: &str) -> Option<CallMark> {
    let head = head.strip_suffix(':')?;
    let (name, again_after) = match head.split_once('@') {
        Some((name, seq)) => (name, Some(seq.parse().expect("@NUMBER"))),
        None => (head, None),
    };
    let mut id = [0; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    Some(CallMark {
        id: CallId(id),
        again_after,
    })
}

pub(crate) fn parse_input(head: &str, words: &str) -> Input {
    // `signal@1 15` means attempt 1.
    let (head, expected) = match head.split_once('@') {
        Some((head, number)) => (
            head,
            Some(AttemptId::derive(
                &session_id(),
                number.parse().expect("@NUMBER"),
            )),
        ),
        None => (head, None),
    };
    match head {
        "update" => Input::Update(Box::new(parse_spec(words).0)),
        "start" => Input::SetDesiredState(DesiredState::Running),
        "stop" => Input::SetDesiredState(DesiredState::Stopped),
        "attempt" => Input::NewAttempt(ReplaceCurrent::No),
        "replace" => Input::NewAttempt(ReplaceCurrent::Yes),
        "write" => write(words, expected, 3, None),
        "eof" => write(words, expected, 0, Some(EofMode::Character)),
        "hangup" => write(words, expected, 0, Some(EofMode::Hangup)),
        "signal" => Input::Signal {
            expected,
            signal: words.parse().expect("signal NUMBER"),
        },
        "resize" => {
            let (rows, cols) = words.split_once('x').expect("resize ROWSxCOLS");
            let size = |text: &str| text.parse().expect("a number");
            Input::Resize {
                expected,
                rows: size(rows),
                cols: size(cols),
            }
        }
        "delete" => Input::Delete,
        "started" => Input::Started { pid: 100 },
        "start_failed" => Input::StartFailed {
            message: "no such file".to_owned(),
        },
        "matched" => Input::OutputMatched,
        "exit" => Input::Exited {
            end: parse_end(words),
        },
        "deadline" => Input::DeadlinePassed,
        "frozen" => Input::Frozen,
        "thawed" => Input::Thawed,
        "released" => Input::Released,
        "runtime" => Input::RuntimeStarted(Generation(words.parse().expect("runtime NUMBER"))),
        _ => panic!("no such step: {head}"),
    }
}

fn write(id: &str, expected: Option<AttemptId>, bytes: u32, eof: Option<EofMode>) -> Input {
    Input::Write {
        expected,
        input_id: id.to_owned(),
        digest: 7,
        bytes,
        eof,
        truncated_line: false,
    }
}

/// `0`, `1`, `sig15`, `oom`, `unknown`.
pub(crate) fn parse_end(text: &str) -> AttemptEnd {
    let (status, oom) = match (text, text.strip_prefix("sig")) {
        ("unknown", _) => (ExitStatus::Unknown, Oom::Unknown),
        ("oom", _) => (
            ExitStatus::Signal {
                signal: 9,
                core: false,
            },
            Oom::Yes,
        ),
        (_, Some(signal)) => {
            let signal = signal.parse().expect("sigNUMBER");
            (
                ExitStatus::Signal {
                    signal,
                    core: false,
                },
                Oom::No,
            )
        }
        (code, None) => (ExitStatus::Code(code.parse().expect("exit CODE")), Oom::No),
    };
    AttemptEnd::Exited {
        status,
        stop: None,
        oom,
        rusage: None,
    }
}

/// `250ms`, `3s`, `2h`.
pub(crate) fn parse_duration(text: &str) -> Duration {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text[..text.len() - unit.len()].parse().expect("a duration");
    match unit {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "h" => Duration::from_secs(number * 3600),
        _ => panic!("no such unit: {unit}"),
    }
}

/// Words of a specification, as in `policy=always max=3 pty idle=5`, and the handle.
pub(crate) fn parse_spec(words: &str) -> (SessionSpec, Option<String>) {
    let mut raw = RawSpec {
        command: Some(vec!["program".to_owned()]),
        ..RawSpec::default()
    };
    let mut handle = None;
    for word in words.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || Some(value.parse().expect("a number"));
        let lifecycle = &mut raw.lifecycle;
        match key {
            "handle" => handle = Some(value.to_owned()),
            "name" => raw.name = Some(value.to_owned()),
            "command" => raw.command = Some(vec![value.to_owned()]),
            "pty" => raw.io.mode = Some(IoMode::Pty),
            "desired" => {
                lifecycle.desired_state = Some(match value {
                    "stopped" => DesiredState::Stopped,
                    _ => DesiredState::Running,
                });
            }
            "policy" => {
                lifecycle.restart.policy = Some(match value {
                    "always" => RestartPolicy::Always,
                    "on_failure" => RestartPolicy::OnFailure,
                    _ => RestartPolicy::Never,
                });
            }
            "max" => lifecycle.restart.max_restarts = number(),
            "window" => lifecycle.restart.window_seconds = number(),
            "initial" => lifecycle.restart.initial_backoff_ms = number(),
            "longest" => lifecycle.restart.max_backoff_ms = number(),
            "recovery" => {
                lifecycle.runtime_recovery = Some(match value {
                    "stop" => RuntimeRecovery::Stop,
                    _ => RuntimeRecovery::Restart,
                });
            }
            "idle" => lifecycle.idle_timeout_seconds = number(),
            "life" => lifecycle.max_lifetime_seconds = number(),
            "grace" => lifecycle.stop_grace_period_seconds = number(),
            "descendants" => {
                lifecycle.descendants = Some(match value {
                    "kill" => Descendants::Kill,
                    _ => Descendants::Leave,
                });
            }
            "ready" => {
                raw.readiness.kind = Some(match value {
                    "delay" => ReadinessKind::Delay,
                    "output" => ReadinessKind::Output,
                    _ => ReadinessKind::Process,
                });
                raw.readiness.output = (value == "output").then(|| "READY".to_owned());
            }
            "delay" => raw.readiness.delay_ms = number(),
            "timeout" => raw.readiness.timeout_ms = number(),
            "bytes" => raw.event_retention.max_bytes = number(),
            _ => panic!("no such word: {word}"),
        }
    }
    (raw.validate().expect("a valid specification"), handle)
}
