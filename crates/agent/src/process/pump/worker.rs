//! One pump thread: epoll, turns, and the little waiting that makes frames larger.

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU64,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::event::{Timespec, epoll};
use tokio::sync::oneshot;

use super::{
    Command, Fate, Mailbox, Then,
    source::{Flow, Mover, Turn},
};
use crate::{
    limits::{
        PIPE_BYTES_FLOODED, PUMP_ECHO_SPAN, PUMP_FLOOD_GAP, PUMP_GATHER, PUMP_SHORT_BYTES,
        PUMP_TURN_BYTES_MAX,
    },
    sys,
};

/// The epoll key of the mailbox; sources count from 1.
pub(super) const MAILBOX: u64 = 0;
/// How many that are ready a thread takes at once.
const READY_AT_ONCE: usize = 64;
pub(super) const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

pub(super) struct Worker {
    mailbox: Arc<Mailbox>,
    copying: Arc<AtomicBool>,
    flows: HashMap<u64, Flow>,
    /// Those whose turn was over before what they hold was moved: the next one is theirs.
    owed: HashSet<u64>,
    /// Whether a flow may hold something of which epoll tells nothing.
    has_hidden: bool,
}

/// Whether the sink took what was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Enough,
    Missing,
}

/// Whether the thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Go {
    On,
    Home,
}

impl Worker {
    pub(super) fn new(mailbox: Arc<Mailbox>, copying: Arc<AtomicBool>) -> Self {
        Self {
            mailbox,
            copying,
            flows: HashMap::new(),
            owed: HashSet::new(),
            has_hidden: false,
        }
    }

    pub(super) fn run(mut self) {
        // Else a wait of 200 µs takes 250.
        match rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            Ok(()) | Err(_) => {} // Frames get a little larger, that is all.
        }
        let mut ready = Vec::new();
        loop {
            self.wait(&mut ready);
            if ready.contains(&MAILBOX) && self.commands() == Go::Home {
                return;
            }
            ready.retain(|number| *number != MAILBOX);
            if self.worth_gathering(&ready) {
                nap(PUMP_GATHER);
            }
            for number in &ready {
                self.turn(*number);
            }
        }
    }

    /// Waits until somebody is ready, or is owed a turn.
    fn wait(&mut self, ready: &mut Vec<u64>) {
        let span = (!self.owed.is_empty()).then_some(AT_ONCE);
        let rests = span.is_none() && !self.has_hidden;
        self.mailbox.rests.store(rests, Ordering::SeqCst);
        self.look(ready, READY_AT_ONCE, span.as_ref());
        self.mailbox.rests.store(false, Ordering::SeqCst);
        for number in self.owed.drain() {
            if !ready.contains(&number) {
                ready.push(number);
            }
        }
    }

    /// Who is ready, so many at most.
    fn look(&self, ready: &mut Vec<u64>, max: usize, span: Option<&Timespec>) {
        ready.clear();
        let mut events = Vec::with_capacity(max);
        loop {
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.mailbox.epoll, room, span) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                // Only a bug makes this fail; standing still would lose output in silence.
                Err(e) => fatal(&format!("pump: {e}")),
            }
        }
        ready.extend(events.iter().map(|event| event.data.u64()));
    }

    /// Whether everything that is ready is a small piece of a flood.
    fn worth_gathering(&self, ready: &[u64]) -> bool {
        let now = sys::boot_clock();
        !ready.is_empty()
            && ready.iter().all(|number| {
                self.flows.get(number).is_some_and(|flow| {
                    let flooding = now.saturating_sub(flow.moved_at) < PUMP_FLOOD_GAP;
                    let echo = flow
                        .typed_at
                        .is_some_and(|at| now.saturating_sub(at) < PUMP_ECHO_SPAN);
                    flooding && !echo && flow.waiting() < PUMP_SHORT_BYTES
                })
            })
    }

    fn turn(&mut self, number: u64) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let turn = flow.turn();
        if flow.mover == Mover::Copy {
            self.copying.store(true, Ordering::Relaxed);
        }
        match turn {
            Turn::Moved(0) | Turn::Dry(0) => {}
            Turn::Dry(_) => flow.moved_at = sys::boot_clock(),
            Turn::Moved(_) => {
                flow.moved_at = sys::boot_clock();
                self.owe(number);
            }
            Turn::Full => {
                flow.blocked = true;
                self.has_hidden = true;
                self.unwatch(number);
            }
            Turn::Ended(end) => {
                self.unwatch(number);
                if let Some(flow) = self.flows.remove(&number) {
                    flow.sink.ended(flow.stream, end);
                }
            }
        }
    }

    /// Another turn, unless epoll tells when it is due.
    fn owe(&mut self, number: u64) {
        if self.flows.get(&number).is_some_and(Flow::holds_some) {
            self.owed.insert(number);
        }
    }

    fn commands(&mut self) -> Go {
        let mut counter = [0; 8];
        match rustix::io::read(&self.mailbox.wake, &mut counter) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(e) => fatal(&format!("pump: {e}")),
        }
        loop {
            let Some(command) = self.mailbox.lock().pop_front() else {
                self.has_hidden = self.flows.values().any(Flow::may_hide_some);
                return Go::On;
            };
            match command {
                Command::Attach {
                    number,
                    source,
                    sink,
                    fate,
                } => {
                    self.flows.insert(number, Flow::new(source, sink.0, fate));
                    self.watch(number);
                    // A spill pipe that was recovered may hold bytes though the terminal is
                    // silent.
                    self.turn(number);
                }
                Command::Resume(number) => self.resume(number),
                Command::Typed(number) => {
                    if let Some(flow) = self.flows.get_mut(&number) {
                        flow.typed_at = Some(sys::boot_clock());
                    }
                }
                Command::Drop(number) => {
                    self.unwatch(number);
                    drop(self.flows.remove(&number));
                }
                Command::Drain { number, then, done } => self.drain(number, then, done),
                Command::DrainAll(done) => {
                    self.drain_all();
                    tell(done);
                }
                Command::Stop => return Go::Home,
            }
        }
    }

    fn resume(&mut self, number: u64) {
        if let Some(flow) = self.flows.get_mut(&number)
            && flow.blocked
        {
            flow.blocked = false;
            if let Some((then, done)) = flow.leaving.take() {
                self.drain(number, then, done);
                return;
            }
            self.watch(number);
            self.turn(number);
        }
    }

    fn drain(&mut self, number: u64, then: Then, done: oneshot::Sender<()>) {
        let room = self.move_waiting(number);
        if then != Then::Keep
            && room == Room::Missing
            && let Some(flow) = self.flows.get_mut(&number)
        {
            // Letting it go would lose what is left; there is room when it is resumed.
            flow.leaving = Some((then, done));
            return;
        }
        match then {
            Then::Keep => {}
            Then::Discard => self.discard(number),
            Then::Detach => {
                self.unwatch(number);
                drop(self.flows.remove(&number));
            }
        }
        tell(done);
    }

    /// Only those that have something are asked for it: a hundred silent ones cost one call.
    fn drain_all(&mut self) {
        let mut numbers = Vec::new();
        self.look(&mut numbers, self.flows.len() + 1, Some(&AT_ONCE));
        numbers.extend(self.owed.drain());
        // Those are not watched, and may have room by now.
        let blocked = self.flows.iter().filter(|(_, flow)| flow.blocked);
        numbers.extend(blocked.map(|(number, _)| *number));
        for number in numbers {
            let flow = self.flows.get(&number);
            if flow.is_some_and(|flow| flow.fate == Fate::Kept) {
                self.move_waiting(number);
            }
        }
    }

    /// Moves what waits now, and says whether there was room for it.
    fn move_waiting(&mut self, number: u64) -> Room {
        // A turn's worth at least, where the kernel doesn't tell all; and no more than that, for
        // descendants that go on writing would make it endless, and this thread has others.
        let mut budget = self.flows.get(&number).map_or(0, Flow::waiting);
        budget = budget.clamp(PUMP_TURN_BYTES_MAX, PIPE_BYTES_FLOODED);
        while let Some(flow) = self.flows.get_mut(&number) {
            match flow.turn() {
                Turn::Moved(n) if n > 0 => {
                    flow.moved_at = sys::boot_clock();
                    budget = budget.saturating_sub(n);
                    if budget == 0 {
                        self.owe(number);
                        break;
                    }
                }
                Turn::Moved(_) | Turn::Dry(_) => break,
                Turn::Full => {
                    // What can't be moved now stays where it is.
                    flow.blocked = true;
                    self.unwatch(number);
                    return Room::Missing;
                }
                Turn::Ended(end) => {
                    self.unwatch(number);
                    if let Some(flow) = self.flows.remove(&number) {
                        flow.sink.ended(flow.stream, end);
                    }
                }
            }
        }
        Room::Enough
    }

    fn discard(&mut self, number: u64) {
        self.unwatch(number);
        if let Some(flow) = self.flows.get_mut(&number) {
            flow.fate = Fate::Discarded;
            flow.blocked = false;
            self.watch(number);
        }
    }

    fn watch(&mut self, number: u64) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let added = epoll::add(
            &self.mailbox.epoll,
            flow.watched(),
            epoll::EventData::new_u64(number),
            epoll::EventFlags::IN,
        );
        if let Err(e) = added
            && let Some(flow) = self.flows.remove(&number)
        {
            flow.sink
                .ended(flow.stream, super::SourceEnd::Failed(e.into()));
        }
    }

    /// The keeper has a copy of the descriptor, so closing ours doesn't take it out of epoll.
    fn unwatch(&self, number: u64) {
        if let Some(flow) = self.flows.get(&number) {
            match epoll::delete(&self.mailbox.epoll, flow.watched().as_fd()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {} // It was out already.
                Err(e) => fatal(&format!("pump: {e}")),
            }
        }
    }
}

fn tell(done: oneshot::Sender<()>) {
    match done.send(()) {
        Ok(()) | Err(()) => {} // Whoever asked no longer waits.
    }
}

fn nap(span: Duration) {
    if let Ok(span) = Timespec::try_from(span) {
        match rustix::thread::nanosleep(&span) {
            // A signal only cuts the wait short.
            rustix::thread::NanosleepRelativeResult::Ok
            | rustix::thread::NanosleepRelativeResult::Interrupted(_)
            | rustix::thread::NanosleepRelativeResult::Err(_) => {}
        }
    }
}

/// Ends the supervisor; the keeper starts the next, which finds everything in place.
fn fatal(line: &str) -> ! {
    match rustix::io::write(rustix::stdio::stderr(), format!("{line}\n").as_bytes()) {
        Ok(_) | Err(_) => {} // There is no other place to say it.
    }
    sys::exit_now(70);
}
