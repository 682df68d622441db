//! Every call, its statuses and its codes.

use std::sync::atomic::Ordering;

use outlive_core::{event::ExitStatus, limits::ATTEMPTS_KEPT_MAX};
use serde_json::{Value, json};

use super::World;

#[tokio::test]
#[expect(
    clippy::too_many_lines,
    reason = "one life, from its creation to its deletion"
)]
async fn a_session_lives_through_every_call() {
    let world = World::new().await;
    let spec = json!({"command": ["/bin/cat"], "name": "cat", "io": {"mode": "pty"}, "unknown": 1});
    let (status, answer) = world.call("POST", "", spec).await;
    assert_eq!(status, 201);
    let session = &answer["data"];
    let id = session["id"].as_str().unwrap().to_owned();
    assert_eq!(
        session["spec"],
        json!({
            "name": "cat",
            "command": ["/bin/cat"],
            "io": {"mode": "pty", "terminal": {"rows": 24, "cols": 80, "term": "xterm-256color"}},
            "lifecycle": {
                "desired_state": "running",
                "restart": {
                    "policy": "never", "max_restarts": 5, "window_seconds": 60,
                    "initial_backoff_ms": 250, "max_backoff_ms": 5000
                },
                "runtime_recovery": "restart",
                "stop_grace_period_seconds": 10
            },
            "readiness": {"type": "process", "timeout_ms": 30000},
            "event_retention": {"max_bytes": 67_108_864, "max_age_seconds": 86_400}
        })
    );
    assert_eq!(
        (&session["phase"], &session["spec_version"]),
        (&json!("running"), &json!(1))
    );
    assert_eq!(session["attempt"]["number"], 1);
    assert_eq!(session["attempt"]["pid"], 101);
    assert!(session["created_at"].as_str().unwrap().ends_with('Z'));

    let at = |rest: &str| format!("/{id}{rest}");
    let (status, answer) = world.call("GET", "", Value::Null).await;
    assert_eq!(
        (status, answer["data"]["sessions"].as_array().unwrap().len()),
        (200, 1)
    );
    let (status, _) = world.call("GET", &at(""), Value::Null).await;
    assert_eq!(status, 200);

    let input = json!({"input_id": " a ", "data_base64": "aGk="});
    let (status, answer) = world.call("POST", &at("/inputs"), input).await;
    let attempt = answer["data"]["attempt_id"].clone();
    assert_eq!(status, 202);
    assert_eq!(
        answer["data"],
        json!({"input_id": "a", "attempt_id": attempt, "accepted": true, "duplicate": false})
    );
    let (status, answer) = world
        .call("POST", &at("/signals"), json!({"signal": "usr1"}))
        .await;
    assert_eq!((status, &answer["data"]), (202, &json!({"accepted": true})));
    let size = json!({"rows": 40, "cols": 100, "expected_attempt_id": attempt});
    let (status, answer) = world.call("PUT", &at("/terminal"), size).await;
    assert_eq!((status, &answer["data"]), (200, &json!({"resized": true})));

    let (status, answer) = world
        .call("PUT", &at("/desired-state"), json!({"state": "stopped"}))
        .await;
    assert_eq!((status, &answer["data"]["phase"]), (200, &json!("stopped")));
    let ended = &answer["data"]["attempt"];
    assert_eq!(ended["reason"], "desired_state_stopped");
    assert_eq!(
        (&ended["exit_code"], &ended["signal"]),
        (&json!(-1), &json!("SIGTERM"))
    );
    assert!(ended.get("pid").is_none());

    let (status, answer) = world.call("POST", &at("/attempts"), Value::Null).await;
    assert_eq!(
        (status, &answer["data"]["attempt"]["number"]),
        (201, &json!(2))
    );
    let (status, answer) = world.call("POST", &at("/attempts"), json!({})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (409, &json!("session_conflict"))
    );
    let replace = json!({"replace_current": true});
    let (status, answer) = world.call("POST", &at("/attempts"), replace).await;
    assert_eq!(
        (status, &answer["data"]["attempt"]["number"]),
        (201, &json!(3))
    );
    let (status, answer) = world.call("GET", &at("/attempts"), Value::Null).await;
    let reasons: Vec<_> = answer["data"]["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| attempt["reason"].clone())
        .collect();
    assert_eq!(status, 200);
    assert_eq!(
        reasons,
        [
            json!("desired_state_stopped"),
            json!("attempt_replaced"),
            Value::Null
        ]
    );

    let (status, answer) = world
        .call("PUT", &at(""), json!({"command": ["/bin/true"]}))
        .await;
    assert_eq!(
        (status, &answer["data"]["spec"]["command"]),
        (200, &json!(["/bin/true"]))
    );
    assert_eq!(answer["data"]["attempt"]["number"], 4);
    let (status, answer) = world.call("DELETE", &at(""), Value::Null).await;
    assert_eq!((status, &answer["data"]), (200, &json!({"deleted": true})));
    let (status, answer) = world.call("GET", &at(""), Value::Null).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("session_not_found"))
    );
}

#[tokio::test]
async fn reading_never_wakes_and_changing_does() {
    let world = World::new().await;
    let id = world.cat().await;
    let before = world.sandbox.wakes.load(Ordering::Relaxed);
    world.call("GET", "", Value::Null).await;
    for rest in ["", "/attempts", "/events", "/events?wait_ms=1&after=4"] {
        let (status, answer) = world
            .call("GET", &format!("/{id}{rest}"), Value::Null)
            .await;
        assert_eq!(status, 200, "{answer}");
    }
    let stream = world
        .send("GET", &format!("/{id}/events/stream"), &[], "")
        .await;
    assert_eq!(stream.status(), 200);
    assert_eq!(world.sandbox.wakes.load(Ordering::Relaxed), before);
    world
        .call("POST", &format!("/{id}/signals"), json!({"signal": "CONT"}))
        .await;
    assert_eq!(world.sandbox.wakes.load(Ordering::Relaxed), before + 1);
}

// case C7, at the level of the calls
#[tokio::test]
async fn a_creation_with_a_key_happens_once() {
    let world = World::new().await;
    let spec = json!({"command": ["/bin/cat"]}).to_string();
    let key = [("idempotency-key", " k-1 ")];
    let (status, first) = world.call_with("POST", "", &key, spec.clone()).await;
    assert_eq!(status, 201);
    let id = first["data"]["id"].as_str().unwrap();
    // The retry comes after a stop, which changes the specification that is in force.
    world
        .call(
            "PUT",
            &format!("/{id}/desired-state"),
            json!({"state": "stopped"}),
        )
        .await;
    let (status, again) = world.call_with("POST", "", &key, spec).await;
    assert_eq!((status, &again["data"]["id"]), (200, &first["data"]["id"]));
    let other = json!({"command": ["/bin/true"]}).to_string();
    let (status, answer) = world.call_with("POST", "", &key, other).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (409, &json!("session_conflict"))
    );
    let long = "k".repeat(256);
    let (status, _) = world
        .call_with("POST", "", &[("idempotency-key", &long)], "{}")
        .await;
    assert_eq!(status, 400);
}

// case C5, at the level of the calls
#[tokio::test]
async fn a_repeated_input_is_written_once() {
    let world = World::new().await;
    let id = world.cat().await;
    let path = format!("/{id}/inputs");
    let input = json!({"input_id": "one", "data_base64": "eA=="});
    for duplicate in [false, true, true] {
        let (status, answer) = world.call("POST", &path, input.clone()).await;
        assert_eq!(
            (status, &answer["data"]["duplicate"]),
            (202, &json!(duplicate))
        );
    }
    let other = json!({"input_id": "one", "data_base64": "eQ=="});
    let (status, answer) = world.call("POST", &path, other).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (409, &json!("session_conflict"))
    );
    let events = world.page(&id, "types=input.accepted,output").await;
    assert_eq!(super::types(&events), ["input.accepted", "output"]);
    assert_eq!(events[0]["input_id"], "one");
    assert_eq!(
        (&events[0]["bytes"], &events[0]["eof"]),
        (&json!(1), &json!(false))
    );
}

#[tokio::test]
async fn a_stale_attempt_is_refused_everywhere() {
    let world = World::new().await;
    let id = world
        .session(json!({"command": ["sh"], "io": {"mode": "pty"}}))
        .await;
    for stale in ["att-00000000-000", "no id at all"] {
        for (method, rest, body) in [
            (
                "POST",
                "inputs",
                json!({"input_id": "i", "eof": true, "expected_attempt_id": stale}),
            ),
            (
                "POST",
                "signals",
                json!({"signal": "TERM", "expected_attempt_id": stale}),
            ),
            (
                "PUT",
                "terminal",
                json!({"rows": 1, "cols": 1, "expected_attempt_id": stale}),
            ),
        ] {
            let (status, answer) = world.call(method, &format!("/{id}/{rest}"), body).await;
            assert_eq!(
                (status, &answer["error"]["code"]),
                (409, &json!("session_conflict"))
            );
            assert_eq!(answer["error"]["message"], "session attempt mismatch");
        }
    }
    // Nothing runs: a conflict too, with another word.
    world.sandbox.exit(&id, ExitStatus::Code(0));
    let (status, answer) = world
        .call("POST", &format!("/{id}/signals"), json!({"signal": "TERM"}))
        .await;
    assert_eq!(
        (status, &answer["error"]["message"]),
        (409, &json!("session is not running"))
    );
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table")]
async fn what_makes_no_sense_is_an_invalid_request() {
    let world = World::new().await;
    let id = world.cat().await;
    let at = |rest: &str| format!("/{id}{rest}");
    let many: Vec<_> = (0..4097).map(|_| "x").collect();
    for (method, path, body) in [
        ("POST", String::new(), json!({})),
        ("POST", String::new(), json!({"command": []})),
        ("POST", String::new(), json!({"command": [" "]})),
        ("POST", String::new(), json!({"command": "ls"})),
        ("POST", String::new(), json!({"command": [1]})),
        ("POST", String::new(), json!({"command": ["a\u{0}"]})),
        ("POST", String::new(), json!({"command": many})),
        ("POST", String::new(), json!([])),
        (
            "POST",
            String::new(),
            json!({"command": ["a"], "env": {"": "x"}}),
        ),
        (
            "POST",
            String::new(),
            json!({"command": ["a"], "env": {"a=b": "x"}}),
        ),
        (
            "POST",
            String::new(),
            json!({"command": ["a"], "name": "n".repeat(129)}),
        ),
        (
            "POST",
            String::new(),
            json!({"command": ["a"], "io": {"mode": "tape"}}),
        ),
        (
            "POST",
            String::new(),
            json!({"command": ["a"], "io": {"mode": "pty", "terminal": {"rows": 65_536}}}),
        ),
        (
            "POST",
            String::new(),
            json!({"command": ["a"], "lifecycle": {"idle_timeout_seconds": -1}}),
        ),
        (
            "POST",
            String::new(),
            json!({"command": ["a"], "readiness": {"type": "output"}}),
        ),
        ("PUT", at("/desired-state"), json!({"state": "paused"})),
        ("PUT", at("/desired-state"), Value::Null),
        ("POST", at("/attempts"), json!({"replace_current": "yes"})),
        ("POST", at("/attempts"), json!([])),
        ("POST", at("/inputs"), json!({"input_id": " ", "eof": true})),
        ("POST", at("/inputs"), json!({"input_id": "i"})),
        (
            "POST",
            at("/inputs"),
            json!({"input_id": "i".repeat(129), "eof": true}),
        ),
        (
            "POST",
            at("/inputs"),
            json!({"input_id": "i", "data_base64": "eA"}),
        ),
        (
            "POST",
            at("/inputs"),
            json!({"input_id": "i", "data_base64": "_-=="}),
        ),
        (
            "POST",
            at("/inputs"),
            json!({"input_id": "i", "data_base64": 7}),
        ),
        (
            "POST",
            at("/inputs?durable=perhaps"),
            json!({"input_id": "i", "eof": true}),
        ),
        ("POST", at("/signals"), json!({"signal": "NOPE"})),
        ("POST", at("/signals"), json!({"signal": 15})),
        ("PUT", at("/terminal"), json!({"rows": 0, "cols": 80})),
        ("PUT", at("/terminal"), json!({"rows": 24, "cols": 65_536})),
        ("PUT", at("/terminal"), json!({"rows": 1.5, "cols": 80})),
        ("GET", at("/events?limit=0"), Value::Null),
        ("GET", at("/events?limit=10001"), Value::Null),
        ("GET", at("/events?limit=x"), Value::Null),
        ("GET", at("/events?tail=0"), Value::Null),
        ("GET", at("/events?tail=1&after=1"), Value::Null),
        ("GET", at("/events?wait_ms=30001"), Value::Null),
        ("GET", at("/events?types=nope"), Value::Null),
        ("GET", at("/events?stream=stdin"), Value::Null),
        ("GET", at("/events?attempt_id=7"), Value::Null),
        ("GET", at("/events/stream?until=dawn"), Value::Null),
        ("GET", at("/ws"), Value::Null),
    ] {
        let text = format!("{method} {path} {body:.80}");
        let (status, answer) = world.call(method, &path, body).await;
        assert_eq!(status, 400, "{text} {answer}");
        assert_eq!(answer["error"]["code"], "invalid_request", "{text}");
    }
    let (status, answer) = world.call_with("POST", "", &[], "{\"command\":").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (400, &json!("invalid_request"))
    );
    // A terminal call of a session with pipes is no bad request but a bad moment.
    let (status, _) = world
        .call("PUT", &at("/terminal"), json!({"rows": 1, "cols": 1}))
        .await;
    assert_eq!(status, 409);
}

#[tokio::test]
async fn too_much_is_refused_by_its_size() {
    let world = World::new().await;
    let id = world.cat().await;
    let (status, answer) = world.call_with("POST", "", &[], vec![b' '; 10 << 20]).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (413, &json!("invalid_request"))
    );
    let data = base64_simd::STANDARD.encode_to_string(vec![0; (4 << 20) + 1]);
    let input = json!({"input_id": "big", "data_base64": data});
    let (status, answer) = world.call("POST", &format!("/{id}/inputs"), input).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (413, &json!("invalid_request"))
    );
    let data = base64_simd::STANDARD.encode_to_string(vec![0; 4 << 20]);
    let input = json!({"input_id": "large", "data_base64": data});
    let (status, _) = world.call("POST", &format!("/{id}/inputs"), input).await;
    assert_eq!(status, 202);
}

#[tokio::test]
async fn who_may_not_is_told_by_what_it_may_know() {
    let world = World::new().await;
    let id = world.cat().await;
    let stranger = [("x-as", "stranger")];
    for path in [
        String::new(),
        format!("/{id}"),
        format!("/{id}/events"),
        format!("/{id}/ws"),
    ] {
        let (status, answer) = world.call_with("GET", &path, &stranger, "").await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!("not_found")),
            "{path}"
        );
    }
    let reader = [("x-as", "reader")];
    let (status, _) = world.call_with("GET", &format!("/{id}"), &reader, "").await;
    assert_eq!(status, 200);
    let (status, answer) = world
        .call_with("DELETE", &format!("/{id}"), &reader, "")
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (403, &json!("forbidden"))
    );
    for unknown in ["/ses-00000000-00a", "/ses-", "/nonsense", "/..%2f.."] {
        for rest in ["", "/events", "/events/stream", "/attempts"] {
            let path = format!("{unknown}{rest}");
            let (status, answer) = world.call("GET", &path, Value::Null).await;
            assert_eq!(status, 404, "{path}");
            assert_eq!(answer["error"]["code"], "session_not_found", "{path}");
        }
    }
}

// The list was said to be all that the journal tells of.
#[tokio::test]
async fn the_newest_attempts_are_listed_and_older_ones_are_in_the_events() {
    let world = World::new().await;
    let id = world.cat().await;
    let path = format!("/{id}/attempts");
    let all = ATTEMPTS_KEPT_MAX + 6;
    for _ in 1..all {
        let replace = json!({"replace_current": true});
        let (status, _) = world.call("POST", &path, replace).await;
        assert_eq!(status, 201);
    }
    let (_, answer) = world.call("GET", &path, Value::Null).await;
    let listed = answer["data"]["attempts"].as_array().unwrap();
    let numbers: Vec<_> = listed.iter().map(|it| it["number"].clone()).collect();
    let newest: Vec<_> = (7..=all).map(Value::from).collect();
    assert_eq!(numbers, newest);

    let query = "after=0&types=attempt.starting,attempt.exited";
    let told = world.page(&id, query).await;
    let begun: Vec<_> = told
        .iter()
        .filter(|event| event["type"] == "attempt.starting")
        .map(|event| event["attempt_id"].clone())
        .collect();
    let listed: Vec<_> = listed.iter().map(|it| it["id"].clone()).collect();
    assert_eq!((begun.len(), &begun[6..]), (all, &*listed));
    assert_eq!(told.len(), 2 * all - 1);
}
