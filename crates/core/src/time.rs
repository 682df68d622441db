//! Time as a value. This crate never reads a clock; `now` is always an argument.

use std::{ops::Add, time::Duration};

use minicbor::{Decode, Encode};

/// Nanoseconds since 1970-01-01T00:00:00Z, as the supervisor's clock tells it.
///
/// The supervisor's clock never steps back: it starts at the wall clock or at the journal's last
/// time, whichever is later, and then follows the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct Timestamp(#[n(0)] i64);

impl Timestamp {
    /// The first nanosecond of 1970.
    pub const EPOCH: Self = Self(0);

    /// From nanoseconds since 1970.
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since 1970.
    pub const fn unix_nanos(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)),
        )
    }
}
