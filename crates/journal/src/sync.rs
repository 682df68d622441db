//! Bringing a journal to the disk without holding its lock.
//!
//! ```text
//! lock   append …                        unlock
//! lock   point = sync_point()            unlock
//!        point.sync()                                 the slow part; appends go on
//! lock   synced(&point), take_garbage()  unlock       the published tail moves
//!        garbage.remove()                             the other slow part
//! ```

use std::{
    io::{self, ErrorKind},
    sync::Arc,
};

use crate::storage::{DataFile, NameSync, Storage};

/// What has to be synced, as of one moment.
#[derive(Debug, Clone)]
#[must_use = "a point that isn't synced publishes nothing"]
pub struct SyncPoint {
    pub(crate) files: Vec<Arc<dyn DataFile>>,
    pub(crate) directory: Option<Arc<dyn Storage>>,
    pub(crate) writes: u64,
    pub(crate) names: u64,
    pub(crate) up_to_seq: u64,
    pub(crate) lease: u64,
    pub(crate) ordinal: u64,
}

impl SyncPoint {
    /// Brings everything up to the point to the disk. Blocks; needs no lock.
    pub fn sync(&self) -> io::Result<()> {
        for file in &self.files {
            file.sync_data()?;
        }
        if let Some(directory) = &self.directory {
            directory.sync_directory()?;
        }
        Ok(())
    }

    /// The last record it covers.
    pub fn up_to_seq(&self) -> u64 {
        self.up_to_seq
    }

    /// How many syncs it takes.
    pub fn sync_count(&self) -> usize {
        self.files.len() + usize::from(self.directory.is_some())
    }
}

/// Files that nobody needs any more.
#[derive(Debug, Clone)]
#[must_use = "files stay until they are removed"]
pub struct Garbage {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) names: Vec<String>,
}

impl Garbage {
    /// Removes them. Blocks; needs no lock. Readers that have one open can read on.
    pub fn remove(&self) -> io::Result<()> {
        for name in &self.names {
            match self.storage.remove(name) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {} // It is gone already.
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// How many there are.
    pub fn file_count(&self) -> usize {
        self.names.len()
    }
}

/// Which writes are on disk.
#[derive(Debug, Default)]
pub(crate) struct Dirt {
    /// Writes so far, and how many of them are synced.
    pub(crate) writes: u64,
    pub(crate) writes_synced: u64,
    /// The same for names of files.
    pub(crate) names: u64,
    pub(crate) names_synced: u64,
    /// Sealed segments with writes that may not be on disk.
    pub(crate) sealed: Vec<(u64, Arc<dyn DataFile>)>,
}

impl Dirt {
    pub(crate) fn is_clean(&self) -> bool {
        self.writes == self.writes_synced && self.names == self.names_synced
    }

    pub(crate) fn directory_for(&self, storage: &Arc<dyn Storage>) -> Option<Arc<dyn Storage>> {
        (self.names > self.names_synced && storage.name_sync() == NameSync::Separate)
            .then(|| Arc::clone(storage))
    }

    pub(crate) fn synced(&mut self, point: &SyncPoint) {
        self.writes_synced = self.writes_synced.max(point.writes);
        self.names_synced = self.names_synced.max(point.names);
        self.sealed.retain(|(ordinal, _)| *ordinal >= point.ordinal);
    }
}
