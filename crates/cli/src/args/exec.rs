//! Arguments of `sandbox exec`, `sandbox run` and `sandbox cp`.

use std::path::PathBuf;

use clap::Args;

use super::{duration, run::LinkFlags};

/// Examples of `exec`.
pub const EXEC_EXAMPLES: &str = "Example:
  outlive sandbox exec sbx-0a1b2c3d-4e5 -- sh -c 'echo hello; exit 3'
  outlive sandbox exec sbx-0a1b2c3d-4e5 --timeout 2s -- sleep 60
  outlive sandbox exec -it sbx-0a1b2c3d-4e5 -- bash
  tar c src | outlive sandbox exec -i sbx-0a1b2c3d-4e5 -- tar t";

/// Examples of `run`.
pub const RUN_EXAMPLES: &str = "Example:
  outlive sandbox run sbx-0a1b2c3d-4e5 'print(6*7)'
  outlive sandbox run sbx-0a1b2c3d-4e5 --alias node --file script.js
  outlive sandbox run sbx-0a1b2c3d-4e5 --context-id ctx-6f708192-a3b 'x+1'
  outlive sandbox run sbx-0a1b2c3d-4e5 --alias bash";

/// Examples of `cp`.
pub const CP_EXAMPLES: &str = "Example:
  outlive sandbox cp ./src sbx-0a1b2c3d-4e5:/work
  outlive sandbox cp sbx-0a1b2c3d-4e5:/root/out.log .";

/// Where and how a context runs.
#[derive(Debug, Clone, Default, Args)]
pub struct Place {
    /// Working directory in the sandbox.
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Variable; `KEY` alone takes the value from here, unseen by `ps`. May be repeated.
    #[arg(short, long = "env", value_name = "KEY[=VALUE]")]
    pub env: Vec<String>,
    /// Stop it after this long without output or input; 0 is never.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub idle_timeout: Option<u64>,
    /// Stop it this long after its start; 0 is never.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION")]
    pub ttl: Option<u64>,
}

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub struct Exec {
    /// The sandbox's id.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,
    /// Send standard input to the command; without it the command sees end of file at once.
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal and connect it to this one.
    #[arg(short, long)]
    pub tty: bool,
    /// Start and return at once; the context's id goes to standard output.
    #[arg(long, conflicts_with = "tty")]
    pub no_wait: bool,
    /// Show output as it comes: that is what `exec` does anyway.
    #[arg(long, hide = true)]
    pub stream: bool,
    /// Stop the command with everything it started after this long and exit 124.
    #[arg(long, value_parser = duration::positive, value_name = "DURATION", conflicts_with = "ttl")]
    pub timeout: Option<u64>,
    /// Where and how.
    #[command(flatten)]
    pub place: Place,
    /// Connection and terminal.
    #[command(flatten)]
    pub link: LinkFlags,
    /// The command and its arguments; no shell is involved.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunCode {
    /// The sandbox's id.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,
    /// The code; without it and without --file it is read from standard input: as a whole, or
    /// line by line from a terminal.
    #[arg(value_name = "CODE", conflicts_with = "file")]
    pub code: Option<String>,
    /// Read the code from a file.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The interpreter: python, node, bash or sh.
    #[arg(long, default_value = "python", value_name = "NAME")]
    pub alias: String,
    /// Go on in this interpreter; without it a new one is started, and deleted at the end.
    #[arg(long, value_name = "ID", conflicts_with_all = ["alias", "keep", "cwd", "env", "idle_timeout", "ttl"])]
    pub context_id: Option<String>,
    /// Keep the new interpreter; its id goes to standard error.
    #[arg(long)]
    pub keep: bool,
    /// Where and how.
    #[command(flatten)]
    pub place: Place,
}

/// Arguments of `cp`.
#[derive(Debug, Args)]
pub struct Copy {
    /// What to copy: a local path, or SANDBOX:PATH.
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// Where to: a local path, or SANDBOX:PATH. An existing directory takes it under its name.
    #[arg(value_name = "DESTINATION")]
    pub destination: String,
    /// Show no progress.
    #[arg(short, long)]
    pub quiet: bool,
}
