//! `outlive demo`: a session outlives its client, its server and its supervisor, on this machine.
//!
//! ```text
//!  follow ──► drop ──► kill -9 server, supervisor ──► start server ──► follow from the cursor
//!                                                                           │
//!          same pid? every seq once? sha256 as written? exit code? ◄────────┘
//! ```
//! It exits with 0 only if all of that holds. Whatever happens, it removes what it made.

use std::{path::PathBuf, time::Duration};

use crate::{
    args::serve::Demo,
    error::{Failure, Result},
    limits::DEMO_DURATION_MAX,
    output::{stderr_line, stdout_line},
    signals::Signals,
};

mod evidence;
mod processes;
mod server;
mod story;

/// Runs the demo; a failure means that something was lost, or that it could not run.
pub(crate) async fn run(args: &Demo) -> Result<()> {
    crate::rootless::enter(args.agent.as_deref(), args.runtime, &[]).await?;
    let mut signals = Signals::listen()?;
    let folder = tempfile::Builder::new()
        .prefix("outlive-demo-")
        .tempdir()
        .map_err(|error| Failure::new("demo", format!("make a temporary folder: {error}")))?;
    let mut stage = Stage {
        data: folder.path().to_owned(),
        args,
        server: None,
        sandbox: None,
        marker: crate::attach::input::random_id("outlive-demo-")?,
    };
    let told = tokio::select! {
        signal = signals.next() => {
            Err(Failure::new("demo", "interrupted").with_exit(128 | signal))
        }
        told = tokio::time::timeout(DEMO_DURATION_MAX, story::tell_all(&mut stage)) => {
            told.unwrap_or_else(|_| Err(Failure::new("demo", "it took too long")))
        }
    };
    if told.is_err() {
        stage.show_log();
    }
    let cleaned = stage.clean_up().await;
    let removed = folder
        .close()
        .map_err(|error| Failure::new("demo", format!("remove the temporary folder: {error}")));
    match (told, cleaned.and(removed)) {
        (Ok(()), Ok(())) => Ok(()),
        (Err(failure), Ok(())) | (Ok(()), Err(failure)) => Err(failure),
        (Err(failure), Err(also)) => {
            stderr_line(&also.to_string());
            Err(failure)
        }
    }
}

/// Everything the demo made, so that it can be removed.
struct Stage<'a> {
    /// The server's folder.
    data: PathBuf,
    args: &'a Demo,
    server: Option<server::Server>,
    sandbox: Option<String>,
    /// A word on the command line of the session's process that nothing else on this machine has.
    marker: String,
}

impl Stage<'_> {
    /// The last lines of the server's log, for a failure.
    fn show_log(&self) {
        if let Some(log) = server::log_tail(&self.data) {
            stderr_line(&format!("the server's log ends with:\n{log}"));
        }
    }

    /// Removes the sandbox through a server, then ends the server; what a server could not
    /// remove is ended by its process id.
    async fn clean_up(&mut self) -> Result<()> {
        let deleted = self.delete_sandbox().await;
        let ended = match self.server.take() {
            Some(server) => server.stop().await,
            None => Ok(()),
        };
        if let Some(sandbox) = &self.sandbox {
            processes::end_all(sandbox, &self.marker).await?;
        }
        deleted.and(ended)
    }

    async fn delete_sandbox(&mut self) -> Result<()> {
        let Some(sandbox) = self.sandbox.clone() else {
            return Ok(());
        };
        if self
            .server
            .as_mut()
            .is_none_or(|server| !server.is_running())
        {
            self.server = Some(server::Server::start(&self.data, self.args).await?);
        }
        match &self.server {
            Some(server) => server.delete_sandbox(&sandbox).await,
            None => Ok(()),
        }
    }
}

/// A line of the story.
fn tell(since: Duration, text: &str) -> Result<()> {
    stdout_line(&format!("{:>6.2} s  {text}", since.as_secs_f64()))
}
