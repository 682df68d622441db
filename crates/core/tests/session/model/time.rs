//! What time and runtimes do: freezing, deadlines, a runtime that goes and the next one.

use std::time::Duration;

use super::{Model, Process, Told, between};

impl Model {
    pub(crate) fn freeze(&mut self) -> Told {
        let stands = self.process.is_some() || self.at_rest == "backoff";
        if self.asleep_since.is_some() || !stands {
            return Told::new();
        }
        self.asleep_since = Some(self.now);
        vec!["paused".to_owned()]
    }

    pub(crate) fn thaw(&mut self) -> Told {
        let Some(since) = self.asleep_since.take() else {
            return Told::new();
        };
        self.slept += between(since, self.now);
        let mut told = vec!["resumed".to_owned()];
        let ending = self.ending().is_some();
        let something = self.process.is_some() || self.at_rest == "backoff";
        if self.is_too_old() && something && !ending {
            self.expire("max_lifetime", &mut told);
        }
        told
    }

    pub(crate) fn release(&mut self) -> Told {
        let mut told = self.freeze();
        if self.process.is_some() {
            told.extend(self.lose_process());
        }
        told
    }

    /// The process went with its runtime, which nobody slept in any more.
    fn lose_process(&mut self) -> Told {
        let mut told = vec![format!("exited#{}(runtime_replaced)", self.number)];
        self.active();
        self.wake_up();
        let stable = self.rules.longest.max(Duration::from_secs(10));
        let ready = self.process.take().and_then(|process| process.ready);
        if ready.is_some_and(|ready| between(ready, self.active_at) >= stable) {
            self.doublings = 0;
        }
        self.at_rest = if self.rules.desired {
            "suspended"
        } else {
            "stopped"
        };
        if self.deleting {
            self.gone(&mut told);
        }
        told
    }

    /// Sleep that ended without a thaw counts as time.
    fn wake_up(&mut self) {
        self.asleep_since = None;
    }

    pub(crate) fn runtime(&mut self, generation: u64) -> Told {
        let mut told = Told::new();
        if self.deleted || generation <= self.generation {
            return told;
        }
        let mut active = matches!(self.at_rest, "suspended" | "backoff");
        if self.process.is_some() {
            told.extend(self.lose_process());
            if self.deleted {
                return told;
            }
            active = self.rules.desired;
        }
        self.generation = generation;
        self.wake_up();
        if self.at_rest == "pending" && !self.rules.desired {
            self.at_rest = "stopped";
        }
        if !active {
            return told;
        }
        if self.rules.recovery == "stop" {
            self.rules.desired = false;
            self.at_rest = "stopped";
            told.push("stopped by recovery policy".to_owned());
        } else if self.is_too_old() {
            self.expire("max_lifetime", &mut told);
        } else {
            if self.at_rest == "backoff" {
                self.restarts.pop();
                self.doublings = self.doublings.saturating_sub(1);
            }
            self.begin("runtime_recovered", &mut told);
        }
        told
    }

    /// When something happens by itself, on the clock of the wall.
    pub(crate) fn due(&self) -> Option<Duration> {
        if self.asleep_since.is_some() {
            return None;
        }
        let rules = &self.rules;
        let wall = |awake: Duration| awake + self.slept;
        let idle = rules.idle.map(|idle| wall(self.active_at + idle));
        match &self.process {
            Some(Process {
                ending: Some(ending),
                ..
            }) => (!ending.killed).then(|| wall(ending.since + ending.grace)),
            Some(process) => {
                let waits = process.up.filter(|_| process.ready.is_none());
                let patience = match rules.ready {
                    "delay" => Some(rules.delay.min(rules.timeout)),
                    "output" => Some(rules.timeout),
                    _ => None,
                };
                let ready = waits
                    .zip(patience)
                    .map(|(up, patience)| wall(up + patience));
                [ready, idle, rules.life].into_iter().flatten().min()
            }
            None if self.at_rest == "backoff" => [Some(wall(self.restart_at)), rules.life]
                .into_iter()
                .flatten()
                .min(),
            None => None,
        }
    }

    /// What happens by itself now.
    pub(crate) fn ring(&mut self) -> Told {
        let mut told = Told::new();
        if self.due().is_none_or(|due| self.now < due) {
            return told;
        }
        let (awake, number) = (self.awake(), self.number);
        if let Some(ending) = self.ending() {
            ending.killed = true;
            told.push("escalated".to_owned());
        } else if self.is_too_old() {
            self.expire("max_lifetime", &mut told);
        } else if self.process.is_none() {
            self.begin("restart_policy", &mut told);
        } else if self
            .rules
            .idle
            .is_some_and(|idle| awake >= self.active_at + idle)
        {
            self.expire("idle_timeout", &mut told);
        } else if self.rules.ready == "delay" && self.rules.delay <= self.rules.timeout {
            if let Some(process) = &mut self.process {
                process.ready = Some(awake);
            }
            told.push(format!("ready#{number}"));
        } else {
            self.end("readiness_timeout", &mut told);
        }
        told
    }
}
