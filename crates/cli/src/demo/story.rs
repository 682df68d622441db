//! The story that the demo tells, step by step.

use serde_json::{Value, json};

use super::{
    Stage,
    evidence::{Evidence, PROGRAM},
    processes::{kill, supervisor, wait_until},
    server::Server,
    tell,
};
use crate::{
    attach::{
        input::{End, body, random_id},
        session_path,
    },
    client::{Call, Client},
    clock::Stopwatch,
    error::{Failure, Result},
    event::Ending,
    follow::{Follow, Step},
    limits::{DEMO_LINES_BEFORE, DEMO_WAIT_MAX},
    output::stdout_line,
};

/// Tells the whole story; `Err` when a part of it is not true.
pub(super) async fn tell_all(stage: &mut Stage<'_>) -> Result<()> {
    let since = Stopwatch::start();
    stdout_line("A session outlives its client, its server and its supervisor.\n")?;

    let (path, pid) = begin(stage, since).await?;
    let mut evidence = Evidence::default();
    watch(client(stage)?, &path, &mut evidence, |evidence| {
        evidence.lines >= DEMO_LINES_BEFORE
    })
    .await?;
    let (seq_before, lines_before) = (evidence.seq, evidence.lines);
    tell(
        since.elapsed(),
        &format!(
            "followed it up to event {seq_before}, line {lines_before}; dropped the connection"
        ),
    )?;

    let killed = kill_everything(stage, since).await?;
    stage.server = Some(Server::start(&stage.data, stage.args).await?);
    tell(
        since.elapsed(),
        &format!("started the server again at {}", client(stage)?.url()),
    )?;
    new_supervisor(stage, killed, since).await?;

    let lines_wanted = lines_before + DEMO_LINES_BEFORE;
    watch(client(stage)?, &path, &mut evidence, |evidence| {
        evidence.lines >= lines_wanted
    })
    .await?;
    tell(
        since.elapsed(),
        &format!(
            "came back after event {seq_before}: it went on, up to line {} so far",
            evidence.lines
        ),
    )?;
    let now = client(stage)?.call(Call::get(&path)).await?;
    let pid_now = pid_of(&now)?;

    send_stop(client(stage)?, &path).await?;
    watch(client(stage)?, &path, &mut evidence, |evidence| {
        evidence.ending.is_some()
    })
    .await?;
    tell(
        since.elapsed(),
        "sent it a line of input; it said goodbye and exited\n",
    )?;

    judge(evidence, pid, pid_now)?;
    stdout_line(&format!(
        "\nAll of it in {:.1} s. Now yours: outlive serve & outlive run -- COMMAND",
        since.elapsed().as_secs_f64()
    ))
}

/// Starts a server, a sandbox and the session. Gives the session's path and its process.
async fn begin(stage: &mut Stage<'_>, since: Stopwatch) -> Result<(String, u64)> {
    stage.server = Some(Server::start(&stage.data, stage.args).await?);
    let url = client(stage)?.url().to_owned();
    tell(since.elapsed(), &format!("started a server at {url}"))?;

    let body = json!({"template": "default"});
    let sandbox = client(stage)?
        .call(Call::post("/api/v1/sandboxes").body(&body))
        .await?;
    let sandbox = id_of(&sandbox, "sandbox_id")?;
    stage.sandbox = Some(sandbox.clone());
    let health = client(stage)?.plain("/healthz").await?;
    tell(
        since.elapsed(),
        &format!("made {sandbox}, {}", isolation(&health)),
    )?;

    let spec = json!({"name": "demo", "command": ["/bin/sh", "-c", PROGRAM, stage.marker]});
    let path = format!("/api/v1/sandboxes/{sandbox}/sessions");
    let key = random_id("demo-")?;
    let call = Call::post(&path).body(&spec).idempotency_key(&key);
    let session = client(stage)?.call(call).await?;
    let (id, pid) = (id_of(&session, "id")?, pid_of(&session)?);
    tell(
        since.elapsed(),
        &format!("{id} runs process {pid}; it writes numbered lines"),
    )?;
    Ok((session_path(&sandbox, &id), pid))
}

/// Kills the server and the supervisor with SIGKILL. Gives the supervisor that was.
async fn kill_everything(stage: &mut Stage<'_>, since: Stopwatch) -> Result<rustix::process::Pid> {
    let sandbox = stage.sandbox.clone().unwrap_or_default();
    let Some(server) = &mut stage.server else {
        return Err(Failure::new("internal", "the demo has no server"));
    };
    let server_pid = server.pid().unwrap_or_default();
    server.kill().await?;
    let supervisor = supervisor(&sandbox)?
        .ok_or_else(|| Failure::new("demo", "the supervisor's process was not found"))?;
    kill(supervisor)?;
    tell(
        since.elapsed(),
        &format!("kill -9 of the server ({server_pid}) and of the supervisor ({supervisor})"),
    )?;
    Ok(supervisor)
}

/// Waits for the supervisor that took over.
async fn new_supervisor(
    stage: &Stage<'_>,
    killed: rustix::process::Pid,
    since: Stopwatch,
) -> Result<()> {
    let sandbox = stage.sandbox.as_deref().unwrap_or_default();
    let new = wait_until(DEMO_WAIT_MAX, || {
        Ok(supervisor(sandbox)?.filter(|pid| *pid != killed))
    })
    .await?
    .ok_or_else(|| Failure::new("demo", "no new supervisor took over"))?;
    tell(
        since.elapsed(),
        &format!("a new supervisor ({new}) has taken the session over"),
    )
}

/// Follows from where the evidence ends until it is enough; then drops the connection.
async fn watch(
    client: &Client,
    path: &str,
    evidence: &mut Evidence,
    enough: impl Fn(&Evidence) -> bool,
) -> Result<()> {
    let mut follow = Follow::new(client, path, Some(evidence.seq), Some(DEMO_WAIT_MAX));
    while !enough(evidence) {
        if let Some(ending) = &evidence.ending {
            return Err(Failure::new(
                "demo",
                format!("the process ended early: {ending:?}"),
            ));
        }
        match follow.next().await? {
            Step::Event(event, _) => evidence.take(&event)?,
            Step::Deleted => return Err(Failure::new("demo", "the session is gone")),
        }
    }
    Ok(())
}

async fn send_stop(client: &Client, path: &str) -> Result<()> {
    let id = random_id("demo-")?;
    let body = body(&id, None, b"stop\n", End::Open);
    let path = format!("{path}/inputs");
    client
        .call(Call::post(&path).body(&body).repeatable())
        .await
        .map(|_| ())
}

/// Checks all that the demo claims.
fn judge(evidence: Evidence, pid: u64, pid_now: u64) -> Result<()> {
    if pid != pid_now {
        return Err(Failure::new(
            "demo",
            format!("process {pid} became process {pid_now}"),
        ));
    }
    stdout_line(&format!("  same process   {pid} before and after"))?;
    stdout_line(&format!(
        "  every event    1 to {}, each once, over three connections",
        evidence.seq
    ))?;
    let ending = evidence.ending.clone();
    let lines = evidence.lines;
    let (bytes, sum) = evidence.check(pid)?;
    stdout_line(&format!(
        "  every byte     {lines} lines, {bytes} bytes, sha256 {sum} as written"
    ))?;
    match ending {
        Some(Ending::Code(7)) => stdout_line("  its exit code  7, as the program said"),
        other => Err(Failure::new(
            "demo",
            format!("it ended with {other:?} instead of code 7"),
        )),
    }
}

fn client<'a>(stage: &'a Stage<'_>) -> Result<&'a Client> {
    stage
        .server
        .as_ref()
        .map(|server| &server.client)
        .ok_or_else(|| Failure::new("internal", "the demo has no server"))
}

fn id_of(answer: &Value, key: &str) -> Result<String> {
    answer[key]
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| Failure::protocol(format!("the answer has no {key}")))
}

fn pid_of(session: &Value) -> Result<u64> {
    session["attempt"]["pid"]
        .as_u64()
        .ok_or_else(|| Failure::new("demo", format!("nothing runs: {}", session["attempt"])))
}

/// What keeps the sandbox apart, in words.
fn isolation(health: &Value) -> String {
    let runtime = health["capabilities"]["runtime"]
        .as_str()
        .unwrap_or("unknown");
    match health["isolation"].as_str() {
        Some("none") => format!("runtime {runtime}, no isolation"),
        Some(tier) => format!("runtime {runtime}, isolation {tier}"),
        None => format!("runtime {runtime}"),
    }
}
