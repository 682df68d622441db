//! Pages and server-sent events.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Response, body::Incoming};
use outlive_core::event::{ExitStatus, Stream};
use serde_json::{Value, json};

use super::{World, seqs, types};

/// A server-sent stream, event by event.
struct Events {
    body: Incoming,
    text: String,
}

impl Events {
    async fn open(world: &World, path: &str, headers: &[(&str, &str)]) -> Self {
        let response: Response<Incoming> = world.send("GET", path, headers, "").await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["cache-control"], "no-cache");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        Self {
            body: response.into_body(),
            text: String::new(),
        }
    }

    /// The next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                if block.starts_with(':') {
                    continue;
                }
                let lines: Vec<&str> = block.split('\n').collect();
                let [id, kind, data] = lines[..] else {
                    panic!("{block:?}")
                };
                let event: Value =
                    serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                assert_eq!(id, format!("id: {}", event["seq"]));
                assert_eq!(kind, format!("event: {}", event["type"].as_str().unwrap()));
                return Some(event);
            }
            let frame = self.body.frame().await?.ok()?;
            let bytes: Bytes = frame.into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    async fn take(&mut self, count: usize) -> Vec<Value> {
        let mut out = Vec::new();
        while out.len() < count {
            out.push(self.next().await.unwrap());
        }
        out
    }

    async fn rest(mut self) -> Vec<Value> {
        let mut out = Vec::new();
        while let Some(event) = self.next().await {
            out.push(event);
        }
        out
    }
}

fn byte(n: usize) -> u8 {
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

// case S42
#[tokio::test]
async fn a_stream_replays_goes_on_and_resumes() {
    let world = World::new().await;
    let id = world.cat().await;
    let path = format!("/{id}/events/stream");
    let mut events = Events::open(&world, &path, &[]).await;
    assert_eq!(seqs(&events.take(4).await), [1, 2, 3, 4]);
    world.sandbox.output(&id, Stream::Stdout, b"hello\n");
    let live = events.next().await.unwrap();
    assert_eq!(
        (&live["seq"], &live["data_base64"]),
        (&json!(5), &json!("aGVsbG8K"))
    );
    drop(events);
    // The header wins over the query.
    let mut events = Events::open(
        &world,
        &format!("{path}?after=1"),
        &[("last-event-id", "4")],
    )
    .await;
    assert_eq!(events.next().await.unwrap()["seq"], 5);
    let mut events = Events::open(&world, &format!("{path}?after=3"), &[]).await;
    assert_eq!(seqs(&events.take(2).await), [4, 5]);
    let bad = world
        .call_with("GET", &path, &[("last-event-id", "x")], "")
        .await;
    assert_eq!(
        (bad.0, &bad.1["error"]["code"]),
        (400, &json!("invalid_request"))
    );
}

#[tokio::test]
async fn a_stream_until_exit_ends_with_the_exit() {
    let world = World::new().await;
    let id = world.cat().await;
    let path = format!("/{id}/events/stream?until=exit");
    let mut live = Events::open(&world, &path, &[]).await;
    live.take(4).await;
    world.sandbox.output(&id, Stream::Stdout, b"bye");
    world.sandbox.exit(&id, ExitStatus::Code(7));
    assert_eq!(types(&live.rest().await), ["output", "attempt.exited"]);
    // Also for those who come afterwards, whatever they have seen.
    let late = Events::open(&world, &path, &[]).await.rest().await;
    assert_eq!(late.len(), 6);
    assert!(
        Events::open(&world, &format!("{path}&after=6"), &[])
            .await
            .rest()
            .await
            .is_empty()
    );
    // An earlier exit is not the end while another attempt runs.
    world
        .call("POST", &format!("/{id}/attempts"), Value::Null)
        .await;
    let mut again = Events::open(&world, &path, &[]).await;
    let latest = usize::try_from(world.sandbox.tail(&id).latest).unwrap();
    again.take(latest).await;
    world.sandbox.exit(&id, ExitStatus::Code(0));
    assert_eq!(types(&again.rest().await), ["attempt.exited"]);
}

#[tokio::test]
async fn streams_end_with_the_session_the_key_and_the_server() {
    let world = World::new().await;
    let id = world.cat().await;
    let path = format!("/{id}/events/stream");
    let mut events = Events::open(&world, &path, &[]).await;
    events.take(4).await;
    world.call("DELETE", &format!("/{id}"), Value::Null).await;
    assert!(!events.rest().await.is_empty());

    let id = world.cat().await;
    let path = format!("/{id}/events/stream");
    let mut events = Events::open(&world, &path, &[]).await;
    events.take(4).await;
    world.revoked.cancel();
    assert!(events.rest().await.is_empty());

    let world = World::new().await;
    let id = world.cat().await;
    let mut events = Events::open(&world, &format!("/{id}/events/stream"), &[]).await;
    events.take(4).await;
    world.stop.cancel();
    assert!(events.rest().await.is_empty());
}

// case S43
#[tokio::test]
async fn a_cursor_of_a_deleted_session_shows_nobody_elses_events() {
    let world = World::new().await;
    let spec = json!({"command": ["cat"], "name": "same"});
    let old = world.session(spec.clone()).await;
    world.call("DELETE", &format!("/{old}"), Value::Null).await;
    let new = world.session(spec).await;
    assert_ne!(old, new);
    for rest in ["events?after=2", "events/stream?after=2"] {
        let (status, answer) = world
            .call("GET", &format!("/{old}/{rest}"), Value::Null)
            .await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!("session_not_found"))
        );
    }
}

// case S34, case S37
#[tokio::test]
async fn a_slow_follower_gets_events_or_the_end_but_no_nonsense() {
    let world = World::new().await;
    let spec = json!({"command": ["cat"], "event_retention": {"max_bytes": 256 << 10}});
    let id = world.session(spec).await;
    let mut slow = Events::open(&world, &format!("/{id}/events/stream"), &[]).await;
    let mut seen = seqs(&slow.take(4).await);
    for _ in 0..2000 {
        world.sandbox.output(&id, Stream::Stdout, &[7; 8000]);
    }
    let ended = loop {
        match slow.next().await {
            Some(event) => seen.push(event["seq"].as_u64().unwrap()),
            None => break true,
        }
        if seen.last() == Some(&2004) {
            break false;
        }
    };
    assert!(
        seen.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "a hole or a repetition"
    );
    if ended {
        let last = seen.last().unwrap();
        let (status, answer) = world
            .call(
                "GET",
                &format!("/{id}/events/stream?after={last}"),
                Value::Null,
            )
            .await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (410, &json!("event_cursor_expired"))
        );
    }
}

#[tokio::test]
async fn followers_at_all_places_see_every_event_once() {
    let world = World::new().await;
    let spec = json!({"command": ["cat"], "event_retention": {"max_bytes": 16 << 20}});
    let id = world.session(spec).await;
    let write = |count: usize| {
        for n in 0..count {
            world
                .sandbox
                .output(&id, Stream::Stdout, &vec![byte(n); 1 + n % 3000]);
        }
    };
    write(700);
    let (world_of, id_of) = (&world, &id);
    let follow = |after: u64| async move {
        let path = format!("/{id_of}/events/stream?after={after}&until=exit");
        let events = Events::open(world_of, &path, &[]).await.rest().await;
        (after, seqs(&events))
    };
    let followers = futures_util::future::join_all([0, 1, 5, 300, 690, 703, 704].map(follow));
    let writer = async {
        while world.metrics.attachments.get() < 7 {
            tokio::task::yield_now().await;
        }
        for _ in 0..20 {
            write(37);
            tokio::task::yield_now().await;
        }
        world.sandbox.exit(&id, ExitStatus::Code(0));
    };
    let (seen, ()) = tokio::join!(followers, writer);
    for (after, seqs) in seen {
        assert_eq!(
            seqs,
            (after + 1..=704 + 740 + 1).collect::<Vec<_>>(),
            "after {after}"
        );
    }
    world.until_detached().await;
}

#[tokio::test]
async fn a_session_has_a_bounded_number_of_attachments() {
    let world = World::new().await;
    let id = world.cat().await;
    let handle: &dyn crate::sessions::SandboxHandle = &*world.sandbox;
    let feeds = super::super::feed::Feeds::default();
    let action = outlive_api::error::Action::AttachSession;
    let mut attached = Vec::new();
    for _ in 0..1024 {
        attached.push(
            feeds
                .attach(action, handle, &id, &world.metrics)
                .await
                .unwrap(),
        );
    }
    let error = feeds
        .attach(action, handle, &id, &world.metrics)
        .await
        .unwrap_err();
    assert_eq!((error.status, error.code.as_str()), (429, "quota_exceeded"));
    attached.pop();
    feeds
        .attach(action, handle, &id, &world.metrics)
        .await
        .unwrap();
    drop(attached);
    world.until_detached().await;
}
