//! The image `host`: every tool of this machine, none of its secrets.
//!
//! `/usr` comes from the host, with the links beside it (`/bin`, `/lib`, …). Everything else is
//! one generated layer that all sandboxes share: a small `/etc`, and empty directories. What is
//! copied from the host's `/etc` is named one by one below; nothing else is.
//!
//! The layer's name says what is in it. When the host's files change, the next generation of a
//! sandbox gets the next version; a version goes once no runtime uses it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Metadata, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use sha2::{Digest as _, Sha256};

use super::dir::{ImagesDir, LayerError, at};
use crate::{ids::on_disk, limits::HOST_FILE_BYTES_MAX};

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
/// What the names of these layers start with.
const PREFIX: &str = "host-";

/// A version of the layer; it stays as long as somebody holds this.
#[derive(Debug)]
pub(crate) struct HostLayer {
    path: PathBuf,
}

impl HostLayer {
    /// Where it lies, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The layers of the image `host`.
#[derive(Debug)]
pub(crate) struct HostLayers {
    images: Arc<ImagesDir>,
    /// The host's root; another one in tests.
    host: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the host's files looked like, and the layer made of them.
    current: Option<(Fingerprint, Arc<HostLayer>)>,
    /// Versions that a launch may be using.
    lent: Vec<Weak<HostLayer>>,
    /// There may be versions besides the current one.
    others: Others,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Others {
    #[default]
    Perhaps,
    None,
}

/// What tells that a file is not the one that was copied: path, inode, size, mode, and the time
/// of its last change of any kind.
type Fingerprint = Vec<(PathBuf, u64, u64, u32, i64, i64)>;

/// One entry of the layer.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    Dir { mode: u32, owner: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Link { target: PathBuf },
}

type Nodes = BTreeMap<PathBuf, Node>;

impl HostLayers {
    /// Of the host whose root is `host`.
    pub(crate) fn new(images: Arc<ImagesDir>, host: PathBuf) -> Self {
        Self {
            images,
            host,
            state: Mutex::default(),
        }
    }

    /// Where all layers lie.
    pub(crate) fn images(&self) -> &ImagesDir {
        &self.images
    }

    /// The layer of what the host's files are now, made when there is none. Blocks.
    pub(crate) fn current(&self) -> Result<Arc<HostLayer>, LayerError> {
        let mut state = self.state();
        let seen = self.fingerprint()?;
        if let Some((known, layer)) = &state.current
            && *known == seen
            && layer.path.is_dir()
        {
            return Ok(Arc::clone(layer));
        }
        let nodes = self.nodes()?;
        let name = format!("{PREFIX}{}", version(&nodes));
        let path = self.images.path().join(&name);
        if !path.is_dir() {
            let draft = self.images.draft()?;
            let made = draft.path().join("layer");
            write(&made, &nodes)?;
            self.images.publish(&made, &name)?;
            tracing::info!(layer = name, "the image `host` was made anew");
        }
        let layer = Arc::new(HostLayer { path });
        if let Some((_, before)) = state.current.replace((seen, Arc::clone(&layer))) {
            let before = Arc::downgrade(&before);
            state.lent.push(before);
            state.others = Others::Perhaps;
        }
        Ok(layer)
    }

    /// Whether [`Self::sweep`] may have something to do.
    pub(crate) fn may_be_swept(&self) -> bool {
        self.state().others == Others::Perhaps
    }

    /// Removes the versions that are neither current, nor held by a launch, nor named by `used`.
    /// Blocks; no version is given out meanwhile.
    pub(crate) fn sweep(
        &self,
        used: impl FnOnce() -> Result<BTreeSet<PathBuf>, LayerError>,
    ) -> Result<(), LayerError> {
        let mut state = self.state();
        let Some((_, current)) = &state.current else {
            return Ok(()); // Not known yet which one that is.
        };
        let mut keep = BTreeSet::from([current.path.clone()]);
        let mut old = Vec::new();
        let root = self.images.path();
        for entry in fs::read_dir(root).map_err(at("reading", root))? {
            let entry = entry.map_err(at("reading", root))?;
            if entry.file_name().as_bytes().starts_with(PREFIX.as_bytes())
                && !keep.contains(&entry.path())
            {
                old.push(entry.path());
            }
        }
        if old.is_empty() {
            state.others = Others::None;
            return Ok(());
        }
        state.lent.retain(|lent| lent.strong_count() > 0);
        keep.extend(
            state
                .lent
                .iter()
                .filter_map(Weak::upgrade)
                .map(|layer| layer.path.clone()),
        );
        keep.extend(used()?);
        let (kept, gone): (Vec<_>, Vec<_>) = old.into_iter().partition(|path| keep.contains(path));
        for path in gone {
            tracing::info!(layer = %path.display(), "no sandbox uses this version of the image `host` any more");
            self.images.discard(&path)?;
        }
        if kept.is_empty() {
            state.others = Others::None;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fingerprint(&self) -> Result<Fingerprint, LayerError> {
        let mut seen = Vec::new();
        // What can't be looked at is not on this host, and so not in the layer.
        let mut look = |path: PathBuf, meta: io::Result<Metadata>| {
            if let Ok(meta) = meta {
                seen.push((
                    path,
                    meta.ino(),
                    meta.len(),
                    meta.mode(),
                    meta.ctime(),
                    meta.ctime_nsec(),
                ));
            }
        };
        for name in USR_LINKS {
            let path = self.host.join(name);
            let meta = fs::symlink_metadata(&path);
            look(path, meta);
        }
        for name in ETC_FILES {
            let path = self.host.join("etc").join(name);
            let meta = fs::symlink_metadata(&path);
            look(path.clone(), meta);
            let meta = fs::metadata(&path);
            look(path, meta);
        }
        for name in ETC_DIRS {
            let dir = self.host.join("etc").join(name);
            for (path, _) in entries(&dir)? {
                let meta = fs::symlink_metadata(&path);
                look(path, meta);
            }
        }
        let bash = self.host.join("usr/bin/bash");
        look(bash.clone(), fs::symlink_metadata(bash));
        seen.sort();
        Ok(seen)
    }

    fn nodes(&self) -> Result<Nodes, LayerError> {
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
            let path = self.host.join(name);
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
        let shell = if self.host.join("usr/bin/bash").exists() {
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
        let path = self.host.join(&inside);
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
        let dir = self.host.join(&inside);
        if !dir.is_dir() {
            return Ok(()); // Not on this host.
        }
        let node = Node::Dir {
            mode: 0o755,
            owner: 0,
        };
        nodes.insert(inside.clone(), node);
        for (path, kind) in entries(&dir)? {
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
fn entries(dir: &Path) -> Result<Vec<(PathBuf, fs::FileType)>, LayerError> {
    let found = match fs::read_dir(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at("reading", dir)(error)),
    };
    found
        .map(|entry| {
            let entry = entry?;
            Ok((entry.path(), entry.file_type()?))
        })
        .collect::<io::Result<_>>()
        .map_err(at("reading", dir))
}

/// Says what is in the layer: 32 digits of a SHA-256 over all entries.
fn version(nodes: &Nodes) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(bytes);
    };
    let root = on_disk(0);
    if root != 0 {
        part(&root.to_le_bytes());
    }
    for (path, node) in nodes {
        part(path.as_os_str().as_bytes());
        match node {
            Node::Dir { mode, owner } => {
                part(b"dir");
                part(&mode.to_le_bytes());
                part(&owner.to_le_bytes());
            }
            Node::File { mode, bytes } => {
                part(b"file");
                part(&mode.to_le_bytes());
                part(bytes);
            }
            Node::Link { target } => {
                part(b"link");
                part(target.as_os_str().as_bytes());
            }
        }
    }
    let digest = hash.finalize();
    digest
        .iter()
        .take(16)
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|nibble| char::from_digit(nibble.into(), 16))
        .collect()
}

/// Writes the layer; a directory comes before what is in it.
fn write(layer: &Path, nodes: &Nodes) -> Result<(), LayerError> {
    for (inside, node) in nodes {
        let path = layer.join(inside);
        match node {
            Node::Dir { mode, owner } => {
                fs::create_dir(&path).map_err(at("making", &path))?;
                give(&path, *owner)?;
                set_mode(&path, *mode)?;
            }
            Node::File { mode, bytes } => {
                fs::write(&path, bytes).map_err(at("writing", &path))?;
                give(&path, 0)?;
                set_mode(&path, *mode)?;
            }
            Node::Link { target } => {
                std::os::unix::fs::symlink(target, &path).map_err(at("linking", &path))?;
                give(&path, 0)?;
            }
        }
    }
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<(), LayerError> {
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(at("opening", path))
}

fn give(path: &Path, owner: u32) -> Result<(), LayerError> {
    let owner = on_disk(owner);
    if owner == 0 {
        return Ok(()); // Whoever makes the layer is its root.
    }
    match std::os::unix::fs::lchown(path, Some(owner), Some(owner)) {
        Ok(()) => Ok(()),
        // A server without root, or without this id, can't; inside, the directory is root's.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(at("giving away", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small host, and the layers of it.
    struct Small {
        dir: tempfile::TempDir,
        layers: HostLayers,
    }

    impl Small {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let host = dir.path().join("host");
            for name in ["etc/ssl/certs", "etc/alternatives", "usr/bin"] {
                fs::create_dir_all(host.join(name)).unwrap();
            }
            std::os::unix::fs::symlink("usr/bin", host.join("bin")).unwrap();
            fs::write(host.join("etc/shadow"), "root:secret\n").unwrap();
            fs::write(host.join("etc/profile"), "PS1=x\n").unwrap();
            fs::write(host.join("etc/ssl/certs/ca.pem"), "pem").unwrap();
            std::os::unix::fs::symlink("ca.pem", host.join("etc/ssl/certs/0123.0")).unwrap();
            let images = Arc::new(ImagesDir::open(dir.path()).unwrap());
            Self {
                layers: HostLayers::new(images, host),
                dir,
            }
        }

        fn put(&self, name: &str, text: &str) {
            fs::write(self.dir.path().join("host/etc").join(name), text).unwrap();
        }

        fn versions(&self) -> BTreeSet<PathBuf> {
            fs::read_dir(self.dir.path().join("images"))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| !path.ends_with("tmp") && !path.ends_with("layers"))
                .collect()
        }
    }

    #[test]
    fn one_layer_serves_all_sandboxes_and_holds_none_of_the_hosts_secrets() {
        let small = Small::new();
        let layer = small.layers.current().unwrap();
        let again = small.layers.current().unwrap();
        assert!(Arc::ptr_eq(&layer, &again));
        assert_eq!(small.versions(), BTreeSet::from([layer.path().to_owned()]));
        let read = |name: &str| fs::read_to_string(layer.path().join(name)).unwrap();
        assert_eq!(read("etc/shadow"), "root:*:19000:0:99999:7:::\n");
        assert_eq!(read("etc/profile"), "PS1=x\n");
        assert_eq!(read("etc/ssl/certs/0123.0"), "pem");
        assert_eq!(
            fs::read_link(layer.path().join("bin")).unwrap(),
            Path::new("usr/bin")
        );
        for name in ["etc/hostname", "etc/hosts", "etc/resolv.conf"] {
            assert!(
                !layer.path().join(name).exists(),
                "{name} is a sandbox's own"
            );
        }
        let mode = |name: &str| fs::metadata(layer.path().join(name)).unwrap().mode() & 0o7777;
        assert_eq!(mode("etc/shadow"), 0o600);
        assert_eq!(mode("root"), 0o700);
        assert_eq!(mode("tmp"), 0o1777);
    }

    #[test]
    fn another_server_finds_the_same_layer() {
        let small = Small::new();
        let layer = small.layers.current().unwrap();
        let images = Arc::new(ImagesDir::open(small.dir.path()).unwrap());
        let next = HostLayers::new(images, small.dir.path().join("host"));
        assert_eq!(next.current().unwrap().path(), layer.path());
    }

    #[test]
    fn a_changed_host_gets_a_new_version_and_the_old_one_goes_when_nobody_uses_it() {
        let small = Small::new();
        let first = small.layers.current().unwrap().path().to_owned();
        small.put("profile", "PS1=y\n");
        let second = small.layers.current().unwrap().path().to_owned();
        assert_ne!(first, second);
        assert_eq!(small.versions().len(), 2);
        assert!(small.layers.may_be_swept());
        // A running sandbox has it.
        let used = BTreeSet::from([first.clone()]);
        small.layers.sweep(|| Ok(used)).unwrap();
        assert_eq!(small.versions().len(), 2);
        assert!(small.layers.may_be_swept());
        small.layers.sweep(|| Ok(BTreeSet::new())).unwrap();
        assert_eq!(small.versions(), BTreeSet::from([second]));
        assert!(!small.layers.may_be_swept());
    }

    #[test]
    fn a_launch_keeps_the_version_that_it_was_given() {
        let small = Small::new();
        let held = small.layers.current().unwrap();
        small.put("profile", "PS1=y\n");
        let second = small.layers.current().unwrap();
        small.layers.sweep(|| Ok(BTreeSet::new())).unwrap();
        assert!(held.path().is_dir());
        drop(held);
        small.layers.sweep(|| Ok(BTreeSet::new())).unwrap();
        assert_eq!(small.versions(), BTreeSet::from([second.path().to_owned()]));
    }

    #[test]
    fn a_host_with_programs_outside_usr_is_told_what_to_do() {
        let small = Small::new();
        fs::create_dir(small.dir.path().join("host/lib")).unwrap();
        let error = small.layers.current().unwrap_err();
        assert!(matches!(error, LayerError::NotMerged { .. }), "{error}");
        assert!(error.to_string().contains("import an image"), "{error}");
    }
}
