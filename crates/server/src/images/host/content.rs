//! What of this machine is in the layer, and what is made up in its place.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    io,
    os::unix::fs::{DirEntryExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use super::node::{Node, Nodes};
use crate::{
    images::dir::{LayerError, at},
    limits::HOST_FILE_BYTES_MAX,
};

/// Links of a merged `/usr`.
const USR_LINKS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Empty directories, and their modes.
const DIRS: &[(&str, u32)] = &[
    ("", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/ssl", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
];

/// The one directory that belongs to the ordinary user.
const USER_HOME: &str = "home/user";
const USER_ID: u32 = 1000;

/// Files of the host's `/etc` that tools need and that say nothing about the host.
const ETC_FILES: &[&str] = &[
    "bash.bashrc",
    "debian_version",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "magic",
    "mime.types",
    "netconfig",
    "nsswitch.conf",
    "os-release",
    "profile",
    "protocols",
    "rpc",
    "services",
    "timezone",
];

/// Directories of the host's `/etc` that are copied, files and links, not deeper.
const ETC_DIRS: &[&str] = &["alternatives", "ld.so.conf.d", "ssl/certs"];

/// What tells that a file is not the one that was copied: inode, path, size, mode, and the time
/// of its last change of any kind. Of a link in a directory only inode and path: a link can't be
/// changed, only be replaced, which changes the directory, too; most files here are links.
///
/// Each launch looks for it: numbers first, and paths as bytes, are sorted and compared ten times
/// faster than paths.
pub(super) type Fingerprint = Vec<(u64, OsString, u64, u32, i64, i64)>;

/// A name in a directory.
struct Entry {
    path: PathBuf,
    kind: fs::FileType,
    inode: u64,
}

/// The host, by its root.
#[derive(Debug)]
pub(super) struct Host(pub(super) PathBuf);

impl Host {
    /// What the files look like from which the layer is made.
    pub(super) fn fingerprint(&self) -> Result<Fingerprint, LayerError> {
        let (mut seen, mut links) = (Vec::new(), Vec::new());
        // What can't be looked at is not on this host, and so not in the layer.
        let mut look = |path: PathBuf, meta: io::Result<Metadata>| {
            if let Ok(meta) = meta {
                seen.push((
                    meta.ino(),
                    path.into_os_string(),
                    meta.len(),
                    meta.mode(),
                    meta.ctime(),
                    meta.ctime_nsec(),
                ));
            }
        };
        for name in USR_LINKS {
            let path = self.0.join(name);
            let meta = fs::symlink_metadata(&path);
            look(path, meta);
        }
        for name in ETC_FILES {
            let path = self.0.join("etc").join(name);
            let meta = fs::symlink_metadata(&path);
            look(path.clone(), meta);
            let meta = fs::metadata(&path);
            look(path, meta);
        }
        for name in ETC_DIRS {
            let dir = self.0.join("etc").join(name);
            for Entry { path, kind, inode } in entries(&dir)? {
                if kind.is_symlink() {
                    links.push((inode, path.into_os_string(), 0, 0, 0, 0));
                } else {
                    let meta = fs::symlink_metadata(&path);
                    look(path, meta);
                }
            }
            look(dir.clone(), fs::metadata(dir));
        }
        let bash = self.0.join("usr/bin/bash");
        look(bash.clone(), fs::symlink_metadata(bash));
        seen.append(&mut links);
        seen.sort_unstable();
        Ok(seen)
    }

    /// What the layer holds.
    pub(super) fn nodes(&self) -> Result<Nodes, LayerError> {
        let mut nodes = Nodes::new();
        for (path, mode) in DIRS {
            let node = Node::Dir {
                mode: *mode,
                owner: 0,
            };
            nodes.insert(PathBuf::from(path), node);
        }
        let home = Node::Dir {
            mode: 0o755,
            owner: USER_ID,
        };
        nodes.insert(USER_HOME.into(), home);
        for name in USR_LINKS {
            let path = self.0.join(name);
            match fs::read_link(&path) {
                Ok(target) => drop(nodes.insert(name.into(), Node::Link { target })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    return Err(LayerError::NotMerged { path });
                }
                Err(error) => return Err(at("reading", &path)(error)),
            }
        }
        self.generated(&mut nodes);
        for name in ETC_FILES {
            self.copy_file(&mut nodes, name)?;
        }
        for name in ETC_DIRS {
            self.copy_dir(&mut nodes, name)?;
        }
        Ok(nodes)
    }

    /// The users are the same in every sandbox; what names a sandbox is in its own layer.
    fn generated(&self, nodes: &mut Nodes) {
        let shell = if self.0.join("usr/bin/bash").exists() {
            "/bin/bash"
        } else {
            "/bin/sh"
        };
        let passwd = format!(
            "root:x:0:0:root:/root:{shell}\n\
             daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
             user:x:{USER_ID}:{USER_ID}:user:/home/user:{shell}\n\
             nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        );
        let group =
            format!("root:x:0:\ndaemon:x:1:\ntty:x:5:\nuser:x:{USER_ID}:\nnogroup:x:65534:\n");
        for (name, mode, text) in [
            ("passwd", 0o644, passwd.as_str()),
            ("group", 0o644, group.as_str()),
            ("shadow", 0o600, "root:*:19000:0:99999:7:::\n"),
            ("environment", 0o644, ""),
            ("fstab", 0o644, ""),
        ] {
            let bytes = text.as_bytes().to_vec();
            nodes.insert(Path::new("etc").join(name), Node::File { mode, bytes });
        }
    }

    /// A file or link of the host's `/etc`; one that isn't there is left out.
    fn copy_file(&self, nodes: &mut Nodes, name: &str) -> Result<(), LayerError> {
        let inside = Path::new("etc").join(name);
        let path = self.0.join(&inside);
        // A link into /usr means the same inside.
        if let Ok(target) = fs::read_link(&path)
            && (target.starts_with("/usr") || target.starts_with("../usr"))
        {
            nodes.insert(inside, Node::Link { target });
            return Ok(());
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_file() && meta.len() <= HOST_FILE_BYTES_MAX => {}
            Ok(_) | Err(_) => return Ok(()), // Not on this host, or nothing we want.
        }
        let bytes = fs::read(&path).map_err(at("reading", &path))?;
        nodes.insert(inside, Node::File { mode: 0o644, bytes });
        Ok(())
    }

    fn copy_dir(&self, nodes: &mut Nodes, name: &str) -> Result<(), LayerError> {
        let inside = Path::new("etc").join(name);
        let dir = self.0.join(&inside);
        if !dir.is_dir() {
            return Ok(()); // Not on this host.
        }
        let node = Node::Dir {
            mode: 0o755,
            owner: 0,
        };
        nodes.insert(inside.clone(), node);
        for Entry { path, kind, .. } in entries(&dir)? {
            let Some(name) = path.file_name() else {
                continue;
            };
            if kind.is_symlink() {
                let target = fs::read_link(&path).map_err(at("reading", &path))?;
                nodes.insert(inside.join(name), Node::Link { target });
            } else if kind.is_file() {
                let bytes = fs::read(&path).map_err(at("reading", &path))?;
                nodes.insert(inside.join(name), Node::File { mode: 0o644, bytes });
            }
        }
        Ok(())
    }
}

/// What is in a directory of the host; nothing when there is none.
fn entries(dir: &Path) -> Result<Vec<Entry>, LayerError> {
    let found = match fs::read_dir(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at("reading", dir)(error)),
    };
    found
        .map(|entry| {
            let entry = entry?;
            Ok(Entry {
                path: entry.path(),
                kind: entry.file_type()?,
                inode: entry.ino(),
            })
        })
        .collect::<io::Result<_>>()
        .map_err(at("reading", dir))
}
