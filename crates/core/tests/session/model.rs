//! The contract once more, written by hand as a plain supervisor would be: flags, a process that
//! may be there, and a clock that is stopped while frozen. It shares no code with the machine and
//! no idea of its structure; it keeps awake time by subtracting what was slept, where the machine
//! moves its deadlines.

mod time;

use std::time::Duration;

/// What the model needs of a specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) command: &'static str,
    pub(crate) desired: bool,
    pub(crate) policy: &'static str,
    pub(crate) max: usize,
    pub(crate) window: Duration,
    pub(crate) initial: Duration,
    pub(crate) longest: Duration,
    pub(crate) ready: &'static str,
    pub(crate) delay: Duration,
    pub(crate) timeout: Duration,
    pub(crate) idle: Option<Duration>,
    pub(crate) life: Option<Duration>,
    pub(crate) grace: Duration,
    pub(crate) recovery: &'static str,
}

#[derive(Debug, Clone)]
struct Process {
    up: Option<Duration>,
    ready: Option<Duration>,
    ending: Option<Ending>,
}

#[derive(Debug, Clone)]
struct Ending {
    why: &'static str,
    since: Duration,
    grace: Duration,
    killed: bool,
    then: Option<&'static str>,
}

/// A supervisor of one session. Times are durations since the creation.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) rules: Rules,
    pub(crate) now: Duration,
    slept: Duration,
    asleep_since: Option<Duration>,
    process: Option<Process>,
    /// The phase while there is no process.
    at_rest: &'static str,
    restart_at: Duration,
    number: u32,
    generation: u64,
    restarts: Vec<Duration>,
    doublings: usize,
    active_at: Duration,
    deleting: bool,
    deleted: bool,
}

type Told = Vec<String>;

/// How long from one time to a later one.
fn between(from: Duration, to: Duration) -> Duration {
    to.checked_sub(from).expect("time goes on")
}

/// Refused; why is not the model's business.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused;

impl Model {
    pub(crate) fn create(rules: Rules) -> (Self, Told) {
        let mut model = Self {
            rules,
            now: Duration::ZERO,
            slept: Duration::ZERO,
            asleep_since: None,
            process: None,
            at_rest: "pending",
            restart_at: Duration::ZERO,
            number: 0,
            generation: 1,
            restarts: Vec::new(),
            doublings: 0,
            active_at: Duration::ZERO,
            deleting: false,
            deleted: false,
        };
        let mut told = vec!["created".to_owned()];
        if model.rules.desired {
            model.begin("created", &mut told);
        }
        (model, told)
    }

    pub(crate) fn phase(&self) -> &'static str {
        let asleep = self.asleep_since.is_some();
        match &self.process {
            Some(_) if asleep => "paused",
            Some(Process {
                ending: Some(_), ..
            }) => "stopping",
            Some(Process {
                up: Some(_),
                ready: Some(_),
                ..
            }) => "running",
            Some(_) => "starting",
            None if asleep && self.at_rest == "backoff" => "paused",
            None => self.at_rest,
        }
    }

    pub(crate) fn is_being_started(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.up.is_none())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.process
            .as_ref()
            .is_some_and(|process| process.up.is_some())
    }

    /// The clock that stands still while frozen.
    fn awake(&self) -> Duration {
        between(self.slept, self.asleep_since.unwrap_or(self.now))
    }

    fn active(&mut self) {
        self.active_at = self.awake();
    }

    fn is_too_old(&self) -> bool {
        self.rules.life.is_some_and(|life| self.now >= life)
    }

    fn begin(&mut self, why: &'static str, told: &mut Told) {
        self.number += 1;
        told.push(format!("starting#{}({why})", self.number));
        self.process = Some(Process {
            up: None,
            ready: None,
            ending: None,
        });
        if matches!(
            why,
            "attempt_created" | "desired_state_running" | "spec_updated"
        ) {
            self.restarts.clear();
            self.doublings = 0;
        }
        self.active();
    }

    fn end(&mut self, why: &'static str, told: &mut Told) {
        told.push(format!("stopping#{}({why})", self.number));
        let since = self.awake();
        if let Some(process) = &mut self.process {
            process.ending = Some(Ending {
                why,
                since,
                grace: self.rules.grace,
                killed: false,
                then: None,
            });
        }
    }

    fn ending(&mut self) -> Option<&mut Ending> {
        self.process
            .as_mut()
            .and_then(|process| process.ending.as_mut())
    }

    pub(crate) fn stop(&mut self) -> Result<Told, Refused> {
        self.alive()?;
        self.rules.desired = false;
        let mut told = vec!["desired(stopped)".to_owned()];
        self.obey_stop(&mut told);
        Ok(told)
    }

    fn obey_stop(&mut self, told: &mut Told) {
        if let Some(ending) = self.ending() {
            ending.then = None;
        } else if self.process.is_some() {
            self.end("desired_state_stopped", told);
        } else {
            self.at_rest = "stopped";
        }
    }

    pub(crate) fn start(&mut self) -> Result<Told, Refused> {
        self.alive()?;
        let runs = self
            .process
            .as_ref()
            .is_some_and(|process| process.ending.is_none());
        if !runs && self.is_too_old() {
            return Err(Refused);
        }
        self.rules.desired = true;
        let mut told = vec!["desired(running)".to_owned()];
        self.obey_start(&mut told);
        Ok(told)
    }

    fn obey_start(&mut self, told: &mut Told) {
        if let Some(ending) = self.ending() {
            ending.then = ending.then.or(Some("desired_state_running"));
        } else if self.process.is_none() {
            self.begin("desired_state_running", told);
        }
    }

    pub(crate) fn new_attempt(&mut self, replace: bool) -> Result<Told, Refused> {
        self.alive()?;
        if (self.process.is_some() && !replace) || self.is_too_old() {
            return Err(Refused);
        }
        self.rules.desired = true;
        let mut told = Told::new();
        if self.ending().is_some() {
            told.push(format!("stopping#{}(attempt_replaced)", self.number));
        } else if self.process.is_some() {
            self.end("attempt_replaced", &mut told);
        } else {
            self.begin("attempt_created", &mut told);
        }
        if let Some(ending) = self.ending() {
            ending.then = Some("attempt_created");
        }
        Ok(told)
    }

    pub(crate) fn update(&mut self, rules: Rules) -> Result<Told, Refused> {
        self.alive()?;
        let runs = self
            .process
            .as_ref()
            .is_some_and(|process| process.ending.is_none());
        let other = |rules: &Rules| (rules.command, rules.ready, rules.delay, rules.timeout);
        let changes = other(&rules) != other(&self.rules);
        let too_old = rules.life.is_some_and(|life| self.now >= life);
        if rules.desired && too_old && (!runs || changes) {
            return Err(Refused);
        }
        let before = std::mem::replace(&mut self.rules, rules);
        let mut told = vec!["updated".to_owned()];
        if !self.rules.desired {
            self.obey_stop(&mut told);
        } else if runs && changes {
            self.end("spec_replaced", &mut told);
            if let Some(ending) = self.ending() {
                ending.then = Some("spec_updated");
            }
        } else {
            self.obey_start(&mut told);
        }
        // What it ends was begun under the rules before.
        if let Some(ending) = self.ending().filter(|_| runs) {
            ending.grace = before.grace;
        }
        Ok(told)
    }

    pub(crate) fn delete(&mut self) -> Result<Told, Refused> {
        if self.deleted {
            return Err(Refused);
        }
        let mut told = Told::new();
        if self.deleting {
            self.kill_what_is_frozen(&mut told);
            return Ok(told);
        }
        self.deleting = true;
        if self.ending().is_some() {
            told.push(format!("stopping#{}(session_deleted)", self.number));
        } else if self.process.is_some() {
            self.end("session_deleted", &mut told);
        } else {
            self.gone(&mut told);
        }
        self.kill_what_is_frozen(&mut told);
        Ok(told)
    }

    /// It can't end in its own way, and a grace would never pass.
    fn kill_what_is_frozen(&mut self, told: &mut Told) {
        let is_frozen = self.asleep_since.is_some();
        if let Some(ending) = self.ending()
            && is_frozen
            && !ending.killed
        {
            ending.killed = true;
            told.push("escalated".to_owned());
        }
    }

    fn gone(&mut self, told: &mut Told) {
        self.deleted = true;
        self.at_rest = "stopped";
        told.push("deleted".to_owned());
    }

    pub(crate) fn touch(&mut self, event: &str) -> Result<Told, Refused> {
        self.alive()?;
        if !self.is_up() {
            return Err(Refused);
        }
        self.active();
        Ok(vec![event.to_owned()])
    }

    pub(crate) fn output(&mut self) -> Told {
        self.active();
        vec!["output(1)".to_owned()]
    }

    pub(crate) fn started(&mut self) -> Told {
        let (awake, number) = (self.awake(), self.number);
        let mut told = vec![format!("started#{number}")];
        let by_start = self.rules.ready == "process";
        let Some(process) = &mut self.process else {
            return Told::new();
        };
        process.up = Some(awake);
        if process.ending.is_none() && by_start {
            process.ready = Some(awake);
            told.push(format!("ready#{number}"));
        }
        self.active();
        told
    }

    pub(crate) fn matched(&mut self) -> Told {
        let (awake, number) = (self.awake(), self.number);
        match &mut self.process {
            Some(process) if process.ending.is_none() && process.ready.is_none() => {
                process.ready = Some(awake);
                vec![format!("ready#{number}")]
            }
            _ => Told::new(),
        }
    }

    pub(crate) fn start_failed(&mut self) -> Told {
        self.over("start_failed", true)
    }

    pub(crate) fn exited(&mut self, code: u8) -> Told {
        let by_itself = if code == 0 { "stopped" } else { "crashed" };
        let why = self.ending().map_or(by_itself, |ending| ending.why);
        self.over(why, code != 0 || why == "readiness_timeout")
    }

    fn over(&mut self, why: &str, failed: bool) -> Told {
        let Some(process) = self.process.take() else {
            return Told::new();
        };
        let mut told = vec![format!("exited#{}({why})", self.number)];
        self.active();
        let stable = self.rules.longest.max(Duration::from_secs(10));
        if process
            .ready
            .is_some_and(|ready| between(ready, self.awake()) >= stable)
        {
            self.doublings = 0;
        }
        self.at_rest = "exited";
        let then = process.ending.and_then(|ending| ending.then);
        let again = match self.rules.policy {
            "always" => true,
            "on_failure" => failed,
            _ => false,
        };
        if self.deleting {
            self.gone(&mut told);
        } else if !self.rules.desired {
            self.at_rest = "stopped";
        } else if (then.is_some() || again) && self.is_too_old() {
            self.expire("max_lifetime", &mut told);
        } else if let Some(then) = then {
            self.begin(then, &mut told);
        } else if again {
            self.back_off(&mut told);
        } else if matches!(why, "start_failed" | "readiness_timeout") {
            self.at_rest = "failed";
            told.push(format!("failed({why})"));
        }
        told
    }

    fn back_off(&mut self, told: &mut Told) {
        let now = self.awake();
        let window = self.rules.window;
        self.restarts
            .retain(|restart| between(*restart, now) < window);
        if self.restarts.len() >= self.rules.max {
            self.at_rest = "failed";
            told.push("failed(restart_limit_exceeded)".to_owned());
            return;
        }
        let mut delay = self.rules.initial;
        for _ in 0..self.doublings.min(self.restarts.len()) {
            delay = (delay * 2).min(self.rules.longest);
        }
        self.restarts.push(now);
        self.doublings += 1;
        self.at_rest = "backoff";
        self.restart_at = now + delay;
        told.push(format!("backoff({}ms)", delay.as_millis()));
    }

    fn expire(&mut self, limit: &str, told: &mut Told) {
        told.push(format!("expired({limit})"));
        self.rules.desired = false;
        if self.process.is_some() {
            self.end("session_expired", told);
        } else {
            self.at_rest = "stopped";
        }
    }

    fn alive(&self) -> Result<(), Refused> {
        if self.deleting || self.deleted {
            Err(Refused)
        } else {
            Ok(())
        }
    }
}
