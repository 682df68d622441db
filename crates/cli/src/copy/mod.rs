//! `outlive sandbox cp`: files into a sandbox and out of it, through a context that runs `tar`.
//!
//! ```text
//!  in:   walk ─► headers, bytes ─► input of `tar -x` in the sandbox
//!  out:  `tar -c` in the sandbox ─► as much as was asked for ─► journal ─► unpacked here
//! ```
//! Nothing is held in memory but what is under way. What comes out is asked for piece by piece,
//! so that a slow connection never falls behind what the journal keeps.
//!
//! A file gets its name when it is whole. Until then it has none, or another beside it, and what
//! stood there before stands. Whoever breaks off removes that other one: here a guard, there the
//! script, which ends when it is told to, and by itself when nothing comes any more.

mod pack;
mod passing;
mod progress;
mod pull;
mod push;
mod tar;
mod unpack;

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

use serde_json::{Value, json};

use crate::{
    args::exec::Copy,
    client::Call,
    commands::{Context, exec::id_of},
    error::{Failure, Result},
    limits::COPY_IDLE_SECONDS,
    names::sandbox_path,
    output::{note, print},
    signals::Signals,
};

/// One side of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Here(OsString),
    There { sandbox: String, path: String },
}

/// What was copied.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Done {
    /// Files and links.
    files: u64,
    /// Bytes of files.
    bytes: u64,
    /// What is no file, directory or link.
    skipped: Vec<String>,
}

/// Copies.
pub async fn copy(context: &Context, args: &Copy) -> Result<()> {
    if args.source == "-" || args.destination == "-" {
        return Err(Failure::usage(
            "`cp` copies no streams; a file of the name `-` is written `./-`",
        )
        .with_next(
            "`outlive sandbox exec SANDBOX -- tar c PATH` sends an archive to standard output, \
             `outlive sandbox exec -i SANDBOX -- tar x` takes one from standard input",
        ));
    }
    let done = match (side(&args.source), side(&args.destination)) {
        (Side::Here(source), Side::There { sandbox, path }) => {
            let remote = Remote {
                context,
                sandbox: &sandbox,
            };
            push::push(&remote, Path::new(&source), &path, args.quiet).await?
        }
        (Side::There { sandbox, path }, Side::Here(destination)) => {
            let remote = Remote {
                context,
                sandbox: &sandbox,
            };
            pull::pull(&remote, &path, Path::new(&destination), args.quiet).await?
        }
        (Side::Here(_), Side::Here(_)) => {
            return Err(Failure::usage(
                "one of both must be in a sandbox: SANDBOX:PATH",
            ));
        }
        (Side::There { .. }, Side::There { .. }) => {
            return Err(Failure::usage("one of both must be a local path"));
        }
    };
    for name in &done.skipped {
        note(&format!(
            "`{name}` is no file, directory or link and was left out"
        ));
    }
    let told = json!({"files": done.files, "bytes": done.bytes, "skipped": done.skipped});
    print(context.format, &told, |_| {
        let files = counted(done.files, "file");
        format!("Copied {files}, {}", counted(done.bytes, "byte"))
    })
}

fn counted(count: u64, noun: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{end}")
}

/// `sbx-…:PATH` is in a sandbox; everything else is here.
fn side(argument: &str) -> Side {
    match argument.split_once(':') {
        Some((sandbox, path)) if sandbox.starts_with("sbx-") && !path.is_empty() => Side::There {
            sandbox: sandbox.to_owned(),
            path: path.to_owned(),
        },
        _ => Side::Here(argument.into()),
    }
}

/// A sandbox that runs what a copy needs.
#[derive(Debug)]
struct Remote<'a> {
    context: &'a Context,
    sandbox: &'a str,
}

/// A context that runs a script with arguments.
#[derive(Debug)]
struct Running {
    /// Path of the context.
    path: String,
    /// Path of the session that it is.
    session: String,
    view: Value,
}

impl Remote<'_> {
    /// Runs a short script to its end and gives its standard output.
    async fn ask(&self, script: &str, arguments: &[&str]) -> Result<String> {
        let body = json!({"wait_until_done": true});
        let running = self.start(script, arguments, body).await?;
        self.forget(&running).await?;
        let said = &running.view;
        if said["exit_code"] != 0 {
            return Err(refused(said["stderr"].as_str().unwrap_or_default()));
        }
        Ok(said["stdout"].as_str().unwrap_or_default().to_owned())
    }

    /// Does the work beside a running script. The script ends with the work, whichever way that
    /// ends, a signal that tells us to go among them.
    async fn beside<T>(
        &self,
        script: &str,
        arguments: &[&str],
        work: impl AsyncFnOnce(&Running) -> Result<T>,
    ) -> Result<T> {
        let mut signals = Signals::listen()?;
        let body = json!({"idle_timeout_sec": COPY_IDLE_SECONDS});
        let running = self.start(script, arguments, body).await?;
        let done = tokio::select! {
            biased;
            signal = signals.next() => Err(interrupted(signal)),
            done = work(&running) => done,
        };
        let forgotten = tokio::select! {
            biased;
            // Who says it twice does not wait for the other side.
            signal = signals.next() => Err(interrupted(signal)),
            forgotten = self.forget(&running) => forgotten,
        };
        let done = done?;
        forgotten.map(|()| done)
    }

    /// Starts a script, with `body` saying how.
    async fn start(&self, script: &str, arguments: &[&str], mut body: Value) -> Result<Running> {
        let mut command = vec!["sh", "-c", script, "sh"];
        command.extend(arguments);
        body["type"] = "cmd".into();
        body["cmd"] = json!({"command": command});
        let contexts = format!("{}/contexts", sandbox_path(self.sandbox)?);
        let call = Call::post(&contexts).body(&body);
        let view = self.context.client.call(call).await?;
        let path = format!("{contexts}/{}", id_of(&view)?);
        Ok(Running {
            session: format!("{path}/session"),
            path,
            view,
        })
    }

    /// Ends and removes it.
    async fn forget(&self, running: &Running) -> Result<()> {
        match self.context.client.call(Call::delete(&running.path)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_missing() => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// A signal told us to go.
fn interrupted(signal: u8) -> Failure {
    Failure::new("interrupted", "the copy was broken off")
        .with_exit(128 | signal)
        .with_next("what is not whole was removed; repeat the command to copy it all")
}

/// What the sandbox's side said when it gave up.
fn refused(words: &str) -> Failure {
    let words = words.trim();
    let words = if words.is_empty() {
        "the sandbox's side failed without a word"
    } else {
        words
    };
    Failure::new("copy_failed", crate::event::escaped(words).into_owned())
        .with_next("are both paths right, and may they be read and written there?")
}

/// A path in the sandbox as the directory above and the name; no name for what only a directory
/// can be (`/`, `x/.`, `x/..`).
fn split(path: &str) -> (String, Option<&str>) {
    let trimmed = path.trim_end_matches('/');
    let (above, name) = match trimmed.rsplit_once('/') {
        Some(("", name)) => ("/".to_owned(), name),
        // Not an option of a program.
        Some((above, name)) => (rooted(above), name),
        None => (".".to_owned(), trimmed),
    };
    match name {
        "" | "." | ".." => (rooted(if trimmed.is_empty() { "/" } else { trimmed }), None),
        name => (above, Some(name)),
    }
}

fn rooted(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("./{path}")
    }
}

/// The last part of a local path; none when it has none of its own.
fn name_of(path: &Path) -> Option<&OsStr> {
    path.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_with_a_sandbox_is_there() {
        let there = |path: &str| Side::There {
            sandbox: "sbx-1".to_owned(),
            path: path.to_owned(),
        };
        assert_eq!(side("sbx-1:/a b:c"), there("/a b:c"));
        for here in ["a:b", "sbx-1:", "/x", "sbx-1"] {
            assert_eq!(side(here), Side::Here(here.into()));
        }
    }

    #[test]
    fn paths_are_split_without_losing_a_byte() {
        let split = |path| {
            let (above, name) = split(path);
            (above, name.map(str::to_owned))
        };
        let named = |above: &str, name: &str| (above.to_owned(), Some(name.to_owned()));
        assert_eq!(split("/a/b\n"), named("/a", "b\n"));
        assert_eq!(split("-x/y/"), named("./-x", "y"));
        assert_eq!(split("-x"), named(".", "-x"));
        assert_eq!(split("/a"), named("/", "a"));
        assert_eq!(split("/"), ("/".to_owned(), None));
        assert_eq!(split("a/."), ("./a/.".to_owned(), None));
    }
}
