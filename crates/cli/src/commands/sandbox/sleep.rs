//! Sleep and waking: `outlive sandbox suspend`, `wake`, `activity`, and holds.

use serde_json::{Value, json};

use super::done;
use crate::{
    args::sandbox::OneSandbox,
    client::Call,
    commands::Context,
    error::Result,
    names::{checked, sleeper_path},
    output::{columns, fields, print, text, time},
    waiting::waiting,
};

/// Puts it to sleep; returns once it sleeps.
pub(super) async fn suspend(context: &Context, target: &OneSandbox) -> Result<()> {
    change(context, target, "/suspend", "putting to sleep", "suspended").await
}

/// Wakes it; returns once it runs.
pub(super) async fn wake(context: &Context, target: &OneSandbox) -> Result<()> {
    change(context, target, "/resume", "waking", "awake").await
}

async fn change(
    context: &Context,
    target: &OneSandbox,
    suffix: &str,
    doing: &str,
    word: &str,
) -> Result<()> {
    let path = format!("{}{suffix}", sleeper_path(&target.sandbox)?);
    let call = context.client.call(Call::post(&path).bare());
    let words = format!("{doing} {}", target.sandbox);
    let answer = waiting(context.format, &words, call).await?;
    done(context, &answer, target, word)
}

/// Shows what keeps it awake.
pub(super) async fn activity(context: &Context, target: &OneSandbox) -> Result<()> {
    let path = format!("{}/activity", sleeper_path(&target.sandbox)?);
    let answer = context.client.call(Call::get(&path).bare()).await?;
    print(context.format, &answer, |answer| {
        let sleeps_at = match &answer["sleeps_at"] {
            Value::Null if answer["state"] == "running" => "not by itself".to_owned(),
            at => time(at),
        };
        let mut shown = fields(&[("state", text(&answer["state"])), ("sleeps at", sleeps_at)]);
        let rows = rows(&answer["awake_because"], |doing| {
            ["kind", "id", "since"].map(|field| &doing[field])
        });
        if !rows.is_empty() {
            shown.push('\n');
            shown.push_str(&columns(["AWAKE BECAUSE", "ID", "SINCE"], &rows));
        }
        shown
    })
}

/// Keeps it awake for a while.
pub(super) async fn hold(
    context: &Context,
    target: &OneSandbox,
    owner: &str,
    ttl: u64,
) -> Result<()> {
    let path = format!("{}/holds", sleeper_path(&target.sandbox)?);
    let body = json!({"owner": owner, "ttl_seconds": ttl});
    let call = Call::post(&path).body(&body).bare();
    let answer = context.client.call(call).await?;
    print(context.format, &answer, |answer| {
        fields(&[
            ("id", text(&answer["id"])),
            ("ends", time(&answer["expires_at"])),
        ])
    })
}

/// Lists the holds.
pub(super) async fn holds(context: &Context, target: &OneSandbox) -> Result<()> {
    let path = format!("{}/holds", sleeper_path(&target.sandbox)?);
    let answer = context.client.call(Call::get(&path).bare()).await?;
    print(context.format, &answer, |answer| {
        let rows = rows(&answer["holds"], |hold| {
            ["id", "owner", "since", "expires_at"].map(|field| &hold[field])
        });
        columns(["ID", "OWNER", "SINCE", "ENDS"], &rows)
    })
}

/// Ends a hold.
pub(super) async fn unhold(context: &Context, target: &OneSandbox, hold: &str) -> Result<()> {
    let path = format!(
        "{}/holds/{}",
        sleeper_path(&target.sandbox)?,
        checked(hold, "hold")?
    );
    let answer = context.client.call(Call::delete(&path).bare()).await?;
    done(context, &answer, target, "is held no longer by it")
}

/// The rows of a table; values that are times are shown as people write them.
fn rows<const N: usize>(list: &Value, cells: impl Fn(&Value) -> [&Value; N]) -> Vec<[String; N]> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| cells(item).map(cell)).collect()
}

fn cell(value: &Value) -> String {
    let is_time = value
        .as_str()
        .is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok());
    if is_time { time(value) } else { text(value) }
}
