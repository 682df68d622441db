//! `outlive sandbox run`: code for an interpreter in a sandbox.

use std::io::{IsTerminal as _, Read as _, Write as _};

use serde_json::{Value, json};

use super::{
    Context,
    exec::{exit_code, id_of, place},
};
use crate::{
    args::{Format, exec::RunCode},
    client::Call,
    config::read_bounded,
    error::{Failure, Result},
    limits::CODE_BYTES_MAX,
    names::{checked, sandbox_path},
    output::{note, pass_on, print, text},
    signals::Signals,
};

/// Carries the code out and gives its exit code.
pub async fn run(context: &Context, args: &RunCode) -> Result<u8> {
    let contexts = format!("{}/contexts", sandbox_path(&args.sandbox)?);
    let typed = args.code.is_none() && args.file.is_none() && std::io::stdin().is_terminal();
    let code = match (&args.code, &args.file) {
        (Some(code), _) => Some(code.clone()),
        (None, Some(file)) => Some(read_bounded(file)?),
        (None, None) if typed => None,
        (None, None) => Some(all_of_stdin()?),
    };
    let (id, own) = match &args.context_id {
        Some(id) => (checked(id, "context")?.to_owned(), false),
        None => (start(context, args, &contexts).await?, true),
    };
    let interpreter = Interpreter {
        context,
        path: format!("{contexts}/{id}"),
        id: &id,
    };
    let done = match code {
        Some(code) => interpreter.carry_out(&code).await.map(|(code, _)| code),
        None => interpreter.talk(&args.alias).await,
    };
    if own && args.keep {
        note(&format!("context {id}"));
    } else if own {
        let call = Call::delete(&interpreter.path);
        match context.client.call(call).await {
            Ok(_) => {}
            Err(failure) if failure.is_missing() => {}
            // What the code did counts; that its interpreter is left is said.
            Err(failure) => note(&format!("context {id} is left: {failure}")),
        }
    }
    done
}

async fn start(context: &Context, args: &RunCode, contexts: &str) -> Result<String> {
    let mut body = place(&args.place)?;
    body.insert("type".to_owned(), json!("repl"));
    body.insert("repl".to_owned(), json!({"alias": args.alias}));
    let body = Value::Object(body);
    let made = context
        .client
        .call(Call::post(contexts).body(&body))
        .await?;
    id_of(&made).map(str::to_owned)
}

fn all_of_stdin() -> Result<String> {
    let mut code = String::new();
    let bytes_max = CODE_BYTES_MAX + 1;
    let read = std::io::stdin()
        .lock()
        .take(bytes_max)
        .read_to_string(&mut code);
    read.map_err(|error| Failure::new("stdin", format!("read the code: {error}")))?;
    if code.len() as u64 == bytes_max {
        return Err(Failure::usage(format!(
            "the code is longer than {CODE_BYTES_MAX} bytes"
        )));
    }
    Ok(code)
}

struct Interpreter<'a> {
    context: &'a Context,
    path: String,
    id: &'a str,
}

impl Interpreter<'_> {
    /// One chunk: its output here, its code, and whether the interpreter is left.
    async fn carry_out(&self, code: &str) -> Result<(u8, Left)> {
        let path = format!("{}/exec", self.path);
        let body = json!({"data": code});
        let mut signals = Signals::listen()?;
        let call = self.context.client.call(Call::post(&path).body(&body));
        let mut call = std::pin::pin!(call);
        let answer = loop {
            tokio::select! {
                answer = &mut call => break answer?,
                signal = signals.next() => match signal {
                    // Ctrl-C is for the code, as at any prompt.
                    2 => self.interrupt().await?,
                    number => return Ok((128 | number, Left::Alive)),
                },
            }
        };
        self.show(&answer).await?;
        if answer["state"].is_null() {
            let code = answer["exit_code"].as_i64();
            let code = code.map_or(0, |code| u8::try_from(code).unwrap_or(1));
            return Ok((code, Left::Alive));
        }
        if let Some(end) = violent_end(&answer) {
            note(&end);
        }
        Ok((exit_code(&answer, None)?, Left::Dead))
    }

    async fn interrupt(&self) -> Result<()> {
        let path = format!("{}/signal", self.path);
        let body = json!({"signal": "INT"});
        let call = Call::post(&path).body(&body);
        self.context.client.call(call).await.map(drop)
    }

    async fn show(&self, answer: &Value) -> Result<()> {
        if self.context.format != Format::Table {
            let mut answer = answer.clone();
            answer["context_id"] = self.id.into();
            return print(self.context.format, &answer, text);
        }
        if answer["truncated"] == true {
            note("the beginning of the output is left out");
        }
        if answer["stdout"].is_null() {
            return pass_on(&mut tokio::io::stdout(), &bytes(answer, "output_raw")?).await;
        }
        pass_on(&mut tokio::io::stdout(), &bytes(answer, "stdout")?).await?;
        pass_on(&mut tokio::io::stderr(), &bytes(answer, "stderr")?).await
    }

    /// Line by line from a terminal, until its end of file.
    async fn talk(&self, alias: &str) -> Result<u8> {
        let mut chunk = String::new();
        loop {
            let sign = if chunk.is_empty() { ">" } else { "." };
            eprompt(&format!("{alias}{sign} "));
            let Some(line) = read_line().await? else {
                return Ok(0);
            };
            let more = if chunk.is_empty() {
                opens(&line)
            } else {
                !line.trim().is_empty()
            };
            chunk.push_str(&line);
            if more || chunk.trim().is_empty() {
                if !more {
                    chunk.clear();
                }
                continue;
            }
            match self.carry_out(&std::mem::take(&mut chunk)).await {
                Ok((_, Left::Alive)) => {}
                Ok((code, Left::Dead)) => return Ok(code),
                Err(failure) if failure.code == "process_finished" => return Ok(0),
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// What became of an interpreter under a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Alive,
    Dead,
}

/// How an interpreter was ended, in words; nothing where it ended by itself.
fn violent_end(answer: &Value) -> Option<String> {
    let why = match answer["state"].as_str() {
        Some("session_expired") => "its --ttl or --idle-timeout passed".to_owned(),
        state => match answer["signal"].as_str() {
            Some(signal) => format!("it was ended by {signal}"),
            None => match state {
                Some("stopped" | "crashed" | "killed") | None => return None,
                Some(other) => other.replace('_', " "),
            },
        },
    };
    Some(format!("the interpreter is gone: {why}"))
}

/// Whether a line is the first of a block, which an empty line ends.
fn opens(line: &str) -> bool {
    matches!(
        line.trim_end().chars().next_back(),
        Some(':' | '{' | '(' | '[' | '\\')
    )
}

/// The bytes of a field of an answer.
fn bytes(answer: &Value, field: &str) -> Result<Vec<u8>> {
    match answer[format!("{field}_base64")].as_str() {
        Some(base64) => base64_simd::STANDARD
            .decode_to_vec(base64)
            .map_err(|_| Failure::protocol("output is not base64")),
        None => Ok(answer[field].as_str().unwrap_or_default().into()),
    }
}

fn eprompt(sign: &str) {
    let mut out = std::io::stderr().lock();
    // A prompt that nobody sees is no reason to stop.
    if write!(out, "{sign}").and_then(|()| out.flush()).is_err() {
        drop(out);
    }
}

/// A line, its end included; none at the end of file.
async fn read_line() -> Result<Option<String>> {
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    });
    let line = read
        .await
        .map_err(|error| Failure::new("internal", error.to_string()))?
        .map_err(|error| Failure::new("stdin", format!("read a line: {error}")))?;
    Ok((!line.is_empty()).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_that_was_ended_is_told_with_its_reason() {
        let end = |state: &str, signal: Option<&str>| {
            violent_end(&json!({"state": state, "signal": signal}))
        };
        assert_eq!(end("stopped", None), None);
        assert_eq!(end("crashed", None), None);
        for (state, signal, words) in [
            ("killed", Some("SIGKILL"), "ended by SIGKILL"),
            (
                "session_expired",
                Some("SIGTERM"),
                "--ttl or --idle-timeout passed",
            ),
            ("runtime_replaced", None, "runtime replaced"),
        ] {
            let told = end(state, signal).unwrap();
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn a_block_is_known_by_its_first_line() {
        assert!(opens("for i in x:\n") && opens("function f() {\n"));
        assert!(!opens("print(1)\n") && !opens("\n"));
    }

    #[test]
    fn bytes_win_over_text() {
        let answer = json!({"stdout": "\u{fffd}", "stdout_base64": "/w==", "stderr": "e"});
        assert_eq!(bytes(&answer, "stdout").unwrap(), b"\xff");
        assert_eq!(bytes(&answer, "stderr").unwrap(), b"e");
    }
}
