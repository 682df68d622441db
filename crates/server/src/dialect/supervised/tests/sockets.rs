//! WebSockets, seen from an independent client.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use outlive_core::event::{ExitStatus, Stream};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    client_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use super::{
    World,
    fake::SANDBOX,
    socket::{Socket, hold},
    types,
};
use crate::limits::{WS_END_MAX, WS_REQUESTS_MAX};

async fn refused(world: &World, path: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let headers: Vec<_> = upgrade.iter().chain(headers).copied().collect();
    world.call_with("GET", path, &headers, "").await
}

#[tokio::test]
async fn a_socket_carries_both_ways() {
    let world = World::new().await;
    let id = world
        .session(json!({"command": ["sh"], "io": {"mode": "pty"}}))
        .await;
    let mut socket = Socket::open(&world, &id, "").await;
    assert_eq!(
        types(&socket.events(4).await),
        [
            "session.created",
            "attempt.starting",
            "attempt.started",
            "session.ready"
        ]
    );
    socket
        .send(json!({"type": "input", "request_id": "r1", "input_id": "a", "data_base64": "aGk="}))
        .await;
    assert_eq!(types(&socket.events(2).await), ["input.accepted", "output"]);
    assert_eq!(
        socket.next().await,
        json!({"type": "ack", "request_id": "r1"})
    );
    // A repetition is acknowledged like the first, and writes nothing.
    socket
        .send(json!({"type": "input", "request_id": "r2", "input_id": "a", "data_base64": "aGk="}))
        .await;
    assert_eq!(
        socket.next().await,
        json!({"type": "ack", "request_id": "r2"})
    );
    // Bytes that are JSON are as good as text; a request without an id has an answer without one.
    let resize = json!({"type": "resize", "rows": 30, "cols": 90}).to_string();
    socket
        .0
        .send(Message::binary(resize.into_bytes()))
        .await
        .unwrap();
    let resized = socket.event().await;
    assert_eq!(
        (&resized["rows"], &resized["cols"]),
        (&json!(30), &json!(90))
    );
    assert_eq!(socket.next().await, json!({"type": "ack"}));
    socket
        .send(json!({"type": "signal", "request_id": "r4", "signal": "SIGCONT"}))
        .await;
    assert_eq!(socket.event().await["reason"], "SIGCONT");
    assert_eq!(
        socket.next().await,
        json!({"type": "ack", "request_id": "r4"})
    );
    socket.0.close(None).await.unwrap();
    let mut again = Socket::open(&world, &id, "after=6").await;
    assert_eq!(again.event().await["seq"], 7);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn refused_requests_are_answered_in_order_with_code_and_words() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    socket
        .send(json!({"type": "input", "input_id": "a", "data_base64": "eA=="}))
        .await;
    socket.events(2).await;
    assert_eq!(socket.next().await["type"], "ack");
    for (mut request, code, words) in [
        (
            json!({"type": "dance"}),
            "invalid_request",
            "unsupported websocket message type",
        ),
        (
            json!({}),
            "invalid_request",
            "unsupported websocket message type",
        ),
        (
            json!({"type": "input", "eof": true}),
            "invalid_request",
            "input_id is required",
        ),
        (
            json!({"type": "signal", "signal": "NOPE"}),
            "invalid_request",
            "unsupported signal",
        ),
        (
            json!({"type": "signal", "signal": 9}),
            "invalid_request",
            "invalid message",
        ),
        (
            json!({"type": "input", "input_id": "a", "data_base64": "eQ=="}),
            "session_conflict",
            "input id was already used with different content",
        ),
        (
            json!({"type": "signal", "signal": "TERM", "expected_attempt_id": "att-00000000-000"}),
            "session_conflict",
            "session attempt mismatch",
        ),
        (
            json!({"type": "resize", "rows": 1, "cols": 1}),
            "session_conflict",
            "session has no terminal",
        ),
        (
            json!({"type": "resize", "rows": 0, "cols": 1}),
            "invalid_request",
            "rows must be from 1",
        ),
    ] {
        request["request_id"] = words.into();
        socket.send(request).await;
        let answer = socket.next().await;
        assert_eq!(
            (&answer["type"], &answer["code"]),
            (&json!("error"), &json!(code)),
            "{answer}"
        );
        assert_eq!(answer["request_id"], words);
        assert!(
            answer["error"].as_str().unwrap().starts_with(words),
            "{answer}"
        );
    }
    world.sandbox.exit(&id, ExitStatus::Code(0));
    socket.event().await;
    socket
        .send(json!({"type": "input", "input_id": "late", "eof": true}))
        .await;
    assert_eq!(socket.next().await["error"], "session is not running");
}

#[tokio::test]
async fn every_end_has_its_code_and_reason() {
    let world = World::new().await;
    for (message, reason) in [
        ("{\"type\":", "message is not JSON"),
        ("[]", "message is not JSON"),
        ("7", "message is not JSON"),
        (
            &json!({"type": "input", "request_id": "r".repeat(257)}).to_string(),
            "request_id is too long",
        ),
    ] {
        let id = world.cat().await;
        let mut socket = Socket::open(&world, &id, "after=4").await;
        socket.0.send(Message::text(message)).await.unwrap();
        let (_, frame) = socket.close().await;
        assert_eq!(u16::from(frame.code), 1008, "{message}");
        assert!(
            frame.reason.starts_with(reason) || message == "[]",
            "{message} {frame:?}"
        );
    }
    let id = world.cat().await;
    let socket = Socket::open(&world, &id, "").await;
    world.call("DELETE", &format!("/{id}"), Value::Null).await;
    let (_, frame) = socket.close().await;
    assert_eq!(
        (u16::from(frame.code), frame.reason.as_str()),
        (1000, "session deleted")
    );

    let id = world.cat().await;
    let socket = Socket::open(&world, &id, "until=exit").await;
    world.sandbox.exit(&id, ExitStatus::Code(0));
    let (messages, frame) = socket.close().await;
    assert_eq!(
        (messages, u16::from(frame.code), frame.reason.as_str()),
        (5, 1000, "attempt exited")
    );

    let id = world.cat().await;
    let socket = Socket::open(&world, &id, "").await;
    world.revoked.cancel();
    let (_, frame) = socket.close().await;
    assert_eq!(
        (u16::from(frame.code), frame.reason.as_str()),
        (1008, "key revoked")
    );

    let world = World::new().await;
    let id = world.cat().await;
    let socket = Socket::open(&world, &id, "").await;
    world.stop.cancel();
    let (_, frame) = socket.close().await;
    assert_eq!(
        (u16::from(frame.code), frame.reason.as_str()),
        (1001, "server going away")
    );
}

#[tokio::test]
async fn what_is_wrong_before_the_upgrade_is_plain_http() {
    let world = World::new().await;
    let id = world.cat().await;
    let (status, answer) = refused(&world, "/ses-00000000-00a/ws", &[]).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("session_not_found"))
    );
    let (status, answer) = refused(&world, &format!("/{id}/ws?after=99"), &[]).await;
    assert_eq!(
        (status, &answer["error"]["details"]["reason"]),
        (400, &json!("cursor_ahead"))
    );
    let (status, answer) = refused(&world, &format!("/{id}/ws?after=x"), &[]).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (400, &json!("invalid_request"))
    );
    let evil = [("origin", "https://evil.test")];
    let (status, answer) = refused(&world, &format!("/{id}/ws"), &evil).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (403, &json!("forbidden"))
    );
    for _ in 0..200 {
        world.sandbox.output(&id, Stream::Stdout, &[0; 1000]);
    }
    world.sandbox.retain(&id, 100_000);
    let (status, answer) = refused(&world, &format!("/{id}/ws?after=0"), &[]).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (410, &json!("event_cursor_expired"))
    );
}

#[tokio::test]
async fn one_who_may_only_read_sees_everything_and_changes_nothing() {
    let world = World::new().await;
    let id = world.cat().await;
    let stream = TcpStream::connect(world.address).await.unwrap();
    let path = format!("/api/v1/sandboxes/{SANDBOX}/sessions/{id}/ws");
    let mut request = format!("ws://{}{path}", world.address)
        .into_client_request()
        .unwrap();
    request
        .headers_mut()
        .insert("x-as", "reader".parse().unwrap());
    let before = world
        .sandbox
        .wakes
        .load(std::sync::atomic::Ordering::Relaxed);
    let mut socket = Socket(client_async(request, stream).await.unwrap().0);
    assert_eq!(socket.events(4).await.len(), 4);
    socket
        .send(json!({"type": "input", "input_id": "a", "eof": true}))
        .await;
    assert_eq!(socket.next().await["code"], "forbidden");
    assert_eq!(
        world
            .sandbox
            .wakes
            .load(std::sync::atomic::Ordering::Relaxed),
        before
    );
}

// case H4
#[tokio::test]
async fn pings_are_answered_while_a_request_is_carried_out() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    hold(&world, &mut socket).await;
    for n in 0..3_u8 {
        socket.0.send(Message::Ping(vec![n].into())).await.unwrap();
        let pong = socket.0.next().await.unwrap().unwrap();
        assert_eq!(pong, Message::Pong(vec![n].into()));
    }
    world.sandbox.hold_signals.send_replace(false);
    assert_eq!(socket.event().await["type"], "signal.sent");
    assert_eq!(
        socket.next().await,
        json!({"type": "ack", "request_id": "held"})
    );
}

#[tokio::test]
async fn what_is_sent_right_before_the_close_is_carried_out() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    for n in 0..50 {
        socket
            .send(json!({"type": "input", "input_id": n.to_string(), "data_base64": "eA=="}))
            .await;
    }
    socket.0.close(None).await.unwrap();
    drop(socket);
    let mut again = Socket::open(&world, &id, "after=4").await;
    assert_eq!(again.events(100).await.len(), 100);
}

// case H4
#[tokio::test]
async fn a_flood_of_requests_keeps_no_ping_waiting() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    hold(&world, &mut socket).await;
    for _ in 0..WS_REQUESTS_MAX {
        socket
            .send(json!({"type": "resize", "rows": 0, "cols": 1}))
            .await;
    }
    socket.0.send(Message::Ping(vec![1].into())).await.unwrap();
    let pong = socket.0.next().await.unwrap().unwrap();
    assert_eq!(pong, Message::Pong(vec![1].into()));
    world.sandbox.hold_signals.send_replace(false);
    while socket.next().await["request_id"] != "held" {}
}

// A server that was told to stop waited five seconds for a client that had its goodbye and kept its
// side of the connection open.
#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_its_side_open_does_not_hold_up_the_end_of_a_server() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    socket
        .send(json!({"type": "signal", "signal": "CONT"}))
        .await;
    assert_eq!(socket.event().await["type"], "signal.sent");
    let begun = tokio::time::Instant::now();
    world.stop.cancel();
    world.tasks.close();
    world.tasks.wait().await;
    assert!(begun.elapsed() < WS_END_MAX, "{:?}", begun.elapsed());
    let (_, frame) = socket.close().await;
    assert_eq!(u16::from(frame.code), 1001);
}

// case S24
#[tokio::test(start_paused = true)]
async fn a_revoked_key_ends_a_client_that_takes_nothing() {
    let world = World::new().await;
    let id = world.cat().await;
    for _ in 0..600 {
        world.sandbox.output(&id, Stream::Stdout, &vec![7; 60_000]);
    }
    let mut socket = Socket::open(&world, &id, "").await;
    socket.event().await;
    world.revoked.cancel();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let mut last = 0;
    while let Some(Ok(message)) = socket.0.next().await {
        if let Message::Text(text) = message {
            let message: Value = serde_json::from_str(&text).unwrap();
            last = message["event"]["seq"].as_u64().unwrap();
        }
    }
    assert!(last < 604, "everything came");
}

#[tokio::test]
async fn requests_are_read_during_a_replay() {
    let world = World::new().await;
    let id = world.cat().await;
    for _ in 0..400 {
        world.sandbox.output(&id, Stream::Stdout, &vec![7; 60_000]);
    }
    let mut socket = Socket::open(&world, &id, "").await;
    socket
        .send(json!({"type": "signal", "request_id": "now", "signal": "CONT"}))
        .await;
    let mut before_ack = 0;
    while socket.next().await["type"] != "ack" {
        before_ack += 1;
    }
    assert!(
        before_ack < 404,
        "{before_ack} events came before the answer"
    );
}

// case S24
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_told_how_far_it_came() {
    let world = World::new().await;
    let id = world.cat().await;
    for _ in 0..600 {
        world.sandbox.output(&id, Stream::Stdout, &vec![7; 60_000]);
    }
    let mut socket = Socket::open(&world, &id, "").await;
    socket.event().await;
    // The clock stands still until everybody waits: for the client, that is the server's patience.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let mut last = 1;
    let frame = loop {
        match socket.0.next().await {
            Some(Ok(Message::Text(text))) => {
                let message: Value = serde_json::from_str(&text).unwrap();
                last = message["event"]["seq"].as_u64().unwrap();
            }
            Some(Ok(Message::Close(frame))) => break frame.unwrap(),
            Some(Ok(_)) => {}
            end => panic!("no close frame after {last}, but {end:?}"),
        }
    };
    assert_eq!(u16::from(frame.code), 1013);
    assert_eq!(frame.reason.as_str(), format!("too slow; last seq {last}"));
    assert!(last < 604, "everything came");
    let (_, view) = world.call("GET", &format!("/{id}"), Value::Null).await;
    assert_eq!(view["data"]["phase"], "running");
}

// A client that ended its side of the connection, as a pipe into it does, got neither its answers
// nor a close frame.
#[tokio::test]
async fn a_client_that_ends_its_side_gets_its_answers_and_a_close_frame() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    hold(&world, &mut socket).await;
    for n in 0..50 {
        socket
            .send(json!({"type": "input", "input_id": n.to_string(), "data_base64": "eA=="}))
            .await;
    }
    socket.end_side().await;
    // It reads on meanwhile.
    world.sandbox.output(&id, Stream::Stdout, b"still here");
    assert_eq!(socket.event().await["type"], "output");
    world.sandbox.hold_signals.send_replace(false);
    let (messages, frame) = socket.close().await;
    // The signal and 50 inputs, each with its event, and what cat made of the inputs.
    assert_eq!(messages, 2 + 50 * 3);
    assert_eq!(u16::from(frame.code), 1000);
    assert_eq!(frame.reason.as_str(), "the client's side ended");
    world.until_detached().await;
}

// As those do that send their close frame and end their side in one go.
#[tokio::test]
async fn a_client_that_closes_and_ends_its_side_gets_its_close_frame() {
    let world = World::new().await;
    let id = world.cat().await;
    let mut socket = Socket::open(&world, &id, "after=4").await;
    socket.0.send(Message::Close(None)).await.unwrap();
    socket.end_side().await;
    let frame = socket.0.next().await.unwrap().unwrap();
    assert!(matches!(frame, Message::Close(Some(_))), "{frame:?}");
    world.until_detached().await;
}
