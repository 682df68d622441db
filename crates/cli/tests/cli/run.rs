//! `outlive run` and `session attach`: the program's output and exit code, and nobody else's.
use std::process::Stdio;

use crate::support::{
    Fake, Outlive, Reply, Request, SANDBOX, SESSION, after, event, exited, finish, output, session,
    sse,
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

/// Answers everything but the stream.
fn usual(request: &Request) -> Option<Reply> {
    if request.is("POST", "/sandboxes") {
        Some(Reply::ok(
            201,
            json!({"sandbox_id": SANDBOX, "status": "running"}),
        ))
    } else if request.is("POST", "/sessions") {
        Some(Reply::ok(201, session("running", 4)))
    } else if request.is("POST", "/inputs") {
        Some(Reply::ok(
            202,
            json!({"accepted": true, "duplicate": false}),
        ))
    } else if request.is("GET", SESSION) {
        Some(Reply::ok(200, session("running", 4)))
    } else {
        None
    }
}

/// A server where every session prints and ends like this.
async fn ending(end: Value) -> Fake {
    Fake::start(move |request, _| {
        usual(request).unwrap_or_else(|| {
            Reply::Open(sse(&[
                output(1, "stdout", "out\n"),
                output(2, "stderr", "err\n"),
                exited(3, &end),
            ]))
        })
    })
    .await
}

#[tokio::test]
async fn output_and_exit_code_are_the_programs_own() {
    for (end, code, said) in [
        (json!({"exit_code": 0, "reason": "stopped"}), 0, ""),
        (json!({"exit_code": 3, "reason": "crashed"}), 3, ""),
        (json!({"exit_code": 255, "reason": "crashed"}), 255, ""),
        (
            json!({"exit_code": -1, "signal": "SIGTERM", "reason": "killed"}),
            143,
            "",
        ),
        (
            json!({"exit_code": -1, "signal": "SIGKILL", "reason": "killed"}),
            137,
            "",
        ),
        (
            json!({"exit_unknown": true, "reason": "unknown"}),
            125,
            "exit_unknown",
        ),
        (json!({"reason": "runtime_replaced"}), 125, "exit_unknown"),
        (
            json!({"reason": "start_failed", "message": "no such file or directory: prog"}),
            125,
            "prog\n  next: is the program in the sandbox",
        ),
        (
            json!({"reason": "start_failed", "message": "permission denied: prog"}),
            125,
            "prog\n  next: may its user execute",
        ),
    ] {
        let fake = ending(end.clone()).await;
        let done = Outlive::new(&fake.url).run("run -- prog").await;
        assert_eq!(done.code(), code, "{end}: {done:?}");
        assert_eq!(done.text(), "out\n", "{end}");
        assert!(
            done.stderr.contains("err\n") && done.stderr.contains(said),
            "{end}: {done:?}"
        );
        assert!(
            done.stderr
                .contains(&format!("sandbox {SANDBOX} session {SESSION}"))
        );
    }
}

// It was 143 without a word, and 137 when memory ran out.
#[tokio::test]
async fn who_ended_a_command_that_did_not_end_by_itself_is_said() {
    for (end, code, said) in [
        (json!({"reason": "session_expired"}), 143, "idle timeout"),
        (json!({"reason": "readiness_timeout"}), 143, "ready in time"),
        (json!({"reason": "desired_state_stopped"}), 143, "stopped"),
        (
            json!({"reason": "desired_state_stopped", "exit_code": 4}),
            4,
            "stopped",
        ),
        (
            json!({"reason": "killed", "oom": true, "signal": "SIGKILL"}),
            137,
            "memory ran out",
        ),
    ] {
        let mut whole = json!({"exit_code": -1, "signal": "SIGTERM", "oom": false});
        for (key, value) in end.as_object().unwrap() {
            whole[key] = value.clone();
        }
        if end.get("exit_code").is_some() {
            whole["signal"] = Value::Null;
        }
        let fake = ending(whole).await;
        let outlive = Outlive::new(&fake.url);
        let done = outlive.run("run -- prog").await;
        assert_eq!(done.code(), code, "{end}: {done:?}");
        assert!(done.stderr.contains(said), "{end}: {done:?}");
        let told = outlive.run("run --json -- prog").await;
        assert_eq!(told.code(), code, "{end}: {told:?}");
        let notes = told.stderr.lines().filter(|line| line.contains(said));
        for note in notes.clone() {
            serde_json::from_str::<Value>(note).unwrap();
        }
        assert_eq!(notes.count(), 1, "{end}: {told:?}");
    }
}

#[tokio::test]
async fn a_time_limit_that_passed_has_a_code_of_its_own() {
    let end = json!({"exit_code": -1, "signal": "SIGTERM", "reason": "session_expired"});
    let fake = ending(end).await;
    let done = Outlive::new(&fake.url)
        .run("run --timeout 2s -- sleep 60")
        .await
        .expect(124);
    assert!(done.stderr.contains("--timeout"), "{}", done.stderr);
    let spec = fake.calls("POST", "/sessions")[0].json();
    assert_eq!(spec["lifecycle"]["max_lifetime_seconds"], 2);
}

// case B2: the ways in which a stream can break before any exit. None of them is an exit.
#[tokio::test]
async fn a_transport_failure_is_never_an_exit_code() {
    let breaks: [fn(String) -> Reply; 3] = [Reply::Stream, Reply::Broken, |_| Reply::Nothing];
    for end in breaks {
        let fake = Fake::start(move |request, _| {
            usual(request).unwrap_or_else(|| match after(request) {
                Some(0) => Reply::Broken(sse(&[output(1, "stdout", "out\n")])),
                _ => end(": heartbeat\n\n".to_owned()),
            })
        })
        .await;
        let done = Outlive::new(&fake.url)
            .run("run --reconnect 1 -- prog")
            .await
            .expect(125);
        assert_eq!(done.text(), "out\n");
        assert!(done.stderr.contains("error: transport"), "{}", done.stderr);
        assert!(done.stderr.contains("last event: 1"), "{}", done.stderr);
    }
}

// case B2: close codes of a WebSocket, "normal" ones included.
#[tokio::test]
async fn no_close_code_is_an_exit_code() {
    for code in [Some(1000), Some(1001), Some(1011), None] {
        let fake = Fake::start(move |request, _| {
            usual(request).unwrap_or_else(|| {
                let text = json!({"type": "event", "event": output(1, "pty", "out\r\n")});
                let texts = if after(request) == Some(0) {
                    vec![text.to_string()]
                } else {
                    vec![]
                };
                Reply::WebSocket(texts, code)
            })
        })
        .await;
        let done = Outlive::new(&fake.url)
            .run("run -t --reconnect 1 -- prog")
            .await
            .expect(125);
        assert_eq!(done.text(), "out\r\n", "{code:?}");
        assert!(
            done.stderr.contains("error: transport"),
            "{code:?}: {}",
            done.stderr
        );
        assert!(
            done.stderr.contains("last event: 1"),
            "{code:?}: {}",
            done.stderr
        );
        assert!(fake.calls("GET", "/ws").len() > 1, "it tried again");
    }
}

#[tokio::test]
async fn a_terminal_that_lost_its_connection_goes_on_and_passes_the_exit_on() {
    let fake = Fake::start(|request, _| {
        let text = |event: Value| json!({"type": "event", "event": event}).to_string();
        usual(request).unwrap_or_else(|| match after(request) {
            Some(0) => Reply::WebSocket(vec![text(output(1, "pty", "a"))], None),
            _ => Reply::WebSocket(
                vec![
                    text(output(1, "pty", "a")),
                    text(output(2, "pty", "b")),
                    text(exited(3, &json!({"exit_code": 9, "reason": "crashed"}))),
                ],
                Some(1000),
            ),
        })
    })
    .await;
    let done = Outlive::new(&fake.url)
        .run("run -t -- prog")
        .await
        .expect(9);
    assert_eq!(done.text(), "ab");
}

// case C1: a standard input that never ends must not keep us.
#[tokio::test]
async fn an_open_standard_input_does_not_delay_the_end() {
    let fake = ending(json!({"exit_code": 0, "reason": "stopped"})).await;
    let outlive = Outlive::new(&fake.url);
    let mut child = outlive.command(["run", "-i", "--", "echo", "hi"]);
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    let open = child.stdin.take();
    finish(child).await.expect(0);
    drop(open);
}

// case C2: without -i the command gets its end of file at once.
#[tokio::test]
async fn without_input_the_end_of_file_is_sent_at_once() {
    for (flags, eof) in [("", 1), ("-d", 1), ("-d -i", 0), ("-d -t", 0)] {
        let fake = Fake::start(|request, _| {
            usual(request).unwrap_or_else(|| Reply::Stream(": heartbeat\n\n".into()))
        })
        .await;
        let outlive = Outlive::new(&fake.url);
        let line = format!("run {flags} --sandbox {SANDBOX} -- cat");
        let child = outlive.command(line.split_whitespace()).spawn().unwrap();
        while fake.calls("POST", "/inputs").len() < eof {
            tokio::task::yield_now().await;
        }
        if flags.is_empty() {
            drop(child); // It would follow for ever.
        } else {
            finish(child).await.expect(0);
        }
        let inputs = fake.calls("POST", "/inputs");
        assert_eq!(inputs.len(), eof, "{flags}");
        for input in inputs {
            assert_eq!(input.json()["eof"], true, "{flags}");
            assert_eq!(input.json().get("data_base64"), None, "{flags}");
        }
    }
}

// case C5: the answer to an input was lost; the repetition is the same input.
#[tokio::test]
async fn an_input_whose_answer_was_lost_is_repeated_with_its_id() {
    let fake = Fake::start(|request, before| {
        if request.is("POST", "/inputs") && before == 0 {
            return Reply::Nothing;
        }
        Reply::ok(
            202,
            json!({"input_id": "x", "accepted": true, "duplicate": true}),
        )
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("session input {SANDBOX} {SESSION} --data hello --eof");
    let done = outlive.run(&line).await.expect(0);
    assert!(
        done.text().starts_with("Input was accepted before"),
        "{done:?}"
    );
    let inputs: Vec<Value> = fake
        .calls("POST", "/inputs")
        .iter()
        .map(Request::json)
        .collect();
    assert_eq!(inputs.len(), 2);
    assert_eq!(inputs[0], inputs[1]);
    assert_eq!(inputs[0]["data_base64"], "aGVsbG8=");
}

// case C6, case C7: a creation is repeated with its key, anything without one never.
#[tokio::test]
async fn a_lost_creation_is_repeated_with_its_key() {
    let fake = Fake::start(|request, before| {
        if request.is("POST", "/sessions") && before == 0 {
            return Reply::Nothing;
        }
        Reply::ok(200, session("running", 4))
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    outlive
        .run(&format!("session create {SANDBOX} -- true"))
        .await
        .expect(0);
    let keys: Vec<Option<String>> = fake
        .calls("POST", "/sessions")
        .iter()
        .map(|request| request.headers.get("idempotency-key").cloned())
        .collect();
    assert_eq!(keys.len(), 2);
    assert!(keys[0].is_some() && keys[0] == keys[1]);

    let fake = Fake::start(|_, _| Reply::Nothing).await;
    let outlive = Outlive::new(&fake.url);
    outlive
        .run(&format!("session attempt {SANDBOX} {SESSION}"))
        .await
        .expect(1);
    assert_eq!(
        fake.seen().len(),
        1,
        "a new attempt is never asked for twice"
    );
}

// case I10: interrupted, the client says how to come back and touches nothing, and with --rm names
// what it leaves.
#[tokio::test]
async fn an_interrupted_run_says_how_to_come_back() {
    interrupted(&["run", "--", "sleep", "60"]).await;
    let said = interrupted(&["run", "--rm", "--", "sleep", "60"]).await;
    let way = format!("outlive sandbox delete {SANDBOX}");
    assert!(said.contains(&way), "{said}");
}

async fn interrupted(arguments: &[&str]) -> String {
    let fake = Fake::start(|request, _| {
        usual(request).unwrap_or_else(|| Reply::Open(sse(&[output(1, "stdout", "out\n")])))
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let mut child = outlive.command(arguments).spawn().unwrap();
    let mut first = [0; 4];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .await
        .unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let done = finish(child).await.expect(130);
    assert!(
        done.stderr.contains("detached after event 1"),
        "{}",
        done.stderr
    );
    let way = format!("outlive session attach {SANDBOX} {SESSION} --after 1");
    assert!(done.stderr.contains(&way), "{}", done.stderr);
    for request in fake.seen() {
        let harmless = ["/sandboxes", "/sessions", "/inputs", "/stream"];
        let path = request.target.split('?').next().unwrap();
        assert!(
            harmless.iter().any(|end| path.ends_with(end)),
            "{} {path}",
            request.method
        );
    }
    done.stderr
}

#[tokio::test]
async fn a_restarting_session_is_over_when_it_is_stopped_in_the_backoff() {
    let restarting = |phase: &str| {
        let mut session = session(phase, 4);
        session["spec"]["lifecycle"]["restart"]["policy"] = "always".into();
        session
    };
    let fake = Fake::start(move |request, before| {
        if request.is("POST", "/sessions") {
            Reply::ok(201, restarting("running"))
        } else if request.is("GET", SESSION) {
            let first = before < 5;
            Reply::ok(200, restarting(if first { "backoff" } else { "stopped" }))
        } else {
            usual(request).unwrap_or_else(|| {
                Reply::Open(sse(&[
                    exited(1, &json!({"exit_code": 4, "reason": "crashed"})),
                    event(2, "session.backoff", &json!({"reason": "250ms"})),
                    event(3, "session.desired_state", &json!({"reason": "stopped"})),
                    event(4, "session.desired_state", &json!({"reason": "stopped"})),
                ]))
            })
        }
    })
    .await;
    let line = format!("run --sandbox {SANDBOX} -i --restart always -- prog");
    Outlive::new(&fake.url).run(&line).await.expect(4);
}

#[tokio::test]
async fn rm_deletes_only_the_sandbox_that_was_made() {
    let fake = Fake::start(|request, _| {
        usual(request).unwrap_or_else(|| {
            if request.method == "DELETE" {
                return Reply::ok(200, json!({"message": "deleted"}));
            }
            Reply::Open(sse(&[exited(
                1,
                &json!({"exit_code": 6, "reason": "crashed"}),
            )]))
        })
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    outlive.run("run --rm -- prog").await.expect(6);
    assert_eq!(fake.calls("DELETE", SANDBOX).len(), 1);
    outlive
        .run(&format!("run --rm --sandbox {SANDBOX} -- prog"))
        .await
        .expect(2);
    outlive.run("run -- prog").await.expect(6);
    assert_eq!(fake.calls("DELETE", SANDBOX).len(), 1);
}

// A sandbox that stood still for its full disk let whoever waited wait without a word.
#[tokio::test]
async fn whoever_waits_is_told_why_the_sandbox_stands_still() {
    let paused = |seq| event(seq, "session.paused", &json!({}));
    let told = |state: &'static str, full: bool| {
        Fake::start(move |request, _| {
            if request.is("GET", "/activity") {
                return Reply::Json(
                    200,
                    json!({"state": state, "awake_because": [], "disk_full": full}),
                );
            }
            if request.is("GET", SANDBOX) {
                let disk = json!({"limit": "16Mi", "used_bytes": 17 << 20, "full": full});
                return Reply::ok(200, json!({"sandbox_id": SANDBOX, "disk": disk}));
            }
            usual(request).unwrap_or_else(|| {
                Reply::Open(sse(&[
                    output(1, "stdout", "out\n"),
                    paused(2),
                    event(3, "session.resumed", &json!({})),
                    output(4, "stdout", "out\n"),
                    paused(5),
                    event(6, "session.resumed", &json!({})),
                    exited(7, &json!({"exit_code": 3, "reason": "crashed"})),
                ]))
            })
        })
    };
    let update = format!("outlive sandbox update {SANDBOX} --disk 32Mi");
    let wake = format!("outlive sandbox wake {SANDBOX}");
    let resume = format!("outlive sandbox resume {SANDBOX}");
    for (state, full, words) in [
        (
            "frozen",
            true,
            vec!["its disk is full (17.00 MiB of 16Mi)", &update, &wake],
        ),
        ("freezing", false, vec!["sleeps", &wake]),
        ("released", false, vec!["is paused", &resume]),
        ("running", false, vec![]),
    ] {
        let fake = told(state, full).await;
        let outlive = Outlive::new(&fake.url);
        let line = format!("session attach {SANDBOX} {SESSION} --after 0");
        let done = outlive.run(&line).await.expect(3);
        for word in &words {
            assert!(done.stderr.contains(word), "{word}: {done:?}");
        }
        // Once, however often it was so before we came, and then that it is over.
        let over = usize::from(!words.is_empty());
        assert_eq!(done.stderr.matches("goes on").count(), over, "{done:?}");
        let looks = fake
            .seen()
            .into_iter()
            .filter(|it| it.is("GET", "/activity"));
        assert_eq!(looks.count(), 1, "{state}");
    }
}

// Whoever attached to a session that was not there got 1, as if a program had said so.
#[tokio::test]
async fn a_failure_of_ours_never_passes_for_the_program_s() {
    let fake =
        Fake::start(|_, _| Reply::error(404, "session_not_found", "no such session", json!(null)))
            .await;
    let nobody = "http://127.0.0.1:1";
    for url in [fake.url.as_str(), nobody] {
        let outlive = Outlive::new(url);
        for line in [
            format!("session attach {SANDBOX} {SESSION}"),
            format!("sandbox session attach {SANDBOX} {SESSION} --after 0"),
            format!("session attach {SANDBOX} its-name"),
            format!("run --sandbox {SANDBOX} -- true"),
            format!("sandbox exec {SANDBOX} -- true"),
            format!("sandbox run {SANDBOX} 1+1"),
        ] {
            let done = outlive.run(&line).await.expect(125);
            assert!(done.stderr.starts_with("error: "), "{line}: {done:?}");
        }
    }
}
