//! What the suites need and a person installs: looked for before the first stage, so that all that
//! is missing is told at once.

use std::fmt;

use anyhow::{Result, bail};

use crate::{run::Program, stage::Stage, suites};

/// A program that some stages need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Python,
    PythonWithVenv,
    Node,
    Npm,
    Go,
}

impl Tool {
    const ALL: [Self; 5] = [
        Self::Python,
        Self::PythonWithVenv,
        Self::Node,
        Self::Npm,
        Self::Go,
    ];

    /// What has it print its version, as `major.minor` at some place.
    fn question(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3", "--version"],
            Self::PythonWithVenv => &[
                "python3",
                "-c",
                "import ensurepip, platform, venv; print(platform.python_version())",
            ],
            Self::Node => &["node", "--version"],
            Self::Npm => &["npm", "--version"],
            Self::Go => &["go", "version"],
        }
    }

    /// The oldest version that will do.
    fn least(self) -> (u32, u32) {
        match self {
            Self::Python => (3, 0),
            Self::PythonWithVenv => (3, 11),
            Self::Node => (20, 0),
            Self::Npm => (9, 0),
            Self::Go => (1, 26),
        }
    }

    /// How it gets here.
    fn install(self) -> &'static str {
        match self {
            Self::Python => "apt-get install python3",
            Self::PythonWithVenv => "apt-get install python3 python3-venv",
            Self::Node | Self::Npm => "https://nodejs.org/en/download (Debian 12 has Node 18)",
            Self::Go => "https://go.dev/doc/install (Debian 12 has Go 1.19)",
        }
    }

    fn needed_by(self, stage: Stage) -> bool {
        match stage {
            Stage::Format | Stage::Lint | Stage::Doc | Stage::Build => false,
            Stage::Rust => self == Self::Python,
            Stage::Typescript => matches!(self, Self::Node | Self::Npm),
            Stage::Go => self == Self::Go,
            Stage::Seed => self != Self::Python,
            Stage::Python
            | Stage::Cases
            | Stage::Http
            | Stage::Lifecycle
            | Stage::Images
            | Stage::Crash
            | Stage::Machine => self == Self::PythonWithVenv,
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.least();
        match self {
            Self::Python => write!(f, "Python {major}"),
            Self::PythonWithVenv => write!(f, "Python {major}.{minor} with venv"),
            Self::Node => write!(f, "Node {major}"),
            Self::Npm => write!(f, "npm {major}"),
            Self::Go => write!(f, "Go {major}.{minor}"),
        }
    }
}

/// Fails with everything that these stages need and this machine has not.
pub(crate) fn check(stages: &[Stage]) -> Result<()> {
    let mut missing = missing(stages, |tool| match tool.question() {
        [program, args @ ..] => Program::new(program).args(args).quietly().ok(),
        [] => None,
    });
    let packages = suites::missing_packages(stages);
    let is_suite = |stage: &Stage| Tool::PythonWithVenv.needed_by(*stage);
    if stages.iter().any(is_suite) && !packages.is_empty() {
        missing.push(format!("  apt-get install {}", packages.join(" ")));
    }
    if missing.is_empty() {
        return Ok(());
    }
    bail!(
        "this machine lacks what the stages need; `--only STAGE` runs one that needs less\n{}",
        missing.join("\n")
    );
}

/// A line for each tool that does not say of itself that it is new enough.
fn missing(stages: &[Stage], ask: impl Fn(Tool) -> Option<String>) -> Vec<String> {
    let needed = Tool::ALL
        .into_iter()
        .filter(|tool| stages.iter().any(|stage| tool.needed_by(*stage)));
    needed
        .filter(|tool| {
            let told = ask(*tool);
            told.as_deref().and_then(version) < Some(tool.least())
        })
        .map(|tool| format!("  {:<22}  {}", format!("{tool}:"), tool.install()))
        .collect()
}

/// The first `major.minor` of a text.
fn version(text: &str) -> Option<(u32, u32)> {
    let start = text.find(|letter: char| letter.is_ascii_digit())?;
    let mut numbers = text
        .get(start..)?
        .split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each one was learnt of at its own stage only, the last after an hour.
    #[test]
    fn all_that_is_missing_is_told_at_once() {
        let bare = missing(&Stage::ALL, |_| None).concat();
        for tool in [
            "Python 3.11 with venv",
            "Node 20",
            "Go 1.26",
            "python3-venv",
        ] {
            assert!(bare.contains(tool), "{tool}: {bare}");
        }
        let old = |tool: Tool| {
            let told = match tool {
                Tool::Python | Tool::PythonWithVenv => "Python 3.11.2",
                Tool::Node => "v18.20.4",
                Tool::Npm => "10.8.2",
                Tool::Go => "go version go1.19.8 linux/amd64",
            };
            Some(told.to_owned())
        };
        let told = missing(&Stage::ALL, old);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.concat().contains("Debian 12 has Node 18"), "{told:?}");
        assert_eq!(missing(&[Stage::Lint], |_| None), Vec::<String>::new());
        assert_eq!(
            missing(&[Stage::Go], |_| Some("go1.26.8".to_owned())).len(),
            0
        );
    }
}
