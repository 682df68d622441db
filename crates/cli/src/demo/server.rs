//! The demo's own server: a child process, so that it can be killed.

use std::{fs, path::Path, process::Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::processes::wait_until;
use crate::{
    args::{Format, serve::Demo},
    client::{Call, Client},
    config::{LocalServer, Settings},
    error::{Failure, Result},
    limits::{DEMO_LOG_LINES, DEMO_WAIT_MAX},
    names::sandbox_path,
};

/// A running server.
pub(super) struct Server {
    child: Child,
    pub(super) client: Client,
}

impl Server {
    /// Starts a server with this folder and waits until it answers.
    pub(super) async fn start(data: &Path, args: &Demo) -> Result<Self> {
        let endpoint = data.join("endpoint");
        match fs::remove_file(&endpoint) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::file("remove", &endpoint, &error));
            }
            _ => {} // A killed server leaves it behind; a first one has none.
        }
        let mut child = spawn(data, args)?;
        let found = wait_until(DEMO_WAIT_MAX, || match child.try_wait() {
            Ok(None) => Ok(LocalServer::read(data)?.filter(|found| found.token.is_some())),
            Ok(Some(status)) => Err(Failure::new("demo", format!("the server ended: {status}"))),
            Err(error) => Err(Failure::new("demo", format!("look at the server: {error}"))),
        });
        let LocalServer { url, token } = found
            .await?
            .ok_or_else(|| Failure::new("demo", "the server did not start in time"))?;
        let client = Client::new(Settings {
            url,
            token,
            format: Format::Table,
        })?;
        Ok(Self { child, client })
    }

    /// Its process id.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it runs.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(super) async fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .map_err(|error| Failure::new("demo", format!("kill -9: {error}")))
    }

    /// Asks it to end, and waits; kills it when it does not.
    pub(super) async fn stop(mut self) -> Result<()> {
        let pid = self
            .pid()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            match kill_process(pid, Signal::TERM) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(Failure::new("demo", format!("end the server: {error}"))),
            }
        }
        match tokio::time::timeout(DEMO_WAIT_MAX, self.child.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Failure::new("demo", format!("end the server: {error}"))),
            Err(_) => self.kill().await,
        }
    }

    /// Deletes a sandbox; one that is gone is fine.
    pub(super) async fn delete_sandbox(&self, sandbox: &str) -> Result<()> {
        match self
            .client
            .call(Call::delete(&sandbox_path(sandbox)?))
            .await
        {
            Err(failure) if !failure.is_missing() => Err(failure),
            _ => Ok(()), // Deleted now or before.
        }
    }
}

fn spawn(data: &Path, args: &Demo) -> Result<Child> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new("demo", format!("find this program: {error}")))?;
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(data.join("server.log"))
        .map_err(|error| Failure::file("open", &data.join("server.log"), &error))?;
    let mut command = Command::new(program);
    command
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log",
            "info",
            "--data",
        ])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        // Ctrl-C is for the demo, which ends its server by itself.
        .process_group(0)
        .kill_on_drop(true);
    if let Some(runtime) = args.runtime {
        command.args(["--runtime", runtime.as_str()]);
    }
    if let Some(agent) = &args.agent {
        command.arg("--agent").arg(agent);
    }
    command
        .spawn()
        .map_err(|error| Failure::new("demo", format!("start the server: {error}")))
}

/// The last lines of the server's log.
pub(super) fn log_tail(data: &Path) -> Option<String> {
    let text = fs::read_to_string(data.join("server.log")).ok()?;
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.len().saturating_sub(DEMO_LOG_LINES);
    lines
        .get(start..)
        .map(|lines| lines.join("\n"))
        .filter(|text| !text.is_empty())
}
