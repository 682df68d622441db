//! The suites that are not Rust: what they need, and how they are run against the built server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::{
    elf::{self, Loading},
    run::{Program, repository},
    stage::Stage,
};

/// How much the random suites do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// For every push: some kills in each mode, some sequences.
    Short,
    /// At least 500 kills in each mode, 200 sequences.
    Long,
}

const SEQUENCES_SHORT: &str = "6";
const SEQUENCES_LONG: &str = "200";
const KILLS_SHORT: &str = "25";
const KILLS_LONG: &str = "500";
const NETWORK_KILLS: &str = "crash/test_networks.py";
/// Case tests wait more than they work, so several run at once.
const CASE_WORKERS: &str = "4";
/// For tests that work more than they wait. Whoever has nothing left takes over half of what waits
/// for the other.
const TWO_WORKERS: [&str; 4] = ["-n", "2", "--dist", "worksteal"];

/// How many machines share the stories of that stage, with a boot each.
const MACHINES: &str = "2";

/// Debian packages that sandboxes of the image `host` and the suites use.
const DEBIAN_PACKAGES: [(&str, &str); 12] = [
    ("/usr/bin/ip", "iproute2"),
    ("/usr/bin/perl", "perl-base"),
    ("/usr/bin/python3", "python3"),
    ("/var/lib/dpkg/info/python3-venv.list", "python3-venv"),
    ("/usr/bin/ps", "procps"),
    ("/usr/bin/newuidmap", "uidmap"),
    ("/usr/bin/jq", "jq"),
    ("/bin/busybox", "busybox-static"),
    ("/usr/bin/zstd", "zstd"),
    ("/usr/bin/curl", "curl"),
    ("/usr/sbin/nft", "nftables"),
    ("/sbin/mkfs.btrfs", "btrfs-progs"),
];

/// Debian packages with which the stage `machine` makes one. Its kernel is fetched by the suite.
const MACHINE_PACKAGES: [(&str, &str); 4] = [
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    ("/usr/bin/cpio", "cpio"),
    ("/sbin/mke2fs", "e2fsprogs"),
    ("/sbin/mkfs.xfs", "xfsprogs"),
];

/// Builds the binaries that all suites drive, the agent in the form in which it is shipped.
pub(crate) fn build() -> Result<()> {
    Program::cargo()
        .args(["build", "--workspace", "--bins"])
        .run()?;
    static_agent(Profile::Debug).map(drop)
}

/// How something is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// For the suites.
    Debug,
    /// To be shipped.
    Release,
}

/// Builds the agent without any library of the machine, in place of the one that `cargo build`
/// makes; answers where it lies.
///
/// A flag of its own binary alone: for the whole workspace it would also reach build scripts and
/// macros, which can't be static.
pub(crate) fn static_agent(profile: Profile) -> Result<PathBuf> {
    let (flag, folder): (&[&str], _) = match profile {
        Profile::Debug => (&[], "debug"),
        Profile::Release => (&["--release"], "release"),
    };
    Program::cargo()
        .args([
            "rustc",
            "--package",
            "outlive-agent",
            "--bin",
            "outlive-agent",
        ])
        .args(flag)
        .args(["--", "-C", "target-feature=+crt-static"])
        .run()?;
    let agent = target().join(folder).join("outlive-agent");
    let bytes = std::fs::read(&agent).with_context(|| agent.display().to_string())?;
    match elf::loading(&bytes) {
        Some(Loading::Static) => Ok(agent),
        Some(Loading::By(loader)) => bail!("{} needs {loader}: it is not static", agent.display()),
        None => bail!("{} is no 64-bit ELF executable", agent.display()),
    }
}

/// The vendor's Python client through the whole dialect.
pub(crate) fn python() -> Result<()> {
    pytest("conformance/python", &[])
}

/// The vendor's TypeScript client through the whole dialect.
pub(crate) fn typescript() -> Result<()> {
    node_modules()?;
    npm(["run", "--silent", "check"])?;
    npm(["run", "--silent", "test"])
}

/// The vendor's Go client through the whole dialect.
pub(crate) fn go() -> Result<()> {
    let folder = repository().join("tests/conformance/go");
    Program::new("go")
        .within(&folder)
        .args(["vet", "./..."])
        .run()?;
    with_server(
        Program::new("go")
            .within(&folder)
            .args(["test", "-count=1", "-v", "./..."]),
    )
    .run()
}

/// The documentation's own snippets.
pub(crate) fn seed() -> Result<()> {
    node_modules()?;
    pytest("conformance/seed", &[])
}

/// Faults that users met elsewhere; the measured ones run alone.
pub(crate) fn cases() -> Result<()> {
    pytest(
        "cases",
        &["--ignore", "cases/test_load.py", "-n", CASE_WORKERS],
    )?;
    pytest("cases/test_load.py", &[])
}

/// What every endpoint says to nonsense, and schemathesis against `openapi.yaml`.
pub(crate) fn http() -> Result<()> {
    pytest("http", &TWO_WORKERS)
}

/// Random lives of sandboxes.
pub(crate) fn lifecycle(length: Length) -> Result<()> {
    let sequences = match length {
        Length::Short => SEQUENCES_SHORT,
        Length::Long => SEQUENCES_LONG,
    };
    let mut arguments = vec!["--sequences", sequences];
    arguments.extend(TWO_WORKERS);
    pytest("lifecycle", &arguments)
}

/// Images, from the archive to a session that runs in them.
pub(crate) fn images() -> Result<()> {
    pytest("images", &[])
}

/// The kill harness, and what it counted. A server that starts removes rules of networks that belong to
/// nobody any more, so stories about networks are told without others beside them.
pub(crate) fn crash(length: Length) -> Result<()> {
    let kills = match length {
        Length::Short => KILLS_SHORT,
        Length::Long => KILLS_LONG,
    };
    let mut arguments = vec!["--kills", kills, "-raP", "--ignore", NETWORK_KILLS];
    arguments.extend(TWO_WORKERS);
    pytest("crash", &arguments)?;
    pytest(NETWORK_KILLS, &[])
}

/// Limits on a machine of its own.
pub(crate) fn machine() -> Result<()> {
    pytest("machine", &["-n", MACHINES, "--dist", "worksteal"])
}

fn with_server(program: Program) -> Program {
    program.env("OUTLIVE_BIN", target().join("debug/outlive"))
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

fn pytest(path: &str, more: &[&str]) -> Result<()> {
    let python = virtualenv()?;
    with_server(Program::new(python).within(&repository().join("tests")))
        .args(["-m", "pytest", path])
        .args(more)
        .run()
}

/// A virtualenv with what `tests/requirements.txt` pins; its interpreter.
fn virtualenv() -> Result<PathBuf> {
    let folder = target().join("tests/venv");
    let python = folder.join("bin/python");
    if !python.exists() {
        Program::new("python3")
            .args(["-m", "venv"])
            .args([&folder])
            .run()?;
    }
    Program::new(&python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args(["-r", "tests/requirements.txt"])
        .run()?;
    Ok(python)
}

fn node_modules() -> Result<()> {
    npm(["ci", "--no-audit", "--no-fund"])
}

fn npm<const N: usize>(args: [&str; N]) -> Result<()> {
    let folder = repository().join("tests/conformance/typescript");
    with_server(Program::new("npm").within(&folder).args(args)).run()
}

/// Installs Debian packages that these stages miss, as root; without root it names them.
pub(crate) fn debian_packages(stages: &[Stage]) -> Result<()> {
    let missing = missing_packages(stages);
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("install these packages first: {}", missing.join(" "));
    }
    Program::new("apt-get").args(["update", "--quiet"]).run()?;
    Program::new("apt-get")
        .args(["install", "--quiet", "--yes", "--no-install-recommends"])
        .args(missing)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run()
}

/// Debian packages of which this machine has not what these stages need them for.
pub(crate) fn missing_packages(stages: &[Stage]) -> Vec<&'static str> {
    let is_missing = |file: &str| {
        let file = Path::new(file);
        // Where there is no folder for it, this is no Debian, and has its own packages.
        !file.exists() && file.parent().is_some_and(Path::exists)
    };
    let for_machine: &[_] = if stages.contains(&Stage::Machine) {
        &MACHINE_PACKAGES
    } else {
        &[]
    };
    DEBIAN_PACKAGES
        .iter()
        .chain(for_machine)
        .filter(|(file, _)| is_missing(file))
        .map(|&(_, package)| package)
        .collect()
}
