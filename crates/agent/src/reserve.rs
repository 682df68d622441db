//! A little of the disk that is kept free for what must be journalled whatever happens: starts
//! and ends of attempts, deletions. Output never gets it: a full disk makes the workload wait.

use std::{
    cell::Cell,
    fs::{File, OpenOptions},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::FallocateFlags;

use crate::{limits::RESERVE_BYTES, log};

/// Space that is allocated and not used.
#[derive(Debug)]
pub(crate) struct Reserve {
    file: Option<File>,
    is_spent: Cell<bool>,
}

impl Reserve {
    /// Allocates the space in a state directory.
    pub(crate) fn keep(state: &Path) -> Self {
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(state.join("reserve"));
        let reserve = match opened {
            Ok(file) => Self {
                file: Some(file),
                is_spent: Cell::new(true),
            },
            Err(error) => {
                log::warn(format_args!("there is no reserve for a full disk: {error}"));
                Self {
                    file: None,
                    is_spent: Cell::new(true),
                }
            }
        };
        reserve.refill();
        reserve
    }

    /// Gives the space back to the disk, for what comes next. `false`: there was none.
    pub(crate) fn spend(&self) -> bool {
        let Some(file) = &self.file else { return false };
        if self.is_spent.replace(true) {
            return false;
        }
        match file.set_len(0) {
            Ok(()) => true,
            Err(error) => {
                log::warn(format_args!("the reserve can't be used: {error}"));
                false
            }
        }
    }

    /// Takes the space again once it was spent, if there is any.
    pub(crate) fn refill(&self) {
        let Some(file) = self.file.as_ref().filter(|_| self.is_spent.get()) else {
            return;
        };
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
            Ok(()) => self.is_spent.set(false),
            // Still no space, or only part of it: give that back.
            Err(error) => match file.set_len(0) {
                Ok(()) => log::debug(format_args!("no space for the reserve: {error}")),
                Err(worse) => log::warn(format_args!("the reserve: {error}; {worse}")),
            },
        }
    }

    /// Without any space.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self {
            file: None,
            is_spent: Cell::new(true),
        }
    }
}
