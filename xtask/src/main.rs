//! The project's own commands: `cargo xtask test` is the one test command.
//!
//! ```text
//! cargo xtask test                 every stage, in order
//! cargo xtask test --only lint     one stage
//! cargo xtask test --long          the random suites in their long form, and the stage `machine`
//! cargo xtask test --list          the stages, with what each one shows
//! cargo xtask agent                the agent as it is shipped: static, with optimizations
//! ```
#![expect(
    clippy::print_stdout,
    reason = "a command line tool talks on its standard output"
)]

mod elf;
mod run;
mod stage;
mod suites;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::stage::{Plan, Stage};
use crate::suites::{Length, Profile};

#[derive(Debug, Parser)]
#[command(about = "Commands for those who work on outlive")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the agent as it is shipped: static, with optimizations, in target/release.
    Agent,
    /// Check everything: format, lints, documentation, and every test suite.
    Test {
        /// Run only this stage, after the build when it drives the binaries; may be given several
        /// times.
        #[arg(long, value_name = "STAGE")]
        only: Vec<Stage>,
        /// Print the stages and what each one shows, then stop.
        #[arg(long)]
        list: bool,
        /// Run the random suites in their long form (at least 500 kills a mode, 200 sequences), and
        /// the stage `machine`.
        #[arg(long)]
        long: bool,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Agent => {
            suites::static_agent(Profile::Release).map(|agent| println!("{}", agent.display()))
        }
        Command::Test { list: true, .. } => {
            for stage in Stage::ALL {
                println!("{:<12} {}", stage.name(), stage.shows());
            }
            Ok(())
        }
        Command::Test { only, long, .. } => test(&only, long),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn test(only: &[Stage], long: bool) -> anyhow::Result<()> {
    let length = if long { Length::Long } else { Length::Short };
    let stages = Stage::chosen(only, length);
    Plan { stages, length }.run()
}
