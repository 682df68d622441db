//! `outlive session events`: a page, or a stream that reopens itself.

use std::time::Duration;

use serde_json::Value;

use crate::{
    args::Format,
    client::Call,
    commands::Context,
    error::{Failure, Result},
    event::Event,
    follow::{Follow, Step},
    output::{note, print, stdout_line, yaml},
    signals::Signals,
};

/// When following ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// Only with the session, or by a signal.
    Stopped,
    /// Once the attempt that is current at the start has exited.
    Exit,
}

/// Prints a page.
pub(super) fn page(context: &Context, answer: &Value) -> Result<()> {
    if context.format != Format::Table {
        return print(context.format, answer, Value::to_string);
    }
    for value in answer["events"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
    {
        let text = value.to_string();
        line(context.format, &Event::parse(&text)?, &text)?;
    }
    Ok(())
}

/// Prints events as they come.
pub(super) async fn follow(
    context: &Context,
    session_path: &str,
    after: Option<u64>,
    patience: Option<Duration>,
    until: Until,
) -> Result<()> {
    let mut signals = Signals::listen()?;
    let mut goal = match until {
        Until::Stopped => Goal::Never,
        Until::Exit => Goal::find(context, session_path, after).await?,
    };
    if goal == Goal::Reached {
        return Ok(());
    }
    let mut follow = Follow::new(&context.client, session_path, after, patience);
    loop {
        let step = tokio::select! {
            biased;
            _ = signals.next() => {
                let seq = follow.cursor().unwrap_or(0);
                note(&format!("stopped after event {seq}; the session goes on (--after {seq} goes on from here)"));
                return Ok(());
            }
            step = follow.next() => step?,
        };
        match step {
            Step::Deleted if until == Until::Exit => {
                return Err(Failure::new(
                    "session_deleted",
                    "the session was deleted before its exit was seen",
                ));
            }
            Step::Deleted => {
                note("the session was deleted");
                return Ok(());
            }
            Step::Event(event, text) => {
                line(context.format, &event, &text)?;
                goal.look(&event);
                if goal == Goal::Reached {
                    return Ok(());
                }
            }
        }
    }
}

/// The event that following ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Goal {
    /// None.
    Never,
    /// The exit of this attempt.
    ExitOf(String),
    /// The first exit there is: nothing has run yet.
    AnyExit,
    /// This number: the attempt had exited before we came.
    Seq(u64),
    /// It was seen.
    Reached,
}

impl Goal {
    async fn find(context: &Context, session_path: &str, after: Option<u64>) -> Result<Self> {
        let view = context.client.call(Call::get(session_path)).await?;
        let attempt = &view["attempt"];
        let latest = view["cursor"]["latest"].as_u64().unwrap_or(0);
        let earliest = view["cursor"]["earliest"].as_u64().unwrap_or(1);
        Ok(match attempt["id"].as_str() {
            None => Self::AnyExit,
            Some(id) if attempt["finished_at"].is_null() => Self::ExitOf(id.to_owned()),
            Some(_) if after.unwrap_or(0) == latest || earliest > latest => Self::Reached,
            Some(_) => Self::Seq(latest),
        })
    }

    fn look(&mut self, event: &Event) {
        let reached = match self {
            Self::Never => false,
            Self::Reached => true,
            Self::Seq(seq) => event.seq >= *seq,
            Self::AnyExit => event.kind == "attempt.exited",
            Self::ExitOf(attempt) => {
                event.kind == "attempt.exited" && event.attempt_id.as_ref() == Some(attempt)
            }
        };
        if reached {
            *self = Self::Reached;
        }
    }
}

/// Prints one event: a line of JSON, a document of YAML, or fields separated by tabs.
fn line(format: Format, event: &Event, text: &str) -> Result<()> {
    match format {
        Format::Json => stdout_line(text),
        Format::Yaml => {
            let value: Value = serde_json::from_str(text)
                .map_err(|error| Failure::protocol(format!("an event can't be read: {error}")))?;
            stdout_line(&format!("---\n{}", yaml(&value)?.trim_end()))
        }
        Format::Table => {
            let time = crate::output::time(&Value::from(event.occurred_at.as_str()));
            stdout_line(&format!(
                "{}\t{time}\t{}\t{}\t{}\t{}",
                event.seq,
                event.attempt_id.as_deref().unwrap_or("-"),
                event.kind,
                event.stream.as_deref().unwrap_or("-"),
                told(event)?,
            ))
        }
    }
}

/// What an event says, for people: its output, or how and why.
fn told(event: &Event) -> Result<String> {
    if event.data_base64.is_some() {
        return event.line();
    }
    let mut parts = Vec::new();
    match (&event.signal, event.exit_code) {
        (Some(signal), _) => parts.push(format!("signal={}", crate::output::text(signal))),
        (None, Some(code)) => parts.push(format!("exit_code={code}")),
        (None, None) => {}
    }
    if let Some(reason) = &event.reason {
        parts.push(format!("reason={}", crate::event::why(reason)));
    }
    Ok(parts.join(" "))
}
