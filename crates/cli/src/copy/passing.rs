//! What is being made, until it is whole and has its name.
//!
//! A file has no name at all until then, where the file system can do that: whoever is killed leaves
//! nothing. Elsewhere, and for links, it has a name of ours beside its place.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, renameat, unlinkat},
    io::Errno,
};

/// Whether files can be without a name here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nameless {
    /// As far as is known.
    Possible,
    /// Not here.
    Never,
}

impl Nameless {
    /// Such a file gets its name by way of `/proc`.
    pub(super) fn here() -> Self {
        if Path::new("/proc/self/fd").is_dir() {
            Self::Possible
        } else {
            Self::Never
        }
    }
}

/// Something that is not whole; gone with this, unless it got its own name.
#[derive(Debug)]
pub(super) struct Passing {
    pub(super) directory: OwnedFd,
    /// What it is called meanwhile, if it is called anything.
    pub(super) now: OsString,
    /// What it will be called.
    pub(super) name: OsString,
}

impl Passing {
    /// Makes a file for it, that only its owner may read.
    pub(super) fn file(&self, nameless: &mut Nameless) -> rustix::io::Result<File> {
        let private = Mode::from_raw_mode(0o600);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        if *nameless == Nameless::Possible {
            match openat(&self.directory, ".", flags | OFlags::TMPFILE, private) {
                Ok(file) => return Ok(File::from(file)),
                // Neither the file system nor an old kernel knows what that is.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                    *nameless = Nameless::Never;
                }
                Err(errno) => return Err(errno),
            }
        }
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        openat(&self.directory, &self.now, flags, private).map(File::from)
    }

    /// Gives a file its own name, in the place of whatever has that.
    pub(super) fn settle_file(self, file: &File) -> rustix::io::Result<()> {
        if file.metadata().is_ok_and(|file| nlink(&file) > 0) {
            return self.settle();
        }
        match self.link(file, &self.name) {
            Err(Errno::EXIST) => {
                self.link(file, &self.now)?;
                self.settle()
            }
            linked => linked,
        }
    }

    fn link(&self, file: &File, name: &OsStr) -> rustix::io::Result<()> {
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, file, &self.directory, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Gives what is called `now` its own name, in the place of whatever has that.
    pub(super) fn settle(self) -> rustix::io::Result<()> {
        renameat(&self.directory, &self.now, &self.directory, &self.name)
    }
}

fn nlink(file: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::nlink(file)
}

impl Drop for Passing {
    fn drop(&mut self) {
        match unlinkat(&self.directory, &self.now, AtFlags::empty()) {
            // It has its own name now. Otherwise nothing can be done, and the name says what it is.
            Ok(()) | Err(_) => {}
        }
    }
}
