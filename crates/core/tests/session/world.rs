//! A stage for one session: a script of inputs on a clock, and what came of each, in words.
//!
//! The world plays the driver: it decides, numbers and stamps the events, applies them and fires
//! deadlines exactly when they are due. After each step it also checks what must hold always: a
//! checkpoint gives the same state back, and so does the journal from its beginning.

use std::time::Duration;

use outlive_core::{
    event::{Body, Created, Event, Stream},
    id::{Generation, SessionId},
    session::{CallId, CallMark, CallStanding, Decision, Effect, Input, Rejection, Session},
    spec::{DesiredState, SessionSpec},
    time::Timestamp,
};

use crate::words::{parse_duration, parse_input, parse_mark, parse_spec};

/// One session and its journal.
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) session: Option<Session>,
    pub(crate) journal: Vec<Entry>,
    handle: Option<String>,
}

/// What a journal holds: events, and the borders of its segments.
#[derive(Clone)]
pub(crate) enum Entry {
    Event(Event),
    Segment(Generation),
}

impl Entry {
    pub(crate) fn is_output(&self) -> bool {
        matches!(
            self,
            Self::Event(Event {
                body: Body::Output { .. },
                ..
            })
        )
    }

    /// Number of the newest attempt that it knows.
    pub(crate) fn attempt(&self) -> Option<u32> {
        match self {
            Self::Event(event) => Some(event.attempt),
            Self::Segment(_) => None,
        }
    }
}

/// What came of one input.
pub(crate) struct Step {
    pub(crate) events: Vec<Event>,
    pub(crate) effects: Vec<Effect>,
}

const START: Timestamp = Timestamp::from_unix_nanos(1_000_000_000_000);
const DEADLINES_IN_A_ROW_MAX: usize = 1000;

pub(crate) fn session_id() -> SessionId {
    SessionId::from_bits(0x00ab_cdef_1234_5678)
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            now: START,
            session: None,
            journal: Vec::new(),
            handle: None,
        }
    }

    pub(crate) fn session(&self) -> &Session {
        self.session
            .as_ref()
            .expect("the script creates the session first")
    }

    pub(crate) fn create(&mut self, spec: SessionSpec) -> Step {
        let decision = Session::create(Created {
            spec,
            idempotency_key: None,
            handle: self.handle.clone(),
            kind: None,
        });
        self.journal.push(Entry::Segment(Generation::FIRST));
        self.perform(decision)
    }

    pub(crate) fn give(&mut self, input: &Input) -> Result<Step, Rejection> {
        let decision = self.session().decide(self.now, input)?;
        Ok(self.perform(decision))
    }

    /// Moves the clock, firing every deadline when it is due.
    pub(crate) fn pass(&mut self, time: Duration) -> Vec<Step> {
        let end = self.now + time;
        let mut steps = Vec::new();
        while let Some(due) = self.session().next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            let step = self
                .give(&Input::DeadlinePassed)
                .expect("a deadline is never refused");
            assert!(
                !step.events.is_empty(),
                "a deadline that is due says something"
            );
            steps.push(step);
            assert!(
                steps.len() < DEADLINES_IN_A_ROW_MAX,
                "deadlines come to an end"
            );
        }
        self.now = end;
        steps
    }

    /// Output is a fact: no decision, one event.
    pub(crate) fn output(&mut self, len: u32) -> Step {
        let stream = match self.session().terminal_size() {
            Some(_) => Stream::Pty,
            None => Stream::Stdout,
        };
        self.perform(Decision {
            events: vec![Body::Output { stream, len }],
            ..Decision::default()
        })
    }

    fn perform(&mut self, decision: Decision) -> Step {
        self.perform_by(None, decision)
    }

    /// As a driver does: a call that was carried out is not decided again.
    fn call(&mut self, mark: CallMark, input: &Input) -> String {
        match self.session().call_standing(mark) {
            CallStanding::New => match self.session().decide(self.now, input) {
                Ok(decision) => self.perform_by(Some(mark.id), decision).told(),
                Err(rejection) => format!("refused: {rejection}"),
            },
            CallStanding::CarriedOut => "carried out before".to_owned(),
            CallStanding::Unknown => "unknown".to_owned(),
        }
    }

    fn perform_by(&mut self, call: Option<CallId>, decision: Decision) -> Step {
        let numbers = match &self.session {
            Some(session) => session.attempt_numbers(&decision.events),
            None => (0..).take(decision.events.len()).collect(),
        };
        let mut events = Vec::new();
        let roll_at = |index: usize| decision.roll.filter(|roll| roll.from == index);
        for (index, (body, attempt)) in decision.events.into_iter().zip(numbers).enumerate() {
            if let Some(roll) = roll_at(index) {
                self.enter(roll.generation);
            }
            let seq = self.session.as_ref().map_or(0, Session::last_seq) + 1;
            let event = Event {
                seq,
                at: self.now,
                attempt,
                body,
                call: call.filter(|_| index == 0),
            };
            self.apply(&event);
            events.push(event);
        }
        if let Some(roll) = roll_at(events.len()) {
            self.enter(roll.generation);
        }
        self.check_memory();
        Step {
            events,
            effects: decision.effects,
        }
    }

    fn enter(&mut self, generation: Generation) {
        self.journal.push(Entry::Segment(generation));
        if let Some(session) = &mut self.session {
            session.enter_generation(generation);
        }
    }

    fn apply(&mut self, event: &Event) {
        self.journal.push(Entry::Event(event.clone()));
        match &mut self.session {
            Some(session) => session.apply(event),
            None => self.session = Session::from_created(session_id(), Generation::FIRST, event),
        }
    }

    /// The checkpoint and the journal both remember this state.
    fn check_memory(&self) {
        let session = self.session();
        assert_eq!(
            Session::restore(&session.checkpoint()).as_ref(),
            Ok(session)
        );
        assert_eq!(replay(&self.journal).as_ref(), Some(session));
    }

    /// One step of a script.
    pub(crate) fn step(&mut self, text: &str) -> String {
        if let Some(time) = text.strip_prefix('+') {
            let steps = self.pass(parse_duration(time));
            let told: Vec<String> = steps.iter().map(Step::told).collect();
            return if told.is_empty() {
                "-".to_owned()
            } else {
                told.join("; ")
            };
        }
        let (head, words) = text.split_once(' ').unwrap_or((text, ""));
        if head == "create" {
            let (spec, handle) = parse_spec(words);
            self.handle = handle;
            return self.create(spec).told();
        }
        if head == "output" {
            return self.output(words.parse().expect("output LENGTH")).told();
        }
        if let Some(mark) = parse_mark(head) {
            let (head, words) = words.split_once(' ').unwrap_or((words, ""));
            return self.call(mark, &parse_input(head, words));
        }
        match self.give(&parse_input(head, words)) {
            Ok(step) => step.told(),
            Err(rejection) => format!("refused: {rejection}"),
        }
    }
}

/// The state that a journal tells.
pub(crate) fn replay(journal: &[Entry]) -> Option<Session> {
    let mut session: Option<Session> = None;
    let mut generation = Generation::FIRST;
    for entry in journal {
        match (entry, &mut session) {
            (Entry::Segment(next), None) => generation = *next,
            (Entry::Segment(next), Some(session)) => session.enter_generation(*next),
            (Entry::Event(event), Some(session)) => session.apply(event),
            (Entry::Event(event), None) => {
                session = Session::from_created(session_id(), generation, event);
            }
        }
    }
    session
}

/// Runs a script, one line a step: what was done, what was journalled, `→` what is done about it,
/// `|` the phase afterwards.
#[track_caller]
pub(crate) fn check(script: &str, expected: &expect_test::Expect) {
    let mut world = World::new();
    let mut told = String::new();
    for text in script.split(';').map(str::trim) {
        let outcome = world.step(text);
        let phase = world.session().phase().as_str();
        told.push_str(&format!("{text:<14} {outcome} | {phase}\n"));
    }
    expected.assert_eq(&told);
}

impl Step {
    pub(crate) fn told(&self) -> String {
        let mut told: Vec<String> = self.events.iter().map(tell_event).collect();
        if told.is_empty() {
            told.push("-".to_owned());
        }
        let mut line = told.join(", ");
        if !self.effects.is_empty() {
            let effects: Vec<String> = self.effects.iter().map(tell_effect).collect();
            line.push_str(&format!(" → {}", effects.join(", ")));
        }
        line
    }
}

pub(crate) fn tell_event(event: &Event) -> String {
    let number = event.attempt;
    match &event.body {
        Body::SessionCreated(_) => "created".to_owned(),
        Body::SessionUpdated(_) => "updated".to_owned(),
        Body::DesiredState(DesiredState::Running) => "desired(running)".to_owned(),
        Body::DesiredState(DesiredState::Stopped) => "desired(stopped)".to_owned(),
        Body::AttemptStarting(reason) => format!("starting#{number}({})", reason.as_str()),
        Body::AttemptStarted { .. } => format!("started#{number}"),
        Body::SessionReady => format!("ready#{number}"),
        Body::Output { len, .. } => format!("output({len})"),
        Body::InputAccepted {
            input_id,
            eof: None,
            ..
        } => format!("input({input_id})"),
        Body::InputAccepted {
            input_id,
            eof: Some(_),
            ..
        } => format!("input({input_id}+eof)"),
        Body::SignalSent { signal } => format!("signal({signal})"),
        Body::TerminalResized { rows, cols } => format!("resized({rows}x{cols})"),
        Body::AttemptStopping(reason) => format!("stopping#{number}({})", reason.as_str()),
        Body::AttemptExited(end) => format!("exited#{number}({})", end.reason()),
        Body::Backoff { delay_ms } => format!("backoff({delay_ms}ms)"),
        Body::SessionFailed(reason) => format!("failed({})", reason.as_str()),
        Body::SessionExpired(expiry) => format!("expired({})", expiry.as_str()),
        Body::SessionStopped => "stopped by recovery policy".to_owned(),
        Body::SessionPaused => "paused".to_owned(),
        Body::SessionResumed => "resumed".to_owned(),
        Body::SessionDeleted => "deleted".to_owned(),
        Body::StopEscalated => "escalated".to_owned(),
    }
}

fn tell_effect(effect: &Effect) -> String {
    match effect {
        Effect::Spawn { number } => format!("spawn#{number}"),
        Effect::Terminate => "term".to_owned(),
        Effect::Kill => "kill".to_owned(),
        Effect::Write => "write".to_owned(),
        Effect::Signal { signal } => format!("signal {signal}"),
        Effect::Resize { rows, cols } => format!("resize {rows}x{cols}"),
        Effect::SetRetention(_) => "set retention".to_owned(),
        Effect::Remove => "remove".to_owned(),
    }
}
