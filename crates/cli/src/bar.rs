//! How far a long call is, on the standard error of a person.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use crate::args::Format;

/// See the module.
#[derive(Debug, Clone)]
pub struct Bar(ProgressBar);

impl Bar {
    /// Nothing of it is seen by programs that read us.
    pub fn new(format: Format) -> Self {
        let seen = format == Format::Table && std::io::stderr().is_terminal();
        let target = if seen {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        Self(ProgressBar::with_draw_target(None, target))
    }

    /// What is being done, and how many bytes there are to it, when that is known.
    pub fn step(&self, what: &str, length: Option<u64>) {
        let template = if length.is_some() {
            "{prefix:>10} [{bar:30}] {bytes}/{total_bytes} {msg}"
        } else {
            "{prefix:>10} {spinner} {bytes} {msg}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        match length {
            Some(length) => self.0.set_length(length),
            None => self.0.unset_length(),
        }
        self.0.set_prefix(what.to_owned());
    }

    /// So many bytes more.
    pub fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// As far as a line of the server says.
    pub fn at(&self, line: &Value) {
        if let Some(files) = line["files"].as_u64().filter(|files| *files > 0) {
            self.0.set_message(format!("{files} files"));
        }
        self.0.set_position(line["bytes"].as_u64().unwrap_or(0));
    }

    /// Leaves no trace on the terminal.
    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
