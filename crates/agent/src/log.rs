//! The supervisor's own log: what an operator must know, never what a child wrote.
//!
//! It goes to standard error, which the launcher points at `agent.log`. When that grows beyond
//! its limit it begins anew, so no fault that repeats can fill a disk.

use std::{fmt, io::Write};

use crate::limits::AGENT_LOG_BYTES_MAX;

/// Something went wrong that nobody asked about.
pub(crate) fn warn(message: fmt::Arguments<'_>) {
    write("warn", message);
}

/// A detail for whoever looks for a fault.
pub(crate) fn debug(message: fmt::Arguments<'_>) {
    if cfg!(debug_assertions) {
        write("debug", message);
    }
}

fn write(level: &str, message: fmt::Arguments<'_>) {
    let stderr = std::io::stderr();
    let is_too_long = rustix::fs::fstat(&stderr).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile
            && u64::try_from(stat.st_size).unwrap_or(0) > AGENT_LOG_BYTES_MAX
    });
    if is_too_long {
        match rustix::fs::ftruncate(&stderr, 0) {
            Ok(()) | Err(_) => {} // A log that can't be cut: there is nowhere to say so.
        }
    }
    // There is nowhere else to say it.
    drop(writeln!(stderr.lock(), "{level} {message}"));
}
