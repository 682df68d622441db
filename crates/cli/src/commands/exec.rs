//! `outlive sandbox exec`: a command in a sandbox, its output, its exit code.

use serde_json::{Map, Value, json};

use super::Context;
use crate::{
    args::{
        Format,
        exec::{Exec, Place},
        spec::variables,
    },
    attach::{self, Attachment, Limit, Stdin, conclude, input::Sender, session_path},
    client::Call,
    error::{Failure, Result},
    event::signal_number,
    names::sandbox_path,
    output::{note, print, stdout_line, text},
    terminal,
};

/// Exit code when `--timeout` passed.
const EXIT_TIMEOUT: u8 = 124;

/// Runs the command and gives its exit code.
pub async fn exec(context: &Context, args: &Exec) -> Result<u8> {
    let mut body = place(&args.place)?;
    body.insert("type".to_owned(), json!("cmd"));
    body.insert("cmd".to_owned(), json!({"command": args.command}));
    if let Some(seconds) = args.timeout {
        body.insert("ttl_sec".to_owned(), seconds.into());
    }
    if args.tty {
        let size = terminal::size().map_or_else(
            || json!({}),
            |size| json!({"rows": size.rows, "cols": size.cols}),
        );
        body.insert("pty_size".to_owned(), size);
    }
    let streamed = args.interactive || args.tty || args.no_wait;
    let whole = context.format != Format::Table && !streamed;
    body.insert("wait_until_done".to_owned(), whole.into());
    let path = format!("{}/contexts", sandbox_path(&args.sandbox)?);
    let body = Value::Object(body);
    let made = context.client.call(Call::post(&path).body(&body)).await?;
    if whole {
        print(context.format, &made, text)?;
        return exit_code(&made, args.timeout);
    }
    let id = id_of(&made)?;
    if args.no_wait {
        return started(context, args, id, &made).await;
    }
    let attachment = Attachment {
        client: &context.client,
        sandbox: &args.sandbox,
        session: id,
        view: &made,
        after: 0,
        stdin: if args.interactive || (args.tty && terminal::stdin_is_terminal()) {
            Stdin::Forward
        } else {
            Stdin::Closed
        },
        patience: args.link.patience(),
        detach_keys: args.link.detach_keys.clone(),
    };
    let outcome = if args.tty {
        attach::terminal::attach(&attachment).await?
    } else {
        attach::pipes::attach(&attachment).await?
    };
    let limit = match args.timeout {
        Some(_) => Limit::Timeout,
        None => Limit::None,
    };
    conclude(&attachment, outcome, limit)
}

/// Says where a command is that nobody waits for.
async fn started(context: &Context, args: &Exec, id: &str, made: &Value) -> Result<u8> {
    if !args.interactive {
        let path = session_path(&args.sandbox, id);
        Sender::new(&context.client, &path, made)?.close().await?;
    }
    match context.format {
        Format::Table => stdout_line(id)?,
        format => print(format, made, text)?,
    }
    let sandbox = &args.sandbox;
    note(&format!(
        "it runs\n  \
         its output: outlive session attach {sandbox} {id} --after 0\n  \
         its events: outlive session events {sandbox} {id} --follow\n  \
         stop it:    outlive session stop {sandbox} {id}"
    ));
    Ok(0)
}

/// The settings of a context that the flags name.
pub fn place(place: &Place) -> Result<Map<String, Value>> {
    let mut body = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(key.to_owned(), value);
        }
    };
    put("cwd", place.cwd.clone().map(Value::from));
    put("idle_timeout_sec", place.idle_timeout.map(Value::from));
    put("ttl_sec", place.ttl.map(Value::from));
    let env = variables(&place.env)?;
    put("env_vars", (!env.is_empty()).then_some(Value::Object(env)));
    Ok(body)
}

/// The id of a context that was just made.
pub fn id_of(made: &Value) -> Result<&str> {
    let id = made["id"].as_str();
    id.ok_or_else(|| Failure::protocol("the new context has no id"))
}

/// What the program left: its code, or 128 and its signal, or that of the time limit.
pub fn exit_code(ended: &Value, timeout: Option<u64>) -> Result<u8> {
    if timeout.is_some() && ended["state"] == "session_expired" {
        return Ok(EXIT_TIMEOUT);
    }
    if !ended["signal"].is_null() {
        return Ok(signal_number(&ended["signal"]).map_or(128, |number| 128 | number));
    }
    let code = ended["exit_code"].as_i64();
    code.and_then(|code| u8::try_from(code).ok())
        .ok_or_else(|| {
            Failure::new("exit_unknown", "how the command ended is not known").not_the_program()
        })
}
