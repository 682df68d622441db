//! Arguments of `run`, and what it shares with `session attach`.

use std::time::Duration;

use clap::Args;

use super::{duration, spec::SpecFlags};
use crate::limits::RECONNECT_SECONDS_DEFAULT;

/// Examples of `run`.
pub const EXAMPLES: &str = "Example:
  outlive run -- sh -c 'echo hello; exit 3'
  outlive run -d --sandbox sbx-0a1b2c3d-4e5 -- ./build.sh
  outlive run -t -- bash
  tar c src | outlive run -i --rm -- tar t";

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Run in this sandbox; without it a new one is made.
    #[arg(short, long, value_name = "ID")]
    pub sandbox: Option<String>,

    /// Start and return at once; the ids go to standard output. With -i the command's input
    /// stays open for `outlive session input`.
    #[arg(short, long, conflicts_with = "rm")]
    pub detach: bool,

    /// Give the command a terminal and connect it to this one.
    #[arg(short, long)]
    pub tty: bool,

    /// Send standard input to the command; without it the command sees end of file at once.
    #[arg(short, long)]
    pub interactive: bool,

    /// Delete the sandbox that was made for this run once the command has ended; it is kept when
    /// this program is told to leave before.
    #[arg(long, conflicts_with = "sandbox")]
    pub rm: bool,

    /// Stop the command after this long and exit 124.
    #[arg(long, value_parser = duration::positive, value_name = "DURATION", conflicts_with = "max_lifetime")]
    pub timeout: Option<u64>,

    /// Makes a repeated call safe: the same key gives the same session [default: random].
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,

    /// What the command is.
    #[command(flatten)]
    pub spec: SpecFlags,

    /// Connection and terminal.
    #[command(flatten)]
    pub link: LinkFlags,

    /// The command and its arguments; no shell is involved.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Connection and terminal of an attached command.
#[derive(Debug, Clone, Args)]
pub struct LinkFlags {
    /// Give up after this long without a connection; 0 is never.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION", default_value_t = RECONNECT_SECONDS_DEFAULT)]
    pub reconnect: u64,

    /// With a terminal: the keys that leave the session running and detach.
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    pub detach_keys: crate::terminal::DetachKeys,
}

impl LinkFlags {
    /// How long to try; `None` is for ever.
    pub fn patience(&self) -> Option<Duration> {
        (self.reconnect > 0).then(|| Duration::from_secs(self.reconnect))
    }
}
