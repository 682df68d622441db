//! The entries of a layer: how they name it, and how they are written.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use crate::{
    ids::on_disk,
    images::dir::{LayerError, at},
};

/// One entry of the layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    Dir { mode: u32, owner: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Link { target: PathBuf },
}

pub(super) type Nodes = BTreeMap<PathBuf, Node>;

/// Says what is in the layer: 32 digits of a SHA-256 over all entries.
pub(super) fn version(nodes: &Nodes) -> String {
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
pub(super) fn write(layer: &Path, nodes: &Nodes) -> Result<(), LayerError> {
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
