//! Processes of the demo's sandbox, found by what stands on their command lines.
//!
//! A process is only ever ended when its command line names this demo's sandbox, or the word
//! that only this demo's session has.

use std::{fs, time::Duration};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    clock::Stopwatch,
    error::{Failure, Result},
    limits::{DEMO_POLL, DEMO_WAIT_MAX},
};

/// Asks until there is an answer, or the time is over.
pub(super) async fn wait_until<T>(
    longest: Duration,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let since = Stopwatch::start();
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if since.elapsed() >= longest {
            return Ok(None);
        }
        tokio::time::sleep(DEMO_POLL).await;
    }
}

/// The supervisor of this sandbox.
pub(super) fn supervisor(sandbox: &str) -> Result<Option<Pid>> {
    let found = find(|words| words.starts_with(&["outlive-supervisor", sandbox]))?;
    Ok(found.first().copied())
}

/// Sends SIGKILL to one process; one that is gone is fine.
pub(super) fn kill(pid: Pid) -> Result<()> {
    match kill_process(pid, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Failure::new("demo", format!("kill -9 {pid}: {error}"))),
    }
}

/// Ends what is left of the sandbox, and waits until it is gone.
pub(super) async fn end_all(sandbox: &str, marker: &str) -> Result<()> {
    let left = || {
        find(|words| {
            words.contains(&marker)
                || matches!(words, ["outlive-keeper" | "outlive-supervisor", id, ..] if *id == sandbox)
        })
    };
    let gone = wait_until(DEMO_WAIT_MAX, || {
        let pids = left()?;
        for pid in &pids {
            kill(*pid)?;
        }
        Ok(pids.is_empty().then_some(()))
    })
    .await?;
    gone.ok_or_else(|| Failure::new("demo", format!("processes of {sandbox} can't be ended")))
}

/// Processes whose command line is as asked for.
fn find(fits: impl Fn(&[&str]) -> bool) -> Result<Vec<Pid>> {
    let proc = std::path::Path::new("/proc");
    let entries = fs::read_dir(proc).map_err(|error| Failure::file("read", proc, &error))?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Failure::file("read", proc, &error))?;
        let name = entry.file_name();
        let Some(pid) = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw)
        else {
            continue;
        };
        // A process that ended meanwhile has no command line, nor has a zombie.
        let Ok(line) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = String::from_utf8_lossy(&line);
        let words: Vec<&str> = line.trim_end_matches('\0').split('\0').collect();
        if fits(&words) {
            found.push(pid);
        }
    }
    Ok(found)
}
