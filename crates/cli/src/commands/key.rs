//! `outlive key …`

use serde_json::{Value, json};

use super::Context;
use crate::{
    args::key::Key,
    client::Call,
    error::Result,
    names::checked,
    output::{columns, fields, print, stdout_line, text, time},
};

/// Runs a command of `key`.
pub async fn run(context: &Context, command: Key) -> Result<()> {
    match command {
        Key::Create {
            owner,
            role,
            name,
            expires_at,
        } => {
            let mut body = json!({"owner": owner, "role": role.as_str()});
            if let Some(name) = name {
                body["name"] = name.into();
            }
            if let Some(expires_at) = expires_at {
                body["expires_at"] = expires_at.into();
            }
            let key = context
                .client
                .call(Call::post("/v1/keys").body(&body))
                .await?;
            print(context.format, &key, |key| {
                let shown = [("id", text(&key["id"])), ("key", text(&key["key"]))];
                format!("{}Keep the key: it is not shown again.", fields(&shown))
            })
        }
        Key::List => {
            let keys = context.client.call(Call::get("/v1/keys")).await?;
            print(context.format, &keys, list)
        }
        Key::Revoke { id } => {
            let path = format!("/v1/keys/{}", checked(&id, "key")?);
            let answer = context.client.call(Call::delete(&path)).await?;
            match context.format {
                crate::args::Format::Table => stdout_line(&format!("Key {id} revoked")),
                format => print(format, &answer, text),
            }
        }
    }
}

fn list(answer: &Value) -> String {
    let keys = answer.as_array().or_else(|| answer["keys"].as_array());
    let rows: Vec<[String; 6]> = keys
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|key| {
            [
                text(&key["id"]),
                text(&key["owner"]),
                text(&key["role"]),
                text(&key["name"]),
                time(&key["created_at"]),
                time(&key["expires_at"]),
            ]
        })
        .collect();
    columns(["ID", "OWNER", "ROLE", "NAME", "CREATED", "EXPIRES"], &rows)
}
