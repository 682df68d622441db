//! What an attempt leaves behind goes on: it may write for ever, and nothing of that is kept.
use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::PathBuf};

use crate::supervised::{Sandbox, eventually, on_terminal, sh};
use outlive_core::{
    event::{Body, Stream},
    id::SessionId,
    session::Phase,
    spec::{DesiredState, RawSpec},
};

/// A process that each attempt of a session leaves behind. Each word that it is told has it write
/// more than a pipe and a terminal hold; then it repeats the word, where the story hears it.
struct LeftBehind<'s> {
    sandbox: &'s Sandbox,
    session: SessionId,
    /// A folder for each attempt, named by its number: two that listen at one place would share
    /// a word between them, byte by byte.
    place: tempfile::TempDir,
}

impl<'s> LeftBehind<'s> {
    /// By a program that `starter` gives the loop to, and that ends at once.
    fn by(sandbox: &'s Sandbox, starter: &str, shape: fn(RawSpec) -> RawSpec) -> Self {
        let place = tempfile::tempdir().unwrap();
        let at = place.path().display();
        fs::write(
            place.path().join("loop"),
            format!(
                "trap '' HUP\n\
                 n=1; until mkdir {at}/$n 2>/dev/null; do n=$((n + 1)); done\n\
                 cd {at}/$n && mkfifo told && while read word <told; do\n\
                 head -c 300000 /dev/zero && head -c 300000 /dev/zero >&2 && echo $word >said\n\
                 done\n"
            ),
        )
        .unwrap();
        let session = sandbox.create(shape(sh(&starter.replace("LOOP", &format!("{at}/loop")))));
        sandbox.wait_for(&session, &[Phase::Exited]);
        Self {
            sandbox,
            session,
            place,
        }
    }

    fn at(&self, attempt: u32, what: &str) -> PathBuf {
        self.place.path().join(attempt.to_string()).join(what)
    }

    /// Whether it listens, and if so it is told this.
    fn hears(&self, attempt: u32, word: &str) -> bool {
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags(libc::O_NONBLOCK);
        match options.open(self.at(attempt, "told")) {
            Ok(mut told) => told.write_all(format!("{word}\n").as_bytes()).is_ok(),
            Err(_) => false, // Nobody has it open.
        }
    }

    /// The one of the first attempt.
    fn writes(&self, word: &str) {
        self.of_attempt_writes(1, word);
    }

    fn of_attempt_writes(&self, attempt: u32, word: &str) {
        eventually("it listens", || self.hears(attempt, word).then_some(()));
        eventually("it could write", || {
            let said = fs::read_to_string(self.at(attempt, "said")).unwrap_or_default();
            (said.trim() == word).then_some(())
        });
    }

    /// It lives and writes through all that may become of a sandbox that keeps its runtime.
    fn goes_on(&self) {
        let Self {
            sandbox, session, ..
        } = self;
        self.writes("first");
        sandbox.kill_supervisor();
        self.writes("second");
        sandbox.freeze();
        sandbox.kill_supervisor();
        sandbox.thaw();
        self.writes("third");
        sandbox.kill_supervisor();
        sandbox.kill_supervisor();
        self.writes("fourth");
        let facts = sandbox.facts(session);
        let since_exit = facts
            .iter()
            .skip_while(|it| !matches!(it, Body::AttemptExited(_)));
        assert!(
            since_exit
                .skip(1)
                .all(|it| matches!(it, Body::SessionPaused | Body::SessionResumed)),
            "{facts:?}"
        );
    }

    fn is_gone(&self) {
        eventually("it is gone", || (!self.hears(1, "anybody?")).then_some(()));
    }

    fn output(&self, stream: Stream) -> Vec<u8> {
        self.sandbox.output(&self.session, stream)
    }
}

// Whoever was left behind was killed by the first thing that it wrote.
#[test]
fn who_is_left_behind_may_write_to_pipes() {
    let sandbox = Sandbox::launch();
    let left = LeftBehind::by(&sandbox, "sh LOOP & echo hi", |spec| spec);
    left.goes_on();
    assert_eq!(left.output(Stream::Stdout), b"hi\n");
    assert_eq!(left.output(Stream::Stderr), b"");
    sandbox.delete(&left.session);
    left.is_gone();
}

// It waited for ever for somebody to read the terminal.
#[test]
fn who_is_left_behind_may_write_to_a_terminal() {
    let sandbox = Sandbox::launch();
    let script = "trap '' HUP; sh LOOP & echo hi";
    let left = LeftBehind::by(&sandbox, script, on_terminal);
    left.goes_on();
    assert_eq!(left.output(Stream::Pty), b"hi\r\n");
    let stopped = sandbox.set_desired(&left.session, DesiredState::Stopped);
    assert_eq!(stopped.phase(), Phase::Stopped);
    left.is_gone();
}

#[test]
fn each_attempt_may_leave_somebody_behind() {
    let sandbox = Sandbox::launch();
    let left = LeftBehind::by(&sandbox, "sh LOOP & echo hi", |spec| spec);
    let again = sandbox.set_desired(&left.session, DesiredState::Running);
    assert_eq!(again.attempt().unwrap().number, 2);
    sandbox.wait_for(&left.session, &[Phase::Exited]);
    for attempt in [1, 2] {
        left.of_attempt_writes(attempt, "word");
        left.of_attempt_writes(attempt, "another");
    }
    assert_eq!(left.output(Stream::Stdout), b"hi\nhi\n");
}

/// What takes root: descriptors of keeper and supervisor, and hidden control groups.
#[cfg(feature = "privileged")]
mod as_root {
    use super::*;
    use outlive_api::agent::Request;

    /// How many descriptors a process has that output may come from.
    fn open_outputs(pid: u32) -> usize {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .filter(|link| {
                let link = link.to_string_lossy();
                link.starts_with("pipe:") || link.ends_with("/ptmx")
            })
            .count()
    }

    fn of_both(sandbox: &Sandbox) -> [usize; 2] {
        let supervisor = sandbox.supervisor_pid().unsigned_abs();
        [sandbox.keeper_pid(), supervisor].map(open_outputs)
    }

    #[test]
    fn who_is_left_behind_leaves_no_descriptor() {
        let sandbox = Sandbox::launch();
        sandbox.call(&Request::List);
        let before = of_both(&sandbox);
        for shape in [|spec| spec, on_terminal] {
            let script = "trap '' HUP; sh LOOP & echo hi";
            let left = LeftBehind::by(&sandbox, script, shape);
            left.writes("word");
            assert_ne!(of_both(&sandbox), before);
            sandbox.kill_supervisor();
            left.writes("another");
            sandbox.delete(&left.session);
            eventually("nothing is open", || {
                (of_both(&sandbox) == before).then_some(())
            });
        }
    }

    // Without control groups a daemon is found by the output that it holds, and by nothing else.
    #[test]
    fn a_daemon_may_write_that_no_control_group_holds() {
        let sandbox = Sandbox::launch_without_groups();
        let script = "(setsid sh LOOP &); echo hi";
        let left = LeftBehind::by(&sandbox, script, |spec| spec);
        left.goes_on();
        assert_eq!(left.output(Stream::Stdout), b"hi\n");
    }
}
