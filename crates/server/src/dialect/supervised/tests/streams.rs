//! Server-sent events.

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{Response, body::Incoming};
use outlive_core::event::{ExitStatus, Stream};
use serde_json::{Value, json};

use super::{World, reading::byte, seqs, types};

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
