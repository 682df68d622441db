//! `outlive sandbox …`

use serde_json::{Map, Value, json};

use super::Context;
use crate::{
    args::{
        Format,
        sandbox::{OneSandbox, Sandbox, SandboxConfig, Status},
    },
    client::Call,
    error::{Failure, Result},
    names::sandbox_path,
    output::{columns, fields, print, stdout_line, text, time},
    waiting::waiting,
};

mod contexts;
mod release;
mod settings;
mod shown;
mod sleep;
mod snapshot;

const COLLECTION: &str = "/api/v1/sandboxes";

/// Runs a command of `sandbox`.
pub async fn run(context: &Context, command: Sandbox) -> Result<()> {
    match command {
        Sandbox::Create {
            template,
            image,
            snapshot_id,
            config,
        } => {
            let origin = Origin {
                template,
                image,
                snapshot: snapshot_id,
            };
            make(context, &origin, &config).await
        }
        Sandbox::List {
            status,
            template_id,
            paused,
            limit,
            offset,
        } => {
            let call = Call::get(COLLECTION)
                .query("status", status.map(Status::as_str))
                .query("template_id", template_id)
                .query("paused", paused)
                .query("limit", Some(limit))
                .query("offset", Some(offset));
            print(context.format, &context.client.call(call).await?, list)
        }
        Sandbox::Get(target) => show(context, &target, "").await,
        Sandbox::Status(target) => show(context, &target, "/status").await,
        Sandbox::Update { target, config } => {
            let sandbox = update(context, &target, &config).await?;
            print(context.format, &sandbox, details)
        }
        Sandbox::Pause { target, wait } => release::pause(context, &target, wait).await,
        Sandbox::Resume { target, wait } => release::resume(context, &target, wait).await,
        Sandbox::Suspend(target) => sleep::suspend(context, &target).await,
        Sandbox::Wake(target) => sleep::wake(context, &target).await,
        Sandbox::Activity(target) => sleep::activity(context, &target).await,
        Sandbox::Hold { target, owner, ttl } => sleep::hold(context, &target, &owner, ttl).await,
        Sandbox::Holds(target) => sleep::holds(context, &target).await,
        Sandbox::Unhold { target, hold } => sleep::unhold(context, &target, &hold).await,
        Sandbox::Fork {
            target,
            ttl,
            hard_ttl,
        } => fork(context, &target, ttl, hard_ttl).await,
        Sandbox::Snapshot(command) => snapshot::run(context, command).await,
        Sandbox::Refresh { target, duration } => refresh(context, &target, duration).await,
        Sandbox::Delete(target) => {
            let path = sandbox_path(&target.sandbox)?;
            let words = format!("deleting {}", target.sandbox);
            let call = context.client.call(Call::delete(&path));
            let answer = waiting(context.format, &words, call).await?;
            done(context, &answer, &target, "deleted")
        }
        Sandbox::Contexts(target) => contexts::list(context, &target).await,
        Sandbox::Cp(args) => crate::copy::copy(context, &args).await,
        Sandbox::Session(_) | Sandbox::Exec(_) | Sandbox::Run(_) => Err(Failure::new(
            "internal",
            "this command has a module of its own",
        )),
    }
}

async fn refresh(context: &Context, target: &OneSandbox, duration: Option<u64>) -> Result<()> {
    let body = duration.map_or_else(|| json!({}), |duration| json!({"duration": duration}));
    let path = format!("{}/refresh", sandbox_path(&target.sandbox)?);
    let answer = context.client.call(Call::post(&path).body(&body)).await?;
    print(context.format, &answer, |answer| {
        let told = fields(&[
            ("expires", time(&answer["expires_at"])),
            ("deleted at", time(&answer["hard_expires_at"])),
        ]);
        if told.is_empty() {
            return fields(&[("expires", "never: it has no ttl".to_owned())]);
        }
        told
    })
}

/// What a new sandbox is made from.
#[derive(Debug, Default)]
pub struct Origin {
    /// Its template.
    pub template: Option<String>,
    /// An image instead of the template's.
    pub image: Option<String>,
    /// A snapshot whose files it gets, by id or by name.
    pub snapshot: Option<String>,
}

async fn make(context: &Context, origin: &Origin, config: &SandboxConfig) -> Result<()> {
    let work = create(context, origin, config);
    let sandbox = match origin.snapshot {
        Some(_) => work.await?, // It shows how far it is by itself.
        None => waiting(context.format, "making a sandbox", work).await?,
    };
    print(context.format, &for_scripts(sandbox), details)
}

/// Makes a sandbox.
pub async fn create(context: &Context, origin: &Origin, config: &SandboxConfig) -> Result<Value> {
    let mut body = Map::new();
    let template = match (&origin.template, &origin.snapshot) {
        (None, None) => Some("default"),
        (template, _) => template.as_deref(),
    };
    if let Some(template) = template {
        body.insert("template".to_owned(), template.into());
    }
    let mut config = settings::of_new(config)?;
    if let Some(image) = &origin.image {
        config["image"] = image.clone().into();
    }
    if config.as_object().is_some_and(|config| !config.is_empty()) {
        body.insert("config".to_owned(), config);
    }
    let Some(snapshot) = &origin.snapshot else {
        let body = Value::Object(body);
        return context
            .client
            .call(Call::post(COLLECTION).body(&body))
            .await;
    };
    let id = snapshot::id(&context.client, snapshot).await?;
    body.insert("snapshot_id".to_owned(), id.into());
    let body = Value::Object(body);
    snapshot::copying(context, Call::post(COLLECTION).body(&body)).await
}

/// Changes what the flags name, and leaves the rest.
async fn update(context: &Context, target: &OneSandbox, config: &SandboxConfig) -> Result<Value> {
    let path = sandbox_path(&target.sandbox)?;
    let config = if settings::is_part(config) {
        let shown = context.client.call(Call::get(&path)).await?;
        settings::over(config, &shown)?
    } else {
        settings::of_new(config)?
    };
    let body = json!({"config": config});
    context.client.call(Call::put(&path).body(&body)).await
}

/// The names that scripts of the dialect's own command line read, beside those of the wire.
fn for_scripts(mut created: Value) -> Value {
    if let Some(fields) = created.as_object_mut() {
        if let Some(id) = fields.get("sandbox_id").cloned() {
            fields.insert("id".to_owned(), id);
        }
        fields.entry("bootstrap_mounts").or_insert(json!([]));
    }
    created
}

async fn fork(
    context: &Context,
    target: &OneSandbox,
    ttl: Option<u64>,
    hard_ttl: Option<u64>,
) -> Result<()> {
    let path = format!("{}/fork", sandbox_path(&target.sandbox)?);
    let config = SandboxConfig {
        ttl,
        hard_ttl,
        ..SandboxConfig::default()
    };
    let body = json!({"config": settings::of_new(&config)?});
    let answer = snapshot::copying(context, Call::post(&path).body(&body)).await?;
    print(context.format, &answer, |answer| {
        details(&answer["sandbox"])
    })
}

async fn show(context: &Context, target: &OneSandbox, suffix: &str) -> Result<()> {
    let path = format!("{}{suffix}", sandbox_path(&target.sandbox)?);
    print(
        context.format,
        &context.client.call(Call::get(&path)).await?,
        details,
    )
}

fn done(context: &Context, answer: &Value, target: &OneSandbox, word: &str) -> Result<()> {
    match context.format {
        Format::Table => stdout_line(&format!("Sandbox {} {word}", target.sandbox)),
        format => print(format, answer, text),
    }
}

fn list(answer: &Value) -> String {
    let rows: Vec<[String; 6]> = answer["sandboxes"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|sandbox| {
            [
                text(&sandbox["id"]),
                text(&sandbox["template_id"]),
                shown::status(sandbox),
                text(&sandbox["runtime_generation"]),
                time(&sandbox["created_at"]),
                time(&sandbox["expires_at"]),
            ]
        })
        .collect();
    let mut table = columns(
        [
            "ID",
            "TEMPLATE",
            "STATUS",
            "GENERATION",
            "CREATED",
            "EXPIRES",
        ],
        &rows,
    );
    if answer["has_more"] == true {
        table.push_str("There are more: use --offset.\n");
    }
    table
}

fn details(sandbox: &Value) -> String {
    let id = if sandbox["id"].is_null() {
        &sandbox["sandbox_id"]
    } else {
        &sandbox["id"]
    };
    let template = if sandbox["template_id"].is_null() {
        &sandbox["template"]
    } else {
        &sandbox["template_id"]
    };
    fields(&[
        ("id", text(id)),
        ("template", text(template)),
        ("image", text(&sandbox["image"])),
        ("status", shown::status(sandbox)),
        ("generation", text(&sandbox["runtime_generation"])),
        ("runtime", text(&sandbox["runtime_id"])),
        ("isolation", text(&sandbox["runtime"]["isolation"])),
        ("network", shown::network(&sandbox["network"])),
        ("auto resume", text(&sandbox["auto_resume"])),
        ("limits", shown::limits(&sandbox["resources"])),
        ("disk", shown::disk(&sandbox["disk"])),
        ("created", time(&sandbox["created_at"])),
        ("expires", time(&sandbox["expires_at"])),
        ("deleted at", time(&sandbox["hard_expires_at"])),
    ])
}
