//! The image `host`: every tool of this machine, none of its secrets.
//!
//! `/usr` comes from the host, with the links beside it (`/bin`, `/lib`, …). Everything else is
//! one generated layer that all sandboxes share: a small `/etc`, and empty directories. What is
//! copied from the host's `/etc` is named one by one in `content`; nothing else is.
//!
//! The layer's name says what is in it. When the host's files change, the next generation of a
//! sandbox gets the next version; a version goes once no runtime uses it.

mod content;
mod node;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use self::{
    content::{Fingerprint, Host},
    node::{version, write},
};
use super::dir::{ImagesDir, LayerError, at};

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
    host: Host,
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

impl HostLayers {
    /// Of the host whose root is `host`.
    pub(crate) fn new(images: Arc<ImagesDir>, host: PathBuf) -> Self {
        Self {
            images,
            host: Host(host),
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
        let seen = self.host.fingerprint()?;
        if let Some((known, layer)) = &state.current
            && *known == seen
            && layer.path.is_dir()
        {
            return Ok(Arc::clone(layer));
        }
        let nodes = self.host.nodes()?;
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
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

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

    // Links are not looked at one by one: most of what is copied are links.
    #[test]
    fn every_kind_of_change_makes_a_new_version() {
        let small = Small::new();
        let etc = small.dir.path().join("host/etc");
        let link = etc.join("ssl/certs/0123.0");
        let changes: [&dyn Fn(); 6] = [
            &|| {
                fs::remove_file(&link).unwrap();
                std::os::unix::fs::symlink("other.pem", &link).unwrap();
            },
            &|| fs::write(etc.join("ssl/certs/ca.pem"), "PEM").unwrap(),
            &|| fs::write(etc.join("ssl/certs/other.pem"), "new").unwrap(),
            &|| std::os::unix::fs::symlink("/usr/bin/vi", etc.join("alternatives/vi")).unwrap(),
            &|| fs::remove_file(&link).unwrap(),
            &|| fs::remove_file(etc.join("profile")).unwrap(),
        ];
        let mut before = small.layers.current().unwrap();
        for (number, change) in changes.iter().enumerate() {
            change();
            let after = small.layers.current().unwrap();
            assert_ne!(before.path(), after.path(), "change {number}");
            before = after;
        }
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
