//! The command line of outlive: an HTTP and WebSocket client, and the doors to the server.
//!
//! ```text
//!  args ──► commands ──► client ──HTTP──► server        names: id or name of a session
//!              │  └────► attach ──┬─ pipes: follow (SSE) + input calls
//!              │                  └─ terminal: socket (WebSocket)
//!              └─► demo, doctor, serve: this machine
//! ```
//! It knows nothing of journals and processes: all it knows of a session came over the wire.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod args;
pub mod attach;
pub mod bar;
pub mod client;
pub mod clock;
pub mod commands;
pub mod config;
pub mod copy;
mod demo;
pub mod error;
pub mod event;
pub mod follow;
pub mod limits;
pub mod names;
pub mod next;
pub mod output;
pub mod reference;
mod rootless;
pub mod signals;
pub mod socket;
pub mod sse;
pub mod terminal;
mod tips;
mod usage;
pub mod waiting;

use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches};

use args::{Cli, Format};
use error::{Failure, Result};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // `parse` ends the process with 0 after --help, and with code 2 on wrong usage told to people.
    let cli = match parse() {
        Ok(cli) => cli,
        Err(failure) => {
            output::tell_as(Format::Json);
            output::report(&failure);
            return failure.exit.into();
        }
    };
    if let Some(format) = cli.global.format() {
        output::tell_as(format);
    }
    match run(cli) {
        Ok(code) => code.into(),
        Err(failure) => {
            output::report(&failure);
            failure.exit.into()
        }
    }
}

/// Reads the command line. A flag's value that begins with a digit behind its minus is a value, and
/// what is wrong with it is told; without this it would be an unknown flag. A failure is for programs.
fn parse() -> Result<Cli> {
    let mut command = with_negative_values(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = match matches {
        Ok(matches) => Cli::from_arg_matches(&matches),
        Err(mut error) => {
            let words = std::env::args_os().skip(1);
            let words = words.map(|word| word.to_string_lossy().into_owned());
            tips::add(&mut error, &command, words);
            Err(error)
        }
    };
    parsed.or_else(|error| {
        if error.use_stderr() && usage::wants_json(std::env::args_os().skip(1)) {
            Err(usage::failure(&error))
        } else {
            error.exit()
        }
    })
}

fn with_negative_values(command: Command) -> Command {
    command
        .mut_args(|arg| {
            let has_value = arg.get_action().takes_values() && !arg.is_positional();
            let values = has_value || arg.is_allow_negative_numbers_set();
            arg.allow_negative_numbers(values)
        })
        .mut_subcommands(with_negative_values)
}

fn run(cli: Cli) -> Result<u8> {
    // One provider for every TLS connection of this process; a second call has no effect.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        return Err(Failure::new(
            "internal",
            "the TLS provider was chosen twice",
        ));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("runtime", format!("start threads: {error}")))?;
    let result = runtime.block_on(commands::run(cli));
    // A read of the standard input may never return; it must not keep us.
    runtime.shutdown_background();
    result
}
