//! The owner marker: whose sessions lie in a state directory.
//!
//! | marker | without reset | with reset |
//! |---|---|---|
//! | own sandbox id | keep | keep: a second try of the same activation |
//! | none | adopt in place | clear |
//! | other id | refuse | clear |

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use outlive_core::id::SandboxId;

/// What to do with sessions that were copied from another sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    /// Refuse to use them.
    Refuse,
    /// Remove them: this sandbox is a copy and starts without sessions.
    Clear,
}

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
pub(crate) fn claim(state: &Path, sandbox: &SandboxId, copied: Copied) -> Result<(), OwnerError> {
    let marker = state.join("owner");
    let owner = match fs::read_to_string(&marker) {
        Ok(owner) => Some(owner.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error.into()),
    };
    let sessions = state.join("sessions");
    match (owner, copied) {
        (Some(owner), _) if owner == sandbox.as_str() => return make_directory(&sessions),
        (Some(owner), Copied::Refuse) => {
            return Err(OwnerError::Foreign {
                owner,
                sandbox: sandbox.clone(),
            });
        }
        (Some(_) | None, Copied::Clear) => match fs::remove_dir_all(&sessions) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // There are none.
            Err(error) => return Err(error.into()),
        },
        (None, Copied::Refuse) => {}
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

fn make_directory(path: &Path) -> Result<(), OwnerError> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(marker: Option<&str>, copied: Copied, expected: &str) {
        let state = tempfile::tempdir().unwrap();
        let kept = state.path().join("sessions/ses-1");
        fs::create_dir_all(&kept).unwrap();
        if let Some(marker) = marker {
            fs::write(state.path().join("owner"), marker).unwrap();
        }
        let sandbox = SandboxId::parse("sbx-own").unwrap();
        let found = match (claim(state.path(), &sandbox, copied), kept.exists()) {
            (Ok(()), true) => "keep",
            (Ok(()), false) => "clear",
            (Err(OwnerError::Foreign { .. }), true) => "refuse",
            _ => "wrong",
        };
        assert_eq!(found, expected, "{marker:?} {copied:?}");
        if found != "refuse" {
            let marker = fs::read_to_string(state.path().join("owner")).unwrap();
            assert_eq!(marker.trim(), "sbx-own");
        }
    }

    #[test]
    fn the_marker_says_whose_sessions_are_kept() {
        check(Some("sbx-own\n"), Copied::Refuse, "keep");
        check(Some("sbx-own\n"), Copied::Clear, "keep");
        check(None, Copied::Refuse, "keep");
        check(None, Copied::Clear, "clear");
        check(Some("sbx-other\n"), Copied::Refuse, "refuse");
        check(Some("sbx-other\n"), Copied::Clear, "clear");
    }
}
