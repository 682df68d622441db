//! What ends the standard input of a command that has a terminal.

use std::process::Stdio;

use futures_util::future::join_all;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    real::Server,
    sandbox::terminal,
    support::{Done, Fake, Outlive, Reply, SANDBOX, SESSION, finish, session},
};

/// Runs a command on a terminal with these bytes as its whole standard input.
async fn with_input(server: &Server, verb: &str, input: &[u8], program: &str) -> Done {
    let sandbox = server.sandbox.as_str();
    let mut line: Vec<&str> = verb.split_whitespace().collect();
    line.extend([sandbox, "--", "sh", "-c", program]);
    let mut command = server.outlive.command(line);
    if input.is_empty() {
        return finish(command.spawn().unwrap()).await;
    }
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).await.unwrap();
    drop(stdin);
    finish(child).await
}

// `outlive run -t -- bash` without a terminal here said "use eof_mode hangup", or nothing, and never
// ended: a terminal tells an end by a character, and whoever reads keys knows none.
#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_has_ended_ends_what_waits_for_it_on_a_terminal() {
    let server = Server::start().await;
    let reads_keys = "stty raw -echo; exec cat";
    // The first end is a line's, and taken; the mode changes later.
    let changes = "read v; stty raw -echo; exec cat";
    let hangs_up = async |verb: &str, program: &str| {
        let done = with_input(&server, verb, b"", program).await.expect(129);
        assert!(done.stderr.contains("terminal hangs up"), "{done:?}");
    };
    let verbs = ["run -t --sandbox", "run -it --sandbox", "sandbox exec -it"];
    let all = verbs.map(async |verb| {
        tokio::join!(hangs_up(verb, reads_keys), hangs_up(verb, changes));
        // Each read that waits is told, not the first alone.
        let both = "cat; cat; echo over; exit 3";
        let done = with_input(&server, verb, b"", both).await.expect(3);
        assert!(done.text().contains("over"), "{done:?}");
    });
    join_all(all).await;
    // What was typed comes first, and a shell then leaves by itself.
    let typed = b"echo six times seven is $((6*7))\n";
    let bash = "exec bash --norc --noprofile -i";
    for verb in ["run -it --sandbox", "sandbox exec -it"] {
        let done = with_input(&server, verb, typed, bash).await.expect(0);
        assert!(done.text().contains("seven is 42"), "{done:?}");
        assert!(!done.stderr.contains("hangs up"), "{done:?}");
    }
    server.end().await;
}

// A laptop that closes takes its terminal with it: that is no end of the command's input.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_goes_away_leaves_the_command_alone() {
    let server = Server::start().await;
    let (master, terminal) = terminal();
    let mut child = server
        .command("-t", &["sh", "-c", "echo up; exec cat"])
        .stdin(Stdio::from(terminal))
        .spawn()
        .unwrap();
    let mut up = [0; 2];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut up).await.unwrap();
    drop(master);
    let done = finish(child).await.expect(0);
    assert!(done.stderr.contains("the command goes on"), "{done:?}");
    let words = done.stderr.split_whitespace();
    let id = words.skip_while(|word| *word != "session").nth(1).unwrap();
    let get = format!("session get {} {id} --json", server.sandbox);
    let now = server.outlive.run(&get).await.expect(0).json();
    assert_eq!(now["phase"], "running");
    server.end().await;
}

#[tokio::test]
async fn a_terminal_can_be_hung_up_by_hand() {
    let fake = Fake::start(|request, before| {
        if !request.is("POST", "/inputs") {
            return Reply::ok(200, session("running", 4));
        }
        if before == 0 {
            let reason = json!({"reason": "raw_terminal"});
            return Reply::error(409, "session_conflict", "terminal is in raw mode", reason);
        }
        Reply::ok(202, json!({"accepted": true}))
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let input = format!("session input {SANDBOX} {SESSION}");
    let done = outlive.run(&format!("{input} --eof")).await.expect(1);
    assert!(done.stderr.contains("--hangup"), "{done:?}");
    outlive.run(&format!("{input} --hangup")).await.expect(0);
    let last = fake.calls("POST", "/inputs").pop().unwrap().json();
    assert_eq!(
        (&last["eof"], &last["eof_mode"]),
        (&json!(true), &json!("hangup"))
    );
}
