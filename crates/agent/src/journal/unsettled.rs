//! Which inputs of the attempt that runs are unsure: two small files beside the journal.
//!
//! ```text
//!   receipt journalled ─► bytes to the child ─► `delivered`: the receipt's number
//! ```
//! What a supervisor was doing when it was killed is told by the newest record, unless `delivered`
//! says that it was done. `unsettled` keeps what is unsure for the supervisors after the next. Neither
//! is synced: a power cut ends the attempt, and with it the question.

use std::{
    collections::BTreeSet, fs::File, io, os::unix::fs::FileExt, path::PathBuf, sync::PoisonError,
};

use super::SessionJournal;
use crate::log;

const NAME: &str = "unsettled";
const NAME_NEW: &str = "unsettled.new";
const NAME_DELIVERED: &str = "delivered";

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

    /// The input of this receipt, and those before it, got to the attempt or to its queue.
    pub(crate) fn note_delivered(&self, seq: u64) -> io::Result<()> {
        let note = &self.shared.delivered;
        let mut note = note.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &mut *note {
            Some(file) => file,
            None => note.insert(
                File::options()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .open(self.beside(NAME_DELIVERED))?,
            ),
        };
        file.write_all_at(&seq.to_le_bytes(), 0)
    }

    /// The receipt of the newest input that is known to have got there.
    pub(crate) fn delivered(&self) -> io::Result<u64> {
        match std::fs::read(self.beside(NAME_DELIVERED)) {
            // Of a note that was cut nothing is known.
            Ok(bytes) => Ok(bytes.try_into().map_or(0, u64::from_le_bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.shared.path.join(name)
    }
}
