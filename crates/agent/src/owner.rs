//! The owner marker: whose sessions lie in a state directory.
//!
//! | marker | |
//! |---|---|
//! | own sandbox id | keep: another activation of the same sandbox |
//! | none | adopt in place |
//! | other id | refuse: the directory was copied, and its processes belong elsewhere |

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::mpsc,
};

use outlive_core::id::SandboxId;
use rustix::fs::FlockOperation;

use crate::limits::STATE_LOCK_WAIT;

/// Why a state directory can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnerError {
    /// It belongs to another sandbox.
    #[error("the sessions in this directory belong to {owner}, not to {sandbox}")]
    Foreign {
        /// The marker.
        owner: String,
        /// Who wants it.
        sandbox: SandboxId,
    },
    /// The disk failed.
    #[error("owner marker: {0}")]
    Io(#[from] io::Error),
}

/// Makes `state` this sandbox's own; `state/sessions` exists afterwards.
pub(crate) fn claim(state: &Path, sandbox: &SandboxId) -> Result<(), OwnerError> {
    let marker = state.join("owner");
    let sessions = state.join("sessions");
    match fs::read_to_string(&marker) {
        Ok(owner) if owner.trim() == sandbox.as_str() => return make_directory(&sessions),
        Ok(owner) => {
            let owner = owner.trim().to_owned();
            return Err(OwnerError::Foreign {
                owner,
                sandbox: sandbox.clone(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    make_directory(&sessions)?;
    // Written aside and renamed: a marker is whole or absent.
    let unfinished = state.join("owner-new");
    let mut file = File::create(&unfinished)?;
    writeln!(file, "{sandbox}")?;
    file.sync_all()?;
    rustix::fs::rename(&unfinished, &marker).map_err(io::Error::from)?;
    File::open(state)?.sync_all()?;
    Ok(())
}

/// Waits until no other supervisor writes to this directory, and keeps others out until the file
/// is closed. One that lost its keeper may still be ending what it ran.
pub(crate) fn lock(state: &Path) -> io::Result<File> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(state.join("supervisor.lock"))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        Err(error) => return Err(error.into()),
    }
    let (locked, is_locked) = mpsc::channel();
    let waiter = std::thread::Builder::new()
        .name("lock".to_owned())
        .spawn(move || {
            let result = rustix::fs::flock(&file, FlockOperation::LockExclusive);
            // Whoever no longer waits ends this process.
            drop(locked.send(result.map(|()| file)));
        })?;
    let file = is_locked
        .recv_timeout(STATE_LOCK_WAIT)
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "another supervisor has it"))??;
    waiter
        .join()
        .map_err(|_| io::Error::other("the thread that waited panicked"))?;
    Ok(file)
}

fn make_directory(path: &Path) -> Result<(), OwnerError> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_supervisor_waits_until_the_first_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let first = lock(state.path()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| lock(state.path()));
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap();
        });
    }

    fn check(marker: Option<&str>, is_taken: bool) {
        let state = tempfile::tempdir().unwrap();
        let kept = state.path().join("sessions/ses-1");
        fs::create_dir_all(&kept).unwrap();
        if let Some(marker) = marker {
            fs::write(state.path().join("owner"), marker).unwrap();
        }
        let sandbox = SandboxId::parse("sbx-own").unwrap();
        let claimed = claim(state.path(), &sandbox);
        assert!(kept.exists(), "sessions are never removed");
        if is_taken {
            assert!(
                matches!(claimed, Err(OwnerError::Foreign { .. })),
                "{claimed:?}"
            );
        } else {
            claimed.unwrap();
            let marker = fs::read_to_string(state.path().join("owner")).unwrap();
            assert_eq!(marker.trim(), "sbx-own");
        }
    }

    #[test]
    fn the_marker_says_whose_sessions_are_kept() {
        check(Some("sbx-own\n"), false);
        check(None, false);
        check(Some("sbx-other\n"), true);
    }
}
