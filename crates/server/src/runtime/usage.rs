//! How much lies in a directory that a stranger changes meanwhile.
//!
//! Counted is what a disk would have given: blocks of every file, of one with several names once.
//! No link is followed, nothing outside is looked at, and neither depth nor long names matter:
//! a path that grows too long begins anew at a directory that is held open.

use std::{
    collections::HashSet,
    ffi::CStr,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    rc::Rc,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat},
    io::Errno,
};

/// A path that is longer, in bytes, begins anew.
const PATH_BYTES_MAX: usize = 1024;
/// What `st_blocks` counts in.
pub(super) const BLOCK_BYTES: u64 = 512;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What lies on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// Bytes that it takes.
    pub(crate) bytes: u64,
    /// Files, directories and others.
    pub(crate) entries: u64,
}

impl Usage {
    /// Both together.
    pub(super) const fn with(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            entries: self.entries.saturating_add(other.entries),
        }
    }
}

/// A directory that is still to be looked into: its path below one that is open.
struct Left {
    anchor: Rc<OwnedFd>,
    path: PathBuf,
}

/// Counts what lies in a directory, up to so many entries. One that isn't there is empty.
pub(super) fn usage(root: &Path, entries_max: u64) -> io::Result<Usage> {
    let mut walk = Walk {
        usage: Usage::default(),
        entries_max,
        seen: HashSet::new(),
        left: Vec::new(),
    };
    match openat(CWD, root, DIRECTORY, Mode::empty()) {
        Ok(root) => walk.look_into(&Rc::new(root), Path::new(""))?,
        Err(Errno::NOENT) => return Ok(walk.usage),
        Err(e) => return Err(e.into()),
    }
    while let Some(Left { anchor, path }) = walk.left.pop() {
        if walk.usage.entries >= entries_max {
            break;
        }
        match open_below(&anchor, &path) {
            Ok(directory) if path.as_os_str().len() > PATH_BYTES_MAX => {
                walk.look_into(&Rc::new(directory), Path::new(""))?;
            }
            Ok(directory) => walk.list(&directory, &anchor, &path)?,
            Err(e) if moved(e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(walk.usage)
}

struct Walk {
    usage: Usage,
    entries_max: u64,
    /// Files with several names that were counted.
    seen: HashSet<u64>,
    left: Vec<Left>,
}

impl Walk {
    fn look_into(&mut self, anchor: &Rc<OwnedFd>, path: &Path) -> io::Result<()> {
        self.list(anchor, anchor, path)
    }

    /// Counts what a directory holds; directories below are left for later.
    fn list(&mut self, directory: &OwnedFd, anchor: &Rc<OwnedFd>, path: &Path) -> io::Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.usage.entries >= self.entries_max {
                return Ok(());
            }
            if self.count(directory, name)? == FileType::Directory {
                self.left.push(Left {
                    anchor: Rc::clone(anchor),
                    path: path.join(std::ffi::OsStr::from_bytes(name.to_bytes())),
                });
            }
        }
        Ok(())
    }

    fn count(&mut self, directory: &OwnedFd, name: &CStr) -> io::Result<FileType> {
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(e) if moved(e) => return Ok(FileType::Unknown),
            Err(e) => return Err(e.into()),
        };
        self.usage.entries += 1;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let several = stat.st_nlink > 1 && kind != FileType::Directory;
        if !several || self.seen.insert(stat.st_ino) {
            let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
            self.usage.bytes = self.usage.bytes.saturating_add(blocks * BLOCK_BYTES);
        }
        Ok(kind)
    }
}

/// Opens a directory below another one, wherever its owner moves what meanwhile.
fn open_below(anchor: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(anchor.as_fd(), path, DIRECTORY, Mode::empty(), within)
}

/// Whether an error means that something is not there any more, or is something else.
fn moved(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::AGAIN
    )
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_file_with_two_names_is_counted_once_and_no_link_is_followed() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("big"), vec![1; 1 << 20]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            usage(&dir.path().join("nothing"), 10).unwrap(),
            Usage::default()
        );
        let empty = usage(dir.path(), 10).unwrap();
        fs::create_dir(dir.path().join("below")).unwrap();
        fs::write(dir.path().join("below/file"), vec![1; 64 << 10]).unwrap();
        fs::hard_link(dir.path().join("below/file"), dir.path().join("again")).unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        let holes = fs::File::create(dir.path().join("holes")).unwrap();
        holes.set_len(1 << 30).unwrap();
        let used = usage(dir.path(), 100).unwrap();
        assert_eq!(used.entries, 5);
        let grown = used.bytes - empty.bytes;
        assert!((64 << 10..96 << 10).contains(&grown), "{grown}");
        assert_eq!(usage(dir.path(), 3).unwrap().entries, 3);
    }

    #[test]
    fn a_tree_too_deep_to_be_named_is_counted_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        // Grown from below, since no path is long enough for it.
        let name = "d".repeat(100);
        for level in 0..200 {
            let outer = dir.path().join(format!("outer-{level}"));
            fs::create_dir(&outer).unwrap();
            #[expect(clippy::disallowed_methods, reason = "a test's own directory")]
            fs::rename(&tree, outer.join(&name)).unwrap();
            #[expect(clippy::disallowed_methods, reason = "a test's own directory")]
            fs::rename(&outer, &tree).unwrap();
        }
        assert_eq!(usage(&tree, 1000).unwrap().entries, 200);
        outlive_journal::remove_tree(&tree).unwrap();
    }
}
