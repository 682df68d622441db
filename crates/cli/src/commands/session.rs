//! `outlive session …`

use std::path::Path;

use serde_json::{Value, json};

use super::{Context, run::random_key};
use crate::{
    args::{
        Format,
        session::{Create, Events, Input, OneSession, Session},
        spec::{SpecFlags, Streams},
    },
    attach::{
        self, Attachment, Limit, Stdin, conclude,
        input::{self, End, random_id},
        session_path,
    },
    client::Call,
    config::read_bounded,
    error::{Failure, Result},
    limits::INPUT_BYTES_MAX,
    names::{sandbox_path, session_id},
    output::{columns, fields, print, stdout_line, text, time},
};

mod events;

/// Runs a command of `session` and gives the exit code.
pub async fn run(context: &Context, command: Session) -> Result<u8> {
    match command {
        Session::Attach {
            target,
            after,
            interactive,
            link,
        } => {
            let target = Target::find(context, target).await?;
            return target.attach(context, after, interactive, &link).await;
        }
        Session::Events(args) => events(context, args).await?,
        Session::List { sandbox } => {
            let path = format!("{}/sessions", sandbox_path(&sandbox)?);
            print(
                context.format,
                &context.client.call(Call::get(&path)).await?,
                list,
            )?;
        }
        Session::Create(args) => create_command(context, &args).await?,
        Session::Get(target) => {
            let target = Target::find(context, target).await?;
            target.show(context, Call::get(&target.path)).await?;
        }
        Session::Update { target, spec_file } => {
            let spec = spec_of_file(&spec_file)?;
            let target = Target::find(context, target).await?;
            target
                .show(context, Call::put(&target.path).body(&spec))
                .await?;
        }
        Session::Start(target) => desire(context, target, "running").await?,
        Session::Stop(target) => desire(context, target, "stopped").await?,
        Session::Attempt { target, replace } => {
            let target = Target::find(context, target).await?;
            let path = format!("{}/attempts", target.path);
            let body = json!({"replace_current": replace});
            target.show(context, Call::post(&path).body(&body)).await?;
        }
        Session::Input(args) => input(context, args).await?,
        Session::Signal {
            target,
            signal,
            attempt_id,
        } => {
            let target = Target::find(context, target).await?;
            let path = format!("{}/signals", target.path);
            let body = expecting(json!({"signal": signal}), attempt_id);
            say(context, Call::post(&path).body(&body), "Signal accepted").await?;
        }
        Session::Resize {
            target,
            rows,
            cols,
            attempt_id,
        } => {
            let target = Target::find(context, target).await?;
            let path = format!("{}/terminal", target.path);
            let body = expecting(json!({"rows": rows, "cols": cols}), attempt_id);
            say(context, Call::put(&path).body(&body), "Terminal resized").await?;
        }
        Session::Delete(target) => {
            let target = Target::find(context, target).await?;
            let words = format!("Session {} deleted successfully", target.session);
            say(context, Call::delete(&target.path), &words).await?;
        }
    }
    Ok(0)
}

/// A session whose id is known.
struct Target {
    sandbox: String,
    session: String,
    path: String,
}

impl Target {
    async fn find(context: &Context, target: OneSession) -> Result<Self> {
        sandbox_path(&target.sandbox)?;
        let session = session_id(&context.client, &target).await?;
        let path = session_path(&target.sandbox, &session);
        Ok(Self {
            sandbox: target.sandbox,
            session,
            path,
        })
    }

    /// Makes a call and shows the session that it answers with.
    async fn show(&self, context: &Context, call: Call<'_>) -> Result<()> {
        print(context.format, &context.client.call(call).await?, details)
    }

    async fn attach(
        &self,
        context: &Context,
        after: Option<u64>,
        interactive: bool,
        link: &crate::args::run::LinkFlags,
    ) -> Result<u8> {
        let view = context.client.call(Call::get(&self.path)).await?;
        let latest = view["cursor"]["latest"].as_u64().unwrap_or(0);
        let running = view["attempt"]["finished_at"].is_null() && !view["attempt"].is_null();
        if after.is_none() && !running {
            return Err(
                Failure::new("session_conflict", "nothing runs in this session now").with_next(
                    format!(
                        "its output is kept: outlive session attach {} {} --after 0",
                        self.sandbox, self.session
                    ),
                ),
            );
        }
        let pty = view["spec"]["io"]["mode"] == "pty";
        let forward = interactive || (pty && crate::terminal::stdin_is_terminal());
        let attachment = Attachment {
            client: &context.client,
            sandbox: &self.sandbox,
            session: &self.session,
            view: &view,
            after: after.unwrap_or(latest),
            stdin: if forward {
                Stdin::Forward
            } else {
                Stdin::Untouched
            },
            patience: link.patience(),
            detach_keys: link.detach_keys.clone(),
        };
        // What has ended can be read without waking the sandbox; a terminal that runs is ours.
        let outcome = if pty && running {
            attach::terminal::attach(&attachment).await
        } else {
            attach::pipes::attach(&attachment).await
        };
        conclude(&attachment, outcome?, Limit::None)
    }
}

/// Makes a session; a repetition with the same key makes none.
pub async fn create(
    context: &Context,
    sandbox: &str,
    spec: &Value,
    idempotency_key: Option<&str>,
) -> Result<Value> {
    let path = format!("{}/sessions", sandbox_path(sandbox)?);
    let key = idempotency_key.map_or_else(random_key, |key| Ok(key.to_owned()))?;
    let call = Call::post(&path).body(spec).idempotency_key(&key);
    context.client.call(call).await
}

async fn create_command(context: &Context, args: &Create) -> Result<()> {
    if let Some(name) = &args.reserved_name {
        return Err(Failure::new(
            "not_implemented",
            format!("sessions found by a unique name (`{name}`) are not available yet"),
        )
        .with_next(format!(
            "use `--name {name}` for a label, and put `--` before the command"
        )));
    }
    let spec = match &args.spec_file {
        Some(path) => {
            if !args.command.is_empty() || args.pty || args.spec != SpecFlags::default() {
                return Err(Failure::usage(
                    "--spec-file is the whole specification; leave the other flags and the \
                     command out",
                ));
            }
            spec_of_file(path)?
        }
        None if args.command.is_empty() => {
            return Err(Failure::usage(
                "no command: put it after `--`, or use --spec-file",
            ));
        }
        None => {
            let streams = if args.pty {
                Streams::Pty
            } else {
                Streams::Pipes
            };
            args.spec.to_json(&args.command, streams)?
        }
    };
    let view = create(
        context,
        &args.sandbox,
        &spec,
        args.idempotency_key.as_deref(),
    )
    .await?;
    print(context.format, &view, details)
}

/// A specification in YAML or JSON.
fn spec_of_file(path: &Path) -> Result<Value> {
    let spec: Value = serde_saphyr::from_str(&read_bounded(path)?)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    if spec.is_object() {
        Ok(spec)
    } else {
        Err(Failure::usage(format!(
            "{} holds no specification",
            path.display()
        )))
    }
}

async fn desire(context: &Context, target: OneSession, state: &str) -> Result<()> {
    let target = Target::find(context, target).await?;
    let path = format!("{}/desired-state", target.path);
    let body = json!({"state": state});
    target.show(context, Call::put(&path).body(&body)).await
}

async fn input(context: &Context, args: Input) -> Result<()> {
    let data = match (args.data, args.data_base64, args.file) {
        (Some(text), _, _) => text.into_bytes(),
        (_, Some(base64), _) => base64_simd::STANDARD
            .decode_to_vec(base64)
            .map_err(|error| Failure::usage(format!("--data-base64: {error}")))?,
        (_, _, Some(path)) => read_input(&path)?,
        (None, None, None) => Vec::new(),
    };
    let end = match (args.eof, args.hangup) {
        (_, true) => End::Hangup,
        (true, false) => End::AfterData,
        (false, false) => End::Open,
    };
    if data.is_empty() && end == End::Open {
        return Err(Failure::usage(
            "nothing to send: give --data, --data-base64, --file, --eof or --hangup",
        ));
    }
    if data.len() > INPUT_BYTES_MAX {
        return Err(Failure::usage(
            "an input is 4 MiB at most; send it in parts",
        ));
    }
    let id = args.input_id.map_or_else(|| random_id("in-"), Ok)?;
    let target = Target::find(context, args.target).await?;
    let path = format!("{}/inputs", target.path);
    let body = input::body(&id, args.attempt_id.as_deref(), &data, end);
    let call = Call::post(&path)
        .query("durable", args.durable.then_some("true"))
        .body(&body)
        .repeatable();
    let answer = context.client.call(call).await?;
    let word = if answer["duplicate"] == true {
        "Input was accepted before"
    } else {
        "Input accepted"
    };
    told(context, &answer, &format!("{word} ({id})"))
}

fn read_input(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let fail = |error: std::io::Error| Failure::file("read", path, &error);
    let limit = INPUT_BYTES_MAX as u64 + 1;
    let mut data = Vec::new();
    if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(limit)
            .read_to_end(&mut data)
            .map_err(fail)?;
    } else {
        let file = std::fs::File::open(path).map_err(fail)?;
        file.take(limit).read_to_end(&mut data).map_err(fail)?;
    }
    Ok(data)
}

async fn events(context: &Context, args: Events) -> Result<()> {
    let after = args.last_event_id.or(args.after);
    let target = Target::find(context, args.target).await?;
    if args.follow {
        let patience = (args.reconnect > 0).then(|| std::time::Duration::from_secs(args.reconnect));
        let until = if args.until_exit {
            events::Until::Exit
        } else {
            events::Until::Stopped
        };
        return events::follow(context, &target.path, after, patience, until).await;
    }
    let path = format!("{}/events", target.path);
    let call = Call::get(&path)
        .query("after", after)
        .query("limit", args.limit)
        .query("tail", args.tail);
    events::page(context, &context.client.call(call).await?)
}

fn expecting(mut body: Value, attempt: Option<String>) -> Value {
    if let Some(attempt) = attempt {
        body["expected_attempt_id"] = attempt.into();
    }
    body
}

async fn say(context: &Context, call: Call<'_>, words: &str) -> Result<()> {
    let answer = context.client.call(call).await?;
    told(context, &answer, words)
}

fn told(context: &Context, answer: &Value, words: &str) -> Result<()> {
    match context.format {
        Format::Table => stdout_line(words),
        format => print(format, answer, text),
    }
}

fn list(answer: &Value) -> String {
    let rows: Vec<[String; 8]> = answer["sessions"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .map(|session| {
            [
                text(&session["id"]),
                text(&session["spec"]["name"]),
                text(&session["phase"]),
                text(&session["attempt"]["number"]),
                text(&session["attempt"]["pid"]),
                text(&session["restart_count"]),
                text(&session["cursor"]["latest"]),
                time(&session["updated_at"]),
            ]
        })
        .collect();
    columns(
        [
            "ID",
            "NAME",
            "PHASE",
            "ATTEMPT",
            "PID",
            "RESTARTS",
            "LATEST-EVENT",
            "UPDATED",
        ],
        &rows,
    )
}

fn details(session: &Value) -> String {
    let attempt = &session["attempt"];
    let cursor = &session["cursor"];
    let reason = attempt["reason"].as_str().unwrap_or_default();
    let reason = crate::event::why(reason).into_owned();
    let command: Vec<String> = session["spec"]["command"]
        .as_array()
        .into_iter()
        .flatten()
        .map(Value::to_string)
        .collect();
    fields(&[
        ("id", text(&session["id"])),
        ("name", text(&session["spec"]["name"])),
        ("command", command.join(" ")),
        ("io", text(&session["spec"]["io"]["mode"])),
        (
            "desired state",
            text(&session["spec"]["lifecycle"]["desired_state"]),
        ),
        ("phase", text(&session["phase"])),
        ("generation", text(&session["runtime_generation"])),
        ("attempt", text(&attempt["id"])),
        ("attempt number", text(&attempt["number"])),
        ("pid", text(&attempt["pid"])),
        ("started", time(&attempt["started_at"])),
        ("finished", time(&attempt["finished_at"])),
        ("exit code", exit_code(attempt)),
        ("signal", text(&attempt["signal"])),
        ("reason", reason),
        ("restarts", text(&session["restart_count"])),
        (
            "cursor",
            format!(
                "{} to {}",
                text(&cursor["earliest"]),
                text(&cursor["latest"])
            ),
        ),
        ("created", time(&session["created_at"])),
        ("updated", time(&session["updated_at"])),
        ("last activity", time(&session["last_activity_at"])),
    ])
}

/// The code of what ended by itself; a death by signal has none.
fn exit_code(ended: &Value) -> String {
    match &ended["signal"] {
        Value::Null => text(&ended["exit_code"]),
        _ => String::new(),
    }
}
