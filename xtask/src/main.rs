//! The project's own commands: `cargo xtask test` is the one test command.
//!
//! ```text
//! cargo xtask test                 every stage, in order
//! cargo xtask test --only lint     one stage
//! cargo xtask test --long          the crash harness in its long form
//! cargo xtask test --list          the stages, with what each one shows
//! ```
#![expect(
    clippy::print_stdout,
    reason = "a command line tool talks on its standard output"
)]

mod run;
mod stage;
mod suites;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::stage::{Plan, Stage};
use crate::suites::Length;

#[derive(Debug, Parser)]
#[command(about = "Commands for those who work on outlive")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check everything: format, lints, documentation, and every test suite.
    Test {
        /// Run only this stage; may be given several times.
        #[arg(long, value_name = "STAGE")]
        only: Vec<Stage>,
        /// Print the stages and what each one shows, then stop.
        #[arg(long)]
        list: bool,
        /// Run the crash harness in its long form (at least 500 kills a mode).
        #[arg(long)]
        long: bool,
    },
}

fn main() -> ExitCode {
    let Command::Test { only, list, long } = Arguments::parse().command;
    if list {
        for stage in Stage::ALL {
            println!("{:<12} {}", stage.name(), stage.shows());
        }
        return ExitCode::SUCCESS;
    }
    let stages = if only.is_empty() {
        Stage::ALL.to_vec()
    } else {
        only
    };
    let length = if long { Length::Long } else { Length::Short };
    match (Plan { stages, length }).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
