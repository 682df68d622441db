//! Contexts: their calls and codes, and that they are no sessions.

use std::sync::atomic::Ordering;

use outlive_core::{
    event::{ExitStatus, Stream},
    id::SessionId,
};
use serde_json::{Value, json};

use super::World;

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
