//! What tables tell people, beyond the words of the wire.

use serde_json::json;

use crate::{
    real::Server,
    support::{Fake, Outlive, Reply, SANDBOX, SESSION, session},
};

// Suspended, it was `running` in every table, and its network and isolation were in none.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_tells_what_sleeps_and_what_holds_it() {
    let server = Server::start().await;
    let ask = async |line: &str| {
        let line = format!("sandbox {}", line.replace("SB", &server.sandbox));
        server.outlive.run(&line).await.expect(0).text()
    };
    let shown = ask("get SB").await;
    let rows: Vec<Vec<&str>> = shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    for row in [
        ["status", "running"],
        ["isolation", "none"],
        ["network", "host"],
    ] {
        assert!(rows.iter().any(|it| it == &row), "{row:?}: {shown}");
    }
    assert_eq!(ask("refresh SB").await, "expires  never: it has no ttl\n");
    ask("suspend SB").await;
    for line in ["list", "get SB", "status SB"] {
        let shown = ask(line).await;
        assert!(shown.contains("running (frozen)"), "{line}: {shown}");
        let json = ask(&format!("{line} --json")).await;
        assert!(json.contains(r#""status": "running""#), "{line}: {json}");
    }
    server.end().await;
}

// A death by signal was shown with the exit code -1, and an end by itself as `stopped`.
#[tokio::test]
async fn a_table_tells_how_a_session_ended_in_plain_words() {
    for (end, lines, never) in [
        (
            json!({"exit_code": -1, "signal": "SIGTERM", "reason": "killed"}),
            ["signal          SIGTERM", "reason          killed"],
            "exit code",
        ),
        (
            json!({"exit_code": 0, "reason": "stopped"}),
            ["exit code       0", "reason          exited"],
            "signal",
        ),
    ] {
        let fake = Fake::start(move |_, _| {
            let mut ended = session("exited", 4);
            ended["attempt"] = end.clone();
            Reply::ok(200, ended)
        })
        .await;
        let line = format!("session get {SANDBOX} {SESSION}");
        let told = Outlive::new(&fake.url).run(&line).await.expect(0).text();
        for line in lines {
            assert!(told.lines().any(|it| it == line), "{line}: {told}");
        }
        assert!(!told.contains(never), "{told}");
    }
}
