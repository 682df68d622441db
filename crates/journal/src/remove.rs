//! Removes a directory with everything in it, however deep a stranger nested it.

use std::{
    collections::VecDeque,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// Removes `path` and what is below it. What is gone already is fine; no link is followed.
///
/// Nothing here is as deep as the tree: a directory that lies deeper than the first level is moved
/// up to it before it is looked into. So a tree whose paths are too long to be named, or deeper
/// than a stack or a table of open files, goes like any other.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let mut left = VecDeque::from([path.to_owned()]);
    let mut moved = 0;
    while let Some(directory) = left.pop_front() {
        empty(path, &directory, &mut left, &mut moved)?;
        if directory != path {
            remove_empty(&directory)?;
        }
    }
    remove_empty(path)
}

/// Removes the files of a directory; its directories are left for later.
fn empty(
    root: &Path,
    directory: &Path,
    left: &mut VecDeque<PathBuf>,
    moved: &mut u64,
) -> io::Result<()> {
    for entry in readable(directory, |path| fs::read_dir(path))? {
        let entry = entry?;
        let path = entry.path();
        if !entry.file_type()?.is_dir() {
            fs::remove_file(&path)?;
        } else if directory == root {
            left.push_back(path);
        } else {
            left.push_back(move_up(root, &path, moved)?);
        }
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is about to be removed needs no durable name"
)]
fn move_up(root: &Path, path: &Path, moved: &mut u64) -> io::Result<PathBuf> {
    loop {
        *moved += 1;
        let target = root.join(format!("removed-{moved}"));
        // A name that is taken is another directory's.
        if fs::symlink_metadata(&target).is_ok() {
            continue;
        }
        readable(path, |path| fs::rename(path, &target))?;
        return Ok(target);
    }
}

fn remove_empty(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// A directory that its owner closed to himself is opened first.
fn readable<T>(path: &Path, mut look: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
    match look(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
            look(path)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_too_deep_to_be_named_goes_like_any_other() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        // Grown from below, since no path is long enough for it: each round puts the tree so far
        // into a new directory.
        for level in 0..3000 {
            let outer = dir.path().join(format!("outer-{level}"));
            fs::create_dir(&outer).unwrap();
            fs::write(outer.join("file"), "x").unwrap();
            #[expect(clippy::disallowed_methods, reason = "a test's own directory")]
            fs::rename(&tree, outer.join("d")).unwrap();
            #[expect(clippy::disallowed_methods, reason = "a test's own directory")]
            fs::rename(&outer, &tree).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed_and_names_that_are_taken_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        let tree = dir.path().join("tree");
        for below in ["removed-1/a/b", "removed-2", "closed/inner/deep"] {
            fs::create_dir_all(tree.join(below)).unwrap();
        }
        std::os::unix::fs::symlink(&kept, tree.join("removed-1/a/link")).unwrap();
        fs::set_permissions(tree.join("closed/inner"), fs::Permissions::from_mode(0o000)).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(kept.join("file").exists());
        // Nothing is fine too, and so is a file.
        remove_tree(&tree).unwrap();
        remove_tree(&kept.join("file")).unwrap();
        assert!(!kept.join("file").exists());
    }
}
