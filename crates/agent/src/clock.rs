//! The only place that reads a clock.
//!
//! A supervisor tells one time, nanoseconds since 1970 that never step back: it starts at the
//! wall clock, follows the boot clock from then on (so that a corrected wall clock moves no
//! deadline, and a suspended host does), and [`Clock::raise_to`] lifts it over the last time that
//! a journal holds. Tests let it follow tokio's clock, which they can stop and move.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use outlive_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// A clock that every thread of the supervisor may ask.
#[derive(Debug)]
pub(crate) struct Clock {
    source: Source,
    /// What to add to the source for nanoseconds since 1970.
    offset_ns: AtomicI64,
}

#[derive(Debug)]
enum Source {
    Boot,
    #[cfg(test)]
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// The machine's clock.
    pub(crate) fn system() -> Self {
        let wall = nanos(clock_gettime(ClockId::Realtime));
        let boot = nanos(clock_gettime(ClockId::Boottime));
        Self {
            source: Source::Boot,
            offset_ns: AtomicI64::new(wall - boot),
        }
    }

    /// Tokio's clock, which a test may have paused; starts one second after 1970.
    #[cfg(test)]
    pub(crate) fn of_tokio() -> Self {
        Self {
            source: Source::Tokio(tokio::time::Instant::now()),
            offset_ns: AtomicI64::new(1_000_000_000),
        }
    }

    /// The time.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_unix_nanos(self.source_ns() + self.offset_ns.load(Ordering::Relaxed))
    }

    /// Makes sure that no later time is before `at`.
    pub(crate) fn raise_to(&self, at: Timestamp) {
        let least = at.unix_nanos() - self.source_ns();
        self.offset_ns.fetch_max(least, Ordering::Relaxed);
    }

    /// How long from now until `at`; nothing when it passed.
    pub(crate) fn until(&self, at: Timestamp) -> Duration {
        at.since(self.now())
    }

    fn source_ns(&self) -> i64 {
        match &self.source {
            Source::Boot => nanos(clock_gettime(ClockId::Boottime)),
            #[cfg(test)]
            Source::Tokio(start) => i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX),
        }
    }
}

/// Runs `work` and says how long it took.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = monotonic();
    let result = work();
    (result, monotonic().saturating_sub(start))
}

/// Time since some point in the past, for spans.
pub(crate) fn monotonic() -> Duration {
    let now = nanos(clock_gettime(ClockId::Monotonic));
    Duration::from_nanos(u64::try_from(now).unwrap_or(0))
}

fn nanos(time: rustix::time::Timespec) -> i64 {
    time.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_steps_back_behind_a_journal() {
        let clock = Clock::system();
        let future = clock.now() + Duration::from_hours(1);
        clock.raise_to(future);
        assert!(clock.now() >= future);
        clock.raise_to(Timestamp::EPOCH);
        assert!(clock.now() >= future);
    }
}
