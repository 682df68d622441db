//! `outlive sandbox exec` and `run` against the real server.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::json;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{
    real::Server,
    support::{Done, PATIENCE, finish},
};

impl Server {
    fn sandbox_command(&self, verb: &str, flags: &str, rest: &[&str]) -> Command {
        let mut args = vec!["sandbox", verb, self.sandbox.as_str()];
        args.extend(flags.split_whitespace());
        args.extend(rest);
        self.outlive.command(args)
    }

    fn exec_command(&self, flags: &str, command: &[&str]) -> Command {
        let rest: Vec<&str> = [&["--"], command].concat();
        self.sandbox_command("exec", flags, &rest)
    }

    async fn sandbox_exec(&self, flags: &str, command: &[&str]) -> Done {
        finish(self.exec_command(flags, command).spawn().unwrap()).await
    }

    async fn sandbox_run(&self, flags: &str, code: &[&str]) -> Done {
        finish(self.sandbox_command("run", flags, code).spawn().unwrap()).await
    }
}

/// Says what is missing, instead of failing at what follows from it.
fn needs(program: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    assert!(
        found,
        "this test runs `{program}`: apt-get install {program}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_passes_on_what_the_program_did() {
    let server = Server::start().await;
    let program = r"printf 'out\377'; echo err >&2; exit 3";
    let done = server
        .sandbox_exec("", &["sh", "-c", program])
        .await
        .expect(3);
    assert_eq!(
        (done.stdout.as_slice(), done.stderr.as_str()),
        (&b"out\xff"[..], "err\n")
    );
    server
        .sandbox_exec("", &["sh", "-c", "kill -TERM $$"])
        .await
        .expect(143);
    let done = server
        .sandbox_exec("", &["/no/such/program"])
        .await
        .expect(125);
    assert!(done.stderr.contains("no such file"), "{done:?}");
    let done = server
        .sandbox_exec("--cwd /tmp -e WORD=here", &["sh", "-c", "echo $WORD; pwd"])
        .await
        .expect(0);
    assert_eq!(done.text(), "here\n/tmp\n");
    // For programs: one object, and the same exit code.
    let done = server
        .sandbox_exec("--json", &["sh", "-c", program])
        .await
        .expect(3);
    let told = done.json();
    assert_eq!(
        (&told["exit_code"], &told["stderr"], &told["stdout_base64"]),
        (&json!(3), &json!("err\n"), &json!("b3V0/w=="))
    );
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_reads_its_input_only_when_asked() {
    let server = Server::start().await;
    // case C2: without -i, programs that read see the end at once.
    server.sandbox_exec("", &["cat"]).await.expect(0);
    server.sandbox_exec("", &["grep", "x"]).await.expect(1);
    server
        .sandbox_exec("", &["sh", "-c", "read v"])
        .await
        .expect(1);
    // case C1: an open standard input delays neither the end nor the time limit.
    for (flags, command, code) in [
        ("-i", ["sh", "-c", "echo hi"], 0),
        ("-i --timeout 1s", ["sh", "-c", "exec sleep 60"], 124),
    ] {
        let mut child = server
            .exec_command(flags, &command)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let open = child.stdin.take();
        finish(child).await.expect(code);
        drop(open);
    }
    let bytes: Vec<u8> = (0..300_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let mut child = server
        .exec_command("-i", &["cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let send = bytes.clone();
    let ((), done) = tokio::join!(
        async move {
            stdin.write_all(&send).await.unwrap();
            drop(stdin);
        },
        finish(child)
    );
    assert!(done.expect(0).stdout == bytes, "cat gave other bytes back");
    server.end().await;
}

// case F4
#[tokio::test(flavor = "multi_thread")]
async fn exec_returns_before_what_it_left_and_a_time_limit_takes_all() {
    let server = Server::start().await;
    let done = server
        .sandbox_exec("", &["sh", "-c", "sleep 60 & echo done"])
        .await
        .expect(0);
    assert_eq!(done.text(), "done\n");
    // A tree that does not listen is gone when the answer comes.
    let deaf = "trap '' TERM; sleep 1000 & echo $!; wait";
    let done = server
        .sandbox_exec("--timeout 1s", &["sh", "-c", deaf])
        .await
        .expect(124);
    let child = done.text();
    let gone = async {
        while Path::new("/proc").join(child.trim()).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone)
        .await
        .expect("the tree is still there");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_that_nobody_waits_for_is_found_again() {
    let server = Server::start().await;
    let done = server
        .sandbox_exec("--no-wait", &["sh", "-c", "echo found; exit 7"])
        .await
        .expect(0);
    let id = done.text().trim().to_owned();
    assert!(id.starts_with("ctx-"), "{id}");
    let line = format!("session attach {} {id} --after 0", server.sandbox);
    let done = server.outlive.run(&line).await.expect(7);
    assert_eq!(done.text(), "found\n");
    let listed = format!("session list {} --json", server.sandbox);
    let listed = server.outlive.run(&listed).await.expect(0).json();
    assert_eq!(listed["sessions"], json!([]), "a context is no session");
    // Its id is found again, and every command of a session takes it.
    let sleeper = server.sandbox_exec("--no-wait", &["sleep", "1000"]).await;
    let sleeper = sleeper.expect(0).text().trim().to_owned();
    let contexts = format!("sandbox contexts {}", server.sandbox);
    let lines = server.outlive.run(&contexts).await.expect(0).text();
    let row = |id: &str| {
        let line = lines.lines().find(|line| line.starts_with(id));
        let line = line.unwrap_or_else(|| panic!("{id}: {lines}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row(&id).contains("echo found; exit 7"), "{lines}");
    assert!(row(&id).contains(" crashed 7 "), "{lines}");
    assert!(row(&sleeper).contains("sleep 1000 running"), "{lines}");
    let on = |verb: &str, more: &str| format!("session {verb} {} {sleeper}{more}", server.sandbox);
    let follow = on("attach", " --after 0");
    let followed = server.outlive.run(&follow);
    let kill = on("signal", " KILL");
    let (followed, killed) = tokio::join!(followed, server.outlive.run(&kill));
    killed.expect(0);
    followed.expect(137);
    server.outlive.run(&on("delete", "")).await.expect(0);
    let json = format!("{contexts} --json");
    let left = server.outlive.run(&json).await.expect(0).json();
    let left: Vec<_> = left["contexts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["id"])
        .collect();
    assert_eq!(left, [&json!(id)]);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_carries_code_out_and_keeps_it_when_asked() {
    needs("python3");
    let server = Server::start().await;
    let code = "import sys\nsys.stderr.write('w\\n')\nprint(6 * 7)";
    let done = server.sandbox_run("", &[code]).await.expect(0);
    assert_eq!(
        (done.text().as_str(), done.stderr.as_str()),
        ("42\n", "w\n")
    );
    let done = server.sandbox_run("", &["1 / 0"]).await.expect(1);
    assert!(done.stderr.contains("ZeroDivisionError"), "{done:?}");
    server
        .sandbox_run("--alias bash", &["exit 9"])
        .await
        .expect(9);
    // What ends the interpreter itself is told, with the code that a shell has for it.
    let killed = server.sandbox_run("--alias bash", &["kill -9 $$"]).await;
    let killed = killed.expect(137);
    assert!(killed.stderr.contains("ended by SIGKILL"), "{killed:?}");
    // A machine with much to do needs longer until the interpreter is there than it may live.
    let mut ttl = 1;
    let expired = loop {
        let done = server
            .sandbox_run(&format!("--ttl {ttl}"), &["while True: pass"])
            .await;
        if !done.stderr.contains("did not become ready") {
            break done.expect(143);
        }
        ttl *= 4;
    };
    assert!(expired.stderr.contains("--ttl"), "{expired:?}");
    for done in [killed, expired] {
        assert!(done.stderr.contains("the interpreter is gone"), "{done:?}");
    }
    let done = server.sandbox_run("--keep", &["x = 5"]).await.expect(0);
    let id = done.stderr.trim().rsplit(' ').next().unwrap().to_owned();
    let again = format!("--context-id {id} --json");
    let told = server
        .sandbox_run(&again, &["x + 1"])
        .await
        .expect(0)
        .json();
    assert_eq!(
        (&told["stdout"], &told["context_id"]),
        (&json!("6\n"), &json!(id))
    );
    // Without code it is read as a whole.
    let mut child = server
        .sandbox_command("run", "--alias sh", &[])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(b"for i in 1 2; do\necho $i\ndone\n")
        .await
        .unwrap();
    drop(stdin);
    assert_eq!(finish(child).await.expect(0).text(), "1\n2\n");
    let done = server
        .sandbox_run("--context-id ctx-0 x", &[])
        .await
        .expect(125);
    assert!(done.stderr.contains("context_not_found"), "{done:?}");
    server.end().await;
}
