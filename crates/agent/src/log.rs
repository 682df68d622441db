//! The supervisor's own log: what an operator must know, never what a child wrote.
//!
//! It goes to standard error, which the launcher points at the bounded `agent.log`.

use std::{fmt, io::Write};

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
    match writeln!(std::io::stderr(), "{level} {message}") {
        Ok(()) => {}
        Err(_) => {} // There is nowhere else to say it.
    }
}
