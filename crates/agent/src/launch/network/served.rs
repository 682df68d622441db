//! Whether a server runs in our network namespace that gives sandboxes a link.
//!
//! What all sandboxes share stays for as long as one does, so that the first sandbox is made as
//! fast as the others. One byte of the file of [`super::rules`] stands for a namespace; a server's
//! [`super::hold`] has it locked, and the lock goes with that process.

use std::{fs::File, io, os::fd::AsFd};

use crate::sys::{is_byte_shared, share_byte};

/// For as long as this is there, a server runs.
#[derive(Debug)]
pub(super) struct Served {
    _locked: File,
}

impl Served {
    /// By a descriptor of its own.
    pub(super) fn begin(file: File, namespace: u64) -> io::Result<Self> {
        share_byte(file.as_fd(), namespace)?;
        Ok(Self { _locked: file })
    }
}

/// Asks by a descriptor that is not a server's.
pub(super) fn is_served(file: &File, namespace: u64) -> io::Result<bool> {
    is_byte_shared(file.as_fd(), namespace)
}
