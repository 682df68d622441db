//! Contexts: their calls and codes, and that they are no sessions.

use std::sync::atomic::Ordering;

use outlive_core::{
    event::{ExitStatus, Stream},
    id::SessionId,
};
use serde_json::{Value, json};

use super::{World, socket::Socket, types};

const AT: &str = "/../contexts";

impl World {
    /// A context whose child is `cat`, and its session.
    async fn cat_context(&self) -> (String, SessionId) {
        let body = json!({"type": "cmd", "cmd": {"command": ["/bin/cat"]}, "cwd": "/tmp"});
        let (status, answer) = self.call("POST", AT, body).await;
        assert_eq!(status, 201, "{answer}");
        let id = answer["data"]["id"].as_str().unwrap().to_owned();
        let session = SessionId::parse_context(&id).unwrap();
        (id, session)
    }
}

#[tokio::test]
async fn a_command_that_is_waited_for_sees_the_end_of_its_input() {
    // Story: `cat` without an argument waited for input that nobody would ever send.
    let world = World::new().await;
    let body = json!({"cmd": {"command": ["/bin/cat"]}, "wait_until_done": true});
    let (status, answer) = world.call("POST", AT, body).await;
    let context = &answer["data"];
    assert_eq!(status, 201, "{answer}");
    assert_eq!(
        (&context["type"], &context["running"]),
        (&json!("cmd"), &json!(false))
    );
    assert_eq!(
        (&context["exit_code"], &context["state"]),
        (&json!(0), &json!("stopped"))
    );
    assert_eq!(
        (
            &context["stdout"],
            &context["stderr"],
            &context["output_raw"]
        ),
        (&json!(""), &json!(""), &json!(""))
    );
}

#[tokio::test]
async fn a_context_lives_through_its_calls() {
    let world = World::new().await;
    let (id, session) = world.cat_context().await;
    let at = |rest: &str| format!("{AT}/{id}{rest}");
    let (status, answer) = world.call("GET", &at(""), Value::Null).await;
    let context = &answer["data"];
    assert_eq!((status, &context["running"]), (200, &json!(true)));
    assert_eq!(
        (&context["cwd"], &context["env_vars"], &context["command"]),
        (&json!("/tmp"), &json!({}), &json!(["/bin/cat"]))
    );
    let (status, answer) = world
        .call("POST", &at("/input"), json!({"data": "hi\n"}))
        .await;
    assert_eq!((status, &answer["data"]), (200, &json!({"written": true})));
    let (status, answer) = world
        .call("POST", &at("/signal"), json!({"signal": "usr1"}))
        .await;
    assert_eq!((status, &answer["data"]), (200, &json!({"signaled": true})));
    let (status, answer) = world
        .call("POST", &at("/resize"), json!({"rows": 4, "cols": 9}))
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (409, &json!("pty_unavailable"))
    );
    world.sandbox.output(&session, Stream::Stderr, b"\xff");
    let (status, answer) = world
        .call("POST", &at("/exec"), json!({"data": "last\n"}))
        .await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (&answer["data"]["stdout"], &answer["data"]["exit_code"]),
        (&json!("last\n"), &json!(0))
    );
    let (_, answer) = world.call("GET", &at(""), Value::Null).await;
    let ended = &answer["data"];
    assert_eq!(
        (&ended["stdout"], &ended["stderr_base64"], &ended["running"]),
        (&json!("hi\nlast\n"), &json!("/w=="), &json!(false))
    );
    let (status, answer) = world
        .call("POST", &at("/input"), json!({"data": "more"}))
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (410, &json!("process_finished"))
    );
    let (status, answer) = world.call("POST", &at("/restart"), Value::Null).await;
    assert_eq!((status, &answer["data"]["running"]), (200, &json!(true)));
    let (status, answer) = world.call("DELETE", &at(""), Value::Null).await;
    assert_eq!((status, &answer["data"]), (200, &json!({"deleted": true})));
    let (status, answer) = world.call("GET", &at(""), Value::Null).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("context_not_found"))
    );
}

#[tokio::test]
async fn contexts_are_no_sessions_and_sessions_no_contexts() {
    let world = World::new().await;
    let (id, session) = world.cat_context().await;
    let plain = world.cat().await;
    let (_, answer) = world.call("GET", "", Value::Null).await;
    let sessions = answer["data"]["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0]["id"], plain.as_str());
    let (_, answer) = world.call("GET", AT, Value::Null).await;
    let contexts = answer["data"]["contexts"].as_array().unwrap();
    assert_eq!(contexts.len(), 1);
    assert_eq!(contexts[0]["id"], id.as_str());
    for name in [session.as_str(), &id] {
        for (method, rest) in [
            ("GET", ""),
            ("DELETE", ""),
            ("GET", "/events"),
            ("GET", "/ws"),
        ] {
            let (status, answer) = world
                .call(method, &format!("/{name}{rest}"), Value::Null)
                .await;
            assert_eq!(
                (status, &answer["error"]["code"]),
                (404, &json!("session_not_found")),
                "{method} {name}{rest}"
            );
        }
    }
    let (status, answer) = world
        .call("GET", &format!("{AT}/{plain}"), Value::Null)
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("context_not_found"))
    );
}

#[tokio::test]
async fn looking_at_contexts_wakes_nothing() {
    let world = World::new().await;
    let (id, session) = world.cat_context().await;
    world.sandbox.exit(&session, ExitStatus::Code(1));
    let before = world.sandbox.wakes.load(Ordering::Relaxed);
    for path in [AT.to_owned(), format!("{AT}/{id}")] {
        let (status, _) = world.call("GET", &path, Value::Null).await;
        assert_eq!(status, 200);
    }
    assert_eq!(world.sandbox.wakes.load(Ordering::Relaxed), before);
}

#[tokio::test]
async fn a_context_that_makes_no_sense_is_refused_with_the_reason() {
    let world = World::new().await;
    for (body, words) in [
        (json!({}), "type must be cmd or repl"),
        (json!({"type": "cmd"}), "cmd.command is required"),
        (json!({"type": "zsh"}), "unknown variant"),
        (
            json!({"type": "cmd", "cmd": {"command": ["a"]}, "repl": {}}),
            "repl is only valid for repl contexts",
        ),
        (json!({"cmd": {"command": [" "]}}), "command"),
        (json!({"cmd": {"command": ["a"]}, "ttl_sec": -1}), "ttl_sec"),
        (
            json!({"repl": {"alias": "cobol"}}),
            "known are python, node",
        ),
        (
            json!({"repl": {"repl_config": {"name": "sql", "candidates": []}}}),
            "candidates",
        ),
    ] {
        let (status, answer) = world.call("POST", AT, body.clone()).await;
        let error = &answer["error"];
        assert_eq!(
            (status, &error["code"]),
            (400, &json!("invalid_request")),
            "{body}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words), "{body}: {message}");
    }
    let body = json!({"cmd": {"command": ["/bin/cat"]}}).to_string();
    let (status, _) = world
        .call_with("POST", AT, &[("x-as", "reader")], body)
        .await;
    assert_eq!(status, 403);
}

/// What an input caused, and its answer: they come in any order.
async fn answered(socket: &mut Socket) -> (Value, Value) {
    let (one, other) = (socket.next().await, socket.next().await);
    if one["type"] == "ack" {
        (other, one)
    } else {
        (one, other)
    }
}

#[tokio::test]
async fn a_socket_shows_a_command_from_its_beginning_to_its_end() {
    let world = World::new().await;
    let (id, session) = world.cat_context().await;
    world.sandbox.output(&session, Stream::Stdout, b"caf\xc3");
    let mut socket = Socket::open_at(&world, &format!("contexts/{id}/ws")).await;
    let first = socket.next().await;
    assert_eq!(
        (&first["type"], &first["source"], &first["data"]),
        (&json!("output"), &json!("stdout"), &json!("caf"))
    );
    world.sandbox.output(&session, Stream::Stdout, b"\xa9\n");
    let second = socket.next().await;
    assert_eq!(second["data"], "é\n", "a character is not cut in two");
    world.sandbox.output(&session, Stream::Stderr, b"\xfe");
    let third = socket.next().await;
    assert_eq!(
        (&third["source"], &third["data_base64"]),
        (&json!("stderr"), &json!("/g=="))
    );
    // Some clients write the name of the request in their own way.
    let input = json!({"type": "input", "data": "typed\n", "requestId": "r1"});
    socket.send(input).await;
    let (echoed, ack) = answered(&mut socket).await;
    assert_eq!(echoed["data"], "typed\n");
    assert_eq!(ack, json!({"type": "ack", "request_id": "r1"}));
    world.sandbox.exit(&session, ExitStatus::Code(3));
    let done = socket.next().await;
    assert_eq!(
        done,
        json!({"type": "done", "exit_code": 3, "state": "crashed"})
    );
    let (_, close) = socket.close().await;
    assert_eq!(u16::from(close.code), 1000);
    // Who comes later is shown the same; who goes on behind an event, only what is left.
    let mut late = Socket::open_at(&world, &format!("contexts/{id}/ws")).await;
    assert_eq!(late.next().await["data"], "caf");
    let after = echoed["seq"].as_u64().unwrap();
    let mut behind = Socket::open_at(&world, &format!("contexts/{id}/ws?after={after}")).await;
    assert_eq!(behind.next().await, done);
}

#[tokio::test]
async fn a_socket_that_asks_for_nonsense_is_told_and_goes_on() {
    let world = World::new().await;
    let (id, _) = world.cat_context().await;
    let mut socket = Socket::open_at(&world, &format!("contexts/{id}/ws")).await;
    for (message, code) in [
        (json!({"type": "dance"}), "invalid_request"),
        (json!({"type": "input"}), "invalid_request"),
        (
            json!({"type": "signal", "signal": "SIGNAL"}),
            "invalid_request",
        ),
        (
            json!({"type": "resize", "rows": 0, "cols": 1}),
            "invalid_request",
        ),
        (
            json!({"type": "resize", "rows": 2, "cols": 1}),
            "pty_unavailable",
        ),
    ] {
        socket.send(message.clone()).await;
        let answer = socket.next().await;
        assert_eq!(
            (&answer["type"], &answer["code"]),
            (&json!("error"), &json!(code)),
            "{message}"
        );
    }
    let input = json!({"type": "input", "data_base64": "/w==", "eof": true});
    socket.send(input).await;
    let mut messages = Vec::new();
    while messages
        .last()
        .is_none_or(|last: &Value| last["type"] != "done")
    {
        messages.push(socket.next().await);
    }
    let has = |field: &str, value: Value| messages.iter().any(|message| message[field] == value);
    assert!(has("data_base64", json!("/w==")), "{messages:?}");
    assert!(has("exit_code", json!(0)), "{messages:?}");
    let (_, close) = socket.close().await;
    assert_eq!(u16::from(close.code), 1000);
}

// As that of a session does.
#[tokio::test]
async fn a_socket_whose_client_ends_its_side_answers_and_closes() {
    let world = World::new().await;
    let (id, _) = world.cat_context().await;
    let mut socket = Socket::open_at(&world, &format!("contexts/{id}/ws")).await;
    for n in 0..50 {
        socket
            .send(json!({"type": "input", "request_id": n.to_string(), "data": "x"}))
            .await;
    }
    socket.end_side().await;
    while socket.next().await["request_id"] != "49" {}
    let (_, frame) = socket.close().await;
    assert_eq!(u16::from(frame.code), 1000);
    assert_eq!(frame.reason.as_str(), "the client's side ended");
}

#[tokio::test]
async fn a_socket_ends_with_its_context() {
    let world = World::new().await;
    let (id, _) = world.cat_context().await;
    let socket = Socket::open_at(&world, &format!("contexts/{id}/ws")).await;
    let (status, _) = world
        .call("DELETE", &format!("{AT}/{id}"), Value::Null)
        .await;
    assert_eq!(status, 200);
    let (_, close) = socket.close().await;
    assert_eq!(u16::from(close.code), 1000);
}

#[tokio::test]
async fn a_context_has_the_calls_of_the_session_that_it_is() {
    let world = World::new().await;
    let (id, _) = world.cat_context().await;
    let at = |rest: &str| format!("{AT}/{id}/session{rest}");
    let (status, answer) = world.call("GET", &at(""), Value::Null).await;
    assert_eq!((status, &answer["data"]["phase"]), (200, &json!("running")));
    let input = json!({"input_id": "a", "data_base64": "/w==", "eof": true});
    for duplicate in [false, true] {
        let (status, answer) = world.call("POST", &at("/inputs"), input.clone()).await;
        assert_eq!(
            (status, &answer["data"]["duplicate"]),
            (202, &json!(duplicate))
        );
    }
    let (status, answer) = world.call("GET", &at("/events"), Value::Null).await;
    assert_eq!(status, 200);
    let events = answer["data"]["events"].as_array().unwrap();
    assert_eq!(types(events).last(), Some(&"attempt.exited"));
    let (status, answer) = world
        .call("GET", "/../contexts/ctx-0/session", Value::Null)
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("session_not_found"))
    );
}
