//! Local files as an archive, piece by piece.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata},
    io::Read as _,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileTypeExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    Done,
    tar::{BLOCK_BYTES, Entry, Kind, header},
};
use crate::{
    error::{Failure, Result},
    limits::{COPY_DEPTH_MAX, STDIN_CHUNK_BYTES},
};

/// Bytes of all files below a path, as far as they can be seen: for a progress bar.
pub(super) fn size_of(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let Ok(entries) = fs::read_dir(path) else {
        return 0;
    };
    entries.flatten().map(|entry| size_of(&entry.path())).sum()
}

/// Writes archives to a channel; blocks while it is full.
#[derive(Debug)]
pub(super) struct Packer {
    out: mpsc::Sender<Bytes>,
    buffer: Vec<u8>,
    done: Done,
}

/// The other side takes nothing more.
enum Stop {
    Taken,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Packer {
    pub(super) fn new(out: mpsc::Sender<Bytes>) -> Self {
        Self {
            out,
            buffer: Vec::with_capacity(STDIN_CHUNK_BYTES),
            done: Done::default(),
        }
    }

    /// Packs `path` as `it/name`; without a name the content of a directory as that of `it`. Last
    /// comes `whole`, which says that nothing is missing.
    pub(super) fn pack(mut self, path: &Path, name: Option<&OsStr>) -> Result<Done> {
        let packed = match name {
            Some(name) => self.add(path, &[b"it/", name.as_bytes()].concat(), 0),
            None => self.content(path, b"it/", 0),
        };
        let whole = header(&Entry {
            name: b"whole/".to_vec(),
            mode: 0o700,
            modified: 0,
            kind: Kind::Directory,
        });
        match packed
            .and_then(|()| self.put(&whole))
            .and_then(|()| self.put(&[0; 2 * BLOCK_BYTES]))
            .and_then(|()| self.flush())
        {
            // Why it takes nothing is seen by whoever follows it.
            Ok(()) | Err(Stop::Taken) => Ok(self.done),
            Err(Stop::Failed(failure)) => Err(failure),
        }
    }

    fn add(&mut self, path: &Path, name: &[u8], depth: u32) -> std::result::Result<(), Stop> {
        let metadata =
            fs::symlink_metadata(path).map_err(|error| Failure::file("read", path, &error))?;
        let kind = metadata.file_type();
        if kind.is_dir() {
            let name = [name, b"/"].concat();
            self.put(&header(&entry(&metadata, &name, Kind::Directory)))?;
            return self.content(path, &name, depth);
        }
        if kind.is_symlink() {
            let target =
                fs::read_link(path).map_err(|error| Failure::file("read", path, &error))?;
            let target = Kind::Symlink(target.as_os_str().as_bytes().to_vec());
            self.put(&header(&entry(&metadata, name, target)))?;
            self.done.files += 1;
            return Ok(());
        }
        if kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device() {
            self.done.skipped.push(path.display().to_string());
            return Ok(());
        }
        self.file(path, name)
    }

    fn content(&mut self, path: &Path, name: &[u8], depth: u32) -> std::result::Result<(), Stop> {
        if depth >= COPY_DEPTH_MAX {
            let message = format!(
                "{}: deeper than {COPY_DEPTH_MAX} directories",
                path.display()
            );
            return Err(Failure::new("file", message).into());
        }
        let failed = |error: &std::io::Error| Failure::file("read", path, error);
        let mut names = Vec::<OsString>::new();
        for entry in fs::read_dir(path).map_err(|error| failed(&error))? {
            names.push(entry.map_err(|error| failed(&error))?.file_name());
        }
        names.sort();
        for child in names {
            let inside: PathBuf = path.join(&child);
            self.add(&inside, &[name, child.as_bytes()].concat(), depth + 1)?;
        }
        Ok(())
    }

    /// A file is as long as it was when it was opened; that it changed meanwhile is an error.
    fn file(&mut self, path: &Path, name: &[u8]) -> std::result::Result<(), Stop> {
        let failed = |error: &std::io::Error| Failure::file("read", path, error);
        let file = File::open(path).map_err(|error| failed(&error))?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        let size = metadata.len();
        self.put(&header(&entry(&metadata, name, Kind::File(size))))?;
        let mut left = size;
        let mut file = file.take(size);
        let mut piece = vec![0; STDIN_CHUNK_BYTES];
        while left > 0 {
            let count = file.read(&mut piece).map_err(|error| failed(&error))?;
            if count == 0 {
                let message = format!("{} became shorter while it was copied", path.display());
                return Err(Failure::new("file", message).into());
            }
            left -= count as u64;
            self.put(piece.get(..count).unwrap_or_default())?;
        }
        let padding = size.next_multiple_of(BLOCK_BYTES as u64) - size;
        self.put(&vec![0; usize::try_from(padding).unwrap_or_default()])?;
        self.done.files += 1;
        self.done.bytes += size;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> std::result::Result<(), Stop> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= STDIN_CHUNK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<(), Stop> {
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        self.out.blocking_send(bytes).map_err(|_| Stop::Taken)
    }
}

fn entry(metadata: &Metadata, name: &[u8], kind: Kind) -> Entry {
    Entry {
        name: name.to_vec(),
        mode: metadata.mode() & 0o7777,
        modified: u64::try_from(metadata.mtime()).unwrap_or(0),
        kind,
    }
}
