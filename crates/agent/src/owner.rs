//! The owner marker: whose sessions lie in a state directory.
//!
//! | marker | copied sessions refused | copied sessions cleared |
//! |---|---|---|
//! | own sandbox id | keep: another activation of the same sandbox | keep |
//! | none | adopt in place | clear |
//! | other id | refuse: the directory was copied, its processes belong elsewhere | clear |

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::mpsc,
};

use outlive_api::launch::CopiedSessions;
use outlive_core::id::SandboxId;
use outlive_journal::remove_tree;
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
pub(crate) fn claim(
    state: &Path,
    sandbox: &SandboxId,
    copied: CopiedSessions,
) -> Result<(), OwnerError> {
    let sessions = state.join("sessions");
    match fs::read_to_string(state.join("owner")) {
        Ok(owner) if owner.trim() == sandbox.as_str() => return make_directory(&sessions),
        // The marker goes last: a claim that is killed here is made again.
        Ok(_) if copied == CopiedSessions::Clear => remove_tree(&sessions)?,
        Ok(owner) => {
            let owner = owner.trim().to_owned();
            return Err(OwnerError::Foreign {
                owner,
                sandbox: sandbox.clone(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if copied == CopiedSessions::Clear {
                remove_tree(&sessions)?;
            }
        }
        Err(error) => return Err(error.into()),
    }
    make_directory(&sessions)?;
    mark(state, sandbox)
}

/// Makes a `state` in which nobody was before this sandbox's own, as [`claim`] does whatever becomes
/// of copied sessions: there are none. One that isn't new is left to that.
pub(crate) fn claim_new(state: &Path, sandbox: &SandboxId) -> Result<(), OwnerError> {
    if state.join("owner").try_exists()? {
        return Ok(());
    }
    // Whoever makes it finds nothing in it.
    match rustix::fs::mkdir(state.join("sessions"), rustix::fs::Mode::RWXU) {
        Ok(()) => mark(state, sandbox),
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Writes down whose it is.
fn mark(state: &Path, sandbox: &SandboxId) -> Result<(), OwnerError> {
    // Written aside and renamed: a marker is whole or absent.
    let unfinished = state.join("owner-new");
    let mut file = File::create(&unfinished)?;
    writeln!(file, "{sandbox}")?;
    file.sync_all()?;
    rustix::fs::rename(&unfinished, state.join("owner")).map_err(io::Error::from)?;
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

    #[derive(Debug, PartialEq, Eq)]
    enum Outcome {
        Kept,
        Cleared,
        Refused,
    }

    fn claimed(marker: Option<&str>, copied: CopiedSessions) -> Outcome {
        let state = tempfile::tempdir().unwrap();
        let session = state.path().join("sessions/ses-1");
        fs::create_dir_all(&session).unwrap();
        fs::write(session.join("0001.seg"), "events").unwrap();
        if let Some(marker) = marker {
            fs::write(state.path().join("owner"), marker).unwrap();
        }
        let sandbox = SandboxId::parse("sbx-own").unwrap();
        match claim(state.path(), &sandbox, copied) {
            Ok(()) => {}
            Err(OwnerError::Foreign { owner, .. }) => {
                assert_eq!(owner, "sbx-other");
                assert!(session.exists(), "what is refused is not touched");
                return Outcome::Refused;
            }
            Err(error) => panic!("{error}"),
        }
        let now = fs::read_to_string(state.path().join("owner")).unwrap();
        assert_eq!(now.trim(), "sbx-own");
        assert!(state.path().join("sessions").is_dir());
        if session.exists() {
            Outcome::Kept
        } else {
            Outcome::Cleared
        }
    }

    #[test]
    fn the_marker_says_whose_sessions_are_kept() {
        use CopiedSessions::{Clear, Refuse};
        assert_eq!(claimed(Some("sbx-own\n"), Refuse), Outcome::Kept);
        assert_eq!(claimed(Some("sbx-own\n"), Clear), Outcome::Kept);
        assert_eq!(claimed(None, Refuse), Outcome::Kept);
        assert_eq!(claimed(None, Clear), Outcome::Cleared);
        assert_eq!(claimed(Some("sbx-other\n"), Refuse), Outcome::Refused);
        assert_eq!(claimed(Some("sbx-other\n"), Clear), Outcome::Cleared);
    }

    #[test]
    fn only_a_directory_in_which_nobody_was_is_claimed_at_once() {
        let sandbox = SandboxId::from_bits(1);
        let new = tempfile::tempdir().unwrap();
        claim_new(new.path(), &sandbox).unwrap();
        let marker = fs::read_to_string(new.path().join("owner")).unwrap();
        assert_eq!(marker.trim(), sandbox.as_str());
        // Again, and by another: whose it is is for `claim` to say.
        claim_new(new.path(), &SandboxId::from_bits(2)).unwrap();
        assert_eq!(
            fs::read_to_string(new.path().join("owner")).unwrap(),
            marker
        );
        // Sessions that nobody marked may be copies.
        let copied = tempfile::tempdir().unwrap();
        fs::create_dir(copied.path().join("sessions")).unwrap();
        claim_new(copied.path(), &sandbox).unwrap();
        assert!(!copied.path().join("owner").exists());
    }
}
