//! Starts programs, shows what is started, and says plainly when one is missing or fails.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the repository, wherever the command was called.
pub(crate) fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// A program to run at the root of the repository.
#[derive(Debug)]
pub(crate) struct Program {
    command: Command,
    shown: String,
}

impl Program {
    /// A program found in `PATH`, or by its path.
    #[expect(
        clippy::disallowed_methods,
        reason = "this tool's only work is to run programs"
    )]
    pub(crate) fn new(name: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(name.as_ref());
        command.current_dir(repository()).stdin(Stdio::null());
        Self {
            command,
            shown: name.as_ref().to_string_lossy().into_owned(),
        }
    }

    /// The cargo that runs this tool.
    pub(crate) fn cargo() -> Self {
        Self::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    pub(crate) fn args<I, A>(mut self, args: I) -> Self
    where
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        for arg in args {
            self.shown.push(' ');
            self.shown.push_str(&arg.as_ref().to_string_lossy());
            self.command.arg(arg);
        }
        self
    }

    /// Runs in `folder` instead of the root of the repository.
    pub(crate) fn within(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Runs it to its end with our own output; anything but success is an error.
    #[expect(clippy::print_stdout, reason = "shows which program's output follows")]
    pub(crate) fn run(mut self) -> Result<()> {
        println!("+ {}", self.shown);
        let status = self
            .command
            .status()
            .with_context(|| format!("cannot start `{}`", self.shown))?;
        if !status.success() {
            bail!("`{}` failed: {status}", self.shown);
        }
        Ok(())
    }

    /// Runs it and returns what it printed, if it succeeds; what it says otherwise is not shown.
    pub(crate) fn quietly(mut self) -> Result<String> {
        self.command.stderr(Stdio::null());
        self.capture()
    }

    /// Runs it and returns what it printed.
    pub(crate) fn output(mut self) -> Result<String> {
        self.command.stderr(Stdio::inherit());
        self.capture()
    }

    fn capture(mut self) -> Result<String> {
        let output = self
            .command
            .output()
            .with_context(|| format!("cannot start `{}`", self.shown))?;
        if !output.status.success() {
            bail!("`{}` failed: {}", self.shown, output.status);
        }
        String::from_utf8(output.stdout)
            .with_context(|| format!("`{}` printed no text", self.shown))
    }
}
