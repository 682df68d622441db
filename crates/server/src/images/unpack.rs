//! Layers out of tar archives: the one place where files of an image are written.
//!
//! The archive may be anybody's. Every entry is checked before it is made; one that wants out of
//! the image ends the whole import. Deleted files (`.wh.NAME`, `.wh..wh..opq`) become what
//! overlayfs takes for deleted.

use std::{
    ffi::OsStr,
    io::Write as _,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use futures_util::StreamExt as _;
use tokio::io::AsyncReadExt as _;
use tokio_tar::{Archive, Entry, EntryType};
use tokio_util::sync::CancellationToken;

use super::{
    archive::{Plain, Slice},
    digest::Digest,
    dir::at,
    error::ImageError,
    progress::Progress,
    tree::{self, Attributes, Owned, Refused, Tree},
};
use crate::limits::{
    IMAGE_BYTES_MAX, IMAGE_ENTRIES_MAX, IMAGE_PATH_BYTES_MAX, IMAGE_XATTR_BYTES_MAX,
};

/// What was made of an image's archives so far, and what was left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Counts {
    /// Entries.
    pub(crate) entries: u64,
    /// Bytes of files.
    pub(crate) bytes: u64,
    /// Device nodes, which no image may bring.
    pub(crate) devices_skipped: u64,
    /// Extended attributes that mean something to the host, or that it can't keep.
    pub(crate) xattrs_dropped: u64,
    /// Owners with ids that no sandbox has; `nobody` owns these.
    pub(crate) ids_unknown: u64,
    /// Owners that a server without root can't set.
    pub(crate) owners_dropped: u64,
}

/// The digests of an archive that was unpacked: of its file, and of the tar in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digests {
    pub(crate) file: Digest,
    pub(crate) tar: Digest,
}

/// Who wants an import to go on, and hears of it.
#[derive(Debug)]
pub(crate) struct Watch<'w> {
    pub(crate) cancel: &'w CancellationToken,
    pub(crate) progress: &'w Progress,
}

/// How many ids a sandbox has.
const IDS: u64 = 65_536;
/// Who owns what nobody else can.
const NOBODY: u32 = 65_534;
const WHITEOUT: &[u8] = b".wh.";
const WHITEOUT_SPECIAL: &[u8] = b".wh..wh.";
const WHITEOUT_OPAQUE: &[u8] = b".wh..wh..opq";
const XATTR: &[u8] = b"SCHILY.xattr.";

/// Writes a layer into a directory that is there and empty. Blocks; `counts` go on over the
/// layers of one image, whose bounds they are.
pub(crate) fn unpack(
    slice: Slice,
    into: &Path,
    counts: &mut Counts,
    watch: &Watch<'_>,
) -> Result<Digests, ImageError> {
    let plain = Plain::open(slice, IMAGE_BYTES_MAX)?;
    let tree = Tree::open(into).map_err(at("opening", into))?;
    let mut unpacking = Unpacking {
        tree,
        into,
        plain: plain.clone(),
        counts,
        watch,
        buffer: vec![0; 128 << 10],
    };
    block_on(unpacking.run())?;
    let (file, tar) = plain.finish()?;
    Ok(Digests { file, tar })
}

/// Runs a future that never waits: [`Plain`] always answers at once.
pub(crate) fn block_on<T>(
    work: impl Future<Output = Result<T, ImageError>>,
) -> Result<T, ImageError> {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| ImageError::Failed(error.to_string()))?
        .block_on(work)
}

struct Unpacking<'u> {
    tree: Tree,
    into: &'u Path,
    plain: Plain,
    counts: &'u mut Counts,
    watch: &'u Watch<'u>,
    buffer: Vec<u8>,
}

/// What a tar entry says of itself.
struct Described {
    kind: EntryType,
    path: PathBuf,
    link: Option<PathBuf>,
    attributes: Attributes,
    mtime: u64,
    xattrs: Vec<(String, Vec<u8>)>,
}

impl Unpacking<'_> {
    async fn run(&mut self) -> Result<(), ImageError> {
        let plain = self.plain.clone();
        let mut archive = Archive::new(plain.clone());
        let damaged = |error| plain.failure("the archive", &error);
        let mut entries = archive.entries().map_err(damaged)?;
        loop {
            if self.watch.cancel.is_cancelled() {
                return Err(ImageError::Cancelled);
            }
            plain.expect_header();
            let Some(entry) = entries.next().await else {
                return Ok(());
            };
            let mut entry = entry.map_err(damaged)?;
            plain.expect_data();
            self.counts.entries += 1;
            if self.counts.entries > IMAGE_ENTRIES_MAX {
                return Err(ImageError::TooLarge {
                    what: "the number of files of the image",
                    max: IMAGE_ENTRIES_MAX,
                });
            }
            self.entry(&mut entry).await?;
            self.watch.progress.unpacked(self.counts);
        }
    }

    async fn entry(&mut self, entry: &mut Entry<Archive<Plain>>) -> Result<(), ImageError> {
        if let Some(described) = self.describe(entry).await?
            && let Err(refused) = self.make(&described, entry).await?
        {
            return Err(match refused {
                Refused::Hostile(why) => hostile(&described.path, why),
                Refused::System(error) => {
                    at("writing", &self.into.join(&described.path))(error).into()
                }
            });
        }
        // Read to its end, so that the next thing in the stream is a header.
        loop {
            match entry.read(&mut self.buffer).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) => return Err(self.plain.failure("a file of the archive", &error)),
            }
        }
    }

    /// Checks what the entry says; nothing for one that makes nothing.
    async fn describe(
        &mut self,
        entry: &mut Entry<Archive<Plain>>,
    ) -> Result<Option<Described>, ImageError> {
        let damaged = |error| ImageError::corrupt("the archive", &error);
        let kind = entry.header().entry_type();
        let name = entry.path_bytes().map_err(damaged)?.into_owned();
        let Some(path) = inside(&name)? else {
            return Ok(None); // The root itself.
        };
        let link = match entry.link_name_bytes().map_err(damaged)? {
            Some(target) if kind.is_hard_link() => {
                // Some tools write these from the root on.
                let below = target.strip_prefix(b"/").unwrap_or(&target);
                inside(below)?
            }
            Some(target) if target.len() > IMAGE_PATH_BYTES_MAX => {
                return Err(hostile(&path, "links to a name that is too long"));
            }
            Some(target) => Some(PathBuf::from(OsStr::from_bytes(&target))),
            None => None,
        };
        let xattrs = self.xattrs(entry).await?;
        let header = entry.header();
        let uid = header.uid().map_err(damaged)?;
        let gid = header.gid().map_err(damaged)?;
        let attributes = Attributes {
            uid: self.known_id(uid),
            gid: self.known_id(gid),
            mode: header.mode().map_err(damaged)? & 0o7777,
        };
        Ok(Some(Described {
            kind,
            path,
            link,
            attributes,
            mtime: header.mtime().unwrap_or(0),
            xattrs,
        }))
    }

    fn known_id(&mut self, id: u64) -> u32 {
        match u32::try_from(id) {
            Ok(known) if id < IDS => known,
            Ok(_) | Err(_) => {
                self.counts.ids_unknown += 1;
                NOBODY
            }
        }
    }

    /// The attributes that mean the same inside: the user's own, and a file's capabilities,
    /// which the kernel reads through the ids of the mount.
    async fn xattrs(
        &mut self,
        entry: &mut Entry<Archive<Plain>>,
    ) -> Result<Vec<(String, Vec<u8>)>, ImageError> {
        let damaged = |error| ImageError::corrupt("the archive", &error);
        let mut kept = Vec::new();
        let mut bytes = 0;
        let Some(records) = entry.pax_extensions().await.map_err(damaged)? else {
            return Ok(kept);
        };
        for record in records {
            let record = record.map_err(damaged)?;
            let Some(name) = record.key_bytes().strip_prefix(XATTR) else {
                continue;
            };
            let own = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
            let value = record.value_bytes();
            bytes += name.len() + value.len();
            match std::str::from_utf8(name) {
                Ok(name)
                    if (own || name == "security.capability") && bytes <= IMAGE_XATTR_BYTES_MAX =>
                {
                    kept.push((name.to_owned(), value.to_vec()));
                }
                Ok(_) | Err(_) => self.counts.xattrs_dropped += 1,
            }
        }
        Ok(kept)
    }

    /// Makes what the entry describes.
    async fn make(
        &mut self,
        described: &Described,
        entry: &mut Entry<Archive<Plain>>,
    ) -> Result<Result<(), Refused>, ImageError> {
        let path = &described.path;
        let name = path.file_name().unwrap_or_default().as_bytes();
        let made = if name == WHITEOUT_OPAQUE {
            let dir = path.parent().unwrap_or_else(|| Path::new(""));
            self.tree.opaque(dir).map(|()| Owned::AsAsked)
        } else if name.starts_with(WHITEOUT_SPECIAL) {
            Ok(Owned::AsAsked) // Bookkeeping of another union file system.
        } else if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            match hidden {
                b"" | b"." | b".." => Err(Refused::Hostile("deletes a name that is none")),
                hidden => self
                    .tree
                    .whiteout(&path.with_file_name(OsStr::from_bytes(hidden)))
                    .map(|()| Owned::AsAsked),
            }
        } else {
            match described.kind {
                EntryType::Regular | EntryType::Continuous => {
                    return self.file(described, entry).await;
                }
                // A few bytes of these may stand for any number of them.
                EntryType::GNUSparse => Err(Refused::Hostile(
                    "is a sparse file; make the archive without --sparse",
                )),
                EntryType::Directory => self.tree.dir(path, described.attributes),
                EntryType::Fifo => self.tree.fifo(path, described.attributes),
                EntryType::Symlink => match &described.link {
                    Some(target) => self.tree.symlink(path, target, described.attributes),
                    None => Err(Refused::Hostile("is a link without a target")),
                },
                EntryType::Link => match &described.link {
                    Some(target) => self.tree.hard_link(path, target).map(|()| Owned::AsAsked),
                    None => Err(Refused::Hostile("is a link without a target")),
                },
                EntryType::Char | EntryType::Block => {
                    self.counts.devices_skipped += 1;
                    Ok(Owned::AsAsked)
                }
                // Headers for archivers, and kinds that no system makes.
                _ => Ok(Owned::AsAsked),
            }
        };
        Ok(made.map(|owned| self.count(owned)))
    }

    const fn count(&mut self, owned: Owned) {
        if matches!(owned, Owned::ByServer) {
            self.counts.owners_dropped += 1;
        }
    }

    async fn file(
        &mut self,
        described: &Described,
        entry: &mut Entry<Archive<Plain>>,
    ) -> Result<Result<(), Refused>, ImageError> {
        let mut file = match self.tree.file(&described.path) {
            Ok(file) => file,
            Err(refused) => return Ok(Err(refused)),
        };
        loop {
            let n = match entry.read(&mut self.buffer).await {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => return Err(self.plain.failure("a file of the archive", &error)),
            };
            if self.watch.cancel.is_cancelled() {
                return Err(ImageError::Cancelled);
            }
            self.counts.bytes = self.counts.bytes.saturating_add(n as u64);
            if self.counts.bytes > IMAGE_BYTES_MAX {
                return Err(ImageError::TooLarge {
                    what: "the files of the image, bytes",
                    max: IMAGE_BYTES_MAX,
                });
            }
            if let Err(error) = file.write_all(self.buffer.get(..n).unwrap_or_default()) {
                return Ok(Err(error.into()));
            }
        }
        // Owner first: a change of owner takes capabilities away.
        let owned = match tree::seal(&file, described.attributes, described.mtime) {
            Ok(owned) => owned,
            Err(refused) => return Ok(Err(refused)),
        };
        self.count(owned);
        for (name, value) in &described.xattrs {
            let foreign = owned == Owned::ByServer && !name.starts_with("user.");
            match tree::attribute(&file, name, value) {
                Ok(true) if !foreign => {}
                Ok(_) => self.counts.xattrs_dropped += 1,
                Err(refused) => return Ok(Err(refused)),
            }
        }
        Ok(Ok(()))
    }
}

/// The path of an entry below the image's root, without detours; nothing for the root.
fn inside(name: &[u8]) -> Result<Option<PathBuf>, ImageError> {
    let path = Path::new(OsStr::from_bytes(name));
    if name.len() > IMAGE_PATH_BYTES_MAX {
        return Err(hostile(path, "has a name that is too long"));
    }
    if name.contains(&0) {
        return Err(hostile(path, "has a name with a NUL"));
    }
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir => return Err(hostile(path, "leads upwards (\"..\")")),
            Component::RootDir | Component::Prefix(_) => {
                return Err(hostile(path, "has an absolute name"));
            }
        }
    }
    Ok(Some(clean).filter(|clean| !clean.as_os_str().is_empty()))
}

fn hostile(path: &Path, why: &'static str) -> ImageError {
    let shown: String = path.to_string_lossy().chars().take(200).collect();
    ImageError::Hostile { entry: shown, why }
}
