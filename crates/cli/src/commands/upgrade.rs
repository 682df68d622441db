//! `outlive upgrade …`

use serde_json::{Value, json};

use super::Context;
use crate::{
    args::upgrade::Upgrade,
    client::Call,
    error::{Failure, Result},
    names::checked,
    output::{columns, print, text},
};

/// Runs `upgrade`; fails when a sandbox was not upgraded.
pub async fn run(context: &Context, args: &Upgrade) -> Result<()> {
    let mut body = json!({});
    if let Some(agent) = &args.agent {
        let path = std::path::absolute(agent)
            .map_err(|error| Failure::usage(format!("{}: {error}", agent.display())))?;
        let path = path.to_str().ok_or_else(|| {
            Failure::usage(format!("{}: the path is not valid UTF-8", path.display()))
        })?;
        body["agent"] = path.into();
    }
    if !args.all {
        for sandbox in &args.sandboxes {
            checked(sandbox, "sandbox")?;
        }
        body["sandboxes"] = json!(args.sandboxes);
    }
    let call = Call::post("/v1/upgrade").body(&body);
    let answer = context.client.call(call).await?;
    print(context.format, &answer, list)?;
    let failed = rows(&answer)
        .iter()
        .filter(|one| one["upgraded"] != true)
        .count();
    if failed == 0 {
        return Ok(());
    }
    Err(
        Failure::new("not_upgraded", format!("{failed} not upgraded"))
            .with_next("their processes go on; the reasons are in the list"),
    )
}

fn rows(answer: &Value) -> &[Value] {
    answer["sandboxes"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn list(answer: &Value) -> String {
    let rows: Vec<[String; 4]> = rows(answer)
        .iter()
        .map(|one| {
            [
                text(&one["sandbox_id"]),
                text(&one["upgraded"]),
                text(&one["build"]),
                text(&one["reason"]),
            ]
        })
        .collect();
    columns(["SANDBOX", "UPGRADED", "BUILD", "REASON"], &rows)
}
