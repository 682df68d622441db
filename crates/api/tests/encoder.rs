//! The hand-written JSON of an event is the JSON of its typed form, byte for byte.

use outlive_api::{
    encode::Encoder,
    event::{Content, Event, EventRef},
};
use outlive_core::{
    event::{
        AttemptEnd, Body, ExitStatus, Expiry, FailReason, Oom, Rusage, StartReason, StopReason,
        Stream,
    },
    id::{Generation, SessionId},
    session::EofMode,
    spec::DesiredState,
    time::Timestamp,
};
use proptest::prelude::*;

fn stop_reason() -> impl Strategy<Value = StopReason> {
    prop_oneof![
        Just(StopReason::DesiredStateStopped),
        Just(StopReason::AttemptReplaced),
        Just(StopReason::SpecReplaced),
        Just(StopReason::SessionDeleted),
        Just(StopReason::SessionExpired),
        Just(StopReason::ReadinessTimeout),
    ]
}

fn end() -> impl Strategy<Value = AttemptEnd> {
    let status = prop_oneof![
        any::<u8>().prop_map(ExitStatus::Code),
        (1..65u8, any::<bool>()).prop_map(|(signal, core)| ExitStatus::Signal { signal, core }),
        Just(ExitStatus::Unknown),
    ];
    let oom = prop_oneof![Just(Oom::No), Just(Oom::Yes), Just(Oom::Unknown)];
    prop_oneof![
        (status, proptest::option::of(stop_reason()), oom).prop_map(|(status, stop, oom)| {
            AttemptEnd::Exited {
                status,
                stop,
                oom,
                rusage: Some(Rusage::default()),
            }
        }),
        any::<String>().prop_map(|message| AttemptEnd::StartFailed { message }),
        Just(AttemptEnd::RuntimeReplaced),
    ]
}

fn start_reason() -> impl Strategy<Value = StartReason> {
    prop_oneof![
        Just(StartReason::Created),
        Just(StartReason::RestartPolicy),
        Just(StartReason::DesiredStateRunning),
        Just(StartReason::AttemptCreated),
        Just(StartReason::SpecUpdated),
        Just(StartReason::RuntimeRecovered),
    ]
}

fn body() -> impl Strategy<Value = Body> {
    let eof = prop_oneof![
        Just(None),
        Just(Some(EofMode::Character)),
        Just(Some(EofMode::Hangup))
    ];
    let fail = prop_oneof![
        Just(FailReason::RestartLimitExceeded),
        Just(FailReason::ReadinessTimeout),
        Just(FailReason::StartFailed),
    ];
    prop_oneof![
        prop_oneof![Just(DesiredState::Running), Just(DesiredState::Stopped)]
            .prop_map(Body::DesiredState),
        start_reason().prop_map(Body::AttemptStarting),
        any::<u32>().prop_map(|pid| Body::AttemptStarted { pid }),
        (
            any::<String>(),
            any::<u64>(),
            any::<u32>(),
            eof,
            any::<bool>()
        )
            .prop_map(|(input_id, digest, bytes, eof, truncated_line)| {
                Body::InputAccepted {
                    input_id,
                    digest,
                    bytes,
                    eof,
                    truncated_line,
                }
            }),
        any::<u8>().prop_map(|signal| Body::SignalSent { signal }),
        any::<(u16, u16)>().prop_map(|(rows, cols)| Body::TerminalResized { rows, cols }),
        stop_reason().prop_map(Body::AttemptStopping),
        end().prop_map(Body::AttemptExited),
        any::<u32>().prop_map(|delay_ms| Body::Backoff { delay_ms }),
        fail.prop_map(Body::SessionFailed),
        prop_oneof![Just(Expiry::IdleTimeout), Just(Expiry::MaxLifetime)]
            .prop_map(Body::SessionExpired),
        prop_oneof![
            Just(Body::SessionReady),
            Just(Body::SessionStopped),
            Just(Body::SessionPaused),
            Just(Body::SessionResumed),
            Just(Body::SessionDeleted),
            Just(Body::StopEscalated),
        ],
    ]
}

#[derive(Debug, Clone)]
enum Said {
    Output(Stream, Vec<u8>),
    Body(Body),
    Gap(u64),
}

fn said() -> impl Strategy<Value = Said> {
    let stream = prop_oneof![
        Just(Stream::Stdout),
        Just(Stream::Stderr),
        Just(Stream::Pty)
    ];
    let small = proptest::collection::vec(any::<u8>(), 0..400);
    let large = (any::<u8>(), 40_000..60_000usize).prop_map(|(byte, len)| vec![byte; len]);
    prop_oneof![
        4 => (stream, prop_oneof![8 => small, 1 => large])
            .prop_map(|(stream, data)| Said::Output(stream, data)),
        8 => body().prop_map(Said::Body),
        1 => any::<u64>().prop_map(Said::Gap),
    ]
}

fn event(said: &Said, seq: u64, at: i64, attempt: u32) -> EventRef<'_> {
    EventRef {
        seq,
        at: Timestamp::from_unix_nanos(at),
        generation: Generation(seq % 7),
        attempt,
        content: match said {
            Said::Output(stream, data) => Content::Output {
                stream: *stream,
                data,
            },
            Said::Body(body) => Content::Body(body),
            Said::Gap(first) => Content::Gap { first: *first },
        },
    }
}

/// Takes a server's frame apart: its text.
fn frame_text(frame: &[u8]) -> &[u8] {
    assert_eq!(frame[0], 0x81);
    let (len, at) = match frame[1] {
        126 => (u64::from(u16::from_be_bytes([frame[2], frame[3]])), 4),
        127 => (
            u64::from_be_bytes(frame[2..10].try_into().expect("eight bytes")),
            10,
        ),
        short => (u64::from(short), 2),
    };
    assert_eq!(len, (frame.len() - at) as u64);
    &frame[at..]
}

proptest! {
    #[test]
    fn hand_written_json_is_serdes(
        events in proptest::collection::vec((said(), any::<u64>(), any::<i64>(), 0..3u32), 1..6),
        session in any::<u64>(),
    ) {
        let session = SessionId::from_bits(session);
        // One encoder for all of them: what it keeps from one event must not show in the next.
        let mut encoder = Encoder::new(session.clone());
        for (said, seq, at, attempt) in &events {
            let event = event(said, *seq, *at, *attempt);
            let typed = Event::new(&session, &event);
            let expected = serde_json::to_string(&typed).unwrap();

            let mut json = Vec::new();
            encoder.json(&event, &mut json);
            prop_assert_eq!(std::str::from_utf8(&json).unwrap(), &expected);
            prop_assert_eq!(&serde_json::from_slice::<Event>(&json).unwrap(), &typed);

            let mut sse = Vec::new();
            encoder.sse(&event, &mut sse);
            let lines = format!("id: {seq}\nevent: {}\ndata: {expected}\n\n", typed.kind);
            prop_assert_eq!(std::str::from_utf8(&sse).unwrap(), lines);

            let mut frame = b"before".to_vec();
            encoder.websocket(&event, &mut frame);
            let text = format!("{{\"type\":\"event\",\"event\":{expected}}}");
            prop_assert_eq!(std::str::from_utf8(frame_text(&frame[6..])).unwrap(), text);
        }
    }
}

// case B3
#[test]
fn exit_code_zero_is_there_and_unknown_is_none() {
    let exited = |status| {
        Body::AttemptExited(AttemptEnd::Exited {
            status,
            stop: None,
            oom: Oom::No,
            rusage: None,
        })
    };
    let json = |body: &Body| {
        let mut out = Vec::new();
        let said = Said::Body(body.clone());
        Encoder::new(SessionId::from_bits(1)).json(&event(&said, 9, 0, 1), &mut out);
        serde_json::from_slice::<serde_json::Value>(&out).unwrap()
    };
    for (code, reason) in [
        (0, "stopped"),
        (1, "crashed"),
        (2, "crashed"),
        (125, "crashed"),
        (126, "crashed"),
        (127, "crashed"),
        (128, "crashed"),
        (137, "killed"),
        (143, "crashed"),
        (255, "crashed"),
    ] {
        let event = json(&exited(ExitStatus::Code(code)));
        assert_eq!(event["exit_code"], code, "{event}");
        assert_eq!(event["reason"], reason, "{event}");
    }
    let killed = json(&exited(ExitStatus::Signal {
        signal: 9,
        core: false,
    }));
    assert_eq!(
        (&killed["exit_code"], &killed["signal"], &killed["reason"]),
        (&(-1).into(), &"SIGKILL".into(), &"killed".into())
    );
    let unknown = json(&exited(ExitStatus::Unknown));
    assert_eq!(unknown["exit_unknown"], true);
    assert!(unknown.get("exit_code").is_none());
}
