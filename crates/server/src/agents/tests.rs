//! Links against a supervisor that dies wherever it hurts.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Stdio},
    sync::Arc,
    time::Duration,
};

use outlive_api::agent::{Outcome, Request, Write};
use outlive_core::{
    event::Created,
    id::{Generation, SandboxId, SessionId},
    session::ReplaceCurrent,
    spec::RawSpec,
};
use outlive_testkit::fake_agent::FakeAgent;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    agent::{Agent, NoAnswer},
    keeper::Keeper,
    tails::Tails,
};

/// A process that stands for a keeper: it lives until it is told to end.
#[derive(Debug)]
pub(crate) struct FakeKeeper {
    child: Child,
}

impl FakeKeeper {
    #[expect(
        clippy::disallowed_methods,
        reason = "a test needs a process of its own"
    )]
    pub(crate) fn start(state_dir: &std::path::Path) -> Self {
        let mut child = std::process::Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Once it answers, it has been executed and its start time is settled.
        let mut stdin = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, b"x\n").unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        child.stdin = Some(stdin);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let ticks = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_ascii_whitespace()
            .nth(19)
            .unwrap()
            .to_owned();
        let text = format!("{} {ticks}\n", child.id());
        std::fs::write(state_dir.join("keeper.pid"), text).unwrap();
        Self { child }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for FakeKeeper {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Stage {
    _dir: tempfile::TempDir,
    state: PathBuf,
    keeper: FakeKeeper,
    fake: FakeAgent,
    tails: Arc<Tails>,
    agent: Agent,
    /// The fake binds again through it at a restart.
    _short_dir: std::fs::File,
}

fn sandbox() -> SandboxId {
    SandboxId::from_bits(7)
}

pub(crate) fn session() -> SessionId {
    SessionId::from_bits(9)
}

impl Stage {
    fn set() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Longer than a socket's path may be.
        let state = dir.path().join("d".repeat(120)).join("state");
        std::fs::create_dir_all(&state).unwrap();
        let short = std::fs::canonicalize(&state).unwrap();
        let keeper = FakeKeeper::start(&state);
        let (fake, short_dir) = bind_in(&short);
        let tails = Arc::new(Tails::default());
        let agent = Agent::start(
            sandbox(),
            state.clone(),
            Keeper::find(&state).unwrap().unwrap(),
            Arc::clone(&tails),
            BTreeMap::from([("A".to_owned(), "1".to_owned())]),
            &TaskTracker::new(),
            &CancellationToken::new(),
        );
        Self {
            _dir: dir,
            state,
            keeper,
            fake,
            tails,
            agent,
            _short_dir: short_dir,
        }
    }
}

/// The fake binds by path; `/proc/self/fd` keeps that short, as the real one does.
fn bind_in(state: &std::path::Path) -> (FakeAgent, std::fs::File) {
    use std::os::fd::AsRawFd;
    let dir = std::fs::File::open(state).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    let fake = FakeAgent::listen(&path, sandbox(), Generation(3)).unwrap();
    (fake, dir)
}

pub(crate) fn create() -> Request {
    let spec = RawSpec {
        command: Some(vec!["true".to_owned()]),
        ..RawSpec::default()
    };
    Request::Create {
        session: session(),
        created: Box::new(Created {
            spec: spec.validate().unwrap(),
            idempotency_key: None,
            handle: None,
            kind: None,
        }),
    }
}

fn write() -> Request {
    Request::Write {
        session: session(),
        write: Write {
            expected: None,
            input_id: "one".to_owned(),
            data: b"hello".to_vec(),
            eof: None,
            durable: false,
        },
    }
}

fn signal() -> Request {
    Request::Signal {
        session: session(),
        expected: None,
        signal: 15,
    }
}

#[tokio::test]
async fn calls_are_answered_over_a_path_longer_than_a_socket_address() {
    let stage = Stage::set();
    let welcome = stage.agent.welcome(Duration::from_secs(5)).await.unwrap();
    assert_eq!(welcome.generation, Generation(3));
    let answer = stage.agent.call(create()).await.unwrap();
    assert!(matches!(answer, Outcome::Session(_)), "{answer:?}");
    // The answer itself makes the session followable; the watch need not have come yet.
    assert_eq!(stage.tails.follow(&session()).unwrap().borrow().latest, 1);
}

#[tokio::test]
async fn many_calls_share_a_link_and_each_gets_its_own_answer() {
    let stage = Stage::set();
    let calls = (0..200_u64).map(|n| {
        let env = BTreeMap::from([("N".to_owned(), n.to_string())]);
        let agent = &stage.agent;
        async move {
            match n % 3 {
                0 => assert_eq!(
                    agent.call(Request::Configure { env }).await,
                    Ok(Outcome::Done)
                ),
                1 => assert_eq!(
                    agent.call(Request::List).await,
                    Ok(Outcome::Sessions(vec![]))
                ),
                _ => assert!(matches!(
                    agent.call(Request::Health).await,
                    Ok(Outcome::Health(_))
                )),
            }
        }
    });
    futures_util::future::join_all(calls).await;
}

/// The link is cut after every single byte, in both directions. Everything is carried out exactly
/// once, and no call is left without its answer.
#[tokio::test]
async fn a_cut_at_any_byte_carries_nothing_out_twice() {
    for direction in ["read", "written"] {
        // Longer than the frames of these calls together; cuts behind them never happen.
        for bytes in 0..400 {
            let stage = Stage::set();
            stage.agent.welcome(Duration::from_secs(5)).await.unwrap();
            match direction {
                "read" => stage.fake.cut_after_read(bytes),
                _ => stage.fake.cut_after_written(bytes),
            }
            let at = format!("cut after {bytes} bytes {direction}");
            let created = stage.agent.call(create()).await;
            assert!(
                matches!(created, Ok(Outcome::Session(_))),
                "{at}: {created:?}"
            );
            let written = stage.agent.call(write()).await;
            assert!(
                matches!(written, Ok(Outcome::Written { .. })),
                "{at}: {written:?}"
            );
            let signalled = stage.agent.call(signal()).await;
            assert_eq!(signalled, Ok(Outcome::Done), "{at}");
            let deleted = stage.agent.call(Request::Delete(session())).await;
            assert_eq!(deleted, Ok(Outcome::Done), "{at}");

            let done = stage.fake.done();
            let count = |kind: fn(&Request) -> bool| done.iter().filter(|one| kind(one)).count();
            assert_eq!(count(|r| matches!(r, Request::Create { .. })), 1, "{at}");
            assert_eq!(count(|r| matches!(r, Request::Write { .. })), 1, "{at}");
            assert_eq!(count(|r| matches!(r, Request::Delete(_))), 1, "{at}");
            assert_eq!(count(|r| matches!(r, Request::Signal { .. })), 1, "{at}");
        }
    }
}

#[tokio::test]
async fn a_call_waits_while_the_supervisor_restarts() {
    let mut stage = Stage::set();
    stage.agent.welcome(Duration::from_secs(5)).await.unwrap();
    stage.fake.kill();
    let call = stage.agent.call(create());
    let restart = async {
        while stage.agent.is_up() {
            tokio::task::yield_now().await;
        }
        stage.fake.restart().unwrap();
    };
    let (answer, ()) = tokio::join!(call, restart);
    assert!(matches!(answer, Ok(Outcome::Session(_))), "{answer:?}");
    // Before anything else it was told the sandbox's variables.
    assert_eq!(stage.fake.env()["A"], "1");
}

fn replace() -> Request {
    Request::NewAttempt {
        session: session(),
        replace: ReplaceCurrent::Yes,
    }
}

fn replacements(stage: &Stage) -> usize {
    let done = stage.fake.done();
    let replaces = |one: &&Request| matches!(one, Request::NewAttempt { .. });
    done.iter().filter(replaces).count()
}

// It was answered 503, and whoever asked did not know whether the attempt was replaced.
#[tokio::test]
async fn a_replacement_whose_answer_was_lost_is_answered_and_happens_once() {
    let stage = Stage::set();
    stage.agent.welcome(Duration::from_secs(5)).await.unwrap();
    stage.agent.call(create()).await.unwrap();
    stage.fake.cut_after_written(0);
    let answer = stage.agent.call(replace()).await;
    assert!(matches!(answer, Ok(Outcome::Session(_))), "{answer:?}");
    assert_eq!(replacements(&stage), 1);
    // The next one is another call.
    stage.agent.call(replace()).await.unwrap();
    assert_eq!(replacements(&stage), 2);
}

#[tokio::test]
async fn a_replacement_is_not_sent_again_to_a_build_that_would_not_know_it() {
    let mut stage = Stage::set();
    stage.fake.forget_calls();
    stage.fake.restart().unwrap();
    while stage
        .agent
        .welcome(Duration::from_secs(5))
        .await
        .unwrap()
        .remembers_calls
    {
        tokio::task::yield_now().await;
    }
    stage.agent.call(create()).await.unwrap();
    stage.fake.cut_after_written(0);
    let answer = stage.agent.call(replace()).await;
    assert_eq!(answer, Err(NoAnswer::Unknown));
    assert_eq!(replacements(&stage), 1);
}

// A call waited for ever for a supervisor that hung, and so did everybody behind it.
#[tokio::test]
async fn who_is_silent_ends_calls_in_fifteen_seconds_and_carries_them_out_when_it_goes_on() {
    let stage = Stage::set();
    stage.agent.call(create()).await.unwrap();
    tokio::time::pause();
    stage.fake.stop();
    let from = tokio::time::Instant::now();
    let calls = tokio::join!(stage.agent.call(replace()), stage.agent.call(signal()));
    assert_eq!(calls, (Err(NoAnswer::Silent), Err(NoAnswer::Silent)));
    assert!(stage.agent.is_silent());
    let took = from.elapsed();
    assert!((10..=15).contains(&took.as_secs()), "{took:?}");
    // Who comes later waits as for one that is away, and leaves nothing behind.
    let from = tokio::time::Instant::now();
    assert_eq!(stage.agent.call(write()).await, Err(NoAnswer::Away));
    assert_eq!(from.elapsed().as_secs(), 5);
    stage.fake.go_on();
    stage.agent.call(write()).await.unwrap();
    assert!(!stage.agent.is_silent());
    assert_eq!(
        stage.fake.done()[1..],
        [replace(), signal(), write()],
        "once each, in their order"
    );
}

#[tokio::test]
async fn a_call_that_takes_its_time_is_not_taken_for_silence() {
    let stage = Stage::set();
    stage.agent.welcome(Duration::from_secs(5)).await.unwrap();
    stage.fake.hang();
    tokio::time::pause();
    let call = stage.agent.call(create());
    let waited = tokio::time::timeout(Duration::from_hours(1), call).await;
    waited.unwrap_err();
    assert!(!stage.agent.is_silent());
}

#[tokio::test]
async fn a_short_stop_is_noticed_by_nobody() {
    let stage = Stage::set();
    stage.agent.call(create()).await.unwrap();
    tokio::time::pause();
    stage.fake.stop();
    let going_on = async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        stage.fake.go_on();
    };
    let (answer, ()) = tokio::join!(stage.agent.call(signal()), going_on);
    assert_eq!(answer, Ok(Outcome::Done));
    assert_eq!(stage.fake.done()[1..], [signal()]);
}

#[tokio::test]
async fn sessions_deleted_while_the_link_was_down_end_their_followers() {
    let mut stage = Stage::set();
    stage.agent.call(create()).await.unwrap();
    let mut follower = stage.tails.follow(&session()).unwrap();
    stage.tails.moved(&SessionId::from_bits(10), 1, 5);
    let mut ghost = stage.tails.follow(&SessionId::from_bits(10)).unwrap();
    stage.fake.restart().unwrap();
    ghost
        .wait_for(|tail| tail.life == crate::sessions::Life::Deleted)
        .await
        .unwrap();
    assert_eq!(
        follower.borrow_and_update().life,
        crate::sessions::Life::Present
    );
}

#[tokio::test]
async fn the_end_of_the_keeper_is_seen_and_ends_calls_at_once() {
    let mut stage = Stage::set();
    stage.agent.welcome(Duration::from_secs(5)).await.unwrap();
    stage.fake.kill();
    let call = stage.agent.call(create());
    let kill = async {
        tokio::task::yield_now().await;
        stage.keeper.kill();
    };
    let (answer, ()) = tokio::join!(call, kill);
    assert!(
        matches!(answer, Err(NoAnswer::RuntimeGone { .. })),
        "{answer:?}"
    );
    stage.agent.gone().await;
    assert!(Keeper::find(&stage.state).unwrap().is_none());
}

#[test]
fn a_number_that_another_process_took_is_no_keeper() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    std::fs::write(state.join("keeper.pid"), "1 999999999\n").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    assert!(Keeper::find(state).unwrap().is_none());
    std::fs::write(state.join("keeper.pid"), "12").unwrap();
    assert!(Keeper::find(state).unwrap().is_none());
    std::fs::remove_file(state.join("keeper.pid")).unwrap();
    assert!(Keeper::find(state).unwrap().is_none());
}
