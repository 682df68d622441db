//! A supervisor without rules: it starts what it is told to, moves output into plain files,
//! writes down exits, and takes over what another one left.
//!
//! Its listening socket is kept by the keeper, so a caller that comes while it is dead waits.

mod words;

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::PathBuf,
    sync::{Arc, Condvar, Mutex},
};

use outlive_agent::{
    account::Credentials,
    inherit::Inheritance,
    keeper::{KeeperClient, Label},
    process::{
        Attempt, AttemptKey, ExecOutcome, OutputSink, Pump, SinkError, SourceEnd, SourceId,
        SpawnRequest, Spawned, Spawner,
        cgroup::WorkloadCgroups,
        exit::{self, Life},
        pump::Fill,
    },
};
use outlive_core::{
    event::{ExitStatus, Stream},
    id::SessionId,
    spec::{Io, Terminal},
};

pub use words::{Did, Do, receive, send};

/// Output of one attempt: a file a stream, whose length is all there is to know.
struct Files {
    name: String,
    state: Mutex<Ends>,
    changed: Condvar,
}

#[derive(Default)]
struct Ends {
    ended: usize,
}

impl Files {
    fn path(name: &str, stream: Stream) -> String {
        let stream = match stream {
            Stream::Stdout => "out",
            Stream::Stderr => "err",
            Stream::Pty => "tty",
        };
        format!("{name}.{stream}")
    }
}

impl OutputSink for Files {
    fn append(&self, stream: Stream, fill: &mut Fill<'_>) -> Result<usize, SinkError> {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(Self::path(&self.name, stream))
            .map_err(SinkError::Broken)?;
        let offset = file.metadata().map_err(SinkError::Broken)?.len();
        fill(file.as_fd(), offset, 64 * 1024).map_err(SinkError::Source)
    }

    fn progress(&self, _: Stream, _: usize) {}

    fn ended(&self, _: Stream, _: SourceEnd) {
        self.state.lock().unwrap().ended += 1;
        self.changed.notify_all();
    }
}

struct Supervisor {
    keeper: KeeperClient,
    spawner: Spawner,
    pump: Pump,
    cgroups: WorkloadCgroups,
    user: Option<Credentials>,
    live: Mutex<Vec<Arc<Live>>>,
    one_start: Mutex<()>,
    shut: Mutex<Vec<Spawned>>,
}

struct Live {
    name: String,
    attempt: Mutex<Attempt>,
    sources: Vec<SourceId>,
    files: Arc<Files>,
    count: usize,
}

/// The supervisor's face in these tests.
pub fn main() -> anyhow::Result<()> {
    // It waits for tests without looking at its keeper.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let inherited = Inheritance::take(outlive_agent::inherit::keeper()?)?;
    let listener = listener(&inherited.keeper)?;
    let user = inherited.user()?;
    let supervisor = Arc::new(Supervisor {
        keeper: inherited.keeper,
        spawner: inherited.spawner,
        pump: inherited.pump,
        cgroups: inherited.cgroups,
        user,
        live: Mutex::new(Vec::new()),
        one_start: Mutex::new(()),
        shut: Mutex::default(),
    });
    for attempt in inherited.attempts {
        let name = attempt.key.session.as_str().to_owned();
        // One whose gate stayed shut was never started; the caller asks again.
        if attempt.exec_status.wait()? == ExecOutcome::NeverReleased {
            exit::reap(&attempt)?;
            attempt.forget(&supervisor.keeper)?;
            continue;
        }
        supervisor.adopt(&name, attempt)?;
    }
    supervisor.keeper.ready()?;
    for socket in listener.incoming() {
        let supervisor = Arc::clone(&supervisor);
        let mut socket = socket?;
        std::thread::spawn(move || {
            while let Ok(ask) = receive::<Do>(&mut socket) {
                let leaves = matches!(ask, Do::Leave | Do::Upgrade(_));
                let answer = supervisor
                    .answer(ask)
                    .unwrap_or_else(|e| Did::Failed(format!("{e:#}")));
                if send(&mut socket, &answer).is_err() {
                    return;
                }
                if leaves {
                    outlive_agent::sys::exit_now(0);
                }
            }
        });
    }
    Ok(())
}

fn listener(keeper: &KeeperClient) -> anyhow::Result<UnixListener> {
    let name = "fixture/listener";
    for kept in keeper.get_all()? {
        if kept.label.name == name {
            return Ok(UnixListener::from(kept.fd));
        }
    }
    let listener = UnixListener::bind("agent.sock")?;
    let label = Label {
        name: name.to_owned(),
        pid: 0,
        note: 0,
    };
    keeper.put(&[(label, listener.as_fd())])?;
    Ok(listener)
}

impl Supervisor {
    fn answer(self: &Arc<Self>, ask: Do) -> anyhow::Result<Did> {
        Ok(match ask {
            Do::Start {
                name,
                argv,
                tty,
                cwd,
                env,
            } => self.start(&name, argv, tty, &cwd, env)?,
            Do::StartShut(name) => {
                let spawned = self.spawner.spawn_blocking(SpawnRequest {
                    key: AttemptKey {
                        session: SessionId::parse(&name)?,
                        number: 1,
                    },
                    argv: vec!["true".to_owned()],
                    env: Vec::new(),
                    cwd: "/".to_owned(),
                    io: Io::Pipes,
                    user: self.user.clone(),
                })?;
                let pid = spawned.attempt.outer_pid;
                self.shut.lock().unwrap().push(spawned);
                Did::Pid(pid)
            }
            Do::Wait(name) => Did::Ended(self.wait(&name)?),
            Do::Input { name, data } => {
                self.input(&name, &data)?;
                Did::Done
            }
            Do::CloseInput(name) => {
                let live = self.find(&name)?;
                live.attempt.lock().unwrap().close_input(&self.keeper)?;
                Did::Done
            }
            Do::Kill(name) => {
                let live = self.find(&name)?;
                let attempt = live.attempt.lock().unwrap();
                attempt.cgroup.kill_tree(attempt.outer_pid)?;
                Did::Done
            }
            Do::Keeper => Did::Keeper(self.keeper.status()?),
            Do::Reexec => {
                self.keeper.reexec()?;
                Did::Done
            }
            Do::Upgrade(path) => {
                let exe = std::fs::File::open(path)?;
                self.keeper.upgrade(exe.as_fd())?;
                Did::Done
            }
            Do::Leave => {
                self.keeper.leave()?;
                Did::Done
            }
            Do::List => {
                let live = self.live.lock().unwrap();
                Did::Names(live.iter().map(|l| l.name.clone()).collect())
            }
            Do::Mode => Did::Splices(self.pump.mode() == outlive_api::agent::PumpMode::Splice),
        })
    }

    fn find(&self, name: &str) -> anyhow::Result<Arc<Live>> {
        let live = self.live.lock().unwrap();
        let found = live.iter().find(|l| l.name == name);
        found
            .map(Arc::clone)
            .ok_or_else(|| anyhow::anyhow!("no attempt of {name}"))
    }

    fn start(
        self: &Arc<Self>,
        name: &str,
        argv: Vec<String>,
        tty: bool,
        cwd: &str,
        env: Vec<(String, String)>,
    ) -> anyhow::Result<Did> {
        let _one = self.one_start.lock().unwrap();
        if let Ok(live) = self.find(name) {
            return Ok(Did::Pid(live.attempt.lock().unwrap().pid));
        }
        let program = argv.first().cloned().unwrap_or_default();
        let spawned = self.spawner.spawn_blocking(SpawnRequest {
            key: AttemptKey {
                session: SessionId::parse(name)?,
                number: 1,
            },
            argv,
            env,
            cwd: cwd.to_owned(),
            io: if tty {
                Io::Pty(Terminal {
                    rows: 24,
                    cols: 80,
                    term: "xterm".to_owned(),
                })
            } else {
                Io::Pipes
            },
            user: self.user.clone(),
        })?;
        let pid = spawned.attempt.pid;
        let live = self.adopt(name, spawned.attempt)?;
        spawned.gate.open()?;
        let outcome = {
            let attempt = live.attempt.lock().unwrap();
            attempt.exec_status.wait()?
        };
        Ok(match outcome.message(&program, cwd) {
            Some(message) => Did::NotStarted(message),
            None => Did::Pid(pid),
        })
    }

    fn adopt(self: &Arc<Self>, name: &str, mut attempt: Attempt) -> anyhow::Result<Arc<Live>> {
        let files = Arc::new(Files {
            name: name.to_owned(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut sources = Vec::new();
        let taken = std::mem::take(&mut attempt.sources);
        let count = taken.len();
        for source in taken {
            let sink: Arc<dyn OutputSink> = Arc::clone(&files) as _;
            sources.push(
                self.pump
                    .attach(u64::from(attempt.outer_pid), source, sink)?,
            );
        }
        let live = Arc::new(Live {
            name: name.to_owned(),
            attempt: Mutex::new(attempt),
            sources,
            files,
            count,
        });
        self.live.lock().unwrap().push(Arc::clone(&live));
        let this = Arc::clone(self);
        let watched = Arc::clone(&live);
        std::thread::spawn(move || {
            if let Err(e) = this.follow(&watched) {
                // The next supervisor does it again.
                eprintln!("fixture: {e:#}");
                outlive_agent::sys::exit_now(3);
            }
        });
        Ok(live)
    }

    /// Waits for the end of an attempt, drains it, writes the end down, and only then reaps.
    fn follow(&self, live: &Live) -> anyhow::Result<()> {
        let pidfd = Arc::clone(&live.attempt.lock().unwrap().pidfd);
        wait_readable(pidfd.as_fd())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        for source in &live.sources {
            runtime.block_on(self.pump.drain(*source))?;
        }
        // Descendants may hold the output: 200 ms of silence, as the real one.
        let ends = live.files.state.lock().unwrap();
        drop(live.files.changed.wait_timeout_while(
            ends,
            std::time::Duration::from_millis(200),
            |ends| ends.ended < live.count,
        ));
        for source in &live.sources {
            runtime.block_on(self.pump.detach(*source))?;
        }
        let attempt = live.attempt.lock().unwrap();
        let Life::Ended(end) = exit::look(&attempt, &self.keeper)? else {
            anyhow::bail!("pidfd is readable, but the process runs");
        };
        let path = end_path(&live.name);
        let bytes = minicbor::to_vec(end.status)?;
        let mut file = tempfile::NamedTempFile::new_in(".")?;
        file.write_all(&bytes)?;
        if let Err(e) = file.persist_noclobber(&path) {
            // Written by a supervisor before us, which was killed before it reaped.
            anyhow::ensure!(
                std::fs::read(&path)? == bytes,
                "two ends of one attempt: {e}"
            );
        }
        exit::reap(&attempt)?;
        if attempt.cgroup.populated(attempt.outer_pid)? {
            attempt.cgroup.kill_tree(attempt.outer_pid)?;
        }
        wait_empty(&attempt)?;
        self.cgroups.remove(&attempt.cgroup)?;
        attempt.forget(&self.keeper)?;
        let mut all = self.live.lock().unwrap();
        all.retain(|l| l.name != live.name);
        Ok(())
    }

    fn wait(&self, name: &str) -> anyhow::Result<ExitStatus> {
        loop {
            let live = self.find(name);
            if let Ok(bytes) = std::fs::read(end_path(name)) {
                return Ok(minicbor::decode(&bytes)?);
            }
            let live = live?;
            let pidfd = Arc::clone(&live.attempt.lock().unwrap().pidfd);
            wait_readable(pidfd.as_fd())?;
            std::thread::yield_now();
        }
    }

    fn input(&self, name: &str, data: &[u8]) -> anyhow::Result<()> {
        let live = self.find(name)?;
        let attempt = live.attempt.lock().unwrap();
        let fd: BorrowedFd<'_> = match (&attempt.stdin, &attempt.terminal) {
            (Some(stdin), _) => stdin.as_fd(),
            (None, Some(terminal)) => terminal.as_fd(),
            (None, None) => anyhow::bail!("no input"),
        };
        rustix::io::write(fd, data)?;
        Ok(())
    }
}

fn end_path(name: &str) -> PathBuf {
    PathBuf::from(format!("{name}.end"))
}

fn wait_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Waits for the group to be empty, by its own event.
fn wait_empty(attempt: &Attempt) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    let Some(events): Option<OwnedFd> = attempt.cgroup.events()? else {
        return Ok(());
    };
    loop {
        // Reading arms the poll; a change in between makes it return at once.
        let mut text = [0; 128];
        rustix::io::pread(&events, &mut text, 0)?;
        if !attempt.cgroup.populated(attempt.outer_pid)? {
            return Ok(());
        }
        poll(&mut [PollFd::new(&events, PollFlags::PRI)], None)?;
    }
}
