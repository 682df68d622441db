//! A program's output that can't be passed on here.

use std::{fs::OpenOptions, process::Stdio};

use serde_json::{Value, json};

use crate::support::{
    Done, Fake, Outlive, Reply, SANDBOX, SESSION, exited, finish, output, session, sse,
};

/// A server whose session prints twice and ends with 3, on pipes and on a terminal.
async fn printing() -> Fake {
    Fake::start(|request, _| {
        let events = [
            output(1, "stdout", "one\n"),
            output(2, "stdout", "two\n"),
            exited(3, &json!({"exit_code": 3, "reason": "crashed"})),
        ];
        if request.is("GET", "/stream") {
            return Reply::Open(sse(&events));
        }
        if request.is("GET", "/ws") {
            let text = |event: Value| json!({"type": "event", "event": event}).to_string();
            return Reply::WebSocket(events.map(text).to_vec(), Some(1000));
        }
        let mut made = session("running", 0);
        made["sandbox_id"] = SANDBOX.into();
        Reply::ok(200, made)
    })
    .await
}

/// Runs it with this standard output.
async fn run(flags: &str, stdout: Stdio) -> Done {
    let fake = printing().await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("run {flags} --sandbox {SANDBOX} -- prog");
    let mut command = outlive.command(line.split_whitespace());
    finish(command.stdout(stdout).spawn().unwrap()).await
}

fn way_back(done: &Done) {
    let way = format!("outlive session attach {SANDBOX} {SESSION} --after 0");
    assert!(done.stderr.contains(&way), "{done:?}");
}

// Output that was lost on a full disk, or in a pipe that nobody read, ended `run` without a word about
// the command that went on.
#[tokio::test]
async fn output_that_is_lost_is_told_with_the_way_back() {
    for flags in ["", "-t"] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let done = run(flags, full.into()).await.expect(125);
        assert!(done.stderr.contains("No space left"), "{done:?}");
        way_back(&done);

        // As a death by SIGPIPE.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let done = run(flags, writer.into()).await.expect(141);
        assert!(done.stderr.contains("nobody reads the output"), "{done:?}");
        assert!(!done.stderr.contains("error:"), "{done:?}");
        way_back(&done);
    }
}

// As with ssh.
#[tokio::test]
async fn a_closed_standard_output_is_one_that_nobody_wants() {
    let fake = printing().await;
    let outlive = Outlive::new(&fake.url);
    let line = format!("run --sandbox {SANDBOX} -- prog");
    let mut shell = outlive.program("sh");
    let script = r#"exec "$0" "$@" >&-"#;
    shell.args(["-c", script, env!("CARGO_BIN_EXE_outlive")]);
    let child = shell.args(line.split_whitespace()).spawn();
    finish(child.unwrap()).await.expect(3);
}

// `run --json` told of the sandbox that it keeps in a line of words, before its error in JSON; a
// profile that says JSON made no failure JSON at all.
#[tokio::test]
async fn with_json_every_line_beside_the_output_is_json() {
    let broken = Fake::start(|request, _| {
        if request.is("POST", "/sandboxes") {
            Reply::ok(201, json!({"sandbox_id": SANDBOX}))
        } else {
            Reply::error(500, "create_session_failed", "no", json!(null))
        }
    })
    .await;
    let sound = printing().await;
    let in_it = format!("--sandbox {SANDBOX}");
    let exec = format!("sandbox exec {SANDBOX} --no-wait -- prog");
    for (server, line, code, said) in [
        (
            &broken,
            "run -- prog".to_owned(),
            125,
            ["note", "error"].as_slice(),
        ),
        (&broken, format!("run {in_it} -- prog"), 125, &["error"]),
        (&sound, format!("run {in_it} -- prog"), 3, &["note"]),
        (&sound, format!("run -d {in_it} -- prog"), 0, &["note"]),
        (&sound, exec, 0, &["note"]),
    ] {
        let mut outlive = Outlive::new(&server.url);
        let by_flag = outlive.run(&format!("--json {line}")).await.expect(code);
        let profiles = outlive.home().join("profiles.yaml");
        std::fs::write(
            &profiles,
            "current: one\nprofiles:\n  one: {output: json}\n",
        )
        .unwrap();
        outlive.set("OUTLIVE_CONFIG", profiles.to_str().unwrap());
        let by_profile = outlive.run(&line).await.expect(code);
        for done in [by_flag, by_profile] {
            let keys: Vec<_> = done.stderr.lines().map(only_key).collect();
            assert_eq!(keys, said, "{line}: {done:?}");
            if code == 0 {
                assert!(done.json().is_object(), "{line}: {done:?}");
            }
        }
        let for_people = outlive.run(&format!("-o table {line}")).await.expect(code);
        let first = for_people.stderr.lines().next().unwrap();
        let is_words = first.starts_with("outlive: ") || first.starts_with("error: ");
        assert!(is_words, "{line}: {for_people:?}");
    }
}

/// The name of what one line of JSON tells.
fn only_key(line: &str) -> String {
    let told: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let told = told.as_object().unwrap();
    assert_eq!(told.len(), 1, "{line}");
    told.keys().next().unwrap().clone()
}

// A command line that could not be read was told to people only, whatever was asked for.
#[tokio::test]
async fn wrong_usage_is_told_to_programs_too() {
    let outlive = Outlive::without_server();
    let usual = "add --help to the command for its flags and an example";
    let bogus = "to pass '--bogus' as a value, use '-- --bogus'";
    let told = [
        (
            "--json run -s ID",
            "the following required arguments were not provided: <COMMAND>...",
            usual,
        ),
        (
            "run --bogus --json",
            "unexpected argument '--bogus' found",
            bogus,
        ),
        (
            "-o json run --bogus",
            "unexpected argument '--bogus' found",
            bogus,
        ),
        (
            "--output=json session --bogus",
            "unexpected argument '--bogus' found",
            usual,
        ),
        ("--json session", "a command is missing", usual),
    ];
    for (line, message, next) in told {
        let done = outlive.run(line).await.expect(2);
        assert_eq!(done.text(), "", "{line}");
        let error: Value = serde_json::from_str(&done.stderr).unwrap();
        let expected = json!({"code": "usage", "message": message, "next": next});
        assert_eq!(error, json!({"error": expected}), "{line}");
    }
    // What follows the dashes is another program's.
    for line in ["run --bogus -- prog --json", "session lst"] {
        let done = outlive.run(line).await.expect(2);
        assert!(done.stderr.starts_with("error: "), "{done:?}");
    }
}
