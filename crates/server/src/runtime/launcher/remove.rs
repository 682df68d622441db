//! Directories that go, with disks that their file system counts.
//!
//! Such a disk is a subvolume. Once it is full nothing in it can be renamed, which it takes to
//! remove what is too deep to be named: the agent has it removed as a whole, whatever is in it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use outlive_api::launch::DropConfig;
use outlive_journal::remove_tree;

use super::{
    super::{RuntimeError, quota::is_counted},
    blocking, encoded, file, path_text,
    program::{Program, passing_log},
};
use crate::limits::SWEEP_MAX;

/// Removes what is there of this directory, which may lie beside a disk, hold one, or hold copies
/// of one.
pub(super) async fn remove(agent: &Program, path: PathBuf) -> Result<(), RuntimeError> {
    let counted = holders(&path).map_err(file("looking into", &path))?;
    if !counted.is_empty() {
        let directories = counted.iter().map(|holder| path_text(holder));
        let directories = directories.collect::<Result<_, _>>()?;
        let message = encoded(&DropConfig { directories })?;
        agent
            .run("drop", &message, &passing_log()?, SWEEP_MAX)
            .await?;
    }
    blocking(move || remove_tree(&path).map_err(file("removing", &path))).await?
}

/// Which directories hold a disk that is counted and is to go.
fn holders(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut candidates: Vec<PathBuf> = path.parent().map(Path::to_owned).into_iter().collect();
    candidates.retain(|around| path == around.join("disk"));
    candidates.push(path.to_owned());
    match fs::read_dir(path) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    candidates.push(entry.path());
                }
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    candidates.retain(|holder| is_counted(holder));
    Ok(candidates)
}
