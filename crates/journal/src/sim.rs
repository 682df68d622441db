//! A simulated disk, for tests: it knows what was synced and can lose the rest.
//!
//! ```text
//!   verbs ──► counted operations ──► written state ──► Crash::Kill        what a kill leaves
//!                    │                     │
//!             stop after the n-th    synced state ──► Crash::PowerLoss   any part of the rest
//! ```
//!
//! Contents that were not synced are kept or lost by sectors of 512 bytes, names by prefixes of
//! what was done to the directory, both as the seed says. A disk has a capacity, and can turn
//! read-only.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::storage::{Access, DataFile, NameSync, Storage};

const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: u64 = 4096;

/// How a disk comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The process was killed: everything written is there.
    Kill,
    /// The power went: what was synced is there, and of the rest whatever the seed chose.
    PowerLoss {
        /// Chooses what of the rest is there.
        seed: u64,
    },
}

#[derive(Debug, Clone, Default)]
struct Inode {
    now: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Debug, Clone)]
enum NameChange {
    Set(String, usize),
    Remove(String),
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    names_synced: BTreeMap<String, usize>,
    /// Changes of names since the last sync of the directory.
    changes: Vec<NameChange>,
    operations: u64,
    stop_after: Option<u64>,
    /// The write that is stopped is done up to the end of its first page.
    tear: bool,
    syncs: u64,
    capacity: Option<u64>,
    read_only: bool,
    separate_names: bool,
    fail_sync: bool,
    next_secret: u32,
}

/// The disk. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct SimDisk(Arc<Mutex<State>>);

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: usize,
    access: Access,
}

fn stopped() -> io::Error {
    io::Error::other("simulated: the process is gone")
}

impl State {
    /// Counts a change; `Err` when the process is gone by then.
    fn count(&mut self) -> io::Result<()> {
        if self
            .stop_after
            .is_some_and(|limit| self.operations >= limit)
        {
            return Err(stopped());
        }
        if self.read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        self.operations += 1;
        Ok(())
    }

    fn used(&self) -> u64 {
        let live: std::collections::BTreeSet<_> = self.names.values().collect();
        live.into_iter()
            .filter_map(|inode| self.inodes.get(*inode))
            .map(|inode| (inode.now.len() as u64).next_multiple_of(PAGE_BYTES))
            .sum()
    }
}

impl SimDisk {
    /// An empty disk on which a sync of a new file brings its name, too.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same disk, as a storage.
    pub fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many changes were made so far: writes, cuts, names, syncs.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// How many syncs were made so far.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// After so many changes every other one fails, as if the process were gone.
    pub fn stop_after(&self, operations: u64) {
        self.state().stop_after = Some(operations);
    }

    /// The same; the write that fails first is done up to the end of a page.
    pub fn tear_after(&self, operations: u64) {
        let mut state = self.state();
        state.stop_after = Some(operations);
        state.tear = true;
    }

    /// Sets how many bytes fit, in whole pages.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Refuses all changes, or takes them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.state().read_only = read_only;
    }

    /// Makes the names need a sync of the directory.
    pub fn separate_names(&self) {
        self.state().separate_names = true;
    }

    /// Fails every sync from now on.
    pub fn fail_syncs(&self) {
        self.state().fail_sync = true;
    }

    /// All files with their contents.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.state();
        let content = |inode: &usize| state.inodes.get(*inode).map(|i| i.now.clone());
        state
            .names
            .iter()
            .map(|(name, inode)| (name.clone(), content(inode).unwrap_or_default()))
            .collect()
    }

    /// A disk with these files, all of them synced.
    pub fn with_files(files: &[(String, Vec<u8>)]) -> Self {
        let disk = Self::new();
        {
            let mut state = disk.state();
            for (name, bytes) in files {
                let inode = state.inodes.len();
                state.inodes.push(Inode {
                    now: bytes.clone(),
                    synced: bytes.clone(),
                });
                state.names.insert(name.clone(), inode);
                state.names_synced.insert(name.clone(), inode);
            }
        }
        disk
    }

    /// The disk as it comes back after a crash at this moment.
    #[must_use]
    pub fn image(&self, crash: Crash) -> Self {
        let state = self.state();
        let Crash::PowerLoss { seed } = crash else {
            drop(state);
            let image = Self::with_files(&self.files());
            image.state().next_secret = self.state().next_secret;
            return image;
        };
        let mut random = Random(seed);
        let mut names = state.names_synced.clone();
        let kept = random.below(state.changes.len() as u64 + 1);
        for change in state
            .changes
            .iter()
            .take(usize::try_from(kept).unwrap_or(0))
        {
            match change {
                NameChange::Set(name, inode) => {
                    names.retain(|_, other| other != inode);
                    names.insert(name.clone(), *inode);
                }
                NameChange::Remove(name) => {
                    names.remove(name);
                }
            }
        }
        let files: Vec<_> = names
            .into_iter()
            .filter_map(|(name, inode)| Some((name, state.inodes.get(inode)?.lose(&mut random))))
            .collect();
        let secret = state.next_secret;
        drop(state);
        let image = Self::with_files(&files);
        image.state().next_secret = secret;
        image
    }
}

impl Inode {
    /// What a power cut leaves: each sector is the new or the old one, the length anything
    /// between the two.
    fn lose(&self, random: &mut Random) -> Vec<u8> {
        if self.now == self.synced {
            return self.now.clone();
        }
        let (old, new) = (self.synced.len() as u64, self.now.len() as u64);
        let (short, long) = (old.min(new), old.max(new));
        let len = match random.below(4) {
            0 => old,
            1 => new,
            _ => short + random.below(long - short + 1),
        };
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let keep_of_8 = random.below(9);
        for (index, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
            let source = if random.below(8) < keep_of_8 {
                &self.now
            } else {
                &self.synced
            };
            for (to, from) in sector
                .iter_mut()
                .zip(source.iter().skip(index * SECTOR_BYTES))
            {
                *to = *from;
            }
        }
        bytes
    }
}

/// A small generator of numbers that follow from a seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, 0 for 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }
}

impl Storage for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DataFile>> {
        let mut state = self.state();
        state.count()?;
        if state.names.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        state.names.insert(name.to_owned(), inode);
        state.changes.push(NameChange::Set(name.to_owned(), inode));
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            inode,
            access: Access::Write,
        }))
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DataFile>> {
        let state = self.state();
        let inode = *state.names.get(name).ok_or(ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile {
            disk: self.clone(),
            inode,
            access,
        }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.count()?;
        state.names.remove(name).ok_or(ErrorKind::NotFound)?;
        state.changes.push(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.count()?;
        let inode = state.names.remove(from).ok_or(ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), inode);
        state.changes.push(NameChange::Set(to.to_owned(), inode));
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = self.state();
        state.count()?;
        state.syncs += 1;
        state.names_synced = state.names.clone();
        state.changes.clear();
        Ok(())
    }

    fn name_sync(&self) -> NameSync {
        if self.state().separate_names {
            NameSync::Separate
        } else {
            NameSync::WithFile
        }
    }

    fn secret(&self) -> io::Result<u32> {
        let mut state = self.state();
        state.next_secret = state
            .next_secret
            .wrapping_mul(0x9E37_79B1)
            .wrapping_add(0x7F4A_7C15);
        Ok(state.next_secret)
    }
}

impl DataFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state();
        let bytes = state
            .inodes
            .get(self.inode)
            .map_or(&[][..], |inode| &inode.now);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let source = bytes.get(offset..).unwrap_or_default();
        let count = source.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(source) {
            *to = *from;
        }
        Ok(count)
    }

    fn write_all_at(&self, head: &[u8], body: &[u8], offset: u64) -> io::Result<()> {
        let bytes = [head, body].concat();
        let mut state = self.disk.state();
        if self.access == Access::Read {
            return Err(ErrorKind::PermissionDenied.into());
        }
        let mut outcome = Ok(());
        let mut allowed = bytes.len();
        let page_rest = usize::try_from(PAGE_BYTES - offset % PAGE_BYTES).unwrap_or(0);
        if let Err(error) = state.count() {
            if !std::mem::take(&mut state.tear) || bytes.len() <= page_rest {
                return Err(error);
            }
            (allowed, outcome) = (page_rest, Err(error));
        }
        let others = state.used();
        let Some(capacity) = state.capacity.or(Some(u64::MAX)) else {
            return Ok(());
        };
        let Some(inode) = state.inodes.get_mut(self.inode) else {
            return Err(ErrorKind::NotFound.into());
        };
        let mine = (inode.now.len() as u64).next_multiple_of(PAGE_BYTES);
        let end_max = capacity.saturating_sub(others - mine.min(others));
        let room = usize::try_from(end_max.saturating_sub(offset)).unwrap_or(usize::MAX);
        if room < allowed {
            (allowed, outcome) = (room, Err(ErrorKind::StorageFull.into()));
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(allowed);
        if allowed > 0 && inode.now.len() < end {
            inode.now.resize(end, 0);
        }
        for (to, from) in inode
            .now
            .iter_mut()
            .skip(start)
            .zip(bytes.iter().take(allowed))
        {
            *to = *from;
        }
        outcome
    }

    fn byte_len(&self) -> io::Result<u64> {
        let state = self.disk.state();
        Ok(state
            .inodes
            .get(self.inode)
            .map_or(0, |inode| inode.now.len() as u64))
    }

    fn truncate(&self, byte_len: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.count()?;
        if let Some(inode) = state.inodes.get_mut(self.inode) {
            inode.now.resize(usize::try_from(byte_len).unwrap_or(0), 0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.count()?;
        if state.fail_sync {
            return Err(io::Error::other("simulated: the disk lost its cache"));
        }
        state.syncs += 1;
        let separate = state.separate_names;
        if let Some(inode) = state.inodes.get_mut(self.inode) {
            inode.synced = inode.now.clone();
        }
        if !separate {
            // In order: what was done to names before comes along.
            state.names_synced = state.names.clone();
            state.changes.clear();
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
