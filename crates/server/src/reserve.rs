//! A little of the data folder's disk that is kept for what frees space: on a full disk the store
//! must still take down that a sandbox is paused or deleted.
//!
//! ```text
//!   DIR/reserve  ████████   a full disk is met ─► one step is given up, and the write tried again
//!                ██████░░   there is room again ─► the step is taken back
//! ```
//! Where a file system holds a number of files and no more, some of them are kept in the same way
//! (`DIR/reserve.files/`). It goes in steps, since others write to the disk, too: what they take of
//! one step leaves the next. What takes space (a new sandbox, a copy, a start) never gets any of it.

mod spares;

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::{fs::FallocateFlags, io::Errno};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::spares::Spares;
use crate::{
    limits::{
        DISK_FILES_FREE_MIN, DISK_FREE_MIN, RESERVE_BYTES, RESERVE_FILES, RESERVE_LOOK_EVERY,
        RESERVE_STEP_BYTES, RESERVE_STEP_FILES,
    },
    sessions::CallError,
};

/// What `st_blocks` counts in.
const BLOCK_BYTES: u64 = 512;

/// The disk of the data folder has no room for what was asked.
#[derive(Debug, thiserror::Error)]
#[error(
    "the disk of the server's data folder {} {lack}: delete sandboxes, snapshots or images, or \
     make room on it, then try again", folder.display()
)]
pub(crate) struct Full {
    folder: PathBuf,
    lack: &'static str,
}

impl From<Full> for CallError {
    fn from(full: Full) -> Self {
        Self::DiskFull {
            message: full.to_string(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reserve {
    folder: PathBuf,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    file: Option<File>,
    bytes: u64,
    spares: Option<Spares>,
}

impl Held {
    const NOTHING: Self = Self {
        file: None,
        bytes: 0,
        spares: None,
    };
}

/// What of a disk anybody may have.
#[derive(Debug, Clone, Copy)]
struct Room {
    bytes: u64,
    files: u64,
}

impl Reserve {
    /// Takes the space in a data folder, as far as there is any.
    pub(crate) fn keep(folder: &Path) -> Self {
        let mut held = Held::NOTHING;
        match taken_up(&folder.join("reserve")) {
            Ok((file, bytes)) => (held.file, held.bytes) = (Some(file), bytes),
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "there is no reserve for a full disk");
            }
        }
        match Spares::taken_up(folder.join("reserve.files")) {
            Ok(spares) => held.spares = Some(spares),
            Err(error) => {
                tracing::warn!(%error, folder = %folder.display(), "there is no reserve of files for a full disk");
            }
        }
        let reserve = Self {
            folder: folder.to_owned(),
            held: Mutex::new(held),
        };
        reserve.refill();
        if reserve.is_full() {
            tracing::warn!(folder = %reserve.folder.display(), "the disk of the data folder is full: what takes space is refused");
        }
        reserve
    }

    /// On a disk that is never full.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self::nothing_on(PathBuf::new())
    }

    /// Nothing, on the disk of this folder, which is never full while there is none.
    #[cfg(test)]
    pub(crate) fn nothing_on(folder: PathBuf) -> Self {
        Self {
            folder,
            held: Mutex::new(Held::NOTHING),
        }
    }

    /// Gives some of what lacks back to the disk, for what comes next. `false`: there is none left.
    pub(crate) fn give_up(&self) -> bool {
        let mut held = self.held();
        let room = self.room();
        let lacks_files = room.files < RESERVE_STEP_FILES;
        let lacks_bytes = room.bytes < RESERVE_STEP_BYTES;
        // What nobody sees a lack of may have lacked a moment ago.
        let files = (lacks_files || !lacks_bytes) && self.give_up_files(&mut held);
        let bytes = (lacks_bytes || !lacks_files) && self.give_up_bytes(&mut held);
        files || bytes
    }

    fn give_up_bytes(&self, held: &mut Held) -> bool {
        let Some(left) = held.bytes.checked_sub(RESERVE_STEP_BYTES) else {
            return false;
        };
        let Some(file) = &held.file else { return false };
        match file.set_len(left) {
            Ok(()) => {
                tracing::warn!(folder = %self.folder.display(), left, "the disk of the data folder is full; a part of the reserve is given up");
                held.bytes = left;
                true
            }
            Err(error) => {
                tracing::error!(%error, "the reserve for a full disk can't be used");
                false
            }
        }
    }

    fn give_up_files(&self, held: &mut Held) -> bool {
        let Some(spares) = &mut held.spares else {
            return false;
        };
        match spares.give_up() {
            Ok(true) => {
                tracing::warn!(folder = %self.folder.display(), left = spares.count(), "the disk of the data folder takes no more files; a part of the reserve is given up");
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::error!(%error, "the reserve of files for a full disk can't be used");
                false
            }
        }
    }

    /// Has room for a few small writes, before something that frees space.
    pub(crate) fn make_room(&self) {
        if self.is_spent() {
            self.give_up();
        }
    }

    /// Takes back what was given up, as long as there is room enough.
    pub(crate) fn refill(&self) {
        let mut held = self.held();
        self.refill_bytes(&mut held);
        self.refill_files(&mut held);
    }

    fn refill_bytes(&self, held: &mut Held) {
        let before = held.bytes;
        while held.bytes < RESERVE_BYTES && self.room().bytes >= DISK_FREE_MIN + RESERVE_STEP_BYTES
        {
            let Some(file) = &held.file else { return };
            match allocate(file, held.bytes) {
                Ok(()) => held.bytes += RESERVE_STEP_BYTES,
                Err(error) => {
                    tracing::debug!(%error, "no space for the reserve");
                    // Part of the step may be there.
                    if let Err(error) = file.set_len(held.bytes) {
                        tracing::error!(%error, "the reserve for a full disk can't be made smaller");
                    }
                    return;
                }
            }
        }
        if held.bytes == RESERVE_BYTES && before < RESERVE_BYTES {
            tracing::info!(folder = %self.folder.display(), "the reserve for a full disk is whole");
        }
    }

    fn refill_files(&self, held: &mut Held) {
        let Some(spares) = &mut held.spares else {
            return;
        };
        while spares.count() < RESERVE_FILES
            && self.room().files >= DISK_FILES_FREE_MIN + RESERVE_STEP_FILES
        {
            if let Err(error) = spares.take_step() {
                tracing::debug!(%error, "no room for the reserve of files");
                return;
            }
        }
    }

    /// Refuses what takes space when there is hardly any.
    pub(crate) fn admit(&self) -> Result<(), Full> {
        if self.is_full() {
            Err(self.full())
        } else {
            Ok(())
        }
    }

    /// Whether the disk has too little room for what takes space.
    pub(crate) fn is_full(&self) -> bool {
        let room = self.room();
        room.bytes < DISK_FREE_MIN || room.files < DISK_FILES_FREE_MIN
    }

    /// What somebody is told whose call met a full disk.
    pub(crate) fn full(&self) -> Full {
        let lacks_files = self.room().files < DISK_FILES_FREE_MIN;
        Full {
            folder: self.folder.clone(),
            lack: if lacks_files {
                "takes no more files"
            } else {
                "is full"
            },
        }
    }

    /// What failed while the disk was full failed for that.
    pub(crate) fn blame(&self, error: CallError) -> CallError {
        let ours = matches!(
            error,
            CallError::Failed { .. } | CallError::ResumeFailed { .. }
        );
        if !ours || !self.is_spent() {
            return error;
        }
        tracing::warn!(%error, "a call failed on a full disk");
        self.full().into()
    }

    /// Writes, on a full disk with what the reserve gives.
    pub(crate) fn insist<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match write() {
                Err(error) if error.kind() == io::ErrorKind::StorageFull && self.give_up() => {}
                done => return done,
            }
        }
    }

    /// Takes back what was given up whenever there is room, until the server goes.
    pub(crate) async fn watch(self: Arc<Self>, stop: CancellationToken) {
        let watching = async {
            loop {
                sleep(RESERVE_LOOK_EVERY).await;
                self.refill();
            }
        };
        stop.run_until_cancelled(watching).await;
    }

    /// Whether the disk takes hardly any more files.
    pub(crate) fn lacks_files(&self) -> bool {
        self.room().files < RESERVE_STEP_FILES
    }

    fn is_spent(&self) -> bool {
        let room = self.room();
        room.bytes < RESERVE_STEP_BYTES || room.files < RESERVE_STEP_FILES
    }

    /// What anybody may have; a disk that can't be asked is not called full.
    fn room(&self) -> Room {
        let unlimited = Room {
            bytes: u64::MAX,
            files: u64::MAX,
        };
        match rustix::fs::statvfs(&self.folder) {
            Ok(disk) => Room {
                bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
                // Some file systems have no bound, and say that they have none at all.
                files: if disk.f_files == 0 {
                    unlimited.files
                } else {
                    disk.f_favail
                },
            },
            Err(_unknown) => unlimited,
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server before left of it. A copy of a data folder may have a hole for a reserve.
fn taken_up(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let found = file.metadata()?;
    let is_real = found.blocks().saturating_mul(BLOCK_BYTES) >= found.len();
    let steps = found.len().min(RESERVE_BYTES) / RESERVE_STEP_BYTES;
    let bytes = if is_real {
        steps * RESERVE_STEP_BYTES
    } else {
        0
    };
    file.set_len(bytes)?;
    Ok((file, bytes))
}

/// Adds one step at the end, as blocks of the disk.
fn allocate(mut file: &File, end: u64) -> io::Result<()> {
    use std::io::{Seek as _, SeekFrom};
    match rustix::fs::fallocate(file, FallocateFlags::empty(), end, RESERVE_STEP_BYTES) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        done => return Ok(done?),
    }
    file.seek(SeekFrom::Start(end))?;
    io::copy(
        &mut io::Read::take(io::repeat(0), RESERVE_STEP_BYTES),
        &mut file,
    )?;
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_goes_in_steps_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let reserve = Reserve::keep(folder.path());
        let blocks = || {
            let file = std::fs::metadata(folder.path().join("reserve")).unwrap();
            file.blocks() * BLOCK_BYTES
        };
        assert!(blocks() >= RESERVE_BYTES);
        let mut tries = 0;
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let written = reserve.insist(|| {
            tries += 1;
            if tries == 3 { Ok("done") } else { Err(full()) }
        });
        assert_eq!(written.unwrap(), "done");
        assert!(blocks() <= RESERVE_BYTES - RESERVE_STEP_BYTES);
        let spent = reserve.insist(|| Err::<(), _>(full())).unwrap_err();
        assert_eq!(spent.kind(), io::ErrorKind::StorageFull);
        assert_eq!(blocks(), 0);
        drop(reserve);
        let reserve = Reserve::keep(folder.path());
        assert!(blocks() >= RESERVE_BYTES);
        reserve.admit().unwrap();
    }

    #[test]
    fn files_are_given_up_in_steps_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let files = || {
            let files = std::fs::read_dir(folder.path().join("reserve.files")).unwrap();
            files.count() as u64
        };
        let reserve = Reserve::keep(folder.path());
        assert_eq!(files(), RESERVE_FILES);
        assert!(reserve.give_up());
        assert_eq!(files(), RESERVE_FILES - RESERVE_STEP_FILES);
        // Another server goes on with what this one left, and makes it whole.
        drop(reserve);
        let mut left = Spares::taken_up(folder.path().join("reserve.files")).unwrap();
        assert_eq!(left.count(), files());
        while left.give_up().unwrap() {}
        assert_eq!((left.count(), files()), (0, 0));
        Reserve::keep(folder.path());
        assert_eq!(files(), RESERVE_FILES);
    }

    #[test]
    fn a_hole_is_no_reserve() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reserve");
        File::create(&path).unwrap().set_len(RESERVE_BYTES).unwrap();
        assert_eq!(taken_up(&path).unwrap().1, 0);
    }
}
