//! What goes over the wire: bodies, keys, names, and where the key must not go.
use std::fs;

use crate::support::{Fake, Outlive, Reply, SANDBOX, SESSION, session};
use serde_json::json;

/// A server that shows this session whatever it is asked.
async fn one_session() -> Fake {
    Fake::start(|request, _| {
        if request.is("GET", "/sessions") {
            return Reply::ok(200, json!({"sessions": [session("running", 4)]}));
        }
        Reply::ok(200, session("running", 4))
    })
    .await
}

// case K3: arguments are exact, and a variable's value never stands on a command line.
#[tokio::test]
async fn arguments_and_environment_arrive_as_they_are() {
    let fake = one_session().await;
    let mut outlive = Outlive::new(&fake.url);
    outlive.set("SECRET", "s3cr3t \"$(id)\"\nline");
    let odd = [
        "a b",
        "",
        "\"q\" 'q'",
        "new\nline",
        "$(id) `id` $HOME",
        "-x",
        "--",
        "é ☕",
    ];
    let mut args = vec![
        "session", "create", SANDBOX, "-e", "SECRET", "-e", "A=b=c", "--cwd", "/a b",
    ];
    args.extend(["--", "prog"]);
    args.extend(odd);
    outlive.args(&args).await.expect(0);
    let spec = fake.calls("POST", "/sessions")[0].json();
    let mut command = vec!["prog"];
    command.extend(odd);
    assert_eq!(spec["command"], json!(command));
    assert_eq!(
        spec["env"],
        json!({"SECRET": "s3cr3t \"$(id)\"\nline", "A": "b=c"})
    );
    assert_eq!(spec["cwd"], "/a b");
    assert!(!args.iter().any(|arg| arg.contains("s3cr3t")));

    let many: Vec<String> = (0..4095).map(|number| number.to_string()).collect();
    let mut args = vec!["session", "create", SANDBOX, "--", "prog"];
    args.extend(many.iter().map(String::as_str));
    outlive.args(&args).await.expect(0);
    let spec = fake.calls("POST", "/sessions")[1].json();
    assert_eq!(spec["command"].as_array().unwrap().len(), 4096);
}

/// A machine without certificates talks to a server of its own all the same, and is told what it
/// lacks for one that is far away.
#[tokio::test]
async fn no_certificates_are_needed_where_nothing_is_encrypted() {
    let fake = one_session().await;
    let mut outlive = Outlive::new(&fake.url);
    outlive.set("SSL_CERT_FILE", "/dev/null");
    outlive.set("SSL_CERT_DIR", "/proc/self/fdinfo");
    outlive
        .run(&format!("session list {SANDBOX}"))
        .await
        .expect(0);
    let done = outlive.run("--url https://127.0.0.1:1 sandbox list").await;
    let done = done.expect(1);
    assert!(done.stderr.contains("ca-certificates"), "{}", done.stderr);
}

#[tokio::test]
async fn flags_become_the_specification() {
    let fake = one_session().await;
    let outlive = Outlive::new(&fake.url);
    outlive
        .run(&format!(
            "session create {SANDBOX} --name n --pty --rows 30 --cols 90 --term vt100 \
             --restart on_failure --max-restarts -1 --restart-window 5 --initial-backoff-ms 1 \
             --max-backoff-ms 2 --runtime-recovery stop --idle-timeout 3 --max-lifetime 4 \
             --stop-grace 6 --descendants kill --readiness output --ready-output R \
             --ready-delay-ms 7 --ready-timeout-ms 8 --retention-bytes 9 --retention-age 10 \
             --idempotency-key k -- prog -x"
        ))
        .await
        .expect(0);
    let request = &fake.calls("POST", "/sessions")[0];
    assert_eq!(request.headers["idempotency-key"], "k");
    assert_eq!(request.headers["authorization"], "Bearer a-key");
    let expected = json!({
        "name": "n", "command": ["prog", "-x"],
        "io": {"mode": "pty", "terminal": {"rows": 30, "cols": 90, "term": "vt100"}},
        "lifecycle": {
            "restart": {"policy": "on_failure", "max_restarts": -1, "window_seconds": 5,
                        "initial_backoff_ms": 1, "max_backoff_ms": 2},
            "runtime_recovery": "stop", "idle_timeout_seconds": 3, "max_lifetime_seconds": 4,
            "stop_grace_period_seconds": 6, "descendants": "kill",
        },
        "readiness": {"type": "output", "output": "R", "delay_ms": 7, "timeout_ms": 8},
        "event_retention": {"max_bytes": 9, "max_age_seconds": 10},
    });
    assert_eq!(request.json(), expected);
    outlive
        .run(&format!("session create {SANDBOX} -- prog"))
        .await
        .expect(0);
    assert_eq!(
        fake.calls("POST", "/sessions")[1].json(),
        json!({"command": ["prog"]})
    );
}

#[tokio::test]
async fn a_specification_file_is_yaml_or_json_and_stands_alone() {
    let fake = one_session().await;
    let outlive = Outlive::new(&fake.url);
    let file = outlive.home().join("spec");
    let file = file.to_str().unwrap();
    for text in [
        "name: w\ncommand: [a, 'b c']\nenv:\n  N: '1'\n",
        r#"{"name":"w","command":["a","b c"],"env":{"N":"1"}}"#,
    ] {
        fs::write(file, text).unwrap();
        outlive
            .run(&format!("session create {SANDBOX} -f {file}"))
            .await
            .expect(0);
        outlive
            .run(&format!(
                "session update {SANDBOX} {SESSION} --spec-file {file}"
            ))
            .await
            .expect(0);
    }
    let expected = json!({"name": "w", "command": ["a", "b c"], "env": {"N": "1"}});
    for request in fake.seen() {
        assert_eq!(request.json(), expected);
    }
    assert_eq!(fake.seen().len(), 4);
    outlive
        .run(&format!("session create {SANDBOX} -f {file} --name x"))
        .await
        .expect(2);
    outlive
        .run(&format!("session create {SANDBOX} -f {file} -- prog"))
        .await
        .expect(2);
    fs::write(file, "[1]").unwrap();
    outlive
        .run(&format!("session create {SANDBOX} -f {file}"))
        .await
        .expect(2);
    assert_eq!(fake.seen().len(), 4);
}

#[tokio::test]
async fn every_session_command_makes_its_call() {
    let fake = one_session().await;
    let outlive = Outlive::new(&fake.url);
    let of = format!("{SANDBOX} {SESSION}");
    for (line, method, end, body) in [
        (format!("get {of}"), "GET", "", json!(null)),
        (
            format!("start {of}"),
            "PUT",
            "/desired-state",
            json!({"state": "running"}),
        ),
        (
            format!("stop {of}"),
            "PUT",
            "/desired-state",
            json!({"state": "stopped"}),
        ),
        (
            format!("attempt {of} --replace"),
            "POST",
            "/attempts",
            json!({"replace_current": true}),
        ),
        (
            format!("signal {of} TERM --attempt-id att-1"),
            "POST",
            "/signals",
            json!({"signal": "TERM", "expected_attempt_id": "att-1"}),
        ),
        (
            format!("resize {of} 50 132"),
            "PUT",
            "/terminal",
            json!({"rows": 50, "cols": 132}),
        ),
        (
            format!("input {of} --data-base64 AAE= --input-id i --attempt-id att-1"),
            "POST",
            "/inputs",
            json!({"input_id": "i", "expected_attempt_id": "att-1", "data_base64": "AAE="}),
        ),
        (format!("delete {of}"), "DELETE", "", json!(null)),
    ] {
        // The vendor's own order of words works as well.
        for prefix in ["session", "sandbox session"] {
            outlive.run(&format!("{prefix} {line}")).await.expect(0);
            let request = fake.seen().pop().unwrap();
            let path = format!("/api/v1/sandboxes/{SANDBOX}/sessions/{SESSION}{end}");
            assert_eq!(
                (request.method.as_str(), request.target.as_str()),
                (method, path.as_str())
            );
            if !body.is_null() {
                assert_eq!(request.json(), body);
            }
        }
    }
}

#[tokio::test]
async fn a_name_stands_for_the_only_session_that_has_it() {
    let fake = Fake::start(|request, _| {
        if request.is("GET", "/sessions") {
            let named = |id: &str, name: &str| json!({"id": id, "spec": {"name": name}});
            let sessions = [
                named("ses-1", "one"),
                named("ses-2", "two"),
                named("ses-3", "two"),
            ];
            return Reply::ok(200, json!({"sessions": sessions}));
        }
        Reply::ok(200, session("running", 4))
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    outlive
        .run(&format!("session get {SANDBOX} one"))
        .await
        .expect(0);
    assert!(
        fake.seen()
            .last()
            .unwrap()
            .target
            .ends_with("/sessions/ses-1")
    );
    let done = outlive
        .run(&format!("session stop {SANDBOX} two"))
        .await
        .expect(1);
    assert!(done.stderr.contains("ambiguous_name"), "{}", done.stderr);
    assert!(done.stderr.contains("ses-2, ses-3"), "{}", done.stderr);
    let done = outlive
        .run(&format!("session stop {SANDBOX} three"))
        .await
        .expect(1);
    assert!(done.stderr.contains("session_not_found"), "{}", done.stderr);
    assert!(fake.calls("PUT", "/desired-state").is_empty());
}

#[tokio::test]
async fn a_name_before_the_command_is_reserved() {
    let fake = one_session().await;
    let done = Outlive::new(&fake.url)
        .run(&format!("session create {SANDBOX} worker -- prog"))
        .await
        .expect(1);
    assert!(done.stderr.contains("not_implemented"), "{}", done.stderr);
    assert!(done.stderr.contains("--name worker"), "{}", done.stderr);
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn an_argument_can_not_reach_another_path() {
    let fake = one_session().await;
    let outlive = Outlive::new(&fake.url);
    for bad in ["../v1/keys", "a/b", "a?b", "a#b", "a b", ""] {
        outlive
            .args(["session", "get", bad, SESSION])
            .await
            .expect(2);
        outlive.args(["sandbox", "delete", bad]).await.expect(2);
        outlive.args(["key", "revoke", bad]).await.expect(2);
    }
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn a_server_of_this_machine_is_found_and_its_key_stays_here() {
    let (local, foreign) = (one_session().await, one_session().await);
    let mut outlive = Outlive::without_server();
    let done = outlive.run("sandbox list").await.expect(1);
    assert!(done.stderr.contains("no_server"), "{}", done.stderr);

    // One that was started in the line before is not there yet.
    let data = outlive.home().join("data");
    let starting = async {
        fs::create_dir(&data).unwrap();
        tokio::task::yield_now().await;
        fs::write(data.join("admin.token"), "the-admin\n").unwrap();
        fs::write(data.join("endpoint"), format!("{}\n", local.url)).unwrap();
    };
    let (listed, ()) = tokio::join!(outlive.run("sandbox list"), starting);
    listed.expect(0);
    assert_eq!(local.seen()[0].headers["authorization"], "Bearer the-admin");

    outlive.set("OUTLIVE_URL", &foreign.url);
    outlive.run("sandbox list").await.expect(0);
    assert_eq!(foreign.seen()[0].headers.get("authorization"), None);
}

#[tokio::test]
async fn flags_win_over_variables_and_variables_over_the_profile() {
    let fake = one_session().await;
    let mut outlive = Outlive::without_server();
    let config = outlive.home().join(".config/outlive");
    fs::create_dir_all(&config).unwrap();
    let url = &fake.url;
    let text = format!(
        "current: one\nprofiles:\n  one: {{url: '{url}', token: of-one, output: json}}\n  two: {{url: '{url}', token: of-two}}\n"
    );
    fs::write(config.join("config.yaml"), text).unwrap();
    let key = |fake: &Fake| fake.seen().pop().unwrap().headers["authorization"].clone();

    outlive.run("sandbox get sbx-1").await.expect(0).json();
    assert_eq!(key(&fake), "Bearer of-one");
    outlive.run("sandbox get sbx-1 -p two").await.expect(0);
    assert_eq!(key(&fake), "Bearer of-two");
    outlive.set("OUTLIVE_TOKEN", "of-variable");
    outlive.run("sandbox get sbx-1").await.expect(0);
    assert_eq!(key(&fake), "Bearer of-variable");
    outlive
        .run("sandbox get sbx-1 --token of-flag")
        .await
        .expect(0);
    assert_eq!(key(&fake), "Bearer of-flag");
    let done = outlive.run("sandbox get sbx-1 -p three").await.expect(1);
    assert!(done.stderr.contains("one, two"), "{}", done.stderr);
}

#[tokio::test]
async fn errors_name_the_code_the_message_and_the_next_step() {
    for (status, code, next) in [
        (401, "unauthorized", "OUTLIVE_TOKEN"),
        (403, "forbidden", "larger role"),
        (404, "session_not_found", "outlive session list"),
        (409, "session_conflict", "outlive session get"),
        (501, "not_implemented", "README.md"),
    ] {
        let fake =
            Fake::start(move |_, _| Reply::error(status, code, "as it is", json!(null))).await;
        let done = Outlive::new(&fake.url)
            .run(&format!("session stop {SANDBOX} {SESSION}"))
            .await
            .expect(1);
        assert!(
            done.stderr
                .starts_with(&format!("error: {code} ({status}): as it is")),
            "{done:?}"
        );
        assert!(
            done.stderr.contains("next: ") && done.stderr.contains(next),
            "{done:?}"
        );
        assert!(done.stdout.is_empty());
    }
    let done = Outlive::new("http://127.0.0.1:1")
        .run("sandbox list")
        .await
        .expect(1);
    assert!(done.stderr.contains("error: transport"), "{done:?}");
    assert!(done.stderr.contains("outlive serve"), "{done:?}");
    Outlive::without_server()
        .run("sandbox frobnicate")
        .await
        .expect(2);
}

// What a person typed is told as what it is, with what to do about it.
#[tokio::test]
async fn what_was_typed_wrong_is_told_with_the_next_step() {
    let fake = one_session().await;
    let mut outlive = Outlive::new(&fake.url);
    for (typed, exit, said) in [
        (
            format!("session create {SANDBOX} -f /nope"),
            1,
            "is the path right?",
        ),
        ("image import /nope".to_owned(), 1, "is the path right?"),
        (
            "--url notaurl sandbox list".to_owned(),
            2,
            "\"notaurl\" is no server's address",
        ),
        (
            format!("session create {SANDBOX} --idle-timeout -5 -- prog"),
            2,
            "invalid value '-5'",
        ),
    ] {
        let done = outlive.run(&typed).await.expect(exit);
        assert!(done.stderr.contains(said), "{typed}: {done:?}");
        assert!(!done.stderr.contains("outlive serve"), "{typed}: {done:?}");
    }
    outlive.set("OUTLIVE_TOKEN", "one\ntwo");
    let done = outlive.run("sandbox list").await.expect(2);
    assert!(done.stderr.contains("OUTLIVE_TOKEN"), "{done:?}");
    assert!(!done.stderr.contains("two"), "{done:?}");
    assert!(fake.seen().is_empty());
}

#[tokio::test]
async fn sandbox_and_key_commands_make_their_calls() {
    let fake = one_session().await;
    let outlive = Outlive::new(&fake.url);
    outlive
        .run("sandbox create -t t --ttl 1 --hard-ttl 2 --auto-resume false --memory 512Mi --cpu 0.5 --pids 9 -e A=1")
        .await
        .expect(0);
    let expected = json!({"template": "t", "config": {
        "ttl": 1, "hard_ttl": 2, "auto_resume": false, "env_vars": {"A": "1"},
        "resources": {"memory": "512Mi", "cpu": "0.5", "pids": 9},
    }});
    assert_eq!(fake.seen().pop().unwrap().json(), expected);
    let key = json!({"owner": "o", "role": "read_only", "name": "n"});
    for (line, method, target, body) in [
        (
            "sandbox list --status paused --limit 3",
            "GET",
            "?status=paused&limit=3&offset=0",
            json!(null),
        ),
        ("sandbox get sbx-1", "GET", "/sbx-1", json!(null)),
        ("sandbox status sbx-1", "GET", "/sbx-1/status", json!(null)),
        (
            "sandbox update sbx-1 --ttl 5",
            "PUT",
            "/sbx-1",
            json!({"config": {"ttl": 5}}),
        ),
        ("sandbox pause sbx-1", "POST", "/sbx-1/pause", json!({})),
        ("sandbox resume sbx-1", "POST", "/sbx-1/resume", json!({})),
        (
            "sandbox refresh sbx-1 --duration 7",
            "POST",
            "/sbx-1/refresh",
            json!({"duration": 7}),
        ),
        ("sandbox delete sbx-1", "DELETE", "/sbx-1", json!(null)),
        (
            "key create --owner o --role read_only --name n",
            "POST",
            "/v1/keys",
            key,
        ),
        ("key list", "GET", "/v1/keys", json!(null)),
        ("key revoke key-1", "DELETE", "/v1/keys/key-1", json!(null)),
    ] {
        for format in ["", " --json", " -o yaml"] {
            outlive.run(&format!("{line}{format}")).await.expect(0);
            let request = fake.seen().pop().unwrap();
            assert_eq!(request.method, method, "{line}");
            assert!(
                request.target.ends_with(target),
                "{line}: {}",
                request.target
            );
            if !body.is_null() {
                assert_eq!(request.json(), body, "{line}");
            }
        }
    }
}

#[tokio::test]
async fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let done = Outlive::without_server()
            .run(&format!("completions {shell}"))
            .await
            .expect(0);
        assert!(done.text().contains("outlive"), "{shell}");
    }
}
