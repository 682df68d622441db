//! What a launch is told, and the launcher.

use std::{
    collections::BTreeMap,
    fs, io,
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

use outlive_api::launch::{
    CopiedSessions, Image, LaunchConfig, LaunchOutcome, Launched, Limits, NetworkMode, RuntimeKind,
    User,
};
use outlive_core::id::{Generation, SandboxId};

#[cfg(feature = "privileged")]
use crate::image;

/// Starts a program where no control groups are to be seen.
#[cfg(feature = "privileged")]
pub(crate) const NO_GROUPS: [&str; 5] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs none /sys/fs/cgroup && exec \"$0\" \"$@\"",
];

pub(super) static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) fn directory_in(parent: &Path) -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("outlive-story-")
        .tempdir_in(parent)
        .unwrap()
}

/// What a launch in this directory is told: no isolation.
pub(crate) fn config(directory: &Path) -> LaunchConfig {
    let bits = (u64::from(std::process::id()) << 32) | NEXT.fetch_add(1, Ordering::Relaxed);
    LaunchConfig {
        sandbox: SandboxId::from_bits(bits),
        generation: Generation::FIRST,
        directory: directory.to_str().unwrap().to_owned(),
        runtime: RuntimeKind::Process,
        ids: None,
        image: Image::Host {
            layer: String::new(),
        },
        network: NetworkMode::Host,
        hostname: String::new(),
        env: BTreeMap::from([
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
            ("FROM_LAUNCH".to_owned(), "yes".to_owned()),
        ]),
        user: User::ROOT,
        cwd: "/".to_owned(),
        limits: Limits::default(),
        way_out: None,
        copied_sessions: CopiedSessions::Refuse,
        quota: None,
    }
}

#[cfg(feature = "privileged")]
pub(crate) fn in_namespaces(config: &mut LaunchConfig) {
    config.runtime = RuntimeKind::Namespace;
    let layer = image::host(config.runtime, Path::new(&config.directory));
    config.image = Image::Host { layer };
    config.ids = ids();
    config.network = NetworkMode::None;
    "box".clone_into(&mut config.hostname);
}

#[cfg(feature = "privileged")]
pub(crate) fn as_two_users(config: &mut LaunchConfig) {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};
    config.runtime = RuntimeKind::TwoUid;
    config.ids = ids();
    fs::set_permissions(&config.directory, Permissions::from_mode(0o711)).unwrap();
}

/// Ids of the next sandbox, which no other has.
#[cfg(feature = "privileged")]
fn ids() -> Option<outlive_api::launch::IdRange> {
    let next = u16::try_from(NEXT.load(Ordering::Relaxed)).unwrap();
    let own = u16::try_from(std::process::id() % 5000).unwrap();
    outlive_api::launch::IdRange::of_slot(21_000 + next + own)
}

/// A launcher that has been told what to do.
#[expect(clippy::disallowed_methods, reason = "test")]
pub(crate) fn begin(wrapper: &[&str], config: &LaunchConfig) -> Child {
    let agent = [env!("CARGO_BIN_EXE_outlive-agent"), "launch"];
    let words: Vec<_> = wrapper.iter().chain(&agent).collect();
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = minicbor::to_vec(config).unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    child
}

pub(super) fn start(wrapper: &[&str], config: &LaunchConfig) -> Launched {
    let mut child = begin(wrapper, config);
    let mut answer = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut answer)
        .unwrap();
    assert!(child.wait().unwrap().success(), "the launcher failed");
    match minicbor::decode(&answer).unwrap() {
        LaunchOutcome::Started(launched) => launched,
        LaunchOutcome::Failed(failure) => {
            let log = format!("{}/state/agent.log", config.directory);
            let log = fs::read_to_string(log).unwrap_or_else(|error: io::Error| error.to_string());
            panic!("not launched: {failure}\n{log}");
        }
    }
}
