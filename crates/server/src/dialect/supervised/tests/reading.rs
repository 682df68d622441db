//! Pages of events.

use std::time::Duration;

use outlive_core::event::{ExitStatus, Stream};
use serde_json::{Value, json};

use super::{World, seqs, types};

/// What an output of this number is made of.
pub(super) fn byte(n: usize) -> u8 {
    u8::try_from(n % 251).unwrap()
}

fn data(event: &Value) -> Vec<u8> {
    let text = event["data_base64"].as_str().unwrap();
    base64_simd::STANDARD.decode_to_vec(text).unwrap()
}

#[tokio::test]
async fn a_page_says_what_happened() {
    let world = World::new().await;
    let id = world.cat().await;
    world.sandbox.output(&id, Stream::Stderr, b"\xff\x00");
    world.sandbox.exit(&id, ExitStatus::Code(0));
    let (status, answer) = world
        .call("GET", &format!("/{id}/events"), Value::Null)
        .await;
    assert_eq!(status, 200);
    assert_eq!(
        answer["data"]["cursor"],
        json!({"earliest": 1, "latest": 6})
    );
    let events = answer["data"]["events"].as_array().unwrap();
    assert_eq!(
        types(events),
        [
            "session.created",
            "attempt.starting",
            "attempt.started",
            "session.ready",
            "output",
            "attempt.exited"
        ]
    );
    assert_eq!(seqs(events), [1, 2, 3, 4, 5, 6]);
    assert!(events[0].get("attempt_id").is_none());
    assert_eq!(events[1]["reason"], "created");
    assert_eq!(
        (&events[4]["stream"], &events[4]["data_base64"]),
        (&json!("stderr"), &json!("/wA="))
    );
    // case B3
    assert_eq!(
        (&events[5]["exit_code"], &events[5]["reason"]),
        (&json!(0), &json!("stopped"))
    );
    assert_eq!(events[5]["oom"], "unknown");
    let (_, empty) = world
        .call("GET", &format!("/{id}/events?after=6"), Value::Null)
        .await;
    assert_eq!(empty["data"]["events"], json!([]));
    assert_eq!(seqs(&world.page(&id, "after=2&limit=2").await), [3, 4]);
    assert_eq!(seqs(&world.page(&id, "tail=2").await), [5, 6]);
    assert_eq!(
        seqs(
            &world
                .page(&id, "tail=2&types=attempt.starting,output,session.ready")
                .await
        ),
        [4, 5]
    );
    assert_eq!(seqs(&world.page(&id, "stream=stderr").await), [5]);
    assert_eq!(
        seqs(&world.page(&id, "stream=stdout").await),
        Vec::<u64>::new()
    );
    let attempt = events[5]["attempt_id"].as_str().unwrap();
    assert_eq!(
        seqs(&world.page(&id, &format!("attempt_id={attempt}")).await),
        [2, 3, 4, 5, 6]
    );
    assert!(
        world
            .page(&id, "attempt_id=att-00000000-000")
            .await
            .is_empty()
    );
}

// case A9, case A10, case S27
#[tokio::test]
async fn a_cursor_outside_of_the_window_is_told_so() {
    let world = World::new().await;
    let id = world
        .session(json!({"command": ["cat"], "event_retention": {"max_bytes": 1 << 20}}))
        .await;
    let mut written = Vec::new();
    for n in 0..640 {
        let line = vec![byte(n); 16 * 1024];
        world.sandbox.output(&id, Stream::Stdout, &line);
        written.push(line);
    }
    let tail = world.sandbox.tail(&id);
    assert!(tail.earliest > 500, "{tail:?}");
    for path in ["events", "events/stream"] {
        for after in ["0", "1"] {
            let path = format!("/{id}/{path}?after={after}");
            let (status, answer) = world.call("GET", &path, Value::Null).await;
            assert_eq!(
                (status, &answer["error"]["code"]),
                (410, &json!("event_cursor_expired"))
            );
            assert_eq!(
                answer["error"]["details"],
                json!({"earliest": tail.earliest})
            );
            let message = format!(
                "event cursor expired; earliest available sequence is {}",
                tail.earliest
            );
            assert_eq!(answer["error"]["message"], message);
        }
        for after in [tail.latest + 1, tail.latest + 1000, u64::MAX / 2, u64::MAX] {
            let path = format!("/{id}/{path}?after={after}");
            let (status, answer) = world.call("GET", &path, Value::Null).await;
            assert_eq!(
                (status, &answer["error"]["code"]),
                (400, &json!("invalid_request"))
            );
            assert_eq!(
                answer["error"]["details"],
                json!({"reason": "cursor_ahead", "latest": tail.latest})
            );
        }
        for after in ["-1", "abc", "1e3", "18446744073709551616"] {
            let path = format!("/{id}/{path}?after={after}");
            let (status, answer) = world.call("GET", &path, Value::Null).await;
            assert_eq!(
                (status, &answer["error"]["code"]),
                (400, &json!("invalid_request"))
            );
        }
    }
    // Without a cursor, and from the earliest, the true end of the output is there.
    for query in [String::new(), format!("after={}", tail.earliest - 1)] {
        let events = world.page(&id, &query).await;
        assert_eq!(seqs(&events)[0], tail.earliest);
        let got: Vec<u8> = events.iter().flat_map(data).collect();
        let end: Vec<u8> = written[written.len() - events.len()..].concat();
        assert!(got == end, "{} bytes against {}", got.len(), end.len());
    }
}

// case S36
#[tokio::test]
async fn filters_leave_no_hole_from_any_cursor() {
    let world = World::new().await;
    let id = world.cat().await;
    for n in 0..60 {
        let stream = if n % 3 == 0 {
            Stream::Stderr
        } else {
            Stream::Stdout
        };
        world.sandbox.output(&id, stream, b"x");
        if n % 10 == 9 {
            world
                .call("POST", &format!("/{id}/signals"), json!({"signal": "CONT"}))
                .await;
        }
    }
    let all = world.page(&id, "").await;
    let signals = |after: u64| -> Vec<u64> {
        let events = all.iter().filter(|event| event["type"] == "signal.sent");
        events
            .map(|event| event["seq"].as_u64().unwrap())
            .filter(|seq| *seq > after)
            .collect()
    };
    for after in 0..all.len() as u64 {
        let events = world
            .page(&id, &format!("types=signal.sent&after={after}"))
            .await;
        assert_eq!(seqs(&events), signals(after), "after {after}");
    }
    let first = world.page(&id, "types=signal.sent&limit=1").await;
    assert_eq!(seqs(&first), signals(0)[..1]);
    assert_eq!(first[0]["reason"], "SIGCONT");
}

#[tokio::test]
async fn a_large_page_comes_whole() {
    let world = World::new().await;
    let id = world.cat().await;
    for n in 0..300 {
        world
            .sandbox
            .output(&id, Stream::Stdout, &vec![byte(n); 20_000]);
    }
    let events = world.page(&id, "limit=10000").await;
    assert_eq!(seqs(&events), (1..=304).collect::<Vec<_>>());
    assert!(
        events[4..]
            .iter()
            .zip(0..)
            .all(|(event, n)| data(event) == vec![byte(n); 20_000])
    );
    assert_eq!(
        seqs(&world.page(&id, "after=10&limit=250").await),
        (11..=260).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_page_waits_for_its_first_event() {
    let world = World::new().await;
    let id = world.cat().await;
    let path = format!("/{id}/events?after=4&wait_ms=30000&types=output");
    let waiting = world.call("GET", &path, Value::Null);
    let writing = async {
        // Only once the page holds its attachment does it wait.
        while world.metrics.attachments.get() == 0 {
            tokio::task::yield_now().await;
        }
        world
            .call("POST", &format!("/{id}/signals"), json!({"signal": "CONT"}))
            .await;
        world.sandbox.output(&id, Stream::Stdout, b"x");
    };
    let ((status, answer), ()) = tokio::join!(waiting, writing);
    assert_eq!(
        (status, seqs(answer["data"]["events"].as_array().unwrap())),
        (200, vec![6])
    );
    assert_eq!(answer["data"]["cursor"]["latest"], 6);
    let (status, answer) = world
        .call(
            "GET",
            &format!("/{id}/events?after=6&wait_ms=1"),
            Value::Null,
        )
        .await;
    assert_eq!((status, &answer["data"]["events"]), (200, &json!([])));
}

#[tokio::test]
async fn a_page_that_waits_ends_with_its_key() {
    let world = World::new().await;
    let id = world.cat().await;
    let path = format!("/{id}/events?after=4&wait_ms=30000");
    let waiting = world.call("GET", &path, Value::Null);
    let revoking = async {
        while world.metrics.attachments.get() == 0 {
            tokio::task::yield_now().await;
        }
        world.revoked.cancel();
    };
    let both = async { tokio::join!(waiting, revoking) };
    let ((status, answer), ()) = tokio::time::timeout(Duration::from_secs(10), both)
        .await
        .unwrap();
    assert_eq!((status, &answer["data"]["events"]), (200, &json!([])));
}
