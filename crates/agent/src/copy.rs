//! Copies the disk of one sandbox to another: everything its workload wrote, with owners moved
//! from one range of host ids to the other.
//!
//! ```text
//!   server ─ CopyConfig ─► copy ─► CopyNews::Progress … CopyNews::Done | CopyNews::Failed
//! ```
//! The source stands still or has no runtime meanwhile, so its files are of one instant. Contents
//! are shared with the source where the file system can (reflink), and copied in the kernel where
//! it can't, without the holes. No link is followed. What can't be copied as it was (sockets,
//! devices, access lists) is left out and counted.

use std::{
    collections::HashMap,
    ffi::{CStr, CString},
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use outlive_api::launch::{Copied, CopyConfig, CopyNews, IdRange, LaunchFailure};
use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
        chownat, copy_file_range, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat,
        ftruncate, futimens, ioctl_ficlone, linkat, mkdirat, mknodat, openat, readlinkat, seek,
        statat, symlinkat, syncfs, utimensat,
    },
    io::Errno,
};

use crate::{
    clock::monotonic,
    launch::{
        c_string,
        step::{Fail, Step, failure},
    },
    limits::{
        COPY_DEPTH_MAX, COPY_NEWS_EVERY, COPY_PIECE_BYTES, COPY_STACK_BYTES, XATTR_BYTES_MAX,
    },
};

/// What of a sandbox's directory is its disk.
const PARTS: [&str; 2] = ["upper", "files"];
/// Length of a file capability that names the user namespace it is good for, and where it does.
const CAPABILITY_V3: (usize, usize) = (24, 20);

/// Reads a [`CopyConfig`], copies, tells how it goes on and how it ended.
pub fn main() -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    std::io::stdin().take(1 << 20).read_to_end(&mut bytes)?;
    let config: CopyConfig = minicbor::decode(&bytes)?;
    let news = match copy(&config, tell)? {
        Ok(copied) => CopyNews::Done(copied),
        Err(failure) => CopyNews::Failed(failure),
    };
    tell(&news)?;
    Ok(())
}

/// Copies in a thread with room for directories as deep as we follow.
fn copy<T>(config: &CopyConfig, tell: T) -> anyhow::Result<Step<Copied>>
where
    T: FnMut(&CopyNews) -> std::io::Result<()> + Send,
{
    std::thread::scope(|scope| {
        let copying = std::thread::Builder::new()
            .stack_size(COPY_STACK_BYTES)
            .spawn_scoped(scope, || {
                let mut copier = Copier::new(config, tell);
                copier.run(config).map(|()| copier.copied)
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
    ids: Option<(IdRange, IdRange)>,
    /// Files with several names that were copied, by device and inode: where their first copy
    /// lies, below the part's root.
    seen: HashMap<(u64, u64), CString>,
    copied: Copied,
    told_at: Duration,
    tell: T,
}

impl<T: FnMut(&CopyNews) -> std::io::Result<()>> Copier<T> {
    fn new(config: &CopyConfig, tell: T) -> Self {
        Self {
            ids: config.ids,
            seen: HashMap::new(),
            copied: Copied::default(),
            told_at: monotonic(),
            tell,
        }
    }

    fn run(&mut self, config: &CopyConfig) -> Step<()> {
        let from = open_dir(CWD, &c_string(&config.from)?, "the source")?;
        let to = open_dir(CWD, &c_string(&config.to)?, "the copy")?;
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
            let message = format!("directories are nested deeper than {COPY_DEPTH_MAX}");
            return Err(failure(step, &message));
        }
        let stat = fstat(from).step(step)?;
        for entry in Dir::read_from(from).step(step)? {
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
        self.copy_xattrs(from, to)?;
        self.own(to, &stat)?;
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
                let source = open_dir(from.as_fd(), name, "a directory")?;
                let target = open_dir(to.as_fd(), name, "a directory")?;
                path.push(b'/');
                let done = self.copy_dir(&source, &target, root, path);
                path.pop();
                done
            }
            FileType::RegularFile => self.copy_file(from, to, root, name, &stat, path),
            FileType::Symlink => self.copy_link(from, to, name, &stat),
            FileType::Fifo => {
                mknodat(to, name, FileType::Fifo, mode(&stat), 0).step("making a pipe")?;
                self.own_name(to, name, &stat)
            }
            // The mark of an overlay for a name that was removed.
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                mknodat(to, name, FileType::CharacterDevice, Mode::empty(), 0)
                    .step("marking a name as removed")?;
                self.own_name(to, name, &stat)
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
        let source = source.step("opening a file of the source")?;
        let target = openat(
            to,
            name,
            FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL,
            Mode::from_raw_mode(0o600),
        )
        .step("making a file of the copy")?;
        self.copy_contents(&source, &target, stat)?;
        self.own(&target, stat)?;
        // After the owner: a change of owner takes capabilities away.
        self.copy_xattrs(&source, &target)?;
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
        let (uid, gid) = self.owner(stat);
        chownat(to, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).step("giving a link away")?;
        utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).step("setting times")
    }

    fn copy_xattrs(&mut self, from: &OwnedFd, to: &OwnedFd) -> Step<()> {
        let step = "copying attributes";
        let mut names = vec![0; XATTR_BYTES_MAX];
        let length = match flistxattr(from, names.as_mut_slice()) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(e) => return Err(e).step(step),
        };
        let names = names.get(..length).unwrap_or_default();
        for name in names.split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else {
                continue;
            };
            let is_user = name.to_bytes().starts_with(b"user.");
            if !is_user && name != c"security.capability" {
                self.copied.left_out += 1;
                continue;
            }
            let mut value = vec![0; XATTR_BYTES_MAX];
            let length = fgetxattr(from, name, value.as_mut_slice()).step(step)?;
            value.truncate(length);
            if !is_user {
                self.move_capability(&mut value);
            }
            fsetxattr(to, name, &value, rustix::fs::XattrFlags::empty()).step(step)?;
        }
        Ok(())
    }

    /// A file capability is good in one user namespace: in the copy's, by its own root.
    fn move_capability(&self, value: &mut [u8]) {
        let (length, at) = CAPABILITY_V3;
        if value.len() != length {
            return;
        }
        let Some(Ok(root)) = value.get(at..length).map(<[u8; 4]>::try_from) else {
            return;
        };
        let moved = self.moved(u32::from_le_bytes(root)).to_le_bytes();
        if let Some(place) = value.get_mut(at..length) {
            place.copy_from_slice(&moved);
        }
    }

    fn own(&self, file: &OwnedFd, stat: &Stat) -> Step<()> {
        let (uid, gid) = self.owner(stat);
        fchown(file, uid, gid).step("giving a file away")?;
        // After the owner: a change of owner takes set-user-id away.
        fchmod(file, mode(stat)).step("setting a mode")
    }

    fn own_name(&self, dir: &OwnedFd, name: &CStr, stat: &Stat) -> Step<()> {
        let (uid, gid) = self.owner(stat);
        chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).step("giving a file away")?;
        utimensat(dir, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).step("setting times")
    }

    fn owner(&self, stat: &Stat) -> (Option<Uid>, Option<Gid>) {
        (
            Some(Uid::from_raw(self.moved(stat.st_uid))),
            Some(Gid::from_raw(self.moved(stat.st_gid))),
        )
    }

    /// The id in the copy's range; one that is not of the source's stays.
    fn moved(&self, id: u32) -> u32 {
        let Some((from, to)) = self.ids else {
            return id;
        };
        match id.checked_sub(from.first) {
            Some(offset) if offset < from.count() => to.first + offset,
            Some(_) | None => id,
        }
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

const fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, nanos: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanos).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Says which file it was, innermost first.
fn at_path(mut failure: LaunchFailure, path: &[u8]) -> LaunchFailure {
    if !failure.message.contains(": /") {
        failure.message = format!("{}: /{}", failure.message, path.escape_ascii());
    }
    failure
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
        path::Path,
    };

    use rustix::fs::open;

    use super::*;

    fn config(from: &Path, to: &Path) -> CopyConfig {
        CopyConfig {
            from: from.to_str().unwrap().to_owned(),
            to: to.to_str().unwrap().to_owned(),
            ids: None,
        }
    }

    fn copy(from: &Path, to: &Path) -> Step<Copied> {
        super::copy(&config(from, to), |_: &CopyNews| Ok(())).unwrap()
    }

    #[test]
    fn a_copy_has_every_kind_of_file_as_it_was() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let disk = from.path().join("files");
        fs::create_dir_all(disk.join("deep/er")).unwrap();
        fs::write(disk.join("deep/er/text"), "words").unwrap();
        fs::set_permissions(
            disk.join("deep/er/text"),
            fs::Permissions::from_mode(0o4751),
        )
        .unwrap();
        fs::hard_link(disk.join("deep/er/text"), disk.join("again")).unwrap();
        symlink("/etc/shadow", disk.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(disk.join("socket")).unwrap();
        let sparse = fs::File::create(disk.join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        sparse.write_all_at(b"end", (1 << 30) - 3).unwrap();
        let before = fs::metadata(disk.join("deep")).unwrap().modified().unwrap();

        let copied = copy(from.path(), to.path()).unwrap();
        let disk = to.path().join("files");
        assert_eq!(
            fs::read_to_string(disk.join("deep/er/text")).unwrap(),
            "words"
        );
        let text = fs::metadata(disk.join("deep/er/text")).unwrap();
        assert_eq!(text.permissions().mode() & 0o7777, 0o4751);
        assert_eq!(text.ino(), fs::metadata(disk.join("again")).unwrap().ino());
        assert_eq!(
            fs::read_link(disk.join("link")).unwrap(),
            Path::new("/etc/shadow")
        );
        let sparse = fs::metadata(disk.join("sparse")).unwrap();
        assert_eq!(sparse.len(), 1 << 30);
        assert!(sparse.blocks() < 1 << 12, "{} blocks", sparse.blocks());
        assert_eq!(
            fs::metadata(disk.join("deep")).unwrap().modified().unwrap(),
            before
        );
        assert!(!disk.join("socket").exists());
        assert_eq!((copied.files, copied.left_out), (3, 1));
    }

    #[test]
    fn nothing_but_the_disk_is_copied() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in ["state/sessions/ses-1", "work/root", "upper/root"] {
            fs::create_dir_all(from.path().join(dir)).unwrap();
        }
        fs::write(from.path().join("launch.cbor"), "x").unwrap();
        copy(from.path(), to.path()).unwrap();
        let names: Vec<_> = fs::read_dir(to.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["upper"]);
    }

    #[test]
    fn directories_nested_for_ever_are_refused_in_words() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut dir = open(from.path(), DIRECTORY, Mode::empty()).unwrap();
        for name in std::iter::once(c"files").chain(std::iter::repeat_n(c"d", COPY_DEPTH_MAX + 2)) {
            mkdirat(&dir, name, Mode::RWXU).unwrap();
            dir = openat(&dir, name, DIRECTORY, Mode::empty()).unwrap();
        }
        let error = copy(from.path(), to.path()).unwrap_err();
        assert!(error.message.contains("nested deeper"), "{error}");
    }

    #[test]
    fn a_copy_that_is_there_already_is_not_mixed_with_another() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(from.path().join("files")).unwrap();
        fs::create_dir(to.path().join("files")).unwrap();
        copy(from.path(), to.path()).unwrap_err();
    }

    fn range(first: u32) -> IdRange {
        IdRange {
            first,
            of_namespace: None,
        }
    }

    #[test]
    fn ids_move_with_the_range_and_others_stay() {
        let config = CopyConfig {
            ids: Some((range(1000), range(200_000))),
            ..config(Path::new("/a"), Path::new("/b"))
        };
        let copier = Copier::new(&config, |_: &CopyNews| Ok(()));
        assert_eq!(copier.moved(999), 999);
        assert_eq!(copier.moved(1000), 200_000);
        assert_eq!(copier.moved(1000 + 65_536), 200_000 + 65_536);
        assert_eq!(copier.moved(1000 + 65_537), 1000 + 65_537);
        let mut capability = [0_u8; 24];
        capability[20..].copy_from_slice(&1001_u32.to_le_bytes());
        copier.move_capability(&mut capability);
        assert_eq!(capability[20..], 200_001_u32.to_le_bytes());
    }
}
