//! The agent's binary, run by the server: a message in, an answer out, and a log that is locked
//! while it works.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::fs::{FlockOperation, MemfdFlags, flock, memfd_create};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::{
    super::{Place, RuntimeError, host::Host},
    blocking, file,
};
use crate::limits::{LAUNCH_ANSWER_BYTES_MAX, LAUNCH_LOG_BYTES_SHOWN, PROBE_MAX};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Program {
    path: PathBuf,
}

impl Program {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Has the agent move this process to where sandboxes beside it can be limited.
    pub(super) async fn settle(&self) {
        let settled = async {
            let log = passing_log()?;
            self.run("settle", &[], &log, PROBE_MAX).await
        };
        if let Err(error) = settled.await {
            tracing::error!(%error, "the server can't leave its control group; limits may fail");
        }
    }

    /// Has the agent look at the host, and at where data are kept.
    pub(super) async fn probe(&self, data: &Path) -> io::Result<Host> {
        let run = Command::new(&self.path)
            .arg("probe")
            .arg(data)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let done = timeout(PROBE_MAX, run).await??;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            return Err(io::Error::other(format!(
                "{}: {}",
                done.status,
                said.trim()
            )));
        }
        Ok(Host::parse(&String::from_utf8_lossy(&done.stdout)))
    }

    /// Starts the agent's binary, which takes a moment and does nothing before it is told what.
    async fn begin<'l>(
        &self,
        verb: &'static str,
        log: &'l File,
    ) -> Result<Begun<'l>, RuntimeError> {
        let failed = |error: io::Error| launcher_failed(&error.to_string(), log);
        let (program, file) = (self.clone(), log.try_clone().map_err(failed)?);
        let child = blocking(move || program.spawn(verb, &file)).await?;
        let child = child.map_err(failed)?;
        Ok(Begun { child, log })
    }

    pub(super) fn spawn(&self, verb: &str, log: &File) -> io::Result<Child> {
        let mut command = self.command();
        command.arg(verb).stdin(Stdio::piped());
        self.spawned(command, log.try_clone()?)
    }

    pub(super) fn command(&self) -> Command {
        Command::new(&self.path)
    }

    pub(super) fn spawned(&self, mut command: Command, log: impl Into<Stdio>) -> io::Result<Child> {
        let spawned = command.stdout(Stdio::piped()).stderr(log).spawn();
        spawned.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        })
    }

    /// Runs the agent's binary; its answer.
    pub(super) async fn run(
        &self,
        verb: &'static str,
        message: &[u8],
        log: &File,
        within: Duration,
    ) -> Result<Vec<u8>, RuntimeError> {
        let begun = self.begin(verb, log).await?;
        begun.carry_out(message, within).await
    }

    /// Runs the agent's binary for as long as it is kept, or we live; it answers once it is ready.
    pub(super) async fn keep(
        &self,
        verb: &'static str,
        message: &[u8],
        ready: &[u8],
        log: &File,
        within: Duration,
    ) -> Result<Kept, RuntimeError> {
        let begun = self.begin(verb, log).await?;
        begun.keep(message, ready, within).await
    }
}

/// The agent's binary, waiting to be told what to do. Dropped untold it ends by itself.
#[derive(Debug)]
pub(super) struct Begun<'l> {
    child: Child,
    log: &'l File,
}

impl Begun<'_> {
    /// Has it do this; its answer. It is not killed with us: what it began it may finish, and the
    /// next server finds it. A failure comes with what the log says.
    pub(super) async fn carry_out(
        mut self,
        message: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, RuntimeError> {
        let ran = self.converse_within(message, within).await;
        ran.map_err(|error| launcher_failed(&error.to_string(), self.log))
    }

    async fn converse_within(&mut self, message: &[u8], within: Duration) -> io::Result<Vec<u8>> {
        let conversation = async {
            tell(&mut self.child, message).await?;
            hear(&mut self.child).await
        };
        match timeout(within, conversation).await {
            Ok(answer) => answer,
            Err(_elapsed) => give_up(&mut self.child).await,
        }
    }

    async fn keep(
        mut self,
        message: &[u8],
        ready: &[u8],
        within: Duration,
    ) -> Result<Kept, RuntimeError> {
        let begun = match timeout(within, become_ready(&mut self.child, message, ready)).await {
            Ok(begun) => begun,
            Err(_elapsed) => give_up(&mut self.child).await,
        };
        let failed = |error: io::Error| launcher_failed(&error.to_string(), self.log);
        Ok(Kept {
            answers: begun.map_err(failed)?,
            log: self.log.try_clone().map_err(failed)?,
            child: self.child,
        })
    }
}

/// The agent's binary at work for as long as this is there. Dropped, it comes to its end by itself.
#[derive(Debug)]
pub(super) struct Kept {
    child: Child,
    /// Where it sees that we are gone.
    answers: ChildStdout,
    log: File,
}

impl Kept {
    /// Has it come to its end, and waits for that.
    pub(super) async fn end(mut self, within: Duration) -> Result<(), RuntimeError> {
        drop(self.answers);
        let ended = match timeout(within, self.child.wait()).await {
            Ok(status) => status.and_then(succeeded),
            Err(_elapsed) => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        ended.map_err(|error| launcher_failed(&error.to_string(), &self.log))
    }
}

async fn become_ready(child: &mut Child, message: &[u8], ready: &[u8]) -> io::Result<ChildStdout> {
    tell(child, message).await?;
    let stdout = child.stdout.take();
    let mut answers = stdout.ok_or_else(|| io::Error::other("it has no output"))?;
    let mut answer = vec![0; ready.len()];
    match answers.read_exact(&mut answer).await {
        Ok(_) if answer == ready => Ok(answers),
        Ok(_) => Err(io::Error::other("its answer is unreadable")),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            succeeded(child.wait().await?)?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Ends a child of ours that took too long.
pub(super) async fn give_up<T>(child: &mut Child) -> io::Result<T> {
    child.kill().await?;
    Err(io::Error::from(io::ErrorKind::TimedOut))
}

/// Gives a child of ours all that it will hear.
pub(super) async fn tell(child: &mut Child, message: &[u8]) -> io::Result<()> {
    match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(message).await,
        None => Ok(()),
    }
}

/// What a child of ours answers, which it does at its end.
pub(super) async fn hear(child: &mut Child) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let bound = LAUNCH_ANSWER_BYTES_MAX as u64;
        stdout.take(bound).read_to_end(&mut answer).await?;
    }
    succeeded(child.wait().await?)?;
    Ok(answer)
}

fn succeeded(status: ExitStatus) -> io::Result<()> {
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("it ended with {status}")))
    }
}

/// Where a program that belongs to no sandbox says what went wrong.
pub(super) fn passing_log() -> Result<File, RuntimeError> {
    match memfd_create("outlive-log", MemfdFlags::CLOEXEC) {
        Ok(log) => Ok(log.into()),
        Err(error) => Err(RuntimeError::Launcher {
            message: io::Error::from(error).to_string(),
        }),
    }
}

pub(super) fn open_log(path: &Path) -> Result<File, RuntimeError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(file("opening", path))
}

/// Opens the launcher's log and locks it. Fails while another launcher works.
pub(super) fn locked_log(place: &Place) -> Result<File, RuntimeError> {
    let path = place.launch_log();
    let log = open_log(&path)?;
    flock(&log, FlockOperation::NonBlockingLockExclusive)
        .map_err(io::Error::from)
        .map_err(file("locking", &path))?;
    log.set_len(0).map_err(file("clearing", &path))?;
    Ok(log)
}

pub(super) fn launcher_works(place: &Place) -> Result<bool, RuntimeError> {
    let path = place.launch_log();
    let log = match File::open(&path) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(file("opening", &path)(error)),
    };
    match flock(&log, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(file("locking", &path)(error.into())),
    }
}

pub(super) fn launcher_failed(how: &str, mut log: &File) -> RuntimeError {
    let mut said = String::new();
    let read = log
        .seek(SeekFrom::Start(0))
        .and_then(|_| log.take(LAUNCH_LOG_BYTES_SHOWN).read_to_string(&mut said));
    if let Err(error) = read {
        tracing::debug!(%error, "a launcher's log can't be read");
    }
    let message = match said.trim() {
        "" => how.to_owned(),
        said => format!("{how}; it said: {said}"),
    };
    RuntimeError::Launcher { message }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    // A launcher that was killed "said: ", and nothing followed.
    #[test]
    fn only_a_launcher_that_said_something_is_quoted() {
        let mut log = passing_log().unwrap();
        for (words, told) in [
            ("", "the launcher failed: it ended"),
            (" \n", "the launcher failed: it ended"),
            ("no way\n", "the launcher failed: it ended; it said: no way"),
        ] {
            log.write_all(words.as_bytes()).unwrap();
            assert_eq!(launcher_failed("it ended", &log).to_string(), told);
        }
    }
}
