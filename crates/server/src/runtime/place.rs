//! Where the sandboxes of this server and their snapshots lie on the host.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use outlive_api::launch::LaunchConfig;
use outlive_core::id::{SandboxId, SessionId, SnapshotId};

use super::Whose;

/// What the names of such directories begin with.
const RESTORED: &str = "restored-";

/// `DIR/sandboxes` and `DIR/snapshots`.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    root: PathBuf,
    snapshots: PathBuf,
}

impl Places {
    /// In a server's data directory.
    pub(crate) fn new(data: &Path) -> Self {
        Self {
            root: data.join("sandboxes"),
            snapshots: data.join("snapshots"),
        }
    }

    /// The directory of all sandboxes.
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

    /// Where this disk lies.
    pub(crate) fn of_disk(&self, whose: Whose<'_>) -> Place {
        match whose {
            Whose::Sandbox(sandbox) => self.of(sandbox),
            Whose::Snapshot(snapshot) => Place {
                dir: self.snapshots.join(snapshot.as_str()),
            },
        }
    }
}

/// `DIR/sandboxes/<sbx-id>`, or `DIR/snapshots/<snap-id>`, which has a disk and nothing else.
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

    /// What its workload wrote, in the runtime `namespace`.
    pub(crate) fn disk(&self) -> PathBuf {
        let counted = self.counted();
        let around = if counted.is_dir() {
            &counted
        } else {
            &self.dir
        };
        around.join("upper")
    }

    /// What that lies in where the file system counts it.
    pub(crate) fn counted(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// All journals.
    pub(crate) fn journals(&self) -> PathBuf {
        self.dir.join("state/sessions")
    }

    /// One session's journal.
    pub(crate) fn journal(&self, session: &SessionId) -> PathBuf {
        self.journals().join(session.as_str())
    }

    /// Where the disk of a snapshot is copied to that is to take the place of this one.
    pub(crate) fn draft(&self) -> PathBuf {
        self.dir.join("restore.draft")
    }

    /// Where it lies once it is whole.
    pub(crate) fn restored(&self, snapshot: &SnapshotId) -> PathBuf {
        self.dir.join(format!("{RESTORED}{snapshot}"))
    }

    /// Every such one that lies there.
    pub(crate) fn all_restored(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(RESTORED.as_bytes())
            {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// What the newest launch was told.
    pub(crate) fn launch_config(&self) -> PathBuf {
        self.dir.join(LaunchConfig::FILE)
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
