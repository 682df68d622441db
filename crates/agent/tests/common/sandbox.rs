//! A sandbox under test, as its user sees it.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
};

use outlive_api::launch::{
    CopiedSessions, IdRange, Image, LaunchConfig, LaunchOutcome, Launched, Limits, NetworkMode,
    RuntimeKind, User,
};
use outlive_core::{
    event::ExitStatus,
    id::{Generation, SandboxId},
};

use super::{
    escape,
    fixture::{Did, Do, receive, send},
    image,
};

/// Slots far from those a server of this machine would use.
static SLOT: AtomicU16 = AtomicU16::new(0);

/// A launched sandbox; ends with its processes when dropped.
pub struct Sandbox {
    pub config: LaunchConfig,
    pub launched: Launched,
    caller: Caller,
    directory: tempfile::TempDir,
}

pub fn config(kind: RuntimeKind, directory: &Path) -> LaunchConfig {
    let slot = SLOT.fetch_add(1, Ordering::Relaxed);
    let bits = (u64::from(std::process::id()) << 32) | u64::from(slot);
    LaunchConfig {
        sandbox: SandboxId::from_bits(bits),
        generation: Generation::FIRST,
        directory: directory.to_str().unwrap().to_owned(),
        runtime: kind,
        ids: IdRange::of_slot(20_000 + slot),
        image: Image::Host {
            layer: image::host(kind, directory),
        },
        network: NetworkMode::None,
        hostname: "box".to_owned(),
        env: BTreeMap::new(),
        user: User::ROOT,
        cwd: String::new(),
        limits: Limits::default(),
        way_out: None,
        copied_sessions: CopiedSessions::Refuse,
        quota: None,
    }
}

/// What starts the agent with this face.
pub type Caller = Box<dyn Fn(&str) -> Command + Sync>;

/// The test's own user does.
pub fn us() -> Caller {
    Box::new(|face| {
        #[expect(clippy::disallowed_methods, reason = "test")]
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(face);
        command
    })
}

/// Shows this face to this configuration.
pub fn call(caller: &Caller, face: &str, config: &impl minicbor::Encode<()>) -> Vec<u8> {
    let mut child = caller(face)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = minicbor::to_vec(config).unwrap();
    match child.stdin.take().unwrap().write_all(&bytes) {
        // A face that asks for nothing may be done by now.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        written => written.unwrap(),
    }
    let mut answer = Vec::new();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_to_end(&mut answer).unwrap();
    assert!(child.wait().unwrap().success(), "{face} failed");
    answer
}

impl Sandbox {
    pub fn launch(kind: RuntimeKind) -> Self {
        Self::launch_with(kind, |_| {})
    }

    pub fn launch_with(kind: RuntimeKind, change: impl FnOnce(&mut LaunchConfig)) -> Self {
        Self::launch_by(kind, |config| {
            change(config);
            us()
        })
    }

    /// Launches as whoever the closure says, which may change the configuration.
    pub fn launch_by(kind: RuntimeKind, prepare: impl FnOnce(&mut LaunchConfig) -> Caller) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("outlive-agent-")
            .tempdir()
            .unwrap();
        let mut config = config(kind, directory.path());
        let caller = prepare(&mut config);
        match minicbor::decode(&call(&caller, "launch", &config)).unwrap() {
            LaunchOutcome::Started(launched) => Self {
                config,
                launched,
                caller,
                directory,
            },
            LaunchOutcome::Failed(failure) => {
                let log = directory.path().join("state/agent.log");
                let log = std::fs::read_to_string(log).unwrap_or_default();
                panic!("launch failed: {failure}\n{log}");
            }
        }
    }

    pub fn state(&self, file: &str) -> PathBuf {
        self.directory.path().join("state").join(file)
    }

    /// Connects to the supervisor, the present one or the next.
    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(self.state("agent.sock")).unwrap()
    }

    /// Asks until somebody answered, however many supervisors die meanwhile.
    pub fn ask(&self, ask: &Do) -> Did {
        loop {
            let mut socket = self.connect();
            let answer = send(&mut socket, ask).and_then(|()| receive(&mut socket));
            match answer {
                Ok(Did::Failed(why)) => panic!("{ask:?}: {why}\n{}", self.log()),
                Ok(did) => return did,
                Err(_) => assert!(self.keeper_lives(), "the keeper died\n{}", self.log()),
            }
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.state("agent.log")).unwrap_or_default()
    }

    pub fn keeper_lives(&self) -> bool {
        outlive_agent::sys::start_ticks(self.launched.keeper_pid)
            .is_ok_and(|ticks| ticks == self.launched.keeper_start_ticks)
    }

    /// Starts `argv` under this name.
    pub fn start(&self, name: &str, argv: &[&str]) -> Did {
        self.ask(&start(name, argv, false))
    }

    /// Starts `argv` on a terminal.
    pub fn start_tty(&self, name: &str, argv: &[&str]) -> Did {
        self.ask(&start(name, argv, true))
    }

    pub fn wait(&self, name: &str) -> ExitStatus {
        match self.ask(&Do::Wait(name.to_owned())) {
            Did::Ended(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Runs a command to its end, and returns what it wrote to standard output.
    pub fn run(&self, name: &str, argv: &[&str]) -> (ExitStatus, String) {
        match self.start(name, argv) {
            Did::Pid(_) => {}
            other => panic!("{argv:?}: {other:?}"),
        }
        let status = self.wait(name);
        (status, self.output(name, "out"))
    }

    pub fn output(&self, name: &str, stream: &str) -> String {
        String::from_utf8(self.bytes(name, stream)).unwrap()
    }

    pub fn bytes(&self, name: &str, stream: &str) -> Vec<u8> {
        std::fs::read(self.state(&format!("{name}.{stream}"))).unwrap_or_default()
    }

    /// The supervisor's process id on the host.
    ///
    /// A process that it has cloned and that has not become its program yet bears its title, too,
    /// and is the keeper's child once the supervisor was killed: the name of its thread tells.
    pub fn supervisor(&self) -> Option<u32> {
        let keeper = self.launched.keeper_pid;
        let children =
            std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
        children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .find(|pid: &u32| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with(b"outlive-supervisor\0"))
                    && std::fs::read(format!("/proc/{pid}/comm"))
                        .is_ok_and(|name| name == b"outlive-supervi\n")
            })
    }

    /// Kills the supervisor at once. `false` when there is none right now.
    pub fn kill_supervisor(&self) -> bool {
        let Some(pid) = self.supervisor() else {
            return false;
        };
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()
    }

    /// Makes the attempts of `escape.rs` by that program, in there; which of them got through.
    pub fn escape(&self, program: &str, tier: &str, arguments: &[String]) -> Vec<String> {
        let mut argv = vec![program, escape::WORD, tier];
        argv.extend(arguments.iter().map(String::as_str));
        let (status, output) = self.run("ses-escape", &argv);
        let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
        let sum = lines.pop().unwrap_or_default();
        let errors = self.output("ses-escape", "err");
        assert!(
            sum.ends_with(&format!(" attempts, {} got through", lines.len())),
            "{status:?} {output}\n{errors}"
        );
        lines
    }

    pub fn kept(&self) -> u32 {
        match self.ask(&Do::Keeper) {
            Did::Keeper(status) => status.kept,
            other => panic!("{other:?}"),
        }
    }
}

pub fn start(name: &str, argv: &[&str], tty: bool) -> Do {
    Do::Start {
        name: name.to_owned(),
        argv: argv.iter().map(|&a| a.to_owned()).collect(),
        tty,
        cwd: "/".to_owned(),
        env: vec![("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())],
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if self.keeper_lives() {
            let pid = i32::try_from(self.launched.keeper_pid).unwrap();
            if let Some(pid) = rustix::process::Pid::from_raw(pid)
                && let Ok(pidfd) =
                    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            {
                // The supervisor sees its keeper gone; everything else is swept.
                let killed =
                    rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
                assert!(killed.is_ok() || !self.keeper_lives(), "{killed:?}");
            }
        }
        call(&self.caller, "sweep", &self.config);
    }
}
