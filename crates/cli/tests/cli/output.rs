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
