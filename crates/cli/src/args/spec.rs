//! Flags that describe a session: shared by `run` and `session create`.
//!
//! A flag that is not given is not sent, so the defaults are the server's own; the help repeats
//! them. [`SpecFlags::to_json`] is the specification on the wire.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};

use super::duration;
use crate::{
    config,
    error::{Failure, Result},
};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
        #[value(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The word on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    };
}

words! {
    /// When an attempt that ended is followed by another.
    Restart {
        /// Never.
        Never => "never",
        /// After a non-zero exit or a death by signal.
        OnFailure => "on_failure",
        /// After any exit.
        Always => "always",
    }
}
words! {
    /// What to do when the sandbox gets a new runtime.
    Recovery {
        /// Start a new attempt if one was active.
        Restart => "restart",
        /// Stay stopped.
        Stop => "stop",
    }
}
words! {
    /// When an attempt counts as ready.
    Readiness {
        /// As soon as the process runs.
        Process => "process",
        /// After it has lived for --ready-delay-ms.
        Delay => "delay",
        /// When --ready-output appears in its output.
        Output => "output",
    }
}
words! {
    /// What happens to processes that outlive the command.
    Descendants {
        /// They go on until the session is stopped or deleted.
        Leave => "leave",
        /// They are killed.
        Kill => "kill",
    }
}

/// Flags that describe a session.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Session options")]
pub struct SpecFlags {
    /// A label for people; need not be unique.
    #[arg(long)]
    pub name: Option<String>,
    /// Working directory in the sandbox.
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Whom it runs as: uid, uid:gid, or names that the sandbox knows [default: the sandbox's].
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Variable; `KEY` alone takes the value from here, unseen by `ps`. May be repeated.
    #[arg(short, long = "env", value_name = "KEY[=VALUE]")]
    pub env: Vec<String>,
    /// Variables from a file of KEY=VALUE lines; `#` starts a comment.
    #[arg(long, value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// Lines of the terminal [default: 24].
    #[arg(long)]
    pub rows: Option<u16>,
    /// Columns of the terminal [default: 80].
    #[arg(long)]
    pub cols: Option<u16>,
    /// TERM of the terminal [default: xterm-256color].
    #[arg(long)]
    pub term: Option<String>,
    /// When to start the command again [default: never].
    #[arg(long, value_enum, value_name = "POLICY")]
    pub restart: Option<Restart>,
    /// Restarts in the window before giving up; -1 for no limit [default: 5].
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub max_restarts: Option<i32>,
    /// The window in which restarts are counted [default: 60s].
    #[arg(long, value_parser = duration::short, value_name = "DURATION")]
    pub restart_window: Option<u32>,
    /// Delay before the first restart [default: 250].
    #[arg(long, value_name = "MS")]
    pub initial_backoff_ms: Option<u32>,
    /// Longest delay before a restart [default: 5000].
    #[arg(long, value_name = "MS")]
    pub max_backoff_ms: Option<u32>,
    /// What to do when the sandbox gets a new runtime [default: restart].
    #[arg(long, value_enum, value_name = "POLICY")]
    pub runtime_recovery: Option<Recovery>,
    /// Stop after this long without output or input; 0 is never [default: 0].
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub idle_timeout: Option<u64>,
    /// Stop this long after creation; 0 is never [default: 0].
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub max_lifetime: Option<u64>,
    /// Time between the stop signal and the kill [default: 10s].
    #[arg(long, value_parser = duration::short, value_name = "DURATION")]
    pub stop_grace: Option<u32>,
    /// What happens to processes that outlive the command [default: leave].
    #[arg(long, value_enum, value_name = "POLICY")]
    pub descendants: Option<Descendants>,
    /// When the command counts as ready [default: process].
    #[arg(long, value_enum, value_name = "KIND")]
    pub readiness: Option<Readiness>,
    /// For `--readiness delay`: how long it must live.
    #[arg(long, value_name = "MS")]
    pub ready_delay_ms: Option<u32>,
    /// For `--readiness output`: the text to wait for.
    #[arg(long, value_name = "TEXT")]
    pub ready_output: Option<String>,
    /// Give up on readiness after this long [default: 30000].
    #[arg(long, value_name = "MS")]
    pub ready_timeout_ms: Option<u32>,
    /// How much of the journal to keep [default: 67108864].
    #[arg(long, value_name = "BYTES")]
    pub retention_bytes: Option<u64>,
    /// How long to keep the journal [default: 24h].
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub retention_age: Option<u64>,
}

/// How the session's streams are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    /// Three pipes.
    Pipes,
    /// A pseudo terminal.
    Pty,
}

impl SpecFlags {
    /// The specification on the wire.
    pub fn to_json(&self, command: &[String], streams: Streams) -> Result<Value> {
        let mut spec = Map::new();
        put(&mut spec, "name", self.name.clone());
        spec.insert("command".into(), json!(command));
        put(&mut spec, "cwd", self.cwd.clone());
        put(&mut spec, "user", self.user.clone());
        let env = self.environment()?;
        if !env.is_empty() {
            spec.insert("env".into(), Value::Object(env));
        }
        put_object(&mut spec, "io", self.io(streams)?);
        put_object(&mut spec, "lifecycle", self.lifecycle());
        put_object(&mut spec, "readiness", self.readiness());
        let mut retention = Map::new();
        put(&mut retention, "max_bytes", self.retention_bytes);
        put(&mut retention, "max_age_seconds", self.retention_age);
        put_object(&mut spec, "event_retention", retention);
        Ok(Value::Object(spec))
    }

    fn io(&self, streams: Streams) -> Result<Map<String, Value>> {
        let mut io = Map::new();
        let mut terminal = Map::new();
        put(&mut terminal, "rows", self.rows);
        put(&mut terminal, "cols", self.cols);
        put(&mut terminal, "term", self.term.clone());
        match streams {
            Streams::Pty => {
                io.insert("mode".into(), json!("pty"));
                put_object(&mut io, "terminal", terminal);
            }
            Streams::Pipes if terminal.is_empty() => {}
            Streams::Pipes => {
                return Err(Failure::usage("--rows, --cols and --term need a terminal"));
            }
        }
        Ok(io)
    }

    fn lifecycle(&self) -> Map<String, Value> {
        let mut restart = Map::new();
        put(&mut restart, "policy", self.restart.map(Restart::as_str));
        put(&mut restart, "max_restarts", self.max_restarts);
        put(&mut restart, "window_seconds", self.restart_window);
        put(&mut restart, "initial_backoff_ms", self.initial_backoff_ms);
        put(&mut restart, "max_backoff_ms", self.max_backoff_ms);
        let mut lifecycle = Map::new();
        put_object(&mut lifecycle, "restart", restart);
        put(
            &mut lifecycle,
            "runtime_recovery",
            self.runtime_recovery.map(Recovery::as_str),
        );
        put(&mut lifecycle, "idle_timeout_seconds", self.idle_timeout);
        put(&mut lifecycle, "max_lifetime_seconds", self.max_lifetime);
        put(&mut lifecycle, "stop_grace_period_seconds", self.stop_grace);
        put(
            &mut lifecycle,
            "descendants",
            self.descendants.map(Descendants::as_str),
        );
        lifecycle
    }

    fn readiness(&self) -> Map<String, Value> {
        let mut readiness = Map::new();
        put(
            &mut readiness,
            "type",
            self.readiness.map(Readiness::as_str),
        );
        put(&mut readiness, "delay_ms", self.ready_delay_ms);
        put(&mut readiness, "output", self.ready_output.clone());
        put(&mut readiness, "timeout_ms", self.ready_timeout_ms);
        readiness
    }

    fn environment(&self) -> Result<Map<String, Value>> {
        let mut env = Map::new();
        if let Some(path) = &self.env_file {
            for line in config::read_bounded(path)?.lines() {
                let line = line.trim_start();
                if !line.is_empty() && !line.starts_with('#') {
                    let (key, value) = variable(line)?;
                    env.insert(key, value.into());
                }
            }
        }
        env.append(&mut variables(&self.env)?);
        Ok(env)
    }
}

/// Variables of repeated `--env` flags.
pub fn variables(flags: &[String]) -> Result<Map<String, Value>> {
    flags
        .iter()
        .map(|flag| variable(flag).map(|(key, value)| (key, Value::from(value))))
        .collect()
}

/// `KEY=VALUE`, or `KEY` with the value that it has here.
fn variable(text: &str) -> Result<(String, String)> {
    if let Some((key, value)) = text.split_once('=') {
        if key.is_empty() {
            return Err(Failure::usage(format!(
                "`{text}` has no name before the `=`"
            )));
        }
        return Ok((key.to_owned(), value.to_owned()));
    }
    match std::env::var(text) {
        Ok(value) => Ok((text.to_owned(), value)),
        Err(std::env::VarError::NotPresent) => Err(Failure::usage(format!(
            "variable {text} has no value here; write {text}=VALUE"
        ))),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::usage(format!("the value of {text} is not UTF-8")))
        }
    }
}

fn put<T: Into<Value>>(map: &mut Map<String, Value>, key: &str, value: Option<T>) {
    if let Some(value) = value {
        map.insert(key.to_owned(), value.into());
    }
}

fn put_object(map: &mut Map<String, Value>, key: &str, object: Map<String, Value>) {
    if !object.is_empty() {
        map.insert(key.to_owned(), Value::Object(object));
    }
}
