//! A sandbox whose supervisor is the real one, as a test's story needs it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use outlive_api::{
    agent::{Outcome, Request, Write as InputWrite},
    launch::{LaunchConfig, Launched},
    record,
};
use outlive_core::{
    event::{AttemptEnd, Body, Created, ExitStatus, Stream},
    id::{AttemptId, SessionId},
    session::{EofMode, Phase, Session},
    spec::{DesiredState, RawSpec, SessionSpec},
};
use outlive_journal::{Reader, Record};

#[cfg(feature = "privileged")]
use crate::launching::{NO_GROUPS, as_two_users, in_namespaces};
use crate::{
    launching::{NEXT, config, directory_in, start},
    link::Link,
};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A launched sandbox; ends with its processes when dropped.
pub(crate) struct Sandbox {
    directory: tempfile::TempDir,
    config: LaunchConfig,
    launched: Launched,
}

/// A specification that runs `script` in a shell.
pub(crate) fn sh(script: &str) -> RawSpec {
    argv(&["/bin/sh", "-c", script])
}

pub(crate) fn argv(command: &[&str]) -> RawSpec {
    let command = command.iter().map(|&part| part.to_owned()).collect();
    RawSpec {
        command: Some(command),
        ..RawSpec::default()
    }
}

pub(crate) fn on_terminal(mut spec: RawSpec) -> RawSpec {
    spec.io.mode = Some(outlive_core::spec::IoMode::Pty);
    spec
}

pub(crate) fn created(spec: RawSpec) -> Created {
    let spec: SessionSpec = spec.validate().unwrap();
    Created {
        spec,
        idempotency_key: None,
        handle: None,
        kind: None,
    }
}

/// Tries until `look` finds something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = outlive_agent::sys::boot_clock() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(outlive_agent::sys::boot_clock() < end, "never: {what}");
        pause(Duration::from_millis(2));
    }
}

/// One line for each number.
pub(crate) fn lines(numbers: std::ops::Range<u32>, line: impl Fn(u32) -> String) -> String {
    numbers.fold(String::new(), |text, number| text + &line(number))
}

/// How long it is since `from`, by the boot clock.
pub(crate) fn since(from: Duration) -> Duration {
    outlive_agent::sys::boot_clock().saturating_sub(from)
}

/// Lets other processes run: what a story measures time with, never what it waits by.
pub(crate) fn pause(span: Duration) {
    let span = rustix::time::Timespec {
        tv_sec: span.as_secs().cast_signed(),
        tv_nsec: span.subsec_nanos().into(),
    };
    match rustix::thread::nanosleep(&span) {
        rustix::thread::NanosleepRelativeResult::Ok => {}
        other => panic!("{other:?}"),
    }
}

impl Sandbox {
    pub(crate) fn launch() -> Self {
        Self::launch_in(&std::env::temp_dir())
    }

    /// In namespaces of its own.
    #[cfg(feature = "privileged")]
    pub(crate) fn launch_apart() -> Self {
        Self::apart(&[])
    }

    #[cfg(feature = "privileged")]
    fn apart(wrapper: &[&str]) -> Self {
        Self::launch_by(wrapper, &std::env::temp_dir(), in_namespaces)
    }

    /// With a user for the agent and one for the programs.
    #[cfg(feature = "privileged")]
    pub(crate) fn launch_as_two_users() -> Self {
        Self::launch_by(&[], &std::env::temp_dir(), as_two_users)
    }

    /// In a new folder of this one.
    pub(crate) fn launch_in(parent: &Path) -> Self {
        Self::launch_by(&[], parent, |_| {})
    }

    /// Where no control group can be made; hiding them takes root.
    #[cfg(feature = "privileged")]
    pub(crate) fn launch_without_groups() -> Self {
        Self::launch_by(&NO_GROUPS, &std::env::temp_dir(), |_| {})
    }

    /// In namespaces of its own, where no control group can be made.
    #[cfg(feature = "privileged")]
    pub(crate) fn launch_apart_without_groups() -> Self {
        Self::apart(&NO_GROUPS)
    }

    fn launch_by(wrapper: &[&str], parent: &Path, change: impl FnOnce(&mut LaunchConfig)) -> Self {
        let directory = directory_in(parent);
        let mut config = config(directory.path());
        change(&mut config);
        Self::launch_there(wrapper, directory, config)
    }

    /// As this configuration says, which is of this directory.
    pub(crate) fn launch_there(
        wrapper: &[&str],
        directory: tempfile::TempDir,
        config: LaunchConfig,
    ) -> Self {
        let launched = start(wrapper, &config);
        Self {
            directory,
            config,
            launched,
        }
    }

    /// The next runtime of the same sandbox, after a release.
    pub(crate) fn replace(&mut self) {
        self.config.generation = self.config.generation.next();
        self.launched = start(&[], &self.config);
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.state().join("agent.log")).unwrap_or_default()
    }

    /// Connects to the supervisor, the present one or the next.
    pub(crate) fn link(&self) -> Link {
        eventually("the supervisor answers", || {
            Link::connect(&self.state().join("agent.sock"), &self.config.sandbox).ok()
        })
    }

    /// Connects to the supervisor if one answers.
    pub(crate) fn link_once(&self) -> io::Result<Link> {
        Link::connect(&self.state().join("agent.sock"), &self.config.sandbox)
    }

    /// Calls; a call that a killed supervisor did not answer is made again.
    pub(crate) fn call(&self, request: &Request) -> Outcome {
        eventually("an answer", || self.link().call(request.clone()).ok())
    }

    pub(crate) fn create(&self, spec: RawSpec) -> SessionId {
        self.create_as(created(spec))
    }

    pub(crate) fn create_as(&self, created: Created) -> SessionId {
        let session = new_id();
        let request = Request::Create {
            session: session.clone(),
            created: Box::new(created),
        };
        match self.call(&request) {
            Outcome::Session(_) | Outcome::Existing(_) => session,
            other => panic!("not created: {other:?}\n{}", self.log()),
        }
    }

    pub(crate) fn session(&self, id: &SessionId) -> Session {
        session_of(self.call(&Request::Get(id.clone())))
    }

    pub(crate) fn list(&self) -> Vec<Session> {
        match self.call(&Request::List) {
            Outcome::Sessions(views) => views
                .iter()
                .map(|view| Session::restore(&view.checkpoint).unwrap())
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the session is in one of these phases.
    pub(crate) fn wait_for(&self, id: &SessionId, phases: &[Phase]) -> Session {
        eventually(&format!("{id} in {phases:?}\n{}", self.log()), || {
            let session = self.session(id);
            phases.contains(&session.phase()).then_some(session)
        })
    }

    pub(crate) fn set_desired(&self, id: &SessionId, state: DesiredState) -> Session {
        session_of(self.call(&Request::SetDesiredState {
            session: id.clone(),
            state,
        }))
    }

    pub(crate) fn write(&self, id: &SessionId, input_id: &str, data: &[u8]) -> Outcome {
        self.call(&write(id, input_id, data, None))
    }

    pub(crate) fn signal(&self, id: &SessionId, signal: u8) -> Outcome {
        self.call(&Request::Signal {
            session: id.clone(),
            expected: None,
            signal,
        })
    }

    pub(crate) fn delete(&self, id: &SessionId) {
        assert_eq!(self.call(&Request::Delete(id.clone())), Outcome::Done);
    }

    /// All records, as a reader of the files finds them.
    pub(crate) fn records(&self, id: &SessionId) -> Vec<Record> {
        let path = self.state().join("sessions").join(id.as_str());
        let mut reader = Reader::open(&path).unwrap();
        let (earliest, latest) = reader.window().unwrap();
        let mut records = Vec::new();
        let mut after = earliest - 1;
        while after < latest {
            let page = reader.read_after(after, latest, 1 << 20, 1000).unwrap();
            after = page.last().unwrap().seq;
            records.extend(page);
        }
        records
    }

    /// Everything but output.
    pub(crate) fn facts(&self, id: &SessionId) -> Vec<Body> {
        self.records(id)
            .iter()
            .filter(|record| record.kind != record::KIND_OUTPUT)
            .map(|record| record::body(&record.payload).unwrap())
            .collect()
    }

    /// What an attempt wrote to a stream.
    pub(crate) fn output(&self, id: &SessionId, stream: Stream) -> Vec<u8> {
        output_of(&self.records(id), stream)
    }

    pub(crate) fn wait_for_output(&self, id: &SessionId, stream: Stream, needle: &str) -> String {
        eventually(
            &format!("{needle:?} in the output of {id}\n{}", self.log()),
            || {
                let text = String::from_utf8_lossy(&self.output(id, stream)).into_owned();
                text.contains(needle).then_some(text)
            },
        )
    }

    pub(crate) fn keeper_pid(&self) -> u32 {
        self.launched.keeper_pid
    }

    /// The supervisor that runs.
    pub(crate) fn supervisor_pid(&self) -> i32 {
        eventually("a supervisor", || {
            children(self.keeper_pid()).into_iter().find(|pid| {
                fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with(b"outlive-supervisor\0"))
                    // An attempt that is being started bears its title, but not its name.
                    && fs::read(format!("/proc/{pid}/comm"))
                        .is_ok_and(|name| name == b"outlive-supervi\n")
            })
        })
    }

    pub(crate) fn kill_supervisor(&self) {
        kill(self.supervisor_pid(), 9);
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let keeper = self.keeper_pid();
        while is_alive(keeper) {
            // A release that a killed supervisor began is asked of the next one.
            if let Ok(mut link) = self.link_once() {
                drop(link.call(Request::Release));
            }
            pause(Duration::from_millis(5));
        }
    }
}

pub(crate) fn write(id: &SessionId, input_id: &str, data: &[u8], eof: Option<EofMode>) -> Request {
    let write = InputWrite {
        expected: None,
        input_id: input_id.to_owned(),
        data: data.to_vec(),
        eof,
        durable: false,
    };
    Request::Write {
        session: id.clone(),
        write,
    }
}

pub(crate) fn output_of(records: &[Record], stream: Stream) -> Vec<u8> {
    records
        .iter()
        .filter(|it| it.kind == record::KIND_OUTPUT)
        .filter(|it| record::stream_of(it.stream) == Some(stream))
        .flat_map(|it| it.payload.iter().copied())
        .collect()
}

pub(crate) fn new_id() -> SessionId {
    let bits = (u64::from(std::process::id()) << 32) | NEXT.fetch_add(1, Ordering::Relaxed);
    SessionId::from_bits(bits)
}

pub(crate) fn session_of(outcome: Outcome) -> Session {
    match outcome {
        Outcome::Session(view) | Outcome::Existing(view) => {
            Session::restore(&view.checkpoint).unwrap()
        }
        other => panic!("no session: {other:?}"),
    }
}

/// The status of the newest attempt.
pub(crate) fn status(session: &Session) -> ExitStatus {
    match session.attempt().and_then(|attempt| attempt.end.clone()) {
        Some(AttemptEnd::Exited { status, .. }) => status,
        other => panic!("no status: {other:?}"),
    }
}

pub(crate) fn attempt_of(id: &SessionId, number: u32) -> AttemptId {
    AttemptId::derive(id, number)
}

pub(crate) fn kill(pid: i32, signal: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
    match rustix::process::kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat
            .rsplit_once(')')
            .and_then(|(_, rest)| rest.trim_start().chars().next());
        !matches!(state, Some('Z' | 'X') | None)
    })
}

pub(crate) fn children(pid: u32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let list = list.unwrap_or_default();
    list.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
