//! Where the sandboxes of this server lie on the host.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use outlive_core::id::{SandboxId, SessionId};

/// `DIR/sandboxes`.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    root: PathBuf,
}

impl Places {
    /// In a server's data directory.
    pub(crate) fn new(data: &Path) -> Self {
        Self {
            root: data.join("sandboxes"),
        }
    }

    /// The directory of all.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Those that have a directory.
    pub(crate) fn all(&self) -> io::Result<Vec<Place>> {
        fs::read_dir(&self.root)?
            .map(|entry| Ok(Place { dir: entry?.path() }))
            .collect()
    }

    /// One of them.
    pub(crate) fn of(&self, sandbox: &SandboxId) -> Place {
        Place {
            dir: self.root.join(sandbox.as_str()),
        }
    }
}

/// `DIR/sandboxes/<sbx-id>`.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    /// The directory itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The agent's state directory.
    pub(crate) fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// All journals.
    pub(crate) fn journals(&self) -> PathBuf {
        self.dir.join("state/sessions")
    }

    /// One session's journal.
    pub(crate) fn journal(&self, session: &SessionId) -> PathBuf {
        self.journals().join(session.as_str())
    }

    /// What the newest launch was told.
    pub(crate) fn launch_config(&self) -> PathBuf {
        self.dir.join("launch.cbor")
    }

    /// What the last change of the network's rules printed.
    pub(crate) fn egress_log(&self) -> PathBuf {
        self.dir.join("egress.log")
    }

    /// What the launcher printed; locked while it works.
    pub(crate) fn launch_log(&self) -> PathBuf {
        self.dir.join("launch.log")
    }
}
