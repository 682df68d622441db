//! Random lives: the machine and a model written by hand must tell the same story.

use std::time::Duration;

use outlive_core::{
    id::Generation,
    session::{EofMode, Input, ReplaceCurrent, Session},
    spec::DesiredState,
};
use proptest::prelude::*;

use crate::{
    model::{Model, Refused, Rules},
    words::{parse_end, parse_spec},
    world::{Entry, Step, World, replay, tell_event},
};

#[derive(Debug, Clone)]
enum Op {
    Stop,
    Start,
    New(ReplaceCurrent),
    Update(Rules),
    Delete,
    Started,
    StartFailed,
    Matched,
    Exited(u8),
    Output,
    Write,
    Signal,
    Frozen,
    Thawed,
    Released,
    NextRuntime,
    SameRuntime,
    Wait(Duration),
}

fn rules() -> impl Strategy<Value = Rules> {
    let seconds = |range: std::ops::Range<u64>| prop_oneof![2 => Just(None), 1 => range.prop_map(|n| Some(Duration::from_secs(n)))];
    let restart = (
        prop_oneof![Just("never"), Just("on_failure"), Just("always")],
        1_usize..4,
        1_u64..40,
        1_u64..2000,
        0_u64..20_000,
    );
    let readiness = (
        prop_oneof![Just("process"), Just("delay"), Just("output")],
        1_u64..3000,
        1_u64..3000,
    );
    let limits = (seconds(1..30), seconds(1..90), 1_u64..8);
    let rest = (
        prop_oneof![Just("program"), Just("other")],
        prop_oneof![5 => Just(true), 1 => Just(false)],
        prop_oneof![3 => Just("restart"), 1 => Just("stop")],
    );
    (restart, readiness, limits, rest).prop_map(|(restart, readiness, limits, rest)| Rules {
        command: rest.0,
        desired: rest.1,
        policy: restart.0,
        max: restart.1,
        window: Duration::from_secs(restart.2),
        initial: Duration::from_millis(restart.3),
        longest: Duration::from_millis(restart.3 + restart.4),
        ready: readiness.0,
        delay: Duration::from_millis(readiness.1),
        timeout: Duration::from_millis(readiness.2),
        idle: limits.0,
        life: limits.1,
        grace: Duration::from_secs(limits.2),
        recovery: rest.2,
    })
}

fn spec_words(rules: &Rules) -> String {
    let seconds = |time: Option<Duration>| time.map_or(0, |time| time.as_secs());
    format!(
        "command={} desired={} policy={} max={} window={} initial={} longest={} ready={} delay={} \
         timeout={} idle={} life={} grace={} recovery={}",
        rules.command,
        if rules.desired { "running" } else { "stopped" },
        rules.policy,
        rules.max,
        rules.window.as_secs(),
        rules.initial.as_millis(),
        rules.longest.as_millis(),
        rules.ready,
        rules.delay.as_millis(),
        rules.timeout.as_millis(),
        seconds(rules.idle),
        seconds(rules.life),
        rules.grace.as_secs(),
        rules.recovery,
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::Stop),
        3 => Just(Op::Start),
        1 => Just(Op::New(ReplaceCurrent::No)),
        2 => Just(Op::New(ReplaceCurrent::Yes)),
        2 => rules().prop_map(Op::Update),
        1 => prop_oneof![9 => Just(Op::Output), 1 => Just(Op::Delete)],
        8 => Just(Op::Started),
        2 => Just(Op::StartFailed),
        3 => Just(Op::Matched),
        8 => (0_u8..3).prop_map(Op::Exited),
        2 => Just(Op::Output),
        1 => Just(Op::Write),
        1 => Just(Op::Signal),
        2 => Just(Op::Frozen),
        2 => Just(Op::Thawed),
        1 => Just(Op::Released),
        1 => Just(Op::NextRuntime),
        1 => Just(Op::SameRuntime),
        6 => (1_u64..3000).prop_map(|ms| Op::Wait(Duration::from_millis(ms))),
        3 => (1_u64..25).prop_map(|s| Op::Wait(Duration::from_secs(s))),
    ]
}

/// Both of them side by side.
struct Pair {
    world: World,
    model: Model,
    generation: u64,
}

type Told = Result<Vec<String>, Refused>;

impl Pair {
    fn create(rules: Rules) -> (Self, Vec<String>, Vec<String>) {
        let mut world = World::new();
        let told = tell(&world.create(parse_spec(&spec_words(&rules)).0));
        let (model, expected) = Model::create(rules);
        (
            Self {
                world,
                model,
                generation: 1,
            },
            told,
            expected,
        )
    }

    /// What each of them says; none when the fact can't happen now.
    fn take(&mut self, op: &Op) -> Option<(Told, Told)> {
        let model = &mut self.model;
        let (input, expected) = match op {
            Op::Stop => (Input::SetDesiredState(DesiredState::Stopped), model.stop()),
            Op::Start => (Input::SetDesiredState(DesiredState::Running), model.start()),
            Op::New(replace) => (
                Input::NewAttempt(*replace),
                model.new_attempt(*replace == ReplaceCurrent::Yes),
            ),
            Op::Update(rules) => {
                let spec = parse_spec(&spec_words(rules)).0;
                (Input::Update(Box::new(spec)), model.update(rules.clone()))
            }
            Op::Delete => (Input::Delete, model.delete()),
            Op::Started if model.is_being_started() => {
                (Input::Started { pid: 1 }, Ok(model.started()))
            }
            Op::StartFailed if model.is_being_started() => (
                Input::StartFailed {
                    message: "no".to_owned(),
                },
                Ok(model.start_failed()),
            ),
            Op::Matched if model.is_up() => (Input::OutputMatched, Ok(model.matched())),
            Op::Exited(code) if model.is_up() => {
                let end = parse_end(&code.to_string());
                (Input::Exited { end }, Ok(model.exited(*code)))
            }
            Op::Output if model.is_up() => {
                return Some((Ok(tell(&self.world.output(1))), Ok(model.output())));
            }
            Op::Write => (write(), model.touch("input(i)")),
            Op::Signal => (
                Input::Signal {
                    expected: None,
                    signal: 10,
                },
                model.touch("signal(10)"),
            ),
            Op::Frozen => (Input::Frozen, Ok(model.freeze())),
            Op::Thawed => (Input::Thawed, Ok(model.thaw())),
            Op::Released => (Input::Released, Ok(model.release())),
            Op::NextRuntime | Op::SameRuntime => {
                self.generation += u64::from(matches!(op, Op::NextRuntime));
                let generation = self.generation;
                (
                    Input::RuntimeStarted(Generation(generation)),
                    Ok(model.runtime(generation)),
                )
            }
            Op::Started | Op::StartFailed | Op::Matched | Op::Exited(_) | Op::Output => {
                return None;
            }
            Op::Wait(time) => return Some(self.wait(*time)),
        };
        let told = self
            .world
            .give(&input)
            .map(|step| tell(&step))
            .map_err(|_| Refused);
        Some((told, expected))
    }

    fn wait(&mut self, time: Duration) -> (Told, Told) {
        let told = self.world.pass(time).iter().flat_map(tell).collect();
        let end = self.model.now + time;
        let mut expected = Vec::new();
        while let Some(due) = self.model.due().filter(|due| *due <= end) {
            self.model.now = self.model.now.max(due);
            expected.extend(self.model.ring());
        }
        self.model.now = end;
        (Ok(told), Ok(expected))
    }
}

fn write() -> Input {
    Input::Write {
        expected: None,
        input_id: "i".to_owned(),
        digest: 1,
        bytes: 1,
        eof: None::<EofMode>,
        truncated_line: false,
    }
}

fn tell(step: &Step) -> Vec<String> {
    step.events.iter().map(tell_event).collect()
}

proptest! {
    #[test]
    fn machine_and_model_tell_the_same_story(
        rules in rules(),
        ops in proptest::collection::vec(op(), 1..60),
    ) {
        let (mut pair, told, expected) = Pair::create(rules);
        prop_assert_eq!(told, expected);
        for op in ops {
            let Some((told, expected)) = pair.take(&op) else { continue };
            prop_assert_eq!(told, expected, "{:?}", op);
            let session = pair.world.session();
            prop_assert_eq!(session.phase().as_str(), pair.model.phase(), "{:?}", op);
            let due = session.next_deadline().map(|due| due.since(session.created_at()));
            prop_assert_eq!(due, pair.model.due(), "{:?}", op);
        }
    }

    /// Output says when the session was active and nothing else, wherever it stands in the order.
    #[test]
    fn the_place_of_output_in_the_journal_does_not_matter(
        rules in rules(),
        ops in proptest::collection::vec(op(), 1..40),
        seed in any::<u64>(),
    ) {
        let (mut pair, ..) = Pair::create(Rules { idle: None, ..rules });
        for op in ops {
            pair.take(&match op {
                Op::Update(rules) => Op::Update(Rules { idle: None, ..rules }),
                op => op,
            });
        }
        let whole = pair.world.session();
        let mut silent = pair.world.journal.clone();
        silent.retain(|entry| !entry.is_output());
        let silent = replay(&silent).expect("a session");
        prop_assert_eq!(without_activity(&silent), without_activity(whole));
        let moved = replay(&moved_output(&pair.world, seed)).expect("a session");
        prop_assert_eq!(without_activity(&moved), without_activity(whole));
    }

    /// A journal may have lost any part of it but its beginning.
    #[test]
    fn a_journal_with_holes_opens(
        rules in rules(),
        ops in proptest::collection::vec(op(), 1..40),
        holes in proptest::collection::vec(any::<bool>(), 200),
    ) {
        let (mut pair, ..) = Pair::create(rules);
        for op in ops {
            pair.take(&op);
        }
        let mut holes = holes.into_iter();
        let mut journal = pair.world.journal.clone();
        let mut index = 0;
        journal.retain(|_| {
            index += 1;
            index <= 2 || holes.next().unwrap_or(true)
        });
        let session = replay(&journal).expect("a session");
        prop_assert_eq!(Session::restore(&session.checkpoint()), Ok(session.clone()));
        let newest = journal.iter().filter_map(Entry::attempt).max().unwrap_or(0);
        prop_assert_eq!(session.attempt().map_or(0, |attempt| attempt.number), newest);
        let live = session.live_attempt().map(|attempt| attempt.number);
        prop_assert!(live.is_none_or(|number| number == newest));
    }
}

/// The parts that output must not touch.
fn without_activity(session: &Session) -> String {
    format!(
        "{} {:?} {:?} {} {} {:?} {:?}",
        session.phase().as_str(),
        session.spec(),
        session.attempts(),
        session.spec_version(),
        session.restart_count(),
        session.next_deadline(),
        session.unfinished(),
    )
}

/// The journal with its output events elsewhere, within the life of their attempt.
fn moved_output(world: &World, seed: u64) -> Vec<Entry> {
    let mut journal = world.journal.clone();
    let mut random = seed | 1;
    for index in 3..journal.len() {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        if random >> 63 == 0 && journal[index].is_output() && journal[index - 1].attempt().is_some()
        {
            journal.swap(index, index - 1);
        }
    }
    journal
}
