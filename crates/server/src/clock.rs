//! The one place where this crate reads a clock. Everything else takes `now` as an argument or
//! asks here, so that a search for "who knows the time" has one answer.

use std::time::{SystemTime, UNIX_EPOCH};

use outlive_core::time::Timestamp;

/// The wall clock.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the module that reads the clock"
)]
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_unix_nanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
