//! `outlive sandbox snapshot …`, and copies that are followed.

use serde_json::{Map, Value, json};

use crate::{
    args::{
        Format,
        snapshot::{OneSnapshot, Snapshot},
    },
    bar::Bar,
    client::{Call, Client},
    commands::Context,
    error::{Failure, Result},
    names::{checked, sandbox_path},
    output::{columns, fields, print, stdout_line, text, time},
};

const COLLECTION: &str = "/api/v1/sandbox-rootfs-snapshots";

/// Runs a command of `sandbox snapshot`.
pub(super) async fn run(context: &Context, command: Snapshot) -> Result<()> {
    match command {
        Snapshot::Create {
            target,
            name,
            description,
            expires_at,
        } => {
            let wanted = [
                ("name", name),
                ("description", description),
                ("expires_at", expires_at),
            ];
            let body = wanted
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), Value::from(value?))));
            let body = Value::Object(body.collect::<Map<_, _>>());
            let path = format!("{}/snapshots", sandbox_path(&target.sandbox)?);
            let snapshot = copying(context, Call::post(&path).body(&body)).await?;
            print(context.format, &snapshot, details)
        }
        Snapshot::List { sandbox } => {
            let path = match sandbox {
                Some(sandbox) => format!("{}/snapshots", sandbox_path(&sandbox)?),
                None => COLLECTION.to_owned(),
            };
            let listed = context.client.call(Call::get(&path)).await?;
            print(context.format, &listed, list)
        }
        Snapshot::Get(target) => {
            let path = path(&context.client, &target).await?;
            let snapshot = context.client.call(Call::get(&path)).await?;
            print(context.format, &snapshot, details)
        }
        Snapshot::Restore { target, snapshot } => {
            let id = id(&context.client, &snapshot.snapshot).await?;
            let body = json!({"snapshot_id": id});
            let path = format!("{}/rootfs/restore", sandbox_path(&target.sandbox)?);
            let answer = copying(context, Call::post(&path).body(&body)).await?;
            print(context.format, &answer, |answer| {
                fields(&[
                    ("sandbox", text(&answer["sandbox_id"])),
                    ("snapshot", text(&answer["snapshot_id"])),
                    ("status", text(&answer["status"])),
                ])
            })
        }
        Snapshot::Delete(target) => {
            let path = path(&context.client, &target).await?;
            let answer = context.client.call(Call::delete(&path)).await?;
            match context.format {
                Format::Table => stdout_line(&format!("Snapshot {} deleted", target.snapshot)),
                format => print(format, &answer, text),
            }
        }
    }
}

/// Makes a call that copies files, and shows how far it is.
pub(super) async fn copying(context: &Context, call: Call<'_>) -> Result<Value> {
    let bar = Bar::new(context.format);
    let follow = context.client.follow(call, "result", |line| {
        bar.step("Copying", line["bytes_total"].as_u64());
        bar.at(line);
    });
    let answer = follow.await;
    bar.end();
    answer
}

async fn path(client: &Client, target: &OneSnapshot) -> Result<String> {
    Ok(format!(
        "{COLLECTION}/{}",
        id(client, &target.snapshot).await?
    ))
}

/// The id of the snapshot that an argument means.
pub(super) async fn id(client: &Client, snapshot: &str) -> Result<String> {
    if snapshot.starts_with("snap-") {
        return checked(snapshot, "snapshot").map(str::to_owned);
    }
    let listed = client.call(Call::get(COLLECTION)).await?;
    let found = listed["snapshots"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .find(|one| one["name"] == snapshot);
    match found.and_then(|one| one["id"].as_str()) {
        Some(id) => checked(id, "snapshot").map(str::to_owned),
        None => Err(Failure::new(
            "snapshot_not_found",
            format!("no snapshot is named `{}`", crate::event::escaped(snapshot)),
        )
        .with_next("`outlive sandbox snapshot list` shows what is there")),
    }
}

fn list(answer: &Value) -> String {
    let rows: Vec<[String; 6]> = answer["snapshots"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|snapshot| {
            [
                text(&snapshot["id"]),
                text(&snapshot["name"]),
                text(&snapshot["sandbox_id"]),
                text(&snapshot["image"]),
                size(&snapshot["size_bytes"]),
                time(&snapshot["created_at"]),
            ]
        })
        .collect();
    columns(["ID", "NAME", "SANDBOX", "IMAGE", "SIZE", "CREATED"], &rows)
}

fn details(snapshot: &Value) -> String {
    fields(&[
        ("id", text(&snapshot["id"])),
        ("name", text(&snapshot["name"])),
        ("description", text(&snapshot["description"])),
        ("sandbox", text(&snapshot["sandbox_id"])),
        ("template", text(&snapshot["template_id"])),
        ("image", text(&snapshot["image"])),
        ("files", text(&snapshot["files"])),
        ("size", size(&snapshot["size_bytes"])),
        ("created", time(&snapshot["created_at"])),
        ("deleted at", time(&snapshot["expires_at"])),
    ])
}

fn size(bytes: &Value) -> String {
    let bytes = bytes.as_u64().unwrap_or(0);
    indicatif::HumanBytes(bytes).to_string()
}
