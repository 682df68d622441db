//! The write-ahead log, synced by us.

use std::{
    fs, io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use tokio::sync::Mutex;

use crate::limits::LOG_BYTES_USUAL;

/// File systems that write over what is there in its place, as `statfs` calls them: ext4 and XFS.
const IN_PLACE: [u64; 2] = [0xef53, 0x5846_5342];

/// The write-ahead log, for syncs of our own.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// How many writes were asked to be synced.
    asked: AtomicU64,
    /// How many of them are.
    synced: Mutex<u64>,
}

impl Log {
    pub(super) fn of(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Self {
            path: path.into(),
            asked: AtomicU64::new(0),
            synced: Mutex::new(0),
        }
    }

    /// Takes the blocks that it has at its usual length, so that whoever fills the disk later
    /// doesn't take them first. Where that can't be had it grows as it is written.
    pub(super) fn take_blocks(&self) -> io::Result<()> {
        let log = fs::OpenOptions::new().write(true).open(&self.path)?;
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&log, keep, 0, LOG_BYTES_USUAL)?;
        let kind = u64::try_from(rustix::fs::fstatfs(&log)?.f_type);
        if kind.is_ok_and(|kind| IN_PLACE.contains(&kind)) {
            fill(&log)?;
        }
        Ok(())
    }

    /// Has everything on the disk that was written before the call; whoever comes while another
    /// sync is under way shares the next one.
    pub(super) async fn sync(&self) -> io::Result<()> {
        let mine = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut synced = self.synced.lock().await;
        if *synced >= mine {
            return Ok(());
        }
        let upto = self.asked.load(Ordering::Acquire);
        let path = self.path.clone();
        // By its name: SQLite makes a new one when it moved all of the old one.
        let done = tokio::task::spawn_blocking(move || match fs::File::open(path) {
            Ok(log) => log.sync_data(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        });
        done.await.map_err(io::Error::other)??;
        *synced = upto;
        Ok(())
    }
}

/// Writes zeros behind what SQLite wrote, which are no entries to it. A sync of what is written over
/// them later is a third faster: the file system has nothing to note of its own.
fn fill(log: &fs::File) -> io::Result<()> {
    let zeros = vec![0; 64 * 1024];
    let mut at = log.metadata()?.len();
    while at < LOG_BYTES_USUAL {
        let left = usize::try_from(LOG_BYTES_USUAL - at).unwrap_or(usize::MAX);
        let part = &zeros[..left.min(zeros.len())];
        log.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    log.sync_all()
}
