//! An archive from a sandbox, unpacked where the user said and nowhere else.
//!
//! Whoever is in the sandbox may have written the archive. So every name is walked directory by
//! directory from the one that was opened first, never through a symbolic link and never upward;
//! files are made anew and never opened where something stands already; no set-user-id bit,
//! device or owner is taken over.
//!
//! A file gets its name when it is whole. So what stood there stands until then, and a file that is
//! not whole is none.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, fsync, futimens, linkat,
        mkdirat, open, openat, statat, symlinkat,
    },
    io::Errno,
};

use super::{
    passing::{Nameless, Passing},
    tar::{Entry, Item, Kind, Reader},
};
use crate::{
    attach::input::random_id,
    error::{Failure, Result},
};

/// A file that is being written.
#[derive(Debug)]
struct Growing {
    file: File,
    entry: Entry,
    place: Passing,
    /// Whether another file is lost for it, or nothing else is copied: then it is on the disk first.
    precious: bool,
}

impl Growing {
    fn settle(self) -> rustix::io::Result<()> {
        futimens(&self.file, &times(self.entry.modified))?;
        fchmod(&self.file, Mode::from_raw_mode(self.entry.mode & 0o777))?;
        if self.precious {
            fsync(&self.file)?;
        }
        self.place.settle_file(&self.file)
    }
}

/// Unpacks below one directory.
#[derive(Debug)]
pub(super) struct Unpacker {
    root: OwnedFd,
    /// For messages.
    shown: PathBuf,
    /// The first part of every name in the archive, and what stands for it here; none: no part.
    top: (Vec<u8>, Option<OsString>),
    reader: Reader,
    open: Option<Growing>,
    /// What is not whole is called, where it is called anything.
    passing: OsString,
    nameless: Nameless,
    /// Directories get their modes and times at the end, when they are full.
    directories: Vec<(Vec<OsString>, u32, u64)>,
    /// What was done.
    pub(super) done: super::Done,
}

impl Unpacker {
    /// Below `root`, where the archive's `top` becomes `name`; without a name its content goes
    /// into `root` itself.
    pub(super) fn new(root: &Path, top: &[u8], name: Option<OsString>) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = open(root, flags, Mode::empty());
        let opened = opened.map_err(|errno| Failure::file("open", root, &errno.into()))?;
        Ok(Self {
            root: opened,
            shown: root.to_owned(),
            top: (top.to_vec(), name),
            reader: Reader::default(),
            open: None,
            passing: random_id(".outlive-cp-")?.into(),
            nameless: Nameless::here(),
            directories: Vec::new(),
            done: super::Done::default(),
        })
    }

    /// The next bytes of the archive.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        loop {
            let item = self.reader.next(&mut bytes);
            match item.map_err(|error| Failure::new("bad_archive", error.to_string()))? {
                None => return Ok(()),
                Some(Item::Data(data)) => {
                    if let Some(Growing { file, entry, .. }) = &mut self.open {
                        let written = file.write_all(data);
                        written.map_err(|error| failed(&self.shown, &entry.name, &error))?;
                        self.done.bytes += data.len() as u64;
                    }
                }
                Some(Item::End) => self.close()?,
                Some(Item::Entry(entry)) => {
                    self.close()?;
                    self.entry(&entry)?;
                }
            }
        }
    }

    /// Everything came: gives what was done.
    pub(super) fn finish(mut self) -> Result<super::Done> {
        // A file that is open now is not whole, and goes with the rest of this.
        if !self.reader.is_over() {
            return Err(Failure::new("bad_archive", "the archive ended too early"));
        }
        self.close()?;
        let shown = self.shown.clone();
        for (parts, mode, modified) in std::mem::take(&mut self.directories).into_iter().rev() {
            let set = self
                .descend(&parts, Missing::Refused)
                .and_then(|directory| {
                    futimens(&directory, &times(modified))?;
                    fchmod(&directory, Mode::from_raw_mode(mode))
                });
            let name = parts.join(OsStr::new("/"));
            set.map_err(|errno| failed(&shown, name.as_bytes(), &errno.into()))?;
        }
        Ok(self.done)
    }

    fn close(&mut self) -> Result<()> {
        let Some(file) = self.open.take() else {
            return Ok(());
        };
        let name = file.entry.name.clone();
        let settled = file.settle();
        settled.map_err(|errno| failed(&self.shown, &name, &errno.into()))?;
        self.done.files += 1;
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> Result<()> {
        let parts = self.parts(&entry.name)?;
        let made = self.make(&parts, entry);
        made.map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => Failure::new(
                "unsafe_archive",
                format!("`{}` would go through a link", shown(&entry.name)),
            ),
            errno => failed(&self.shown, &entry.name, &errno.into()),
        })
    }

    /// The parts of a name below the root, with what stands for the archive's top.
    fn parts(&self, name: &[u8]) -> Result<Vec<OsString>> {
        let refuse = || {
            let message = format!("`{}` leads out of the destination", shown(name));
            Failure::new("unsafe_archive", message)
        };
        if name.starts_with(b"/") || name.contains(&0) {
            return Err(refuse());
        }
        let mut parts = name
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty() && *part != b".");
        let mut out = Vec::new();
        if !self.top.0.is_empty() && parts.next() != Some(self.top.0.as_slice()) {
            return Err(refuse());
        }
        out.extend(self.top.1.clone());
        for part in parts {
            if part == b".." {
                return Err(refuse());
            }
            out.push(OsString::from_vec(part.to_vec()));
        }
        Ok(out)
    }

    fn make(&mut self, parts: &[OsString], entry: &Entry) -> rustix::io::Result<()> {
        if let Kind::Directory = entry.kind {
            self.descend(parts, Missing::Made)?;
            if !parts.is_empty() {
                let place = (parts.to_vec(), entry.mode & 0o777, entry.modified);
                self.directories.push(place);
            }
            return Ok(());
        }
        let Some((name, above)) = parts.split_last() else {
            return Err(Errno::ISDIR);
        };
        let directory = self.descend(above, Missing::Made)?;
        if let Kind::Special = entry.kind {
            self.done.skipped.push(shown(&entry.name));
            return Ok(());
        }
        // Whatever stands there is replaced, not written into.
        let before = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        if before == Some(FileType::Directory) {
            return Err(Errno::ISDIR);
        }
        let place = Passing {
            directory,
            now: self.passing.clone(),
            name: name.clone(),
        };
        match &entry.kind {
            Kind::File(_) => {
                self.open = Some(Growing {
                    file: place.file(&mut self.nameless)?,
                    entry: entry.clone(),
                    place,
                    precious: before.is_some() || self.directories.is_empty(),
                });
                return Ok(());
            }
            Kind::Symlink(target) => {
                symlinkat(OsStr::from_bytes(target), &place.directory, &place.now)?;
            }
            Kind::Hardlink(target) => self.hardlink(target, &place.directory, &place.now)?,
            Kind::Directory | Kind::Special => return Ok(()),
        }
        place.settle()?;
        self.done.files += 1;
        Ok(())
    }

    /// Another name of a file that is here already; of nothing else.
    fn hardlink(&self, target: &[u8], directory: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
        let parts = self.parts(target).map_err(|_| Errno::LOOP)?;
        let (last, above) = parts.split_last().ok_or(Errno::ISDIR)?;
        let holder = self.descend(above, Missing::Refused)?;
        let stat = statat(&holder, last, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::LOOP);
        }
        linkat(&holder, last, directory, name, AtFlags::empty())
    }

    /// Opens a directory below the root, one after the other, following no link.
    fn descend(&self, parts: &[OsString], missing: Missing) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = self
            .root
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| errno_of(&error))?;
        for part in parts {
            if missing == Missing::Made {
                match mkdirat(&at, part, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
            }
            at = openat(&at, part, flags, Mode::empty())?;
        }
        Ok(at)
    }
}

/// What to do about a directory that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Made,
    Refused,
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn times(modified: u64) -> Timestamps {
    let time = Timespec {
        tv_sec: i64::try_from(modified).unwrap_or(i64::MAX),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}

fn shown(name: &[u8]) -> String {
    crate::event::escaped(&String::from_utf8_lossy(name)).into_owned()
}

fn failed(root: &Path, name: &[u8], error: &io::Error) -> Failure {
    Failure::file("write", &root.join(shown(name)), error)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::{
        super::tar::{BLOCK_BYTES, header},
        *,
    };

    fn entry(name: &str, kind: Kind) -> Entry {
        Entry {
            name: name.into(),
            mode: 0o4755,
            modified: 1_000_000,
            kind,
        }
    }

    /// Unpacks `top` as `here` below a fresh directory; files hold `x`.
    fn unpack(directory: &Path, entries: &[Entry]) -> Result<super::super::Done> {
        let mut unpacker = Unpacker::new(directory, b"top", Some("here".into()))?;
        for entry in entries {
            let mut bytes = header(entry);
            if let Kind::File(size) = entry.kind {
                bytes.extend(vec![b'x'; usize::try_from(size).unwrap()]);
                bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
            }
            unpacker.push(&bytes)?;
        }
        unpacker.push(&[0; 2 * BLOCK_BYTES])?;
        unpacker.finish()
    }

    #[test]
    fn files_keep_their_names_modes_and_times() {
        let place = tempfile::tempdir().unwrap();
        let done = unpack(
            place.path(),
            &[
                entry("top", Kind::Directory),
                entry("top/a b\nc", Kind::File(700)),
                entry("top/link", Kind::Symlink(b"/etc/passwd".to_vec())),
                entry("top/again", Kind::Hardlink(b"top/a b\nc".to_vec())),
                entry("top/pipe", Kind::Special),
            ],
        )
        .unwrap();
        assert_eq!((done.files, done.bytes, done.skipped.len()), (3, 700, 1));
        let file = fs::metadata(place.path().join("here/a b\nc")).unwrap();
        assert_eq!(
            (file.len(), file.permissions().mode() & 0o7777),
            (700, 0o755)
        );
        assert_eq!(
            fs::read_link(place.path().join("here/link")).unwrap(),
            Path::new("/etc/passwd")
        );
        assert_eq!(
            fs::read(place.path().join("here/again")).unwrap().len(),
            700
        );
    }

    // What was there is good until what comes is: a copy that broke off had left a stump of it.
    #[test]
    fn a_file_that_is_not_whole_is_none() {
        not_whole(Nameless::here());
        not_whole(Nameless::Never);
    }

    fn not_whole(nameless: Nameless) {
        let place = tempfile::tempdir().unwrap();
        let names = || {
            let names = fs::read_dir(place.path()).unwrap();
            names.map(|it| it.unwrap().file_name()).collect::<Vec<_>>()
        };
        let file = place.path().join("here");
        fs::write(&file, "good").unwrap();
        let mut unpacker = Unpacker::new(place.path(), b"top", Some("here".into())).unwrap();
        unpacker.nameless = nameless;
        unpacker
            .push(&header(&entry("top", Kind::File(700))))
            .unwrap();
        unpacker.push(&[b'x'; 600]).unwrap();
        let passing = usize::from(unpacker.nameless == Nameless::Never);
        assert_eq!(names().len(), 1 + passing);
        assert_eq!(fs::read_to_string(&file).unwrap(), "good");
        unpacker.finish().unwrap_err();
        assert_eq!(names(), ["here"]);
        assert_eq!(fs::read_to_string(&file).unwrap(), "good");
        // The same file twice, and a link to what it already is.
        let again = [
            entry("top", Kind::File(700)),
            entry("top", Kind::Hardlink(b"top".to_vec())),
            entry("top", Kind::File(700)),
        ];
        unpack(place.path(), &again).unwrap();
        assert_eq!(names(), ["here"]);
        assert_eq!(fs::read(&file).unwrap().len(), 700);
    }

    #[test]
    fn no_archive_writes_outside_of_its_place() {
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().join("victim");
        fs::write(&target, "safe").unwrap();
        let away = outside.path().to_str().unwrap().as_bytes().to_vec();
        let hostile: [&[Entry]; 7] = [
            &[entry("top/../../escape", Kind::File(1))],
            &[entry("/tmp/escape", Kind::File(1))],
            &[entry("other/escape", Kind::File(1))],
            &[
                entry("top/way", Kind::Symlink(away.clone())),
                entry("top/way/victim", Kind::File(1)),
            ],
            &[
                entry("top", Kind::Symlink(away.clone())),
                entry("top/victim", Kind::File(1)),
            ],
            &[
                entry("top/way", Kind::Symlink(away.clone())),
                entry("top/way", Kind::Directory),
            ],
            &[
                entry("top/way", Kind::Symlink([&away[..], b"/victim"].concat())),
                entry("top/same", Kind::Hardlink(b"top/way".to_vec())),
            ],
        ];
        for entries in hostile {
            let place = tempfile::tempdir().unwrap();
            let failure = unpack(place.path(), entries).unwrap_err();
            assert_eq!(failure.code, "unsafe_archive", "{entries:?}: {failure}");
        }
        // A link that stands where a file comes is replaced, not followed.
        let place = tempfile::tempdir().unwrap();
        let link = [&away[..], b"/victim"].concat();
        unpack(
            place.path(),
            &[
                entry("top/f", Kind::Symlink(link)),
                entry("top/f", Kind::File(5)),
            ],
        )
        .unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "safe");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }
}
