//! Every sequence of inputs, up to a depth: what must hold always, holds after each of them.
//!
//! The walk is a tree of states. At each node every input is decided; an input that changes
//! nothing leads back to the same state and is not walked again, nor is a state that two orders of
//! the same inputs lead to. A shadow beside the session plays
//! the operating system: it knows which process really exists, so that facts come only when they
//! can, and so that a second process beside the first is seen at once.

mod laws;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use outlive_core::{
    event::{Body, Created, Event},
    hash::{Digest128, StableHasher},
    id::Generation,
    session::{Decision, Effect, EofMode, Input, ReplaceCurrent, Session},
    spec::DesiredState,
    time::Timestamp,
};

use self::laws::{check_event, check_node, check_passage, check_torn};
use crate::{
    words::{parse_end, parse_spec},
    world::session_id,
};

/// The process of the session, as the operating system knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    None,
    BeingStarted,
    Runs,
}

#[derive(Clone)]
struct Node {
    session: Session,
    process: Process,
    now: Timestamp,
}

/// One way to go on from a node.
#[derive(Debug, Clone)]
enum Move {
    Give(Input),
    /// Wait for the next deadline.
    Tick,
    /// Let some time pass in which nothing is due.
    Wait(Duration),
}

struct Walk {
    moves: Vec<Move>,
    refused: u64,
    unchanged: u64,
    /// States that were walked, and the sequences from there.
    seen: HashMap<Digest128, u64>,
}

#[test]
fn commands_and_processes() {
    let other = Box::new(parse_spec("command=other policy=always max=2").0);
    walk(
        7,
        "policy=on_failure max=2 ready=output timeout=1000 grace=1",
        vec![
            Move::Give(Input::SetDesiredState(DesiredState::Stopped)),
            Move::Give(Input::SetDesiredState(DesiredState::Running)),
            Move::Give(Input::NewAttempt(ReplaceCurrent::Yes)),
            Move::Give(Input::NewAttempt(ReplaceCurrent::No)),
            Move::Give(Input::Update(other)),
            Move::Give(Input::Delete),
            Move::Give(Input::Started { pid: 1 }),
            Move::Give(Input::StartFailed {
                message: String::new(),
            }),
            Move::Give(Input::OutputMatched),
            Move::Give(Input::Exited {
                end: parse_end("1"),
            }),
            Move::Tick,
        ],
    );
}

#[test]
fn limits_and_freezing() {
    walk(
        7,
        "policy=always max=2 idle=3 life=6 grace=1 ready=delay delay=500",
        vec![
            Move::Give(Input::SetDesiredState(DesiredState::Stopped)),
            Move::Give(Input::NewAttempt(ReplaceCurrent::Yes)),
            Move::Give(Input::Started { pid: 1 }),
            Move::Give(Input::Exited {
                end: parse_end("0"),
            }),
            Move::Give(Input::Frozen),
            Move::Give(Input::Thawed),
            Move::Tick,
            Move::Wait(Duration::from_millis(400)),
            Move::Wait(Duration::from_secs(4)),
        ],
    );
}

#[test]
fn runtimes_come_and_go() {
    for recovery in ["restart", "stop"] {
        walk(
            7,
            &format!("policy=always max=1 grace=1 recovery={recovery} descendants=kill"),
            vec![
                Move::Give(Input::SetDesiredState(DesiredState::Stopped)),
                Move::Give(Input::SetDesiredState(DesiredState::Running)),
                Move::Give(Input::NewAttempt(ReplaceCurrent::Yes)),
                Move::Give(Input::Delete),
                Move::Give(Input::Started { pid: 1 }),
                Move::Give(Input::Exited {
                    end: parse_end("sig9"),
                }),
                Move::Give(Input::Frozen),
                Move::Give(Input::Released),
                Move::Give(Input::RuntimeStarted(Generation(2))),
                Move::Give(Input::RuntimeStarted(Generation(3))),
                Move::Tick,
            ],
        );
    }
}

#[test]
fn input_and_terminals() {
    walk(
        10,
        "pty policy=always max=2",
        vec![
            Move::Give(Input::Signal {
                expected: None,
                signal: 10,
            }),
            Move::Give(Input::Resize {
                expected: None,
                rows: 50,
                cols: 132,
            }),
            Move::Give(write(3, None)),
            Move::Give(write(0, Some(EofMode::Character))),
            Move::Give(write(0, Some(EofMode::Hangup))),
            Move::Give(Input::SetDesiredState(DesiredState::Stopped)),
            Move::Give(Input::Started { pid: 1 }),
            Move::Give(Input::Exited {
                end: parse_end("unknown"),
            }),
            Move::Tick,
        ],
    );
}

fn write(bytes: u32, eof: Option<EofMode>) -> Input {
    Input::Write {
        expected: None,
        input_id: "i".to_owned(),
        digest: 1,
        bytes,
        eof,
        truncated_line: false,
    }
}

fn walk(depth: usize, spec: &str, moves: Vec<Move>) {
    let started = clock();
    let mut walk = Walk {
        moves,
        refused: 0,
        unchanged: 0,
        seen: HashMap::new(),
    };
    let root = create(spec);
    let sequences = walk.go(&root, depth);
    println!(
        "{spec}: depth {depth}, {sequences} nodes in {} states, {} refusals, {} without effect, {:?}",
        walk.seen.len(),
        walk.refused,
        walk.unchanged,
        started.elapsed(),
    );
    assert!(sequences > 100_000, "the walk went somewhere");
}

#[expect(
    clippy::disallowed_methods,
    reason = "only to print how long the walk took"
)]
fn clock() -> Instant {
    Instant::now()
}

fn create(spec: &str) -> Node {
    let decision = Session::create(Created {
        spec: parse_spec(spec).0,
        idempotency_key: Some("key".to_owned()),
        handle: None,
        kind: None,
    });
    let now = Timestamp::from_unix_nanos(1_000_000_000_000);
    let at = |seq, attempt, body| Event {
        seq,
        at: now,
        attempt,
        body,
        call: None,
    };
    let mut events = decision.events.into_iter();
    let first = at(1, 0, events.next().expect("a creation"));
    let mut session = Session::from_created(session_id(), Generation::FIRST, &first)
        .expect("a creation makes a session");
    session.apply(&at(2, 1, events.next().expect("a start")));
    assert_eq!(decision.effects, [Effect::Spawn { number: 1 }]);
    Node {
        session,
        process: Process::BeingStarted,
        now,
    }
}

impl Walk {
    /// Walks from here; how many sequences of inputs that was.
    fn go(&mut self, node: &Node, depth: usize) -> u64 {
        let checkpoint = node.session.checkpoint();
        let key = StableHasher::new()
            .piece(&checkpoint)
            .piece(&node.now.unix_nanos().to_le_bytes())
            .number(depth as u64)
            .finish128();
        if let Some(known) = self.seen.get(&key) {
            return *known;
        }
        assert_eq!(Session::restore(&checkpoint).as_ref(), Ok(&node.session));
        check_node(node);
        let mut sequences = 1;
        for index in 0..self.moves.len() * usize::from(depth > 0) {
            let step = self.moves[index].clone();
            if let Some(next) = self.follow(node, &step) {
                sequences += self.go(&next, depth - 1);
            }
        }
        self.seen.insert(key, sequences);
        sequences
    }

    /// The node that a move leads to; none when it leads nowhere new.
    fn follow(&mut self, node: &Node, step: &Move) -> Option<Node> {
        let (input, now) = match step {
            Move::Give(input) => (input.clone(), node.now),
            Move::Tick => {
                let due = node.session.next_deadline()?;
                (Input::DeadlinePassed, node.now.max(due))
            }
            Move::Wait(time) => {
                let now = node.now + *time;
                if node.session.next_deadline().is_some_and(|due| due <= now) {
                    return None;
                }
                return Some(Node {
                    now,
                    ..node.clone()
                });
            }
        };
        if !possible(node, &input) {
            return None;
        }
        let Ok(decision) = node.session.decide(now, &input) else {
            self.refused += 1;
            return None;
        };
        if decision.is_none() {
            assert!(!matches!(step, Move::Tick), "what is due does something");
            self.unchanged += 1;
            return None;
        }
        Some(carry_out(node, now, &input, &decision))
    }
}

/// Facts come only when they are true. False ones must still change nothing.
fn possible(node: &Node, input: &Input) -> bool {
    let possible = match input {
        Input::Started { .. } | Input::StartFailed { .. } => node.process == Process::BeingStarted,
        Input::Exited { .. } | Input::OutputMatched => node.process == Process::Runs,
        _ => true,
    };
    let harmless = matches!(input, Input::OutputMatched | Input::Exited { .. })
        && node.process == Process::BeingStarted;
    if !possible && !harmless {
        assert_eq!(node.session.decide(node.now, input), Ok(Decision::none()));
    }
    possible
}

/// Appends, applies and performs a decision, watching every step.
fn carry_out(node: &Node, now: Timestamp, input: &Input, decision: &Decision) -> Node {
    assert!(
        !node.session.is_deleted(),
        "nothing happens to a deleted session"
    );
    let mut next = Node {
        now,
        ..node.clone()
    };
    if matches!(input, Input::Released | Input::RuntimeStarted(_)) {
        next.process = Process::None;
    }
    let events = stamped(&node.session, now, decision);
    for (index, event) in events.iter().enumerate() {
        check_event(input, &node.session, event);
        if let Some(roll) = decision.roll.filter(|roll| roll.from == index) {
            next.session.enter_generation(roll.generation);
        }
        let before = next.session.phase();
        next.session.apply(event);
        check_passage(before, next.session.phase(), event);
        if index + 1 < events.len() {
            check_torn(&next);
        }
        match &event.body {
            Body::AttemptStarted { .. } => next.process = Process::Runs,
            Body::AttemptExited(_) => next.process = Process::None,
            _ => {}
        }
    }
    if let Some(roll) = decision.roll {
        next.session.enter_generation(roll.generation);
    }
    for effect in &decision.effects {
        if let Effect::Spawn { number } = effect {
            assert_eq!(next.process, Process::None, "one process at a time");
            assert_eq!(
                next.session.attempt().map(|attempt| attempt.number),
                Some(*number)
            );
            assert_eq!(
                next.session.spec().lifecycle.desired_state,
                DesiredState::Running
            );
            next.process = Process::BeingStarted;
        }
    }
    if matches!(input, Input::DeadlinePassed) {
        let again = next.session.next_deadline().is_some_and(|due| due <= now);
        assert!(
            !again || next.session != node.session,
            "a deadline is settled"
        );
    }
    next
}

fn stamped(session: &Session, now: Timestamp, decision: &Decision) -> Vec<Event> {
    let numbers = session.attempt_numbers(&decision.events);
    let bodies = decision.events.iter().cloned().zip(numbers);
    (session.last_seq() + 1..)
        .zip(bodies)
        .map(|(seq, (body, attempt))| Event {
            seq,
            at: now,
            attempt,
            body,
            call: None,
        })
        .collect()
}
