//! Another executable under a runtime that goes on: the supervisor is started anew from it, then
//! the keeper replaces itself by it.
//!
//! The agent may be nowhere that a sandbox's user can reach, so a copy lies in the state directory
//! while the supervisor hands it to its keeper.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
};

use outlive_api::agent::{Health, Outcome, Request};
use tokio::time::{Instant, timeout_at};

use super::agent::{Agent, NoAnswer};
use crate::limits::UPGRADE_MAX;

/// Name of the copy in a state directory.
const STAGED: &str = "agent.next";

/// Why a runtime still has the agent it had. Its processes go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    /// The supervisor gave no answer.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The executable can't be put where the supervisor finds it.
    #[error("copying the agent to {}: {source}", path.display())]
    Copy {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Supervisor or keeper refused it.
    #[error("{0}")]
    Refused(String),
    /// No supervisor said in time that it runs.
    #[error("the supervisor did not come back in time; its log is state/agent.log")]
    Late,
    /// The keeper went back to the executable before.
    #[error(
        "the new agent did not get to serve, and the one before runs again; state/agent.log says why"
    )]
    WentBack,
}

/// Replaces the agent of one runtime; returns the version that answers then. One at a time for
/// each runtime.
pub(crate) async fn upgrade(
    agent: &Agent,
    state_dir: &Path,
    executable: &Path,
) -> Result<String, UpgradeError> {
    let before = health(agent).await?;
    let staged = stage(state_dir.to_owned(), executable.to_owned()).await?;
    let mut link = agent.changes();
    let request = Request::Upgrade {
        path: STAGED.to_owned(),
    };
    match agent.call(request).await {
        Ok(Outcome::Failed { message }) => return Err(UpgradeError::Refused(message)),
        // Whether it took effect is seen below.
        Ok(_) | Err(NoAnswer::Unknown) => {}
        Err(other) => return Err(other.into()),
    }
    let until = Instant::now() + UPGRADE_MAX;
    let now = loop {
        let now = health(agent).await?;
        if now.supervisor_starts > before.supervisor_starts {
            break now;
        }
        // That was still the old one; it is about to leave.
        if !matches!(timeout_at(until, link.changed()).await, Ok(Ok(()))) {
            return Err(UpgradeError::Late);
        }
    };
    drop(staged);
    if now.keeper_reexecs == before.keeper_reexecs {
        return Err(UpgradeError::WentBack);
    }
    Ok(agent.welcome(UPGRADE_MAX).await?.build)
}

async fn health(agent: &Agent) -> Result<Health, UpgradeError> {
    match agent.call(Request::Health).await? {
        Outcome::Health(health) => Ok(health),
        Outcome::Failed { message } => Err(UpgradeError::Refused(message)),
        other => Err(UpgradeError::Refused(format!(
            "an answer to another question: {other:?}"
        ))),
    }
}

/// The copy; removed when this goes.
struct Staged(PathBuf);

impl Drop for Staged {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "a copy of the agent stays");
        }
    }
}

async fn stage(state_dir: PathBuf, executable: PathBuf) -> Result<Staged, UpgradeError> {
    let path = state_dir.join(STAGED);
    let copied = tokio::task::spawn_blocking(move || copy(&state_dir, &executable))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    copied.map_err(|source| UpgradeError::Copy { path, source })
}

fn copy(state_dir: &Path, executable: &Path) -> io::Result<Staged> {
    let path = state_dir.join(STAGED);
    match fs::remove_file(&path) {
        Ok(()) => {} // Of a server that was killed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut from = fs::File::open(executable)?;
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o500)
        .open(&path)?;
    let staged = Staged(path);
    let state = fs::metadata(state_dir)?;
    if state.uid() != to.metadata()?.uid() {
        fchown(&to, Some(state.uid()), Some(state.gid()))?;
    }
    io::copy(&mut from, &mut to)?;
    Ok(staged)
}
