//! `outlive sandbox contexts`: what `exec` and `run` have left in a sandbox.

use serde_json::Value;

use crate::{
    args::sandbox::OneSandbox,
    client::Call,
    commands::Context,
    error::Result,
    event::why,
    limits::COMMAND_CHARS_SHOWN_MAX,
    names::sandbox_path,
    output::{columns, print, text, time},
};

/// Lists them.
pub(super) async fn list(context: &Context, target: &OneSandbox) -> Result<()> {
    let path = format!("{}/contexts", sandbox_path(&target.sandbox)?);
    let answer = context.client.call(Call::get(&path)).await?;
    print(context.format, &answer, table)
}

fn table(answer: &Value) -> String {
    let contexts = answer["contexts"].as_array();
    let rows: Vec<[String; 5]> = contexts
        .into_iter()
        .flatten()
        .map(|context| {
            [
                text(&context["id"]),
                what(context),
                state(context),
                end(context),
                time(&context["created_at"]),
            ]
        })
        .collect();
    columns(["ID", "WHAT", "STATE", "EXIT", "CREATED"], &rows)
}

/// The interpreter, or the command as far as it fits.
fn what(context: &Value) -> String {
    let Some(command) = context["command"].as_array() else {
        return text(&context["alias"]);
    };
    let words: Vec<String> = command.iter().map(text).collect();
    let line = words.join(" ");
    if line.chars().count() <= COMMAND_CHARS_SHOWN_MAX {
        return line;
    }
    let head: String = line.chars().take(COMMAND_CHARS_SHOWN_MAX - 1).collect();
    head + "…"
}

fn state(context: &Value) -> String {
    if context["running"] == true {
        "running".to_owned()
    } else if context["paused"] == true {
        "stands still".to_owned()
    } else {
        let state = context["state"].as_str().unwrap_or_default();
        why(state).into_owned()
    }
}

fn end(context: &Value) -> String {
    match &context["signal"] {
        Value::Null => text(&context["exit_code"]),
        signal => text(signal),
    }
}
