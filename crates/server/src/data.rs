//! The data directory: who uses it, and the two files that tell clients how to reach the server.
//!
//! ```text
//! DIR/lock         held by the server that uses the directory
//! DIR/outlive.db   the store
//! DIR/reserve      space for a full disk (see [`crate::reserve`]), with reserve.files/
//! DIR/sandboxes/   one directory a sandbox
//! DIR/snapshots/   one directory a snapshot
//! DIR/images/      layers of root file systems (see [`crate::images`])
//! DIR/admin.token  a key for the operator, 0600
//! DIR/endpoint     the base URL; written last, so whoever sees it can call
//! ```
//! On a full disk a start needs no block that it hasn't: a workload that takes whatever is freed
//! would have a part of the reserve with each. What every start writes has its block for good, and
//! is written in place: `DIR/lock`, and `DIR/.endpoint`, which has the name `endpoint` only while a
//! server answers there.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{
    FallocateFlags, FlockOperation, IFlags, fallocate, flock, ioctl_getflags, ioctl_setflags,
};

use crate::reserve::Reserve;

/// More than any note of a start, bytes: the block of a disk.
const NOTE_BYTES: u64 = 4096;

/// The directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Another server uses it.
    #[error("{} is used by another outlive server{}", path.display(), by(*pid))]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other server, when it said so.
        pid: Option<u32>,
    },
    /// A file in it can't be used.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl DataError {
    /// Whether the disk has no room for what must be written.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }
}

fn by(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}

/// A data directory that this server holds.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
    reserve: Arc<Reserve>,
}

impl DataDir {
    /// Makes it if needed, and holds it until the value is dropped or the process ends.
    pub(crate) fn open(path: &Path) -> Result<Self, DataError> {
        let path = std::path::absolute(path).map_err(|source| at(path, source))?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(&path)
            .map_err(|source| at(&path, source))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|source| at(&lock_path, source))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = fs::read_to_string(&lock_path)
                    .ok()
                    .and_then(|text| text.trim().parse().ok());
                return Err(DataError::InUse { path, pid });
            }
            Err(error) => return Err(at(&lock_path, error.into())),
        }
        let reserve = Arc::new(Reserve::keep(&path));
        let pid = std::process::id().to_string();
        reserve
            .insist(|| note(&lock, &pid, &reserve))
            .map_err(|source| at(&lock_path, source))?;
        let sandboxes = path.join("sandboxes");
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(&sandboxes)
            .map_err(|source| at(&sandboxes, source))?;
        let snapshots = path.join("snapshots");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&snapshots)
            .map_err(|source| at(&snapshots, source))?;
        let this = Self {
            path,
            _lock: lock,
            reserve,
        };
        // A stale address must not be taken for ours.
        this.remove("endpoint")?;
        Ok(this)
    }

    /// Where it is, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Space for a full disk.
    pub(crate) const fn reserve(&self) -> &Arc<Reserve> {
        &self.reserve
    }

    /// The operator's key, if one was written.
    pub(crate) fn admin_token(&self) -> Result<Option<String>, DataError> {
        let path = self.path.join("admin.token");
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(at(&path, source)),
        }
    }

    /// Writes the operator's key.
    pub(crate) fn write_admin_token(&self, token: &str) -> Result<(), DataError> {
        self.replace("admin.token", token)
    }

    /// Writes the base URL. Whoever sees the file sees all of it.
    pub(crate) fn write_endpoint(&self, url: &str) -> Result<(), DataError> {
        self.remove_endpoint()?;
        let path = self.path.join("endpoint");
        let kept = self.path.join(".endpoint");
        let written = self.reserve.insist(|| {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&kept)?;
            note(&file, url, &self.reserve)?;
            fs::hard_link(&kept, &path)
        });
        written.map_err(|source| at(&path, source))
    }

    /// Takes the base URL away: nobody answers there any more.
    pub(crate) fn remove_endpoint(&self) -> Result<(), DataError> {
        self.remove("endpoint")
    }

    fn remove(&self, name: &str) -> Result<(), DataError> {
        let path = self.path.join(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(at(&path, source)),
        }
    }

    /// Whoever reads the file sees the old text or the new one, never a part.
    #[expect(
        clippy::disallowed_methods,
        reason = "these files are made anew at every start, so the rename needs no sync"
    )]
    fn replace(&self, name: &str, text: &str) -> Result<(), DataError> {
        let path = self.path.join(name);
        let draft = self.path.join(format!(".{name}.new"));
        let replaced = self.reserve.insist(|| {
            match fs::remove_file(&draft) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&draft)?;
            writeln!(file, "{text}")?;
            fs::rename(&draft, &path)
        });
        replaced.map_err(|source| at(&path, source))
    }
}

/// Writes a line in place of what a file holds.
fn note(file: &File, text: &str, reserve: &Reserve) -> io::Result<()> {
    if !reserve.is_full()
        && let Err(error) = take_block(file)
    {
        tracing::debug!(%error, "a note of a start is written wherever there is room");
    }
    let line = format!("{text}\n");
    file.write_all_at(line.as_bytes(), 0)?;
    file.set_len(line.len() as u64)
}

/// Takes the block that a file of notes has for good, also on a disk that copies on write.
fn take_block(file: &File) -> io::Result<()> {
    // Only an empty file can be told so.
    file.set_len(0)?;
    if let Err(error) =
        ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::NOCOW))
    {
        tracing::debug!(%error, "a disk that knows no copies on write");
    }
    Ok(fallocate(file, FallocateFlags::KEEP_SIZE, 0, NOTE_BYTES)?)
}

fn at(path: &Path, source: io::Error) -> DataError {
    DataError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_second_server_is_refused_and_told_by_whom() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::open(dir.path()).unwrap();
        let error = DataDir::open(dir.path()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("is used by another outlive server"), "{text}");
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        drop(first);
        DataDir::open(dir.path()).unwrap();
    }

    #[test]
    fn a_start_writes_where_the_one_before_it_wrote() {
        // On a full disk whoever filled it took the block that a start had freed.
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let endpoint = dir.path().join("endpoint");
        let mut files = Vec::new();
        for url in ["http://[::1]:65535", "http://[::1]:1"] {
            let data = DataDir::open(dir.path()).unwrap();
            assert!(!endpoint.exists());
            data.write_endpoint(url).unwrap();
            assert_eq!(fs::read_to_string(&endpoint).unwrap().trim(), url);
            files.push(fs::metadata(&endpoint).unwrap().ino());
            assert!(fs::metadata(&endpoint).unwrap().blocks() > 0);
            data.remove_endpoint().unwrap();
            assert!(!endpoint.exists());
        }
        assert_eq!(files[0], files[1]);
    }

    #[test]
    fn the_operators_key_is_for_the_operator_only() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert_eq!(data.admin_token().unwrap(), None);
        data.write_admin_token("secret").unwrap();
        data.write_admin_token("other").unwrap();
        assert_eq!(data.admin_token().unwrap().as_deref(), Some("other"));
        let mode = fs::metadata(dir.path().join("admin.token"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
