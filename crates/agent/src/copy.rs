//! Copies the disk of one sandbox to another: everything its workload wrote, with owners moved
//! from one range of host ids to the other.
//!
//! ```text
//!   server ─ CopyConfig ─► copy ─► CopyNews::Progress … CopyNews::Done | CopyNews::Failed
//! ```
//! The source stands still or has no runtime meanwhile, so its files are of one instant. Contents
//! are shared with the source where the file system can (reflink), and copied in the kernel where
//! it can't, without the holes. No link is followed. What can't be copied as it was (sockets,
//! devices, access lists that name others) is left out and counted.

mod lists;
mod owners;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use outlive_api::launch::{Copied, CopyConfig, CopyNews, LaunchFailure};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat, chownat, copy_file_range, fstat,
        ftruncate, futimens, ioctl_ficlone, linkat, mkdirat, mknodat, openat, readlinkat, seek,
        statat, symlinkat, syncfs, utimensat,
    },
    io::Errno,
};

use self::owners::{Owners, times};
use crate::{
    clock::monotonic,
    launch::{
        c_string,
        quota::{Counted, disk_of},
        step::{Fail, Step, failure},
    },
    limits::{COPY_DEPTH_MAX, COPY_NEWS_EVERY, COPY_PIECE_BYTES, COPY_STACK_BYTES},
};

/// What of a sandbox's directory is its disk; it may lie in the part that is counted.
const PARTS: [&str; 2] = ["upper", "files"];
/// A longer path is cut where it is told.
const SHOWN_PATH_BYTES_MAX: usize = 256;

/// Reads a [`CopyConfig`], copies, tells how it goes on and how it ended.
pub fn main() -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    std::io::stdin().take(1 << 20).read_to_end(&mut bytes)?;
    let config: CopyConfig = minicbor::decode(&bytes)?;
    tell(&copy(&config, tell)?)?;
    Ok(())
}

/// Copies in a thread with room for directories as deep as we follow; how it ended.
fn copy<T>(config: &CopyConfig, tell: T) -> anyhow::Result<CopyNews>
where
    T: FnMut(&CopyNews) -> std::io::Result<()> + Send,
{
    std::thread::scope(|scope| {
        let copying = std::thread::Builder::new()
            .stack_size(COPY_STACK_BYTES)
            .spawn_scoped(scope, || {
                let mut copier = Copier::new(config, tell);
                match copier.run(config) {
                    Ok(()) => CopyNews::Done(copier.copied),
                    Err(failure) if copier.is_too_deep => CopyNews::TooDeep(failure.message),
                    Err(failure) => CopyNews::Failed(failure),
                }
            })?;
        copying
            .join()
            .map_err(|_| anyhow::anyhow!("the copying thread panicked"))
    })
}

/// Four bytes of length, little-endian, then CBOR.
fn tell(news: &CopyNews) -> std::io::Result<()> {
    let body = minicbor::to_vec(news).map_err(std::io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(std::io::Error::other)?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&length.to_le_bytes())?;
    stdout.write_all(&body)?;
    stdout.flush()
}

struct Copier<T> {
    owners: Owners,
    /// Files with several names that were copied, by device and inode: where their first copy
    /// lies, below the part's root.
    seen: HashMap<(u64, u64), CString>,
    copied: Copied,
    is_too_deep: bool,
    told_at: Duration,
    tell: T,
}

impl<T: FnMut(&CopyNews) -> std::io::Result<()>> Copier<T> {
    fn new(config: &CopyConfig, tell: T) -> Self {
        Self {
            owners: Owners::of(config.ids),
            seen: HashMap::new(),
            copied: Copied::default(),
            is_too_deep: false,
            told_at: monotonic(),
            tell,
        }
    }

    fn run(&mut self, config: &CopyConfig) -> Step<()> {
        let from = open_dir(CWD, &c_string(&config.from)?, "the source")?;
        let to = open_dir(CWD, &c_string(&config.to)?, "the copy")?;
        let counted = if config.counted {
            Counted::Yes
        } else {
            Counted::No
        };
        let (from, to) = (
            disk_of(from.as_fd(), Counted::No)?,
            disk_of(to.as_fd(), counted)?,
        );
        for part in PARTS {
            let name = c_string(part)?;
            let source = match openat(&from, &name, DIRECTORY, Mode::empty()) {
                Ok(source) => source,
                Err(Errno::NOENT) => continue, // Another runtime's.
                Err(e) => return Err(e).step("opening the source's disk"),
            };
            mkdirat(&to, &name, Mode::from_raw_mode(0o700)).step("making the copy's disk")?;
            let target = open_dir(to.as_fd(), &name, "the copy's disk")?;
            self.seen.clear();
            self.copy_dir(&source, &target, &target, &mut Vec::new())?;
        }
        syncfs(&to).step("writing the copy to disk")
    }

    /// Copies what is in a directory, then what the directory itself is.
    fn copy_dir(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        root: &OwnedFd,
        path: &mut Vec<u8>,
    ) -> Step<()> {
        let step = "reading a directory of the source";
        if path.split(|byte| *byte == b'/').count() > COPY_DEPTH_MAX {
            self.is_too_deep = true;
            let message = format!("directories are nested deeper than {COPY_DEPTH_MAX}");
            return Err(failure(step, &message));
        }
        let stat = fstat(from).step(step)?;
        for entry in self.in_reach(Dir::read_from(from), step)? {
            let entry = entry.step(step)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let length = path.len();
            path.extend_from_slice(name.to_bytes());
            self.copy_entry(from, to, root, name, path)
                .map_err(|failure| at_path(failure, path))?;
            path.truncate(length);
        }
        self.copied.left_out += self.owners.liken(from, to, &stat)?;
        futimens(to, &times(&stat)).step("setting times")
    }

    fn copy_entry(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        root: &OwnedFd,
        name: &CStr,
        path: &mut Vec<u8>,
    ) -> Step<()> {
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).step("looking at a file")?;
        self.progress(0)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                mkdirat(to, name, Mode::from_raw_mode(0o700)).step("making a directory")?;
                let step = "opening a directory";
                let source = self.in_reach(openat(from, name, DIRECTORY, Mode::empty()), step)?;
                let target = self.in_reach(openat(to, name, DIRECTORY, Mode::empty()), step)?;
                path.push(b'/');
                let done = self.copy_dir(&source, &target, root, path);
                path.pop();
                done
            }
            FileType::RegularFile => self.copy_file(from, to, root, name, &stat, path),
            FileType::Symlink => self.copy_link(from, to, name, &stat),
            FileType::Fifo => {
                let step = "making a pipe";
                mknodat(to, name, FileType::Fifo, Mode::RUSR, 0).step(step)?;
                let target = openat(to, name, FILE | OFlags::RDONLY, Mode::empty());
                let target = self.in_reach(target, step)?;
                self.copied.left_out += self.owners.liken_pipe(from, name, &target, &stat)?;
                futimens(&target, &times(&stat)).step("setting times")
            }
            // The mark of an overlay for a name that was removed.
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                mknodat(to, name, FileType::CharacterDevice, Mode::empty(), 0)
                    .step("marking a name as removed")?;
                self.owners.own_name(to, name, &stat)
            }
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Socket
            | FileType::Unknown => {
                self.copied.left_out += 1;
                Ok(())
            }
        }
    }

    fn copy_file(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        root: &OwnedFd,
        name: &CStr,
        stat: &Stat,
        path: &[u8],
    ) -> Step<()> {
        self.copied.files += 1;
        let key = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1
            && let Some(first) = self.seen.get(&key)
        {
            return linkat(root, first, to, name, AtFlags::empty()).step("linking a file");
        }
        let source = openat(from, name, FILE | OFlags::RDONLY, Mode::empty());
        let source = self.in_reach(source, "opening a file of the source")?;
        let target = openat(
            to,
            name,
            FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            Mode::from_raw_mode(0o600),
        );
        let target = self.in_reach(target, "making a file of the copy")?;
        self.copy_contents(&source, &target, stat)?;
        self.copied.left_out += self.owners.liken(&source, &target, stat)?;
        futimens(&target, &times(stat)).step("setting times")?;
        if stat.st_nlink > 1 {
            let path = CString::new(path).map_err(|e| failure("naming a file", &e.to_string()))?;
            self.seen.insert(key, path);
        }
        Ok(())
    }

    fn copy_contents(&mut self, source: &OwnedFd, target: &OwnedFd, stat: &Stat) -> Step<()> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size == 0 {
            return Ok(());
        }
        if ioctl_ficlone(target, source).is_ok() {
            self.copied.shared_bytes += size;
            return self.progress(size);
        }
        ftruncate(target, size).step("making a file of the copy")?;
        let mut at = 0;
        while at < size {
            let data = match seek(source, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break, // A hole up to the end.
                Err(e) => return Err(e).step("looking for data"),
            };
            let hole = seek(source, SeekFrom::Hole(data)).step("looking for a hole")?;
            self.copy_range(source, target, data, hole)?;
            at = hole;
        }
        Ok(())
    }

    fn copy_range(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        from: u64,
        until: u64,
    ) -> Step<()> {
        let (mut read_at, mut write_at) = (from, from);
        while read_at < until {
            let piece = usize::try_from(until - read_at).unwrap_or(usize::MAX);
            let piece = piece.min(COPY_PIECE_BYTES);
            let before = read_at;
            let copied = copy_file_range(
                source,
                Some(&mut read_at),
                target,
                Some(&mut write_at),
                piece,
            );
            match copied.step("copying a file")? {
                0 => return Err(failure("copying a file", "it became shorter meanwhile")),
                count => {
                    // Not every kernel moves both offsets by itself.
                    read_at = before + count as u64;
                    write_at = read_at;
                    self.progress(count as u64)?;
                }
            }
        }
        Ok(())
    }

    fn copy_link(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr, stat: &Stat) -> Step<()> {
        let target = readlinkat(from, name, Vec::new()).step("reading a link")?;
        symlinkat(target.as_c_str(), to, name).step("making a link")?;
        let (uid, gid) = self.owners.owner(stat);
        chownat(to, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).step("giving a link away")?;
        utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).step("setting times")
    }

    /// What was opened. Every directory above it is open, too, so where this machine lets us open no
    /// more, it lies too deep.
    fn in_reach<O>(&mut self, opened: Result<O, Errno>, step: &str) -> Step<O> {
        if matches!(opened, Err(Errno::MFILE)) {
            self.is_too_deep = true;
            let message =
                "directories are nested deeper than the limit of open files lets us follow";
            return Err(failure(step, message));
        }
        opened.step(step)
    }

    fn progress(&mut self, bytes: u64) -> Step<()> {
        self.copied.bytes += bytes;
        let now = monotonic();
        if now.saturating_sub(self.told_at) >= COPY_NEWS_EVERY {
            self.told_at = now;
            (self.tell)(&CopyNews::Progress(self.copied.clone()))
                .step("telling how far the copy is")?;
        }
        Ok(())
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

fn open_dir(dir: BorrowedFd<'_>, name: &CStr, what: &str) -> Step<OwnedFd> {
    openat(dir, name, DIRECTORY, Mode::empty()).step(&format!("opening {what}"))
}

/// Says which file it was, innermost first.
fn at_path(mut failure: LaunchFailure, path: &[u8]) -> LaunchFailure {
    if !failure.message.contains(": /") {
        let shown = path.get(..SHOWN_PATH_BYTES_MAX).unwrap_or(path);
        let rest = if shown.len() < path.len() { "…" } else { "" };
        failure.message = format!("{}: /{}{rest}", failure.message, shown.escape_ascii());
    }
    failure
}
