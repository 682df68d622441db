//! The commands, one module a noun.

use clap::CommandFactory;

use crate::{
    args::{Cli, Command, Format, Global, sandbox::Sandbox, session::Session},
    client::Client,
    config,
    error::{Failure, Result},
};

pub mod code;
pub mod doctor;
pub mod exec;
pub mod image;
pub mod key;
pub mod run;
pub mod sandbox;
pub mod serve;
pub mod session;
pub mod upgrade;

/// What every command that talks to a server has.
#[derive(Debug)]
pub struct Context {
    /// The server.
    pub client: Client,
    /// How to print.
    pub format: Format,
}

impl Context {
    async fn new(global: &Global) -> Result<Self> {
        let settings = config::resolve(global).await?;
        let format = settings.format;
        crate::output::tell_as(format);
        Ok(Self {
            client: Client::new(settings)?,
            format,
        })
    }
}

/// Runs a command and gives the exit code.
pub async fn run(cli: Cli) -> Result<u8> {
    let passes_code_on = passes_code_on(&cli.command);
    let done = Box::pin(carry_out(cli)).await;
    if passes_code_on {
        done.map_err(Failure::not_the_program)
    } else {
        done
    }
}

/// Whether the exit code is that of a program in a sandbox, so that a failure of our own, whatever it
/// is and however early, needs another one.
fn passes_code_on(command: &Command) -> bool {
    matches!(
        command,
        Command::Run(_)
            | Command::Sandbox(
                Sandbox::Exec(_) | Sandbox::Run(_) | Sandbox::Session(Session::Attach { .. })
            )
            | Command::Session(Session::Attach { .. })
    )
}

async fn carry_out(cli: Cli) -> Result<u8> {
    let global = cli.global;
    let done = match cli.command {
        Command::Serve(args) => serve::serve(args).await,
        Command::Demo(args) => crate::demo::run(&args).await,
        Command::Doctor(args) => doctor::run(&args, global.format().unwrap_or(Format::Table)).await,
        Command::Completions { shell } => completions(shell),
        Command::Run(args) => return run::run(&Context::new(&global).await?, &args).await,
        Command::Sandbox(Sandbox::Session(command)) | Command::Session(command) => {
            return session::run(&Context::new(&global).await?, command).await;
        }
        Command::Sandbox(Sandbox::Exec(args)) => {
            return exec::exec(&Context::new(&global).await?, &args).await;
        }
        Command::Sandbox(Sandbox::Run(args)) => {
            return code::run(&Context::new(&global).await?, &args).await;
        }
        Command::Sandbox(command) => sandbox::run(&Context::new(&global).await?, command).await,
        Command::Image(command) => image::run(&Context::new(&global).await?, command).await,
        Command::Key(command) => key::run(&Context::new(&global).await?, command).await,
        Command::Upgrade(args) => upgrade::run(&Context::new(&global).await?, &args).await,
    };
    done.map(|()| 0)
}

fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "outlive", &mut script);
    crate::output::stdout_line(String::from_utf8_lossy(&script).trim_end())
}
