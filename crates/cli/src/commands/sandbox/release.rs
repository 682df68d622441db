//! `outlive sandbox pause` and `resume`, which may wait until everybody sees it.

use std::time::Duration;

use serde_json::{Value, json};

use super::{details, done};
use crate::{
    args::sandbox::{OneSandbox, Wait},
    client::Call,
    clock::Stopwatch,
    commands::Context,
    error::{Failure, Result},
    limits::WAIT_POLL,
    names::sandbox_path,
    output::{print, text},
    waiting::waiting,
};

/// Gives the runtime back.
pub(super) async fn pause(context: &Context, target: &OneSandbox, wait: Wait) -> Result<()> {
    let words = format!("pausing {}", target.sandbox);
    let work = async {
        let answer = act(context, target, "/pause").await?;
        if !wait.wait {
            return Ok((answer, None));
        }
        let is_paused =
            |sandbox: &Value| sandbox["status"] == "paused" && sandbox["paused"] == true;
        let seen = until(context, target, wait, is_paused).await?;
        Ok((answer, Some(seen)))
    };
    let (answer, seen) = waiting(context.format, &words, work).await?;
    tell(context, target, &answer, seen, "paused")
}

/// Starts the next runtime.
pub(super) async fn resume(context: &Context, target: &OneSandbox, wait: Wait) -> Result<()> {
    let words = format!("resuming {}", target.sandbox);
    let work = async {
        if !wait.wait {
            return Ok((act(context, target, "/resume").await?, None));
        }
        let path = sandbox_path(&target.sandbox)?;
        let before = context.client.call(Call::get(&path)).await?;
        let generation = |sandbox: &Value| sandbox["runtime_generation"].as_u64().unwrap_or(0);
        let wanted = generation(&before) + u64::from(before["paused"] == true);
        let answer = act(context, target, "/resume").await?;
        let runs = |sandbox: &Value| {
            sandbox["status"] == "running"
                && sandbox["paused"] == false
                && generation(sandbox) >= wanted
        };
        let seen = until(context, target, wait, runs).await?;
        Ok((answer, Some(seen)))
    };
    let (answer, seen) = waiting(context.format, &words, work).await?;
    tell(context, target, &answer, seen, "resumed")
}

async fn act(context: &Context, target: &OneSandbox, suffix: &str) -> Result<Value> {
    let path = format!("{}{suffix}", sandbox_path(&target.sandbox)?);
    let body = json!({});
    context.client.call(Call::post(&path).body(&body)).await
}

/// Shows what was waited for, or says that it was asked for.
fn tell(
    context: &Context,
    target: &OneSandbox,
    answer: &Value,
    seen: Option<Value>,
    word: &str,
) -> Result<()> {
    match seen {
        Some(sandbox) => print(context.format, &sandbox, details),
        None => done(context, answer, target, word),
    }
}

/// Looks at the sandbox until it is as wanted.
async fn until(
    context: &Context,
    target: &OneSandbox,
    wait: Wait,
    is_wanted: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let path = sandbox_path(&target.sandbox)?;
    let started = Stopwatch::start();
    loop {
        let sandbox = context.client.call(Call::get(&path)).await?;
        if is_wanted(&sandbox) {
            return Ok(sandbox);
        }
        let status = text(&sandbox["status"]);
        if matches!(status.as_str(), "failed" | "terminating") {
            let message = format!("the sandbox is {status} now");
            return Err(Failure::new("sandbox_failed", message).with_next(format!(
                "`outlive sandbox status {0}`, then `outlive sandbox resume {0}`",
                target.sandbox
            )));
        }
        if started.elapsed() >= Duration::from_secs(wait.timeout) {
            let message = format!("the sandbox is still {status} after {} s", wait.timeout);
            return Err(Failure::new("timeout", message).with_next(format!(
                "it goes on by itself: `outlive sandbox status {}`, or a longer --timeout",
                target.sandbox
            )));
        }
        tokio::time::sleep(WAIT_POLL).await;
    }
}
