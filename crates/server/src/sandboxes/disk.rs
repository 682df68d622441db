//! How full disks are. Where a file system counts for us, it is asked. Else disks with a limit are
//! measured, one after another, and a sandbox that has more than it may stands still.
//!
//! ```text
//!   due? ─► measure (a thread of its own) ─► over, or fits again ─► the sandbox's task
//!    ▲                                                                    │
//!    └── the sooner, the less room is left; a twentieth of the time at most ◄┘
//! ```
//! So a sandbox can have more than its limit for a moment: what it wrote since it was measured.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlive_api::sandbox::Disk;
use outlive_core::{
    sandbox::{Input, Observed},
    time::Timestamp,
};
use tokio::time::{Instant, sleep};

use super::{Engine, Sandbox, config::bytes_of};
use crate::{
    limits::{
        DISK_BYTES_PER_ENTRY, DISK_ENTRIES_MIN, DISK_GROWTH_PER_SECOND, DISK_LOOK_EVERY,
        DISK_MEASURE_EVERY_MAX, DISK_MEASURE_EVERY_MIN, DISK_MEASURE_SHARE,
    },
    runtime::Usage,
    store::SandboxRecord,
};

/// What is known of one sandbox's disk.
#[derive(Debug, Default)]
pub(crate) struct Gauge(Mutex<Known>);

#[derive(Debug, Default, Clone, Copy)]
struct Known {
    used: Option<Usage>,
    /// When it is measured next, while it runs; at once when not set.
    due: Option<Instant>,
    /// The state in which it was measured while it did not run: nothing changes since.
    at_rest: Option<Timestamp>,
}

impl Gauge {
    /// What was known is out of date.
    pub(super) fn measure_soon(&self) {
        let mut known = self.known();
        known.due = None;
        known.at_rest = None;
    }

    fn is_due(&self, now: Instant, rest: Option<Timestamp>) -> bool {
        let known = self.known();
        match rest {
            Some(_) => known.at_rest != rest,
            None => known.due.is_none_or(|due| due <= now),
        }
    }

    fn learn(&self, used: Usage, due: Instant, rest: Option<Timestamp>) {
        *self.known() = Known {
            used: Some(used),
            due: Some(due),
            at_rest: rest,
        };
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who sees to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enforced {
    /// The file system: nothing more can be written, and nobody has to stand still.
    Quota,
    /// We do, by looking now and then.
    Checked,
}

impl Enforced {
    /// Of this sandbox; what has no limit is not asked about.
    pub(super) fn on(engine: &Engine, record: &SandboxRecord) -> Self {
        let in_force = match record.state.observed {
            Observed::Running | Observed::Frozen | Observed::Freezing | Observed::Thawing => {
                limit_of(record)
            }
            Observed::Starting
            | Observed::Releasing
            | Observed::Released
            | Observed::Failed
            | Observed::Deleting => None,
        };
        if engine.shared.runtime.has_quota(&record.id, in_force) {
            Self::Quota
        } else {
            Self::Checked
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Checked => "checked",
        }
    }
}

/// What a sandbox may have, in bytes.
fn limit_of(record: &SandboxRecord) -> Option<u64> {
    bytes_of(record.config.resources.as_ref()?.disk.as_ref()?)
}

/// As many files as a file system of this size would have room for.
fn entries_max(limit: u64) -> u64 {
    (limit / DISK_BYTES_PER_ENTRY).max(DISK_ENTRIES_MIN)
}

fn is_over(limit: u64, used: Usage) -> bool {
    used.bytes > limit || used.entries >= entries_max(limit)
}

/// How long until it is measured again.
fn pause(limit: u64, used: Usage, took: Duration) -> Duration {
    let room = limit.saturating_sub(used.bytes);
    let filled_in = Duration::from_secs(room / DISK_GROWTH_PER_SECOND);
    filled_in
        .clamp(DISK_MEASURE_EVERY_MIN, DISK_MEASURE_EVERY_MAX)
        .max(took * DISK_MEASURE_SHARE)
}

/// What a client is told.
pub(super) fn shown(
    record: &SandboxRecord,
    gauge: Option<&Gauge>,
    enforced: Enforced,
) -> Option<Disk> {
    let limit = record.config.resources.as_ref()?.disk.clone()?;
    let used_bytes = gauge.and_then(|gauge| Some(gauge.known().used?.bytes));
    let full = match enforced {
        // It was lowered, or set when that much was there.
        Enforced::Quota => used_bytes
            .zip(limit_of(record))
            .is_some_and(|(used, limit)| used > limit),
        Enforced::Checked => record.state.known.disk_full,
    };
    Some(Disk {
        limit,
        used_bytes,
        full,
        enforced_by: enforced.as_str().to_owned(),
    })
}

/// Measures disks until the server goes.
pub(crate) async fn watch(engine: Engine) {
    let stop = engine.shared.stop.clone();
    let watching = async {
        loop {
            sleep(DISK_LOOK_EVERY).await;
            for sandbox in engine.all() {
                look_at(&engine, &sandbox).await;
            }
        }
    };
    stop.run_until_cancelled(watching).await;
}

async fn look_at(engine: &Engine, sandbox: &Arc<Sandbox>) {
    let record = sandbox.record();
    let Some(limit) = limit_of(&record) else {
        return;
    };
    let rest = match record.state.observed {
        Observed::Frozen | Observed::Released | Observed::Failed => Some(record.updated_at),
        Observed::Running => None,
        // It is on its way to one of those, or was.
        Observed::Starting
        | Observed::Freezing
        | Observed::Thawing
        | Observed::Releasing
        | Observed::Deleting => return,
    };
    let began = Instant::now();
    if !sandbox.gauge().is_due(began, rest) {
        return;
    }
    let enforced = Enforced::on(engine, &record);
    let runtime = &engine.shared.runtime;
    let counted = match enforced {
        Enforced::Quota => runtime.counted(&record.id),
        Enforced::Checked => None, // It has to be true now.
    };
    let measured = match counted {
        Some(bytes) => Ok(Usage { bytes, entries: 0 }),
        None => runtime.usage(&record.id, entries_max(limit)).await,
    };
    let took = began.elapsed();
    match measured {
        Ok(used) => {
            let due = Instant::now() + pause(limit, used, took);
            sandbox.gauge().learn(used, due, rest);
            let over = enforced == Enforced::Checked && is_over(limit, used);
            let told = match (over, record.state.known.disk_full) {
                (true, _) => Some(DiskIs::Over),
                (false, true) => Some(DiskIs::Fitting),
                (false, false) => None,
            };
            if let Some(disk) = told {
                // The others don't wait until it stands still.
                let sandbox = Arc::clone(sandbox);
                let telling = async move { sandbox.tell_disk(disk).await };
                engine.shared.tasks.spawn(telling);
            }
        }
        Err(error) => {
            tracing::error!(sandbox = %record.id, %error, "a disk with a limit can't be measured");
            sandbox.gauge().known().due = Some(Instant::now() + DISK_MEASURE_EVERY_MAX);
        }
    }
    // Half of the time at most goes into it, however many disks there are.
    sleep(took).await;
}

/// What a measurement means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskIs {
    /// More is on it than may be.
    Over,
    /// It fits again.
    Fitting,
}

impl DiskIs {
    /// What its sandbox is told.
    pub(super) const fn fact(self) -> Input {
        match self {
            Self::Over => Input::DiskOver,
            Self::Fitting => Input::DiskFits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(bytes: u64) -> Usage {
        Usage { bytes, entries: 1 }
    }

    #[test]
    fn the_less_room_is_left_the_sooner_it_is_measured_again() {
        const GIB: u64 = 1 << 30;
        let quick = Duration::from_millis(1);
        let pauses = [0, 90, 99, 100].map(|gib| pause(100 * GIB, used(gib * GIB), quick));
        assert_eq!(pauses[0], DISK_MEASURE_EVERY_MAX);
        assert!(pauses.is_sorted_by(|one, next| one >= next), "{pauses:?}");
        assert_eq!(pauses[3], DISK_MEASURE_EVERY_MIN);
        // One that takes long is measured rarely, however full it is.
        let slow = Duration::from_secs(10);
        assert_eq!(pause(GIB, used(GIB), slow), slow * DISK_MEASURE_SHARE);
    }

    #[test]
    fn a_disk_is_full_of_bytes_or_of_files() {
        let limit = 64 << 20;
        assert!(!is_over(limit, used(limit)));
        assert!(is_over(limit, used(limit + 1)));
        let entries = entries_max(limit);
        assert!(is_over(limit, Usage { bytes: 0, entries }));
    }

    #[test]
    fn what_stands_still_is_measured_once() {
        let gauge = Gauge::default();
        let now = Instant::now();
        let rest = Some(Timestamp::from_unix_nanos(7));
        assert!(gauge.is_due(now, rest));
        gauge.learn(used(1), now + Duration::from_secs(1), rest);
        assert!(!gauge.is_due(now, rest));
        // It ran meanwhile.
        assert!(gauge.is_due(now, Some(Timestamp::from_unix_nanos(8))));
        assert!(!gauge.is_due(now, None));
        gauge.measure_soon();
        assert!(gauge.is_due(now, None));
        assert!(gauge.is_due(now, rest));
    }
}
