//! The disk as a few verbs, so that a test can be one.
//!
//! A journal lives in one directory. [`FileStorage`] is a real one; the simulated disk of the
//! tests keeps what was synced apart from what was only written, and can lose the difference.

use std::{
    fmt::Debug,
    fs::{File, OpenOptions},
    io::{self, ErrorKind, IoSlice},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{AtFlags, Mode, OFlags};

/// An open file of a journal.
pub trait DataFile: Debug + Send + Sync {
    /// Reads at `offset`; fewer bytes only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes `head`, then `body`, at `offset`. After an error any part may be written.
    fn write_all_at(&self, head: &[u8], body: &[u8], offset: u64) -> io::Result<()>;
    /// Current length.
    fn byte_len(&self) -> io::Result<u64>;
    /// Cuts the file.
    fn truncate(&self, byte_len: u64) -> io::Result<()>;
    /// Brings contents and length to the disk.
    fn sync_data(&self) -> io::Result<()>;
    /// The descriptor, where there is one, to splice into.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read.
    Read,
    /// To read and write.
    Write,
}

/// Does a sync of a new file bring its name to the disk as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameSync {
    /// Yes: the file system writes its metadata in order, so the entries of a new file, and of
    /// the new directories above it, come with the first sync of its contents.
    WithFile,
    /// No: the directory has to be synced as well.
    Separate,
}

/// A directory of files.
pub trait Storage: Debug + Send + Sync {
    /// Names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Makes a file that does not exist yet.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DataFile>>;
    /// Opens a file.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DataFile>>;
    /// Removes a name. Files that are open stay readable.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Gives a file another name, in place of whatever has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Brings the names to the disk.
    fn sync_directory(&self) -> io::Result<()>;
    /// What a sync of a new file does for its name.
    fn name_sync(&self) -> NameSync;
    /// A number that nobody can guess.
    fn secret(&self) -> io::Result<u32>;
}

/// A real directory.
#[derive(Debug, Clone)]
pub struct FileStorage {
    path: PathBuf,
    directory: Arc<File>,
    name_sync: NameSync,
}

/// ext4, XFS and Btrfs keep the order of metadata (ext4 and XFS by one log, Btrfs by logging new
/// ancestors), and tmpfs has no disk at all.
const ORDERED_FILE_SYSTEMS: [u64; 4] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];

impl FileStorage {
    /// Opens a directory that exists.
    pub fn open(path: &Path) -> io::Result<Arc<dyn Storage>> {
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(OFlags::DIRECTORY.bits()).unwrap_or(0))
            .open(path)?;
        let kind = rustix::fs::fstatfs(&directory)?.f_type;
        let ordered = ORDERED_FILE_SYSTEMS
            .iter()
            .any(|magic| i128::from(*magic) == i128::from(kind));
        Ok(Arc::new(Self {
            path: path.to_path_buf(),
            directory: Arc::new(directory),
            name_sync: if ordered {
                NameSync::WithFile
            } else {
                NameSync::Separate
            },
        }))
    }

    /// Makes a directory, mode 0700, and opens it. Where the file system asks for it, its own
    /// name is synced too.
    pub fn create(path: &Path) -> io::Result<Arc<dyn Storage>> {
        rustix::fs::mkdir(path, Mode::RWXU)?;
        let storage = Self::open(path)?;
        if storage.name_sync() == NameSync::Separate
            && let Some(parent) = path.parent()
        {
            sync_directory(parent)?;
        }
        Ok(storage)
    }

    fn open_at(&self, name: &str, flags: OFlags) -> io::Result<Arc<dyn DataFile>> {
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::openat(&*self.directory, name, flags | OFlags::CLOEXEC, mode)?;
        Ok(Arc::new(RealFile(File::from(fd))))
    }
}

impl Storage for FileStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DataFile>> {
        self.open_at(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Arc<dyn DataFile>> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
        };
        self.open_at(name, flags | OFlags::NOFOLLOW)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(
            &*self.directory,
            name,
            AtFlags::empty(),
        )?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(
            &*self.directory,
            from,
            &*self.directory,
            to,
        )?)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn name_sync(&self) -> NameSync {
        self.name_sync
    }

    fn secret(&self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(u32::from_le_bytes(bytes))
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DataFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_all_at(&self, head: &[u8], body: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        let total = head.len() + body.len();
        while done < total {
            let head_rest = head.get(done..).unwrap_or_default();
            let body_rest = body
                .get(done.saturating_sub(head.len())..)
                .unwrap_or_default();
            let parts = [IoSlice::new(head_rest), IoSlice::new(body_rest)];
            match rustix::io::pwritev(&self.0, &parts, offset + done as u64) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn byte_len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn truncate(&self, byte_len: u64) -> io::Result<()> {
        self.0.set_len(byte_len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Puts `bytes` under `name` in one step: readers and crashes see the old file or the new one,
/// and once this returns, the new one is on disk.
pub fn replace_file(storage: &dyn Storage, name: &str, bytes: &[u8]) -> io::Result<()> {
    let put = put_file(storage, name, bytes, |file| file.sync_data());
    put.and_then(|()| storage.sync_directory())
}

fn put_file(
    storage: &dyn Storage,
    name: &str,
    bytes: &[u8],
    sync: impl FnOnce(&dyn DataFile) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = format!("{name}.new");
    match storage.remove(&temporary) {
        Ok(()) => {} // A crash left it half written.
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = storage.create(&temporary)?;
    file.write_all_at(bytes, &[], 0)?;
    sync(&*file)?;
    storage.rename(&temporary, name)
}

/// [`replace_file`] for a path.
pub fn replace_path(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (storage, name) = place_of(path)?;
    replace_file(&*storage, name, bytes)
}

/// The same without the disk: readers and whoever comes after a kill see the old file or the new
/// one, and a power loss may leave an empty one or zeros until [`sync_path`] returned.
pub fn put_path(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (storage, name) = place_of(path)?;
    put_file(&*storage, name, bytes, |_file| Ok(()))
}

/// Brings a file, and that it is there, to the disk.
pub fn sync_path(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_data()?;
    sync_directory(directory_of(path))
}

fn place_of(path: &Path) -> io::Result<(Arc<dyn Storage>, &str)> {
    let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
        return Err(ErrorKind::InvalidInput.into());
    };
    Ok((FileStorage::open(directory_of(path))?, name))
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Brings the entries of a directory to the disk.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Brings everything that was written to the file system of `path` to the disk, at once for any
/// number of journals on it.
pub fn sync_file_system(path: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(path)?)?)
}
