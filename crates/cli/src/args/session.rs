//! Arguments of `session`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{duration, run::LinkFlags, spec::SpecFlags};

/// One session.
#[derive(Debug, Args)]
pub struct OneSession {
    /// The sandbox's id.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,
    /// The session's id, or its name if only one session has it; or a context's id.
    #[arg(value_name = "SESSION")]
    pub session: String,
}

/// Arguments of `session create`.
#[derive(Debug, Args)]
pub struct Create {
    /// The sandbox's id.
    #[arg(value_name = "SANDBOX")]
    pub sandbox: String,
    /// Reserved for sessions found by a unique name; use --name for a label.
    #[arg(value_name = "NAME")]
    pub reserved_name: Option<String>,
    /// The whole specification from a YAML or JSON file, `-` for standard input.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub spec_file: Option<PathBuf>,
    /// Give the command a terminal.
    #[arg(long)]
    pub pty: bool,
    /// Makes a repeated call safe: the same key gives the same session [default: random].
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// What the command is.
    #[command(flatten)]
    pub spec: SpecFlags,
    /// The command and its arguments; no shell is involved.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `session input`.
#[derive(Debug, Args)]
pub struct Input {
    /// Which.
    #[command(flatten)]
    pub target: OneSession,
    /// Text to send.
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["data_base64", "file"])]
    pub data: Option<String>,
    /// Bytes to send, in base64.
    #[arg(long, value_name = "BASE64", conflicts_with = "file")]
    pub data_base64: Option<String>,
    /// File to send, `-` for standard input; at most 4 MiB.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Close the command's input after the data.
    #[arg(long)]
    pub eof: bool,
    /// Hang the command's terminal up after the data: an end also for programs that read keys.
    #[arg(long, conflicts_with = "eof")]
    pub hangup: bool,
    /// Makes a repeated call safe: the same id is written once [default: random].
    #[arg(long, value_name = "ID")]
    pub input_id: Option<String>,
    /// Send only if this attempt still is the current one.
    #[arg(long, value_name = "ID")]
    pub attempt_id: Option<String>,
    /// Return only once the receipt is on disk.
    #[arg(long)]
    pub durable: bool,
}

/// Arguments of `session events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Which.
    #[command(flatten)]
    pub target: OneSession,
    /// Only events after this number [default: from the earliest that is kept].
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// The same as --after, and wins over it, as the header of that name does.
    #[arg(long, value_name = "SEQ")]
    pub last_event_id: Option<u64>,
    /// Most events of a page, 1 to 10000 [default: 1000].
    #[arg(long, value_name = "COUNT", conflicts_with = "follow")]
    pub limit: Option<u32>,
    /// Only the newest so many events.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["follow", "after", "last_event_id"])]
    pub tail: Option<u32>,
    /// Go on with new events; reconnects by itself. Ctrl-C ends it, not the session.
    #[arg(short, long)]
    pub follow: bool,
    /// With --follow: end once the current attempt has exited.
    #[arg(long, requires = "follow")]
    pub until_exit: bool,
    /// With --follow: give up after this long without a connection; 0 is never.
    #[arg(long, value_parser = duration::seconds, value_name = "DURATION", default_value_t = 0)]
    pub reconnect: u64,
}

/// The commands of `session`.
#[derive(Debug, Subcommand)]
pub enum Session {
    /// List a sandbox's sessions; never wakes it.
    #[command(
        visible_alias = "ls",
        after_help = "Example:\n  outlive session list sbx-0a1b2c3d-4e5"
    )]
    List {
        /// The sandbox's id.
        #[arg(value_name = "SANDBOX")]
        sandbox: String,
    },
    /// Make a session and start its command.
    #[command(after_help = "Example:
  outlive session create sbx-0a1b2c3d-4e5 --name worker --restart on_failure -- ./worker --fast
  outlive session create sbx-0a1b2c3d-4e5 --spec-file worker.yaml --idempotency-key worker-v1")]
    Create(Box<Create>),
    /// Show a session: phase, attempt, generation, cursor.
    #[command(after_help = "Example:\n  outlive session get sbx-0a1b2c3d-4e5 worker --json")]
    Get(OneSession),
    /// Replace a session's whole specification.
    #[command(
        after_help = "Example:\n  outlive session update sbx-0a1b2c3d-4e5 worker --spec-file worker.yaml"
    )]
    Update {
        /// Which.
        #[command(flatten)]
        target: OneSession,
        /// The whole specification from a YAML or JSON file, `-` for standard input.
        #[arg(short = 'f', long, value_name = "FILE", required = true)]
        spec_file: PathBuf,
    },
    /// Set the desired state to running.
    #[command(after_help = "Example:\n  outlive session start sbx-0a1b2c3d-4e5 worker")]
    Start(OneSession),
    /// Set the desired state to stopped: the stop signal, the grace, then the kill.
    #[command(after_help = "Example:\n  outlive session stop sbx-0a1b2c3d-4e5 worker")]
    Stop(OneSession),
    /// Start a new attempt.
    #[command(after_help = "Example:\n  outlive session attempt sbx-0a1b2c3d-4e5 worker --replace")]
    Attempt {
        /// Which.
        #[command(flatten)]
        target: OneSession,
        /// End the current attempt first.
        #[arg(long)]
        replace: bool,
    },
    /// Send input, or end of file.
    #[command(
        after_help = "Example:\n  outlive session input sbx-0a1b2c3d-4e5 worker --data 'hello' --eof"
    )]
    Input(Input),
    /// Send a signal to the current attempt.
    #[command(after_help = "Example:\n  outlive session signal sbx-0a1b2c3d-4e5 worker TERM")]
    Signal {
        /// Which.
        #[command(flatten)]
        target: OneSession,
        /// Name, with or without SIG, or number.
        signal: String,
        /// Send only if this attempt still is the current one.
        #[arg(long, value_name = "ID")]
        attempt_id: Option<String>,
    },
    /// Change the size of the session's terminal.
    #[command(after_help = "Example:\n  outlive session resize sbx-0a1b2c3d-4e5 shell 50 132")]
    Resize {
        /// Which.
        #[command(flatten)]
        target: OneSession,
        /// Lines.
        rows: u16,
        /// Columns.
        cols: u16,
        /// Resize only if this attempt still is the current one.
        #[arg(long, value_name = "ID")]
        attempt_id: Option<String>,
    },
    /// Print events: a page, or a stream with --follow. Never wakes the sandbox.
    ///
    /// Tables have a line an event: seq, time, attempt, type, stream, data, separated by tabs.
    #[command(after_help = "Example:
  outlive session events sbx-0a1b2c3d-4e5 worker --limit 100
  outlive session events sbx-0a1b2c3d-4e5 worker --after 8 --follow --until-exit")]
    Events(Events),
    /// Connect to a running session as `run` does: output here, exit code passed on.
    ///
    /// A terminal session is connected to this terminal; leaving it (ctrl-p,ctrl-q) or losing
    /// the connection never ends it.
    #[command(after_help = "Example:\n  outlive session attach sbx-0a1b2c3d-4e5 shell")]
    Attach {
        /// Which.
        #[command(flatten)]
        target: OneSession,
        /// Replay what came after this event first [default: only what is new].
        #[arg(long, value_name = "SEQ")]
        after: Option<u64>,
        /// Send standard input to a session without a terminal.
        #[arg(short, long)]
        interactive: bool,
        /// Connection and terminal.
        #[command(flatten)]
        link: LinkFlags,
    },
    /// Stop a session and delete it with its journal.
    #[command(
        visible_alias = "rm",
        after_help = "Example:\n  outlive session delete sbx-0a1b2c3d-4e5 worker"
    )]
    Delete(OneSession),
}
