//! The command line as a type: every command, flag and example.
//!
//! `docs/reference/cli.md` is written from these types (see [`crate::reference`]), and a test
//! checks that every command shows an example.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Deserialize;

mod duration;
pub mod exec;
pub mod image;
pub mod key;
pub mod run;
pub mod sandbox;
pub mod serve;
pub mod session;
pub mod snapshot;
pub mod spec;
pub mod upgrade;

/// Sessions that outlive the client.
///
/// Start commands in a sandbox, drop the connection, come back: the process, its output and its
/// exit code are still there.
#[derive(Debug, Parser)]
#[command(
    name = "outlive",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Example:\n  outlive serve &\n  outlive run -- sh -c 'echo hello; exit 3'"
)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Base URL of the server.
    #[arg(
        long,
        global = true,
        env = "OUTLIVE_URL",
        alias = "api-url",
        value_name = "URL"
    )]
    pub url: Option<String>,

    /// API key. Prefer the variable or a profile: other users can see your command lines.
    #[arg(
        long,
        global = true,
        env = "OUTLIVE_TOKEN",
        hide_env_values = true,
        value_name = "KEY"
    )]
    pub token: Option<String>,

    /// Profile file [default: `~/.config/outlive/config.yaml`].
    #[arg(
        short,
        long,
        global = true,
        env = "OUTLIVE_CONFIG",
        value_name = "FILE"
    )]
    pub config: Option<PathBuf>,

    /// Profile to use [default: `current` of the profile file].
    #[arg(
        short,
        long,
        global = true,
        env = "OUTLIVE_PROFILE",
        value_name = "NAME"
    )]
    pub profile: Option<String>,

    /// How to print [default: table].
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,

    /// Print JSON: short for `--output json`.
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,
}

impl Global {
    /// The format the flags ask for.
    pub fn format(&self) -> Option<Format> {
        if self.json {
            Some(Format::Json)
        } else {
            self.output
        }
    }
}

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    Table,
    /// For programs; streams print one object a line.
    Json,
    /// For files.
    Yaml,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server.
    #[command(after_help = "Example:\n  outlive serve --listen 127.0.0.1:7070 --data ./data")]
    Serve(serve::Serve),

    /// Show on this machine that a session survives kill -9 of everything around it.
    ///
    /// Starts its own server in a temporary folder, follows a session, kills the server and the
    /// supervisor, and checks that the same process went on and that not a byte is missing.
    /// Needs no other server, no root, no network; removes what it made.
    #[command(after_help = "Example:\n  outlive demo")]
    Demo(serve::Demo),

    /// Tell what this machine can do for sandboxes, and what is therefore off.
    #[command(after_help = "Example:\n  outlive doctor --json")]
    Doctor(serve::Doctor),

    /// Run a command in a sandbox and pass on its output and exit code.
    ///
    /// The command goes on when this client is interrupted or loses its connection; it then says
    /// how to come back. Without --sandbox a new sandbox is made and kept (see --rm). Exit codes
    /// other than the program's own: 125 outlive itself failed, 124 the --timeout passed,
    /// 128+N the program died of signal N.
    #[command(after_help = run::EXAMPLES)]
    Run(Box<run::Run>),

    /// Sandboxes: places with a disk, an owner and a lifetime.
    #[command(subcommand, after_help = "Example:\n  outlive sandbox list --json")]
    Sandbox(sandbox::Sandbox),

    /// Sessions: supervised commands that outlive their clients.
    #[command(
        subcommand,
        after_help = "Example:\n  outlive session events sbx-0a1b2c3d-4e5 ses-6f708192-a3b --follow"
    )]
    Session(session::Session),

    /// Images: what sandboxes are made from. Taking in and removing needs an admin's key.
    #[command(subcommand, after_help = "Example:\n  outlive image list")]
    Image(image::Image),

    /// API keys (needs an admin's key).
    #[command(
        subcommand,
        after_help = "Example:\n  outlive key create --owner team-a"
    )]
    Key(key::Key),

    /// Replace keeper and supervisor of running sandboxes, whose processes go on (needs an admin's
    /// key).
    #[command(
        after_help = "Example:\n  outlive upgrade --all\n  outlive upgrade --agent ./outlive-agent sbx-0a1b2c3d-4e5"
    )]
    Upgrade(upgrade::Upgrade),

    /// Print a completion script for a shell.
    ///
    /// The folder of the example comes with the package bash-completion; without it, have your
    /// shell read what is printed.
    #[command(after_help = "Example:\n  outlive completions bash > /etc/bash_completion.d/outlive")]
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}
