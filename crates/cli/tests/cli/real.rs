//! The command line against the real server, with the runtime that needs nothing: `process`.

use std::{fs, path::PathBuf, process::Stdio, sync::OnceLock, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
};

use crate::support::{Done, Outlive, PATIENCE, finish};

/// The agent's program: what the test command has built, else built once from this workspace.
fn agent() -> &'static PathBuf {
    static AGENT: OnceLock<PathBuf> = OnceLock::new();
    AGENT.get_or_init(|| {
        if let Some(built) = std::env::var_os("OUTLIVE_TEST_AGENT") {
            return PathBuf::from(built);
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a build, before any test waits for it"
        )]
        let built = std::process::Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "outlive-agent"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(built.success());
        PathBuf::from(env!("CARGO_BIN_EXE_outlive")).with_file_name("outlive-agent")
    })
}

/// A server of one test, with one sandbox.
pub(crate) struct Server {
    pub(crate) outlive: Outlive,
    child: Child,
    pub(crate) sandbox: String,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let mut outlive = Outlive::without_server();
        outlive.set("OUTLIVE_AGENT", agent().to_str().unwrap());
        let child = serve(&outlive).await;
        let sandbox = outlive.run("sandbox create --json").await.expect(0).json();
        let sandbox = sandbox["sandbox_id"].as_str().unwrap().to_owned();
        Self {
            outlive,
            child,
            sandbox,
        }
    }

    /// Runs a command in the sandbox.
    async fn exec(&self, flags: &str, command: &[&str]) -> Done {
        let child = self.command(flags, command).spawn().unwrap();
        finish(child).await
    }

    pub(crate) fn command(&self, flags: &str, command: &[&str]) -> Command {
        let mut args = vec!["run", "--sandbox", &self.sandbox];
        args.extend(flags.split_whitespace());
        args.push("--");
        args.extend(command);
        self.outlive.command(args)
    }

    async fn kill(&mut self) {
        self.child.kill().await.unwrap();
        fs::remove_file(self.outlive.home().join("data/endpoint")).unwrap();
    }

    /// Removes the sandbox and ends the server.
    pub(crate) async fn end(mut self) {
        self.outlive
            .run(&format!("sandbox delete {}", self.sandbox))
            .await
            .expect(0);
        let pid = Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .unwrap()
            .unwrap();
    }
}

/// Starts a server and waits until it answers.
async fn serve(outlive: &Outlive) -> Child {
    let endpoint = outlive.home().join("data/endpoint");
    let mut command = outlive.command(["serve", "--listen", "127.0.0.1:0", "--runtime", "process"]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let answers = async {
        while !endpoint.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the server ended");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answers)
        .await
        .expect("the server did not start");
    child
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_as_if_it_ran_here() {
    let server = Server::start().await;
    let done = server
        .exec("", &["sh", "-c", "echo out; echo err >&2; exit 3"])
        .await
        .expect(3);
    assert_eq!(done.text(), "out\n");
    assert!(done.stderr.contains("err\n"), "{done:?}");
    server
        .exec("", &["sh", "-c", "kill -TERM $$"])
        .await
        .expect(143);
    let done = server.exec("", &["/no/such/program"]).await.expect(125);
    assert!(done.stderr.contains("start_failed"), "{done:?}");

    // case K3: arguments are exact.
    let odd = [
        "a b",
        "",
        "\"q\" '",
        "new\nline",
        "$(id) `id` $HOME",
        "-x",
        "é ☕",
    ];
    let mut command = vec!["printf", "%s\\0"];
    command.extend(odd);
    let done = server.exec("", &command).await.expect(0);
    assert_eq!(done.text(), odd.map(|word| format!("{word}\0")).concat());
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_is_sent_on_or_ends_at_once() {
    let server = Server::start().await;
    // case C2: without -i, programs that read see the end at once.
    for command in [
        ["sh", "-c", "cat"],
        ["sh", "-c", "grep x; true"],
        ["sh", "-c", "read v; true"],
    ] {
        server.exec("", &command).await.expect(0);
    }
    // case C1: an open standard input does not delay the end.
    let mut child = server
        .command("-i", &["echo", "hi"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let open = child.stdin.take();
    assert_eq!(finish(child).await.expect(0).text(), "hi\n");
    let mut child = server
        .command("-i --timeout 1s", &["sleep", "60"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let open_too = child.stdin.take();
    finish(child).await.expect(124);
    drop((open, open_too));

    // Bytes of every value, in order, then the end.
    let bytes: Vec<u8> = (0..300_000_u32)
        .map(|number| (number % 251) as u8)
        .collect();
    let mut child = server
        .command("-i", &["cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let send = bytes.clone();
    let (sent, done) = tokio::join!(
        async move {
            stdin.write_all(&send).await.unwrap();
            drop(stdin);
        },
        finish(child)
    );
    let () = sent;
    assert!(done.expect(0).stdout == bytes, "cat gave other bytes back");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_goes_on_when_the_server_is_killed() {
    let mut server = Server::start().await;
    let program =
        "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo line $i; sleep 0.005; done; exit 5";
    let ids = server
        .exec("-d", &["sh", "-c", program])
        .await
        .expect(0)
        .text();
    let session = ids.split_whitespace().nth(1).unwrap().to_owned();
    let line = format!(
        "session events {} {session} --follow --until-exit --json",
        server.sandbox
    );
    // The address changes with the server, so this client is told the address of a relay.
    let relay = crate::support::Relay::start().await;
    relay.point_to(&fs::read_to_string(server.outlive.home().join("data/endpoint")).unwrap());
    let mut command = server.outlive.command(line.split_whitespace());
    let key = fs::read_to_string(server.outlive.home().join("data/admin.token")).unwrap();
    command
        .env("OUTLIVE_URL", relay.url())
        .env("OUTLIVE_TOKEN", key.trim());
    let mut child = command.spawn().unwrap();
    let mut first = vec![0; 2000];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .await
        .unwrap();
    server.kill().await;
    server.child = serve(&server.outlive).await;
    relay.point_to(&fs::read_to_string(server.outlive.home().join("data/endpoint")).unwrap());
    let done = finish(child).await.expect(0);

    let text = [first, done.stdout].concat();
    let mut output = Vec::new();
    let mut last = 0;
    for line in text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let event: serde_json::Value = serde_json::from_slice(line).unwrap();
        let seq = event["seq"].as_u64().unwrap();
        assert_eq!(seq, last + 1, "each event once, in order");
        last = seq;
        if let Some(data) = event["data_base64"].as_str() {
            output.extend(base64_simd::STANDARD.decode_to_vec(data).unwrap());
        }
    }
    let expected: Vec<String> = (1..=400).map(|number| format!("line {number}\n")).collect();
    assert_eq!(String::from_utf8(output).unwrap(), expected.concat());
    server.end().await;
}

// case F7, case I10: whatever happens to clients, the sessions and the sandbox stay as they are.
#[tokio::test(flavor = "multi_thread")]
async fn killed_clients_leave_sessions_alone() {
    let server = Server::start().await;
    let ids = server.exec("-d -t", &["cat"]).await.expect(0).text();
    let session = ids.split_whitespace().nth(1).unwrap().to_owned();
    let get = format!("session get {} {session} --json", server.sandbox);
    let before = server.outlive.run(&get).await.expect(0).json();
    let server_pid = server.child.id().unwrap();
    let files = || {
        fs::read_dir(format!("/proc/{server_pid}/fd"))
            .unwrap()
            .count()
    };
    let files_before = files();
    for _ in 0..20 {
        let attach = format!("session attach {} {session} --after 0", server.sandbox);
        let mut child = server
            .outlive
            .command(attach.split_whitespace())
            .spawn()
            .unwrap();
        let mut child_too = server
            .command("-t", &["sh", "-c", "echo up; exec sleep 60"])
            .spawn()
            .unwrap();
        let mut up = [0; 2];
        child_too
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut up)
            .await
            .unwrap();
        child.kill().await.unwrap();
        child_too.kill().await.unwrap();
    }
    let settled = async {
        while files() > files_before + 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, settled)
        .await
        .expect("the server keeps dead clients' sockets");
    let after = server.outlive.run(&get).await.expect(0).json();
    assert_eq!(before["attempt"], after["attempt"]);
    assert_eq!(after["phase"], "running");
    let line = format!("sandbox get {} --json", server.sandbox);
    let sandbox = server.outlive.run(&line).await.expect(0).json();
    assert_eq!(
        (&sandbox["status"], &sandbox["runtime_generation"]),
        (&"running".into(), &1.into())
    );
    server.end().await;
}

// case S61: the interrupt key works in the middle of a flood.
#[tokio::test(flavor = "multi_thread")]
async fn the_interrupt_key_ends_a_flood() {
    let server = Server::start().await;
    let mut child = server
        .command("-t -i", &["yes"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut flood = vec![0; 100_000];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut flood)
        .await
        .unwrap();
    stdin.write_all(b"\x03").await.unwrap();
    finish(child).await.expect(130);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_is_true_and_leaves_nothing() {
    let mut outlive = Outlive::without_server();
    outlive.set("OUTLIVE_AGENT", agent().to_str().unwrap());
    let temporary = outlive.home().join("tmp");
    fs::create_dir(&temporary).unwrap();
    outlive.set("TMPDIR", temporary.to_str().unwrap());
    let done = outlive.run("demo --runtime process").await.expect(0);
    for word in [
        "same process",
        "every event",
        "every byte",
        "its exit code  7",
    ] {
        assert!(done.text().contains(word), "{word}: {done:?}");
    }
    assert_eq!(
        fs::read_dir(&temporary).unwrap().count(),
        0,
        "the folder is removed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_looks_at_this_machine() {
    let mut outlive = Outlive::without_server();
    outlive.set("OUTLIVE_AGENT", agent().to_str().unwrap());
    let report = outlive.run("doctor --json").await.expect(0).json();
    assert!(["nested", "two-uid", "none"].contains(&report["isolation"].as_str().unwrap()));
    for key in [
        "userns",
        "cgroup2",
        "cgroup.memory",
        "splice_pty",
        "pidfd_exit",
        "idmap_usr",
    ] {
        assert_ne!(
            report["looked_at"][key]["found"], "unknown",
            "{key}: {report}"
        );
    }
    let done = outlive.run("doctor --agent /no/such/agent").await.expect(1);
    assert!(done.stderr.contains("no_agent"), "{done:?}");
}
