//! The directory of images: drafts below `tmp/`, and their way to a name.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use outlive_journal::{remove_tree, sync_file_system};

/// A layer can't be made, found or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LayerError {
    /// A file or directory could not be made, read or removed.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The host keeps programs outside `/usr`.
    #[error("{} of this host isn't a link into /usr: import an image, and name it", path.display())]
    NotMerged {
        /// The directory.
        path: PathBuf,
    },
}

/// Names the file that an error is about.
pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LayerError {
    let path = path.to_owned();
    move |source| LayerError::File {
        action,
        path,
        source,
    }
}

/// `DIR/images`, held by one server.
#[derive(Debug)]
pub(crate) struct ImagesDir {
    path: PathBuf,
}

impl ImagesDir {
    /// Makes it if needed, and removes what a server before did not finish.
    pub(crate) fn open(data: &Path) -> Result<Self, LayerError> {
        let path = data.join("images");
        let this = Self { path };
        for dir in [this.path.clone(), this.drafts(), this.path.join("layers")] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .map_err(at("making", &dir))?;
        }
        let drafts = this.drafts();
        for entry in fs::read_dir(&drafts).map_err(at("reading", &drafts))? {
            let entry = entry.map_err(at("reading", &drafts))?;
            remove(&entry.path())?;
        }
        Ok(this)
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn drafts(&self) -> PathBuf {
        self.path.join("tmp")
    }

    /// A new directory that is removed unless it is published.
    pub(crate) fn draft(&self) -> Result<Draft, LayerError> {
        let path = self
            .drafts()
            .join(uuid::Uuid::now_v7().simple().to_string());
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(at("making", &path))?;
        Ok(Draft { path })
    }

    /// Gives a finished draft, or a part of one, its name below this directory. One that has the
    /// name already stays: names say what is in them.
    pub(crate) fn publish(&self, draft: &Path, name: &str) -> Result<PathBuf, LayerError> {
        let path = self.path.join(name);
        let parent = path.parent().unwrap_or(&self.path).to_owned();
        sync_file_system(draft).map_err(at("syncing", draft))?;
        match rename(draft, &path) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) => {}
            Err(error) => return Err(at("naming", &path)(error)),
        }
        File::open(&parent)
            .and_then(|dir| dir.sync_all())
            .map_err(at("syncing", &parent))?;
        Ok(path)
    }

    /// Takes a layer's name away, then the layer: a server that is killed in between leaves
    /// garbage that the next one knows as such.
    pub(crate) fn discard(&self, layer: &Path) -> Result<(), LayerError> {
        let grave = self
            .drafts()
            .join(uuid::Uuid::now_v7().simple().to_string());
        match rename(layer, &grave) {
            Ok(()) => remove(&grave),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(at("removing", layer)(error)),
        }
    }
}

/// A directory below `tmp/` that goes with this value.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
}

impl Draft {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            // The next server removes it.
            tracing::warn!(%error, "a draft of a layer is left");
        }
    }
}

/// The file system was synced before, the directory is synced after.
#[expect(
    clippy::disallowed_methods,
    reason = "replace_file is for files; the callers sync what needs to last"
)]
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Removes a file or a tree, if it is there.
pub(crate) fn remove(path: &Path) -> Result<(), LayerError> {
    remove_tree(path).map_err(at("removing", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_that_was_not_published_leaves_nothing() {
        let data = tempfile::tempdir().unwrap();
        let images = ImagesDir::open(data.path()).unwrap();
        let draft = images.draft().unwrap();
        fs::write(draft.path().join("file"), "half").unwrap();
        drop(draft);
        assert_eq!(fs::read_dir(images.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_server_began_is_removed_at_the_next_start() {
        let data = tempfile::tempdir().unwrap();
        let images = ImagesDir::open(data.path()).unwrap();
        let half = images.path().join("tmp/01234567");
        fs::create_dir_all(half.join("layer")).unwrap();
        fs::write(half.join("layer/file"), "half").unwrap();
        fs::write(images.path().join("tmp/upload"), "half").unwrap();
        let images = ImagesDir::open(data.path()).unwrap();
        assert_eq!(fs::read_dir(images.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_name_that_is_taken_keeps_its_layer() {
        let data = tempfile::tempdir().unwrap();
        let images = ImagesDir::open(data.path()).unwrap();
        for text in ["first", "second"] {
            let draft = images.draft().unwrap();
            fs::write(draft.path().join("file"), text).unwrap();
            let layer = images.publish(draft.path(), "host-1").unwrap();
            assert_eq!(fs::read_to_string(layer.join("file")).unwrap(), "first");
        }
        images.discard(&images.path().join("host-1")).unwrap();
        assert!(!images.path().join("host-1").exists());
        assert_eq!(fs::read_dir(images.path().join("tmp")).unwrap().count(), 0);
    }
}
