//! Which inputs of the attempt that runs are unsure: a small file beside the journal.
//!
//! What a supervisor was doing when it was killed is told by the newest record. The file keeps
//! that for the supervisors after the next. It is not synced: a power cut ends the attempt, and
//! with it the question.

use std::{collections::BTreeSet, io, path::PathBuf};

use super::SessionJournal;
use crate::log;

const NAME: &str = "unsettled";
const NAME_NEW: &str = "unsettled.new";

impl SessionJournal {
    /// Those that were noted.
    pub(crate) fn unsettled_inputs(&self) -> io::Result<BTreeSet<String>> {
        match std::fs::read(self.beside(NAME)) {
            Ok(bytes) => Ok(minicbor::decode(&bytes).unwrap_or_else(|error| {
                // A kill leaves the old file or the new one: the disk is damaged, and a note is
                // no reason to lose a session.
                log::warn(format_args!("a note of unsure inputs is lost: {error}"));
                BTreeSet::new()
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }

    /// Notes these and no others.
    pub(crate) fn note_unsettled_inputs(&self, inputs: &BTreeSet<String>) -> io::Result<()> {
        let path = self.beside(NAME);
        if inputs.is_empty() {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            };
        }
        let bytes = minicbor::to_vec(inputs).map_err(io::Error::other)?;
        let new = self.beside(NAME_NEW);
        std::fs::write(&new, bytes)?;
        Ok(rustix::fs::rename(&new, &path)?)
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.shared.path.join(name)
    }
}
