//! The stages of the test command, in the order in which a mistake is cheapest to see.

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::run::{Program, repository};
use crate::suites::{self, Length};
use crate::tools;

/// One part of the test command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stage {
    Format,
    Lint,
    Doc,
    Rust,
    Build,
    Python,
    Typescript,
    Go,
    Seed,
    Cases,
    Http,
    Lifecycle,
    Images,
    Crash,
    Machine,
}

/// What one call of the test command does.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) stages: Vec<Stage>,
    pub(crate) length: Length,
}

/// Whether this machine is allowed to leave something out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing may be missing.
    Ci,
    /// Somebody's machine: what it can't do is said and left out.
    Desk,
}

impl Stage {
    pub(crate) const ALL: [Self; 15] = [
        Self::Format,
        Self::Lint,
        Self::Doc,
        Self::Rust,
        Self::Build,
        Self::Python,
        Self::Typescript,
        Self::Go,
        Self::Seed,
        Self::Cases,
        Self::Http,
        Self::Lifecycle,
        Self::Images,
        Self::Crash,
        Self::Machine,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Lint => "lint",
            Self::Doc => "doc",
            Self::Rust => "rust",
            Self::Build => "build",
            Self::Python => "python",
            Self::Typescript => "typescript",
            Self::Go => "go",
            Self::Seed => "seed",
            Self::Cases => "cases",
            Self::Http => "http",
            Self::Lifecycle => "lifecycle",
            Self::Images => "images",
            Self::Crash => "crash",
            Self::Machine => "machine",
        }
    }

    pub(crate) fn shows(self) -> &'static str {
        match self {
            Self::Format => "the code is formatted",
            Self::Lint => "clippy finds nothing",
            Self::Doc => "the documentation builds without a warning",
            Self::Rust => {
                "tests of the workspace: an ordinary user's without a network, root's as root"
            }
            Self::Build => "the binaries that all suites below drive",
            Self::Python => "the vendor's Python client through the whole supervised dialect",
            Self::Typescript => "the vendor's TypeScript client, the same stories",
            Self::Go => "the vendor's Go client, the same stories",
            Self::Seed => "the documentation's own snippets, with only URL and token changed",
            Self::Cases => "faults that users met elsewhere (docs/internals/cases.md)",
            Self::Http => "bad input at every endpoint, and schemathesis against openapi.yaml",
            Self::Lifecycle => "sandboxes sleep, wake, fork and go, and leave nothing behind",
            Self::Images => "images of every kind, taken in and run; hostile ones refused",
            Self::Crash => "nothing is lost while our own processes are killed with -9",
            Self::Machine => {
                "limits on a machine with cgroup2 alone, and disks of ext4 and XFS with quotas; only \
                 with --long or by name"
            }
        }
    }

    /// Whether it runs tests, which use what Debian has.
    fn has_tests(self) -> bool {
        !matches!(self, Self::Format | Self::Lint | Self::Doc | Self::Build)
    }

    /// Whether it drives what [`Stage::Build`] builds.
    fn drives_binaries(self) -> bool {
        self.has_tests() && self != Self::Rust
    }

    /// Whether it belongs to each run of all stages: a machine is made of software here, which takes
    /// minutes.
    const fn is_usual(self, length: Length) -> bool {
        !matches!((self, length), (Self::Machine, Length::Short))
    }

    /// These stages in their order, and what they need before them. None is all of them.
    pub(crate) fn chosen(only: &[Self], length: Length) -> Vec<Self> {
        let is_needed = |stage: &Self| {
            (only.is_empty() && stage.is_usual(length))
                || only.contains(stage)
                || (*stage == Self::Build && only.iter().any(|it| it.drives_binaries()))
        };
        Self::ALL.into_iter().filter(is_needed).collect()
    }

    /// Runs the stage; answers what was left out of it, if anything was.
    fn run(self, place: Place, length: Length) -> Result<Option<String>> {
        match self {
            Self::Format => cargo(["fmt", "--all", "--check"]),
            Self::Lint => cargo([
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ]),
            Self::Doc => Program::cargo()
                .args(["doc", "--workspace", "--no-deps", "--quiet"])
                .env("RUSTDOCFLAGS", "-D warnings")
                .run()
                .map(|()| None),
            Self::Rust => rust_tests(place),
            Self::Build => suites::build().map(|()| None),
            Self::Python => suite(place, suites::python),
            Self::Typescript => suite(place, suites::typescript),
            Self::Go => suite(place, suites::go),
            Self::Seed => suite(place, suites::seed),
            Self::Cases => suite(place, suites::cases),
            Self::Http => suite(place, suites::http),
            Self::Lifecycle => suite(place, || suites::lifecycle(length)),
            Self::Images => as_root(place, suites::images),
            Self::Crash => suite(place, || suites::crash(length)),
            Self::Machine => machine(place),
        }
    }
}

impl Place {
    fn here() -> Self {
        match std::env::var_os("CI") {
            Some(value) if value == "true" => Self::Ci,
            _ => Self::Desk,
        }
    }
}

impl Plan {
    /// Runs every stage, also after a failure, and prints a summary.
    #[expect(
        clippy::print_stdout,
        reason = "a command line tool talks on its standard output"
    )]
    pub(crate) fn run(&self) -> Result<()> {
        let place = Place::here();
        // As root, so that what it brings is not missed.
        if rustix::process::geteuid().is_root() && self.stages.iter().any(|stage| stage.has_tests())
        {
            suites::debian_packages(&self.stages)?;
        }
        tools::check(&self.stages)?;
        let mut lines = Vec::new();
        let mut failed = 0;
        for &stage in &self.stages {
            println!("\n== {}: {}", stage.name(), stage.shows());
            let timer = Timer::start();
            let verdict = match stage.run(place, self.length) {
                Ok(Some(left_out)) => format!("passed ({left_out})"),
                Ok(None) => "passed".to_owned(),
                Err(error) => {
                    failed += 1;
                    format!("FAILED: {error:#}")
                }
            };
            println!("== {}: {verdict}", stage.name());
            lines.push(format!(
                "{:<12} {:>5} s  {verdict}",
                stage.name(),
                timer.seconds()
            ));
        }
        println!("\nSummary\n{}", lines.join("\n"));
        println!("{} passed, {failed} failed", self.stages.len() - failed);
        if failed > 0 {
            bail!("{failed} stages failed");
        }
        Ok(())
    }
}

fn cargo<const N: usize>(args: [&str; N]) -> Result<Option<String>> {
    Program::cargo().args(args).run().map(|()| None)
}

/// The workspace's tests. What needs root is behind the feature `privileged` of its package; as root
/// the rest runs as an ordinary user without a network, for that is what `cargo test` promises.
fn rust_tests(place: Place) -> Result<Option<String>> {
    let root = rustix::process::geteuid().is_root();
    if !root && place == Place::Ci {
        bail!("the privileged tests need root in CI");
    }
    let test = Program::cargo().args(["test", "--workspace"]);
    if !root {
        test.run()?;
        return Ok(Some(
            "left out without root: the privileged tests".to_owned(),
        ));
    }
    let runner = repository().join("xtask/ordinary-user.sh");
    test.args(["--features", &privileged_features()?])
        .args([
            "--config",
            &format!("target.'cfg(all())'.runner={:?}", [runner]),
        ])
        .run()?;
    Ok(None)
}

/// A suite that drives the built server. In CI it needs root; at a desk it says what that leaves out.
fn suite(place: Place, run: impl FnOnce() -> Result<()>) -> Result<Option<String>> {
    let root = rustix::process::geteuid().is_root();
    if !root && place == Place::Ci {
        bail!("the suites need root in CI");
    }
    run()?;
    Ok((!root)
        .then(|| "without root: no limits, and tests that mount a disk are left out".to_owned()))
}

/// What takes root altogether.
fn as_root(place: Place, run: impl FnOnce() -> Result<()>) -> Result<Option<String>> {
    if rustix::process::geteuid().is_root() {
        return run().map(|()| None);
    }
    if place == Place::Ci {
        bail!("the suites need root in CI");
    }
    Ok(Some("left out without root".to_owned()))
}

/// A machine is made of the programs that are built here, for one kind of processor.
fn machine(place: Place) -> Result<Option<String>> {
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Some("left out: the machine is an x86-64 one".to_owned()));
    }
    as_root(place, suites::machine)
}

/// `package/privileged` for every package of the workspace that has such a feature.
fn privileged_features() -> Result<String> {
    let metadata = Program::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).context("`cargo metadata` printed no JSON")?;
    let packages = metadata["packages"]
        .as_array()
        .context("`cargo metadata` names no packages")?;
    let features: Vec<String> = packages
        .iter()
        .filter(|package| package["features"].get("privileged").is_some())
        .filter_map(|package| package["name"].as_str())
        .map(|name| format!("{name}/privileged"))
        .collect();
    Ok(features.join(","))
}

/// How long a stage took.
#[derive(Debug)]
struct Timer(std::time::Instant);

impl Timer {
    #[expect(clippy::disallowed_methods, reason = "measures how long a stage takes")]
    fn start() -> Self {
        Self(std::time::Instant::now())
    }

    fn seconds(&self) -> u64 {
        self.0.elapsed().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Kills went on for an hour over programs of yesterday.
    #[test]
    fn a_suite_alone_drives_what_was_built_just_before() {
        assert_eq!(
            Stage::chosen(&[Stage::Crash, Stage::Go], Length::Short),
            [Stage::Build, Stage::Go, Stage::Crash]
        );
        assert_eq!(Stage::chosen(&[Stage::Lint], Length::Short), [Stage::Lint]);
        assert_eq!(Stage::chosen(&[Stage::Rust], Length::Short), [Stage::Rust]);
    }

    #[test]
    fn the_machine_is_started_by_name_or_in_a_long_run() {
        assert_eq!(Stage::chosen(&[], Length::Long), Stage::ALL);
        let usual = Stage::chosen(&[], Length::Short);
        assert_eq!(usual.len(), Stage::ALL.len() - 1);
        assert!(!usual.contains(&Stage::Machine));
        assert_eq!(
            Stage::chosen(&[Stage::Machine], Length::Short),
            [Stage::Build, Stage::Machine]
        );
    }
}
