//! `outlive run`: a command in a sandbox, as if it ran here, but it outlives us.

use serde_json::{Value, json};

use super::{Context, sandbox, session};
use crate::{
    args::{
        Format,
        run::Run,
        sandbox::SandboxConfig,
        spec::{SpecFlags, Streams},
    },
    attach::{
        self, Attachment, Limit, Outcome, Stdin, conclude,
        input::{Sender, random_id},
        session_path,
    },
    client::Call,
    error::{Failure, Result},
    names::sandbox_path,
    output::{note, pretty, stdout_line, yaml},
    terminal,
};

/// Runs the command and gives its exit code.
pub async fn run(context: &Context, args: &Run) -> Result<u8> {
    let sandbox = match &args.sandbox {
        Some(sandbox) => sandbox.clone(),
        None => made(
            &sandbox::create(
                context,
                &sandbox::Origin::default(),
                &SandboxConfig::default(),
            )
            .await?,
        )?,
    };
    let result = in_sandbox(context, args, &sandbox).await;
    match &result {
        Ok((code, End::Over)) if args.rm => {
            let path = sandbox_path(&sandbox)?;
            context
                .client
                .call(Call::delete(&path))
                .await
                .map(|_| *code)
        }
        // Whoever removed it now would end the command, which no signal to us does.
        Ok((code, End::GoesOn)) if args.rm => {
            note(&format!(
                "its sandbox {sandbox} is kept in spite of --rm\n  \
                 delete both: outlive sandbox delete {sandbox}"
            ));
            Ok(*code)
        }
        Ok((code, _)) => Ok(*code),
        Err(failure) => {
            if args.sandbox.is_none() {
                note(&format!(
                    "the sandbox {sandbox} is kept; `outlive sandbox delete {sandbox}` \
                     removes it"
                ));
            }
            Err(failure.clone())
        }
    }
}

/// Whether the command is over when we go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is.
    Over,
    /// It goes on.
    GoesOn,
}

async fn in_sandbox(context: &Context, args: &Run, sandbox: &str) -> Result<(u8, End)> {
    let streams = if args.tty {
        Streams::Pty
    } else {
        Streams::Pipes
    };
    let spec = sized(args).to_json(&args.command, streams)?;
    let view = session::create(context, sandbox, &spec, args.idempotency_key.as_deref()).await?;
    let session = view["id"]
        .as_str()
        .ok_or_else(|| Failure::protocol("the new session has no id"))?
        .to_owned();
    if args.detach {
        started(context, args, sandbox, &session, &view).await?;
        return Ok((0, End::GoesOn));
    }
    note(&format!("sandbox {sandbox} session {session}"));
    let attachment = Attachment {
        client: &context.client,
        sandbox,
        session: &session,
        view: &view,
        after: 0,
        stdin: stdin(args),
        patience: args.link.patience(),
        detach_keys: args.link.detach_keys.clone(),
    };
    let outcome = match streams {
        Streams::Pipes => attach::pipes::attach(&attachment).await?,
        Streams::Pty => attach::terminal::attach(&attachment).await?,
    };
    let end = match outcome {
        Outcome::Ended(..) | Outcome::Deleted(_) => End::Over,
        Outcome::Detached(_) | Outcome::Interrupted(..) | Outcome::OutputLost(..) => End::GoesOn,
    };
    let limit = if args.timeout.is_some() {
        Limit::Timeout
    } else {
        Limit::None
    };
    Ok((conclude(&attachment, outcome, limit)?, end))
}

/// The specification's flags with the size of this terminal and the time limit.
fn sized(args: &Run) -> SpecFlags {
    let mut spec = args.spec.clone();
    if args.tty
        && let Some(size) = terminal::size()
    {
        spec.rows = spec.rows.or(Some(size.rows));
        spec.cols = spec.cols.or(Some(size.cols));
    }
    spec.max_lifetime = spec.max_lifetime.or(args.timeout);
    spec
}

fn stdin(args: &Run) -> Stdin {
    if args.interactive || (args.tty && terminal::stdin_is_terminal()) {
        Stdin::Forward
    } else {
        Stdin::Closed
    }
}

/// Says where a detached command is.
async fn started(
    context: &Context,
    args: &Run,
    sandbox: &str,
    session: &str,
    view: &Value,
) -> Result<()> {
    if !args.interactive && !args.tty {
        let path = session_path(sandbox, session);
        Sender::new(&context.client, &path, view)?.close().await?;
    }
    let ids = json!({"sandbox_id": sandbox, "session": view});
    match context.format {
        Format::Table => stdout_line(&format!("{sandbox} {session}"))?,
        Format::Json => stdout_line(&pretty(&ids))?,
        Format::Yaml => stdout_line(yaml(&ids)?.trim_end())?,
    }
    let seq = view["cursor"]["latest"].as_u64().unwrap_or(0);
    note(&format!(
        "it runs, detached after event {seq}\n  \
         its output: outlive session attach {sandbox} {session} --after 0\n  \
         its events: outlive session events {sandbox} {session} --follow\n  \
         stop it:    outlive session stop {sandbox} {session}"
    ));
    Ok(())
}

/// The id of a sandbox that was just made.
fn made(sandbox: &Value) -> Result<String> {
    let id = sandbox["sandbox_id"]
        .as_str()
        .or_else(|| sandbox["id"].as_str());
    id.map(str::to_owned)
        .ok_or_else(|| Failure::protocol("the new sandbox has no id"))
}

/// An idempotency key for a creation that has none.
pub fn random_key() -> Result<String> {
    random_id("cli-")
}
