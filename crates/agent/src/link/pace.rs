//! How often a link is told of output: at once as long as that is rare, and no more often than its
//! reader has use for while output floods.

use std::time::Duration;

use tokio::time::Instant;

/// A bucket of messages that fills up by one `every` so often, up to `burst`.
#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    burst: u32,
    /// When the bucket will be full again.
    full_at: Option<Instant>,
}

impl Pace {
    /// With a full bucket.
    pub(super) fn new(every: Duration, burst: u32) -> Self {
        Self {
            every,
            burst,
            full_at: None,
        }
    }

    /// A message was sent; how long until the next one may be.
    pub(super) fn told(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.every;
        self.full_at = Some(full_at);
        (full_at - now).saturating_sub(self.every * self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(1);

    #[test]
    fn a_few_follow_each_other_at_once_and_more_of_them_wait() {
        let mut pace = Pace::new(EVERY, 3);
        let now = Instant::now();
        let pauses = [(); 5].map(|()| pace.told(now));
        assert_eq!(pauses, [0, 0, 0, 1, 2].map(|n| EVERY * n));
    }

    #[test]
    fn what_comes_as_rarely_as_it_may_never_waits() {
        let mut pace = Pace::new(EVERY, 3);
        let begun = Instant::now();
        for n in 0..100 {
            assert_eq!(pace.told(begun + EVERY * n), Duration::ZERO);
        }
        // And after a silence a burst is as large as at first.
        let later = begun + EVERY * 200;
        let pauses = [(); 4].map(|()| pace.told(later));
        assert_eq!(pauses, [0, 0, 0, 1].map(|n| EVERY * n));
    }
}
