//! A directory that an archive is written into, and that nothing in the archive leads out of.
//!
//! Every entry is made relative to the descriptor of its parent, and every parent is opened by
//! the kernel below the root, through no link and across no mount.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, ResolveFlags, Stat, Timespec,
        Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, fchmod, fchown, fsetxattr, futimens,
        linkat, mkdirat, mknodat, openat, openat2, statat, symlinkat,
    },
    io::Errno,
};

use crate::ids::on_disk;

/// Why an entry can't be made where it wants to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// The archive's fault.
    #[error("{0}")]
    Hostile(&'static str),
    /// The disk's.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::LOOP => Self::Hostile("leads through a symbolic link"),
            Errno::XDEV => Self::Hostile("leads out of the image"),
            Errno::NOTDIR => Self::Hostile("lies below something that is no directory"),
            Errno::NAMETOOLONG => Self::Hostile("has a name that is too long"),
            other => Self::System(other.into()),
        }
    }
}

type Outcome<T> = Result<T, Refused>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    /// The parent of the entry before: most entries share it.
    last: Option<(PathBuf, OwnedFd)>,
}

/// Who owns an entry, and its mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attributes {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: RawMode,
}

/// Whether an entry belongs to whom it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owned {
    AsAsked,
    /// A server without root gives nothing away.
    ByServer,
}

/// The mark on a directory that hides what lower layers have there.
const OPAQUE: &str = "user.overlay.opaque";
/// How a parent is found.
const BELOW: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

impl Tree {
    /// In a directory that is there.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let root = openat(
            CWD,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        give_to_root(&root, OsStr::new(""))?;
        Ok(Self { root, last: None })
    }

    /// The directory of an entry, made with its own parents when the archive left them out.
    fn parent(&mut self, path: &Path) -> Outcome<BorrowedFd<'_>> {
        let dir = path.parent().unwrap_or_else(|| Path::new(""));
        if dir.as_os_str().is_empty() {
            return Ok(self.root.as_fd());
        }
        let known = matches!(&self.last, Some((last, _)) if last == dir);
        if !known {
            let opened = match self.below(dir) {
                Err(Errno::NOENT) => {
                    self.make_all(dir)?;
                    self.below(dir)?
                }
                other => other?,
            };
            self.last = Some((dir.to_owned(), opened));
        }
        Ok(self
            .last
            .as_ref()
            .map_or_else(|| self.root.as_fd(), |(_, fd)| fd.as_fd()))
    }

    fn below(&self, dir: &Path) -> Result<OwnedFd, Errno> {
        openat2(
            &self.root,
            dir,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
            BELOW,
        )
    }

    fn make_all(&self, dir: &Path) -> Outcome<()> {
        let mut fd = self.root.try_clone()?;
        for name in dir.components() {
            let name = name.as_os_str();
            match mkdirat(&fd, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => give_to_root(&fd, name)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            fd = openat(
                &fd,
                name,
                OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
        }
        Ok(())
    }

    /// Makes a directory. One that is there stays, with what is in it.
    pub(crate) fn dir(&mut self, path: &Path, attributes: Attributes) -> Outcome<Owned> {
        let hides = match self.stat(path)? {
            Some(stat) if is(&stat, FileType::Directory) => Hides::No,
            // A whiteout came first: the lower directory stays hidden.
            Some(stat) if is_whiteout(&stat) => Hides::Lower,
            Some(_) | None => Hides::No,
        };
        let there = matches!(self.stat(path)?, Some(stat) if is(&stat, FileType::Directory));
        if !there {
            self.clear(path)?;
            let (parent, name) = self.place(path)?;
            mkdirat(parent, name, Mode::from_raw_mode(0o700))?;
        }
        let fd = self.open_dir(path)?;
        if hides == Hides::Lower {
            mark_opaque(&fd)?;
        }
        let owned = give(&fd, attributes)?;
        // Its owner must be able to fill it; only root can do without.
        let filled = attributes.mode | if owned == Owned::ByServer { 0o700 } else { 0 };
        fchmod(&fd, Mode::from_raw_mode(mode(filled, owned)))?;
        Ok(owned)
    }

    /// Makes a file, which is empty and open for writing.
    pub(crate) fn file(&mut self, path: &Path) -> Outcome<File> {
        self.clear(path)?;
        let (parent, name) = self.place(path)?;
        let fd = openat(
            parent,
            name,
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )?;
        Ok(File::from(fd))
    }

    /// Makes a link of any target: it means something inside a sandbox only.
    pub(crate) fn symlink(
        &mut self,
        path: &Path,
        target: &Path,
        attributes: Attributes,
    ) -> Outcome<Owned> {
        self.clear(path)?;
        let (parent, name) = self.place(path)?;
        symlinkat(target, parent, name)?;
        self.give_name(path, attributes)
    }

    /// Makes a named pipe.
    pub(crate) fn fifo(&mut self, path: &Path, attributes: Attributes) -> Outcome<Owned> {
        self.clear(path)?;
        let (parent, name) = self.place(path)?;
        let bits = Mode::from_raw_mode(attributes.mode & 0o777);
        mknodat(parent, name, FileType::Fifo, bits, 0)?;
        self.give_name(path, attributes)
    }

    /// Gives a file of the same archive another name.
    pub(crate) fn hard_link(&mut self, path: &Path, target: &Path) -> Outcome<()> {
        if path == target {
            return Ok(());
        }
        match self.stat(target)? {
            None => return Err(Refused::Hostile("links to a file that the layer has not")),
            Some(stat) if is(&stat, FileType::Directory) => {
                return Err(Refused::Hostile("links to a directory"));
            }
            Some(_) => {}
        }
        self.clear(path)?;
        let (from, from_name) = self.place(target)?;
        let from = from.try_clone_to_owned()?;
        let (parent, name) = self.place(path)?;
        linkat(from, from_name, parent, name, AtFlags::empty())?;
        Ok(())
    }

    /// Hides what lower layers have under this name. What this layer has under it stays, and a
    /// directory of it shows nothing of theirs.
    pub(crate) fn whiteout(&mut self, path: &Path) -> Outcome<()> {
        match self.stat(path)? {
            Some(stat) if is(&stat, FileType::Directory) => self.opaque(path),
            Some(_) => Ok(()),
            None => {
                let (parent, name) = self.place(path)?;
                // Device 0:0 is overlayfs's whiteout; making one takes no privilege.
                mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)?;
                Ok(())
            }
        }
    }

    /// Hides everything that lower layers have in this directory.
    pub(crate) fn opaque(&mut self, dir: &Path) -> Outcome<()> {
        if dir.as_os_str().is_empty() {
            return Ok(mark_opaque(&self.root)?);
        }
        if self.stat(dir)?.is_none() {
            self.make_all(dir)?;
        }
        let fd = self.open_dir(dir)?;
        Ok(mark_opaque(&fd)?)
    }

    fn open_dir(&mut self, path: &Path) -> Outcome<OwnedFd> {
        let (parent, name) = self.place(path)?;
        Ok(openat(
            parent,
            name,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?)
    }

    fn place<'p>(&mut self, path: &'p Path) -> Outcome<(BorrowedFd<'_>, &'p OsStr)> {
        let name = path
            .file_name()
            .ok_or(Refused::Hostile("has no name of its own"))?;
        Ok((self.parent(path)?, name))
    }

    /// What is there now.
    fn stat(&mut self, path: &Path) -> Outcome<Option<Stat>> {
        let (parent, name) = self.place(path)?;
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes away what an earlier entry put there.
    fn clear(&mut self, path: &Path) -> Outcome<()> {
        let Some(stat) = self.stat(path)? else {
            return Ok(());
        };
        let (parent, name) = self.place(path)?;
        let there = Path::new("/proc/self/fd")
            .join(parent.as_raw_fd().to_string())
            .join(name);
        if is(&stat, FileType::Directory) {
            fs::remove_dir_all(there)?;
            self.last = None; // It may have been in there.
        } else {
            fs::remove_file(there)?;
        }
        Ok(())
    }

    fn give_name(&mut self, path: &Path, attributes: Attributes) -> Outcome<Owned> {
        let (parent, name) = self.place(path)?;
        let (uid, gid) = ids(attributes);
        match chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) => Ok(Owned::AsAsked),
            // The server is nobody who may, or has no such id.
            Err(Errno::PERM | Errno::INVAL) => Ok(Owned::ByServer),
            Err(error) => Err(error.into()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hides {
    No,
    Lower,
}

/// Gives a written file its owner, mode and time, in the order in which none undoes another.
pub(crate) fn seal(file: &File, attributes: Attributes, mtime: u64) -> Outcome<Owned> {
    let owned = give(file, attributes)?;
    fchmod(file, Mode::from_raw_mode(mode(attributes.mode, owned)))?;
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            // Beyond this, file systems disagree.
            tv_sec: i64::try_from(mtime).unwrap_or(0).min(i64::from(u32::MAX)),
            tv_nsec: 0,
        },
    };
    futimens(file, &times)?;
    Ok(owned)
}

/// Sets an attribute; tells whether it could be.
pub(crate) fn attribute(file: &File, name: &str, value: &[u8]) -> Outcome<bool> {
    match fsetxattr(file, name, value, XattrFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::NOTSUP | Errno::INVAL | Errno::NOSPC | Errno::RANGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn give(fd: impl AsFd, attributes: Attributes) -> Outcome<Owned> {
    let (uid, gid) = ids(attributes);
    match fchown(fd, uid, gid) {
        Ok(()) => Ok(Owned::AsAsked),
        // The server is nobody who may, or has no such id.
        Err(Errno::PERM | Errno::INVAL) => Ok(Owned::ByServer),
        Err(error) => Err(error.into()),
    }
}

/// Gives what the server made unasked to root inside, where that is somebody else.
fn give_to_root(dir: impl AsFd, name: &OsStr) -> io::Result<()> {
    let owner = on_disk(0);
    if owner == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    Ok(chownat(dir, name, Some(uid), Some(gid), flags)?)
}

fn ids(attributes: Attributes) -> (Option<Uid>, Option<Gid>) {
    (
        Some(Uid::from_raw(on_disk(attributes.uid))),
        Some(Gid::from_raw(on_disk(attributes.gid))),
    )
}

/// A program that is setuid for somebody else than its owner in the archive would be a hole.
const fn mode(mode: RawMode, owned: Owned) -> RawMode {
    match owned {
        Owned::AsAsked => mode & 0o7777,
        Owned::ByServer => mode & 0o1777,
    }
}

fn mark_opaque(dir: impl AsFd) -> io::Result<()> {
    fsetxattr(dir, OPAQUE, b"y", XattrFlags::empty()).map_err(|error| match error {
        Errno::NOTSUP => io::Error::new(
            io::ErrorKind::Unsupported,
            "the data directory's file system keeps no extended attributes",
        ),
        other => other.into(),
    })
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

fn is_whiteout(stat: &Stat) -> bool {
    is(stat, FileType::CharacterDevice) && stat.st_rdev == 0
}
