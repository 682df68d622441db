//! What goes wrong, told to people: a code, a message and the next step.
//!
//! A failure is never mixed up with what a program did. Where a command passes a program's exit
//! code on (`run`, `session attach`), our own failures exit 125, as `docker run` and `timeout`
//! have it; everywhere else they exit 1, and wrong usage exits 2.

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
};

use serde_json::{Value, json};

/// Result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Failure>;

/// Exit code of a failure.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code of wrong usage.
pub const EXIT_USAGE: u8 = 2;
/// Exit code of our own failure where other codes are the program's.
pub const EXIT_NOT_THE_PROGRAM: u8 = 125;

/// Something went wrong.
#[derive(Debug, Clone)]
pub struct Failure(Box<Facts>);

/// What there is to say about a failure.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Stable word for scripts: the server's code, or one of ours.
    pub code: String,
    /// HTTP status, when a server answered.
    pub status: Option<u16>,
    /// What happened, in words.
    pub message: String,
    /// What the server said beyond that.
    pub details: Option<Value>,
    /// What to do now.
    pub next: Option<String>,
    /// How long the server wants us to wait, seconds.
    pub retry_after_seconds: Option<u64>,
    /// The server's number of the request, for its log.
    pub request_id: Option<String>,
    /// The exit code.
    pub exit: u8,
}

/// Whether trying again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The server or the way to it is not there now.
    Later,
    /// The same call would fail again.
    Useless,
}

impl Failure {
    /// A failure of our own.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self(Box::new(Facts {
            code: code.to_owned(),
            status: None,
            message: message.into(),
            details: None,
            next: None,
            retry_after_seconds: None,
            request_id: None,
            exit: EXIT_FAILURE,
        }))
    }

    /// The command was called wrongly.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new("usage", message)
            .with_exit(EXIT_USAGE)
            .with_next("add --help to the command for its flags and an example")
    }

    /// The server could not be reached, or the connection to it broke.
    pub fn transport(doing: &str, error: &dyn std::error::Error) -> Self {
        let mut message = format!("{doing}: {error}");
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = inner.source();
        }
        Self::new("transport", message).with_next(
            "is the server up? `outlive serve` starts one; --url or OUTLIVE_URL names another",
        )
    }

    /// A local file could not be read or written.
    pub fn file(doing: &str, path: &std::path::Path, error: &io::Error) -> Self {
        let next = match error.kind() {
            io::ErrorKind::NotFound => "is the path right? it counts from the current folder",
            io::ErrorKind::PermissionDenied => {
                "is this user allowed to? `ls -ld` on it shows whose it is"
            }
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
                "one of a file and a folder is there, and the other is needed"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room on that disk",
            _ => "can other programs read or write it?",
        };
        Self::new("file", format!("{doing} {}: {error}", path.display())).with_next(next)
    }

    /// An answer that makes no sense: no server of ours sent it.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new("protocol", message).with_next(
            "does the URL name an outlive server? `curl URL/metadata` shows what is there",
        )
    }

    /// Adds what to do now.
    #[must_use]
    pub fn with_next(mut self, next: impl Into<String>) -> Self {
        self.next = Some(next.into());
        self
    }

    /// Sets the exit code.
    #[must_use]
    pub fn with_exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    /// Where other exit codes are the program's: this one says that it is not.
    #[must_use]
    pub fn not_the_program(mut self) -> Self {
        if self.exit == EXIT_FAILURE {
            self.exit = EXIT_NOT_THE_PROGRAM;
        }
        self
    }

    /// Whether trying again may help.
    pub fn retry(&self) -> Retry {
        match (self.status, self.code.as_str()) {
            (Some(429 | 502 | 503 | 504), _)
            | (None, "transport")
            | (Some(500), "stream_unavailable") => Retry::Later,
            _ => Retry::Useless,
        }
    }

    /// The server's finer word for why it refused, where it has one.
    pub fn reason(&self) -> Option<&str> {
        self.details.as_ref()?["reason"].as_str()
    }

    /// The server has no such session or sandbox.
    pub fn is_missing(&self) -> bool {
        self.status == Some(404)
    }

    /// As one JSON object, for `--json`.
    pub fn to_json(&self) -> Value {
        let mut error = json!({"code": self.code, "message": self.message});
        let optional = [
            ("status", self.status.map(Value::from)),
            ("details", self.details.clone()),
            ("next", self.next.clone().map(Value::from)),
            ("request_id", self.request_id.clone().map(Value::from)),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                error[key] = value;
            }
        }
        json!({"error": error})
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.code)?;
        if let Some(status) = self.status {
            write!(f, " ({status})")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(details) = &self.details {
            write!(f, "\n  details: {details}")?;
        }
        if let Some(request_id) = &self.request_id {
            write!(f, "\n  request: {request_id}")?;
        }
        if let Some(next) = &self.next {
            write!(f, "\n  next: {next}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

impl Deref for Failure {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.0
    }
}

impl DerefMut for Failure {
    fn deref_mut(&mut self) -> &mut Facts {
        &mut self.0
    }
}
