//! `outlive sandbox`: what it asks the server, what it waits for, what it says.

use std::{os::fd::OwnedFd, process::Stdio};

use rustix::{
    fs::{Mode, OFlags, open},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::{Value, json};

use crate::{
    real::Server,
    support::{Fake, Outlive, Reply, SANDBOX, finish},
};

/// A sandbox as the server shows it.
fn sandbox(status: &str, generation: u64) -> Value {
    json!({
        "id": SANDBOX, "template_id": "default", "status": status, "paused": status == "paused",
        "runtime_generation": generation, "runtime_id": format!("{SANDBOX}-g{generation}"),
        "created_at": "2026-01-31T12:34:56Z", "expires_at": "0001-01-01T00:00:00Z",
    })
}

fn bare_error(status: u16, code: &str, message: &str) -> Reply {
    Reply::Json(status, json!({"error": {"code": code, "message": message}}))
}

#[tokio::test]
async fn create_prints_what_scripts_of_the_dialect_read() {
    let fake = Fake::start(|_, _| {
        Reply::ok(
            201,
            json!({"sandbox_id": SANDBOX, "status": "running", "template": "default",
                   "pod_name": "pod", "runtime_id": "pod"}),
        )
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let line = "sandbox create --idle 900 --disk 2Gi -o json";
    let made = outlive.run(line).await.expect(0).json();
    let read = ["id", "template", "pod_name", "status", "bootstrap_mounts"];
    assert_eq!(
        read.map(|field| &made[field]),
        [
            &json!(SANDBOX),
            &json!("default"),
            &json!("pod"),
            &json!("running"),
            &json!([])
        ]
    );
    assert_eq!(
        fake.seen()[0].json()["config"],
        json!({"idle": {"freeze_after_seconds": 900}, "resources": {"disk": "2Gi"}})
    );
}

// Another limit of processes took the limit of memory away.
#[tokio::test]
async fn an_update_leaves_what_no_flag_names() {
    let fake = Fake::start(|_, _| {
        let mut shown = sandbox("running", 1);
        shown["resources"] = json!({"memory": "256Mi", "pids": 100});
        Reply::ok(200, shown)
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("sandbox update {SANDBOX} --pids 50 --ttl 60");
    outlive.run(&line).await.expect(0);
    let config = json!({"ttl": 60, "resources": {"memory": "256Mi", "pids": 50}});
    assert_eq!(fake.seen()[1].json(), json!({"config": config}));
}

#[tokio::test]
async fn pause_waits_until_it_is_seen() {
    let fake = Fake::start(|request, before| match (request.method.as_str(), before) {
        ("POST", _) => Reply::ok(200, json!({"sandbox_id": SANDBOX, "paused": true})),
        (_, ..3) => Reply::ok(200, sandbox("running", 1)),
        _ => Reply::ok(200, sandbox("paused", 1)),
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("sandbox pause {SANDBOX} --wait --json");
    assert_eq!(outlive.run(&line).await.expect(0).json()["paused"], true);
    let asked: Vec<String> = fake.seen().into_iter().map(|one| one.method).collect();
    assert_eq!(asked, ["POST", "GET", "GET", "GET"]);
}

// A resume is over with the next runtime, not with the one that the client had seen before.
#[tokio::test]
async fn resume_waits_for_the_next_generation() {
    let fake = Fake::start(|request, before| match (request.method.as_str(), before) {
        ("POST", _) => Reply::ok(200, json!({"sandbox_id": SANDBOX, "resumed": true})),
        (_, 0) => Reply::ok(200, sandbox("paused", 4)),
        (_, 2) => Reply::ok(200, sandbox("running", 4)),
        _ => Reply::ok(200, sandbox("running", 5)),
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("sandbox resume {SANDBOX} --wait --json");
    let seen = outlive.run(&line).await.expect(0).json();
    assert_eq!(seen["runtime_generation"], 5);
    assert_eq!(fake.seen().len(), 4);
}

#[tokio::test]
async fn a_wait_ends_with_a_reason_and_the_next_step() {
    for (status, code, next) in [
        ("failed", "sandbox_failed", "outlive sandbox status"),
        ("running", "timeout", "--timeout"),
    ] {
        let fake = Fake::start(move |request, _| match request.method.as_str() {
            "POST" => Reply::ok(200, json!({"sandbox_id": SANDBOX, "paused": true})),
            _ => Reply::ok(200, sandbox(status, 1)),
        })
        .await;
        let line = format!("sandbox pause {SANDBOX} --wait --timeout 0");
        let done = Outlive::new(&fake.url).run(&line).await.expect(1);
        assert!(done.stderr.contains(code), "{done:?}");
        assert!(done.stderr.contains(status), "{done:?}");
        assert!(done.stderr.contains(next), "{done:?}");
    }
    let fake = Fake::start(|_, _| Reply::Nothing).await;
    let line = format!("sandbox pause {SANDBOX} --timeout 5");
    Outlive::new(&fake.url).run(&line).await.expect(2);
    assert!(
        fake.seen().is_empty(),
        "a limit without a wait was accepted"
    );
}

#[tokio::test]
async fn sleep_and_holds_go_where_answers_have_no_envelope() {
    let fake = Fake::start(|request, _| {
        let at = "2026-01-31T12:34:56Z";
        if request.is("GET", "/activity") {
            let doing = json!([{"kind": "attached", "id": "ses-1", "since": at}]);
            return Reply::Json(
                200,
                json!({"state": "running", "awake_because": doing, "sleeps_at": at}),
            );
        }
        match (request.method.as_str(), request.is("POST", "/holds")) {
            (_, true) => Reply::Json(201, json!({"id": "hold-1", "expires_at": at})),
            ("GET", _) => Reply::Json(
                200,
                json!({"holds": [{"id": "hold-1", "owner": "me", "since": at, "expires_at": at}]}),
            ),
            ("DELETE", _) => Reply::Json(200, json!({"deleted": true})),
            _ => Reply::Json(200, json!({"sandbox": {"id": SANDBOX, "suspended": true}})),
        }
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    for (line, method, end, words) in [
        ("suspend SB", "POST", "/suspend", "suspended"),
        ("wake SB", "POST", "/resume", "awake"),
        (
            "activity SB",
            "GET",
            "/activity",
            "attached       ses-1  2026-01-31 12:34:56",
        ),
        ("hold SB --owner me --ttl 7", "POST", "/holds", "hold-1"),
        (
            "holds SB",
            "GET",
            "/holds",
            "hold-1  me     2026-01-31 12:34:56",
        ),
        (
            "unhold SB hold-1",
            "DELETE",
            "/holds/hold-1",
            "held no longer",
        ),
    ] {
        let line = format!("sandbox {}", line.replace("SB", SANDBOX));
        let done = outlive.run(&line).await.expect(0);
        assert!(done.text().contains(words), "{line}: {done:?}");
        assert_eq!(done.stderr, "", "{line} said more than asked");
        let request = fake.seen().pop().unwrap();
        let path = format!("/v1/sandbox/{SANDBOX}{end}");
        assert_eq!((request.method.as_str(), request.target), (method, path));
        outlive
            .run(&format!("{line} --json"))
            .await
            .expect(0)
            .json();
    }
    let hold = fake.calls("POST", "/holds")[0].json();
    assert_eq!(hold, json!({"owner": "me", "ttl_seconds": 7}));
}

#[tokio::test]
async fn fork_shows_the_new_sandbox() {
    let fake = Fake::start(|_, _| {
        let child = json!({"source_sandbox_id": "sbx-0", "sandbox": sandbox("paused", 1)});
        Reply::ok(201, child)
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let done = outlive
        .run("sandbox fork sbx-0 --ttl 9 --hard-ttl 99")
        .await;
    let text = done.expect(0).text();
    assert!(text.contains(SANDBOX) && text.contains("paused"), "{text}");
    let request = fake.seen().pop().unwrap();
    assert_eq!(request.target, "/api/v1/sandboxes/sbx-0/fork");
    assert_eq!(
        request.json(),
        json!({"config": {"ttl": 9, "hard_ttl": 99}})
    );
}

fn snapshot(id: &str, name: &str) -> Value {
    json!({
        "id": id, "sandbox_id": SANDBOX, "name": name, "created_at": "2026-01-31T12:34:56Z",
        "template_id": "default", "image": "host", "files": 3, "size_bytes": 2048,
    })
}

/// What a copy that is followed says.
fn lines(result: &Value) -> Reply {
    let progress = json!({"type": "progress", "files": 2, "bytes": 1024, "bytes_total": 2048});
    let done = json!({"type": "done", "result": result});
    Reply::Stream(format!("{progress}\n{done}\n"))
}

#[tokio::test]
async fn snapshots_go_by_id_or_by_name() {
    let fake = Fake::start(|request, _| {
        let list = json!({"snapshots": [snapshot("snap-1", "one"), snapshot("snap-2", "two")], "count": 2});
        match request.method.as_str() {
            "POST" if request.is("POST", "/rootfs/restore") => lines(
                &json!({"sandbox_id": SANDBOX, "snapshot_id": "snap-2", "status": "running"}),
            ),
            "POST" if request.is("POST", "/snapshots") => lines(&snapshot("snap-3", "three")),
            "POST" => lines(&json!({"sandbox_id": "sbx-new", "status": "running"})),
            "DELETE" => Reply::ok(200, json!({"deleted": true})),
            _ if request.is("GET", "snapshots") => Reply::ok(200, list),
            _ => Reply::ok(200, snapshot("snap-1", "one")),
        }
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let ask = async |line: &str| {
        let line = format!("sandbox {}", line.replace("SB", SANDBOX));
        outlive.run(&line).await.expect(0).text()
    };
    let made = ask("snapshot create SB --name three --expires-at 2100-01-01T00:00:00Z").await;
    assert!(
        made.contains("snap-3") && made.contains("2.00 KiB"),
        "{made}"
    );
    let asked = fake.seen().pop().unwrap();
    assert_eq!(asked.headers["accept"], "application/x-ndjson");
    assert_eq!(
        asked.json(),
        json!({"name": "three", "expires_at": "2100-01-01T00:00:00Z"})
    );
    let listed = ask("snapshot list").await;
    assert!(
        listed.contains("snap-1") && listed.contains("two"),
        "{listed}"
    );
    ask("snapshot list SB").await;
    assert!(fake.seen().pop().unwrap().target.ends_with("/snapshots"));
    assert!(ask("snapshot get snap-1").await.contains("one"));
    let restored = ask("snapshot restore SB two").await;
    assert!(restored.contains("running"), "{restored}");
    assert_eq!(
        fake.seen().pop().unwrap().json(),
        json!({"snapshot_id": "snap-2"})
    );
    // Template and image are those of the snapshot, unless the caller names a template.
    ask("create --snapshot-id one --memory 1Gi").await;
    let expected = json!({"snapshot_id": "snap-1", "config": {"resources": {"memory": "1Gi"}}});
    assert_eq!(fake.seen().pop().unwrap().json(), expected);
    ask("create --snapshot-id snap-9 --template other").await;
    let expected = json!({"snapshot_id": "snap-9", "template": "other"});
    assert_eq!(fake.seen().pop().unwrap().json(), expected);
    ask("snapshot delete two").await;
    assert!(fake.seen().pop().unwrap().target.ends_with("/snap-2"));

    for (line, code, next) in [
        (
            "sandbox snapshot get three",
            1,
            "outlive sandbox snapshot list",
        ),
        (
            "sandbox snapshot delete ../x",
            1,
            "outlive sandbox snapshot list",
        ),
        ("sandbox snapshot delete snap-1/../x", 2, "no snapshot id"),
        ("sandbox create --snapshot-id one --image x", 2, "--image"),
    ] {
        let done = outlive.run(line).await.expect(code);
        assert!(done.stderr.contains(next), "{line}: {done:?}");
    }
}

#[tokio::test]
async fn a_copy_that_fails_halfway_says_why() {
    let error = json!({"type": "error", "error": {"code": "conflict",
        "message": "another snapshot of yours has this name", "details": {"reason": "name_taken"}}});
    let fake = Fake::start(move |_, _| Reply::Stream(format!("{error}\n"))).await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("sandbox snapshot create {SANDBOX} --name one");
    let done = outlive.run(&line).await.expect(1);
    assert!(done.stderr.contains("has this name"), "{done:?}");
    assert!(!done.stderr.contains("reserved"), "{done:?}");
    let fake = Fake::start(|_, _| Reply::Broken("{\"type\":\"progress\"}\n".to_owned())).await;
    let outlive = Outlive::new(&fake.url);
    outlive.run(&line).await.expect(1);
}

#[tokio::test]
async fn refusals_say_what_to_do_in_both_envelopes() {
    let fake = Fake::start(|request, _| {
        if request.is("POST", "/fork") {
            return Reply::error(409, "conflict", "reserved", json!({"holder": "exec-1"}));
        }
        match request.method.as_str() {
            "DELETE" => bare_error(404, "not_found", "no such hold"),
            _ if request.is("POST", "/suspend") => bare_error(409, "sandbox_suspended", "asleep"),
            _ => bare_error(404, "sandbox_not_found", "sandbox not found"),
        }
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    for (line, code, next) in [
        ("fork SB", "conflict (409)", "repeat when that is over"),
        (
            "unhold SB hold-1",
            "not_found (404)",
            "outlive sandbox holds SB",
        ),
        (
            "suspend SB",
            "sandbox_suspended (409)",
            "outlive sandbox wake SB",
        ),
        ("wake SB", "sandbox_not_found (404)", "outlive sandbox list"),
        (
            "activity SB",
            "sandbox_not_found (404)",
            "outlive sandbox list",
        ),
    ] {
        let line = format!("sandbox {}", line.replace("SB", SANDBOX));
        let done = outlive.run(&line).await.expect(1);
        assert!(done.stderr.contains(code), "{line}: {done:?}");
        let next = next.replace("SB", SANDBOX);
        assert!(done.stderr.contains(&next), "{line}: {done:?}");
        assert!(done.stdout.is_empty(), "{line}: {done:?}");
    }
    outlive
        .args(["sandbox", "unhold", SANDBOX, "../x"])
        .await
        .expect(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_led_through_its_life() {
    let server = Server::start().await;
    let (outlive, id) = (&server.outlive, server.sandbox.as_str());
    let ask = async |line: &str| {
        let line = format!("sandbox {} --json", line.replace("SB", id));
        outlive.run(&line).await.expect(0).json()
    };
    outlive
        .args(["run", "-d", "--sandbox", id, "--", "sleep", "1000"])
        .await
        .expect(0);

    ask("update SB --idle 600").await;
    assert!(ask("activity SB").await["sleeps_at"].is_string());
    ask("suspend SB").await;
    assert_eq!(ask("activity SB").await["state"], "frozen");
    assert_eq!(ask("get SB").await["runtime_generation"], 1);
    ask("wake SB").await;
    assert_eq!(ask("activity SB").await["state"], "running");

    let hold = ask("hold SB --owner me --ttl 60").await;
    let holds = ask("holds SB").await;
    assert_eq!(holds["holds"][0]["id"], hold["id"]);
    assert_eq!(ask("activity SB").await["awake_because"][0]["kind"], "hold");
    ask(&format!("unhold SB {}", hold["id"].as_str().unwrap())).await;
    assert_eq!(ask("holds SB").await["holds"], json!([]));

    assert_eq!(ask("pause SB --wait").await["status"], "paused");
    assert_eq!(ask("status SB").await["status"], "paused");
    let listed = ask("list --paused true").await;
    assert_eq!(listed["sandboxes"][0]["id"], id);
    let fork = ask("fork SB --hard-ttl 600").await;
    assert_eq!(fork["source_sandbox_id"], id);
    let fork = fork["sandbox"]["id"].as_str().unwrap();
    assert_eq!(ask(&format!("get {fork}")).await["status"], "paused");
    ask(&format!("delete {fork}")).await;

    let snapshot = ask("snapshot create SB --name before").await;
    assert_eq!(snapshot["sandbox_id"], id);
    assert_eq!(ask("snapshot get before").await, snapshot);
    assert_eq!(ask("snapshot restore SB before").await["status"], "paused");
    let made = ask("create --snapshot-id before").await;
    ask(&format!("delete {}", made["id"].as_str().unwrap())).await;
    assert_eq!(ask("snapshot delete before").await["deleted"], true);
    assert_eq!(ask("snapshot list").await["count"], 0);

    assert_eq!(ask("resume SB --wait").await["runtime_generation"], 2);
    let before = ask("get SB").await["expires_at"].clone();
    assert_ne!(ask("refresh SB --duration 60").await["expires_at"], before);
    server.end().await;
}

/// On a terminal a long call shows that it goes on, and leaves no trace of it; a program that
/// reads us sees nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_call_shows_on_a_terminal_that_it_goes_on() {
    let fake = Fake::start(|request, before| match (request.method.as_str(), before) {
        ("POST", _) => Reply::ok(200, json!({"sandbox_id": SANDBOX, "paused": true})),
        (_, ..8) => Reply::ok(200, sandbox("running", 1)),
        _ => Reply::ok(200, sandbox("paused", 1)),
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let args = ["sandbox", "pause", SANDBOX, "--wait"];
    let seen = on_a_terminal(&outlive, &args).await;
    assert!(
        seen.contains(&format!(" pausing {SANDBOX}, 0 s")),
        "{seen:?}"
    );
    assert!(
        seen.contains(&format!(" pausing {SANDBOX}, 1 s")),
        "{seen:?}"
    );
    assert!(seen.ends_with("\r\x1b[K"), "{seen:?}");

    let done = outlive.args(args).await.expect(0);
    assert_eq!(done.stderr, "");
}

/// A copy shows how far it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_shows_a_bar_on_a_terminal() {
    let child = json!({"source_sandbox_id": SANDBOX, "sandbox": sandbox("paused", 1)});
    let fake = Fake::start(move |_, _| lines(&child)).await;
    let outlive = Outlive::new(&fake.url);
    let args = ["sandbox", "fork", SANDBOX];
    let seen = on_a_terminal(&outlive, &args).await;
    assert!(seen.contains("Copying"), "{seen:?}");
    assert!(seen.contains("1.00 KiB/2.00 KiB 2 files"), "{seen:?}");
    let done = outlive.args(args).await.expect(0);
    assert_eq!(done.stderr, "");
}

/// Runs a command whose standard error is a terminal, and tells what was seen there.
async fn on_a_terminal(outlive: &Outlive, args: &[&str]) -> String {
    let (master, terminal) = terminal();
    let mut command = outlive.command(args);
    command.env("TERM", "xterm").stderr(Stdio::from(terminal));
    let child = command.spawn().unwrap();
    drop(command); // Our end of the terminal, which would keep it open.
    let seen = tokio::task::spawn_blocking(move || {
        let (mut seen, mut chunk) = (Vec::new(), [0; 4096]);
        // A terminal that nobody holds any more ends with an error, by its nature.
        while let Ok(read @ 1..) = rustix::io::read(&master, &mut chunk) {
            seen.extend_from_slice(&chunk[..read]);
        }
        String::from_utf8(seen).unwrap()
    });
    finish(child).await.expect(0);
    seen.await.unwrap()
}

/// Both ends of a new terminal.
pub(crate) fn terminal() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = open(name.as_c_str(), flags, Mode::empty()).unwrap();
    (master, terminal)
}
