//! How many requests a tenant may make: one bucket a tenant, refilled as time passes.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::time::Instant;

/// Tenants whose buckets are remembered; full buckets are forgotten first.
const TENANTS_MAX: usize = 10_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Rates {
    per_second: u32,
    buckets: Mutex<HashMap<Arc<str>, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Rates {
    /// This many requests a second, two seconds' worth at once.
    pub(crate) fn new(per_second: u32) -> Self {
        Self {
            per_second: per_second.max(1),
            buckets: Mutex::new(HashMap::new()),
        }
    }

    /// Takes one, or tells in how many seconds to come again.
    pub(crate) fn take(&self, owner: &Arc<str>, now: Instant) -> Result<(), u32> {
        let rate = f64::from(self.per_second);
        let full = rate * 2.0;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= TENANTS_MAX && !buckets.contains_key(owner) {
            buckets.retain(|_, bucket| refilled(bucket, rate, now) < full);
        }
        let bucket = buckets.entry(Arc::clone(owner)).or_insert(Bucket {
            left: full,
            at: now,
        });
        bucket.left = refilled(bucket, rate, now).min(full);
        bucket.at = now;
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            Ok(())
        } else {
            Err(1)
        }
    }
}

fn refilled(bucket: &Bucket, rate: f64, now: Instant) -> f64 {
    let passed = now.saturating_duration_since(bucket.at);
    bucket.left + passed.as_secs_f64() * rate
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_tenant_that_hurries_waits_and_others_do_not() {
        let rates = Rates::new(10);
        let (one, two) = (Arc::from("one"), Arc::from("two"));
        let start = Instant::now();
        for _ in 0..20 {
            rates.take(&one, start).unwrap();
        }
        rates.take(&one, start).unwrap_err();
        rates.take(&two, start).unwrap();
        let later = start + Duration::from_millis(101);
        rates.take(&one, later).unwrap();
        rates.take(&one, later).unwrap_err();
    }
}
