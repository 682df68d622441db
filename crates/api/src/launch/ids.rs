//! Host ids of one sandbox.

use minicbor::{Decode, Encode};

/// User and group ids of one sandbox, as the launcher counts.
///
/// ```text
///   root of the machine      FIRST  FIRST+1 … FIRST+65,536      no two sandboxes share one
///   root of a namespace      0      1 … (as many as it has)     all sandboxes share them
///   of one that has one id   0      0                           everybody shares it
///                            agent  workload
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub struct IdRange {
    /// The first; the agent's. The workload's root is the next.
    #[n(0)]
    pub first: u32,
    /// How many ids there are, where the launcher is root of a user namespace only. Mounts can't
    /// be shown through other ids there: layers of images lie under the ids that they have inside.
    #[n(1)]
    pub of_namespace: Option<u32>,
}

impl IdRange {
    /// How many ids the workload has at most.
    pub const WORKLOAD_COUNT_MAX: u32 = 65_536;

    /// The range of slot 0, 1, …: far above real users, `0x2_0000` apart.
    pub const fn of_slot(slot: u16) -> Option<Self> {
        // 0x1000_0000 + 28,671 × 0x2_0000 still ends below 2^32 - 2^16.
        if slot <= 28_671 {
            Some(Self {
                first: 0x1000_0000 + (slot as u32) * 0x2_0000,
                of_namespace: None,
            })
        } else {
            None
        }
    }

    /// What all sandboxes share, by a process's `/proc/PID/uid_map`; `None` where there are enough
    /// ids for every sandbox to have its own.
    pub fn of_uid_map(text: &str) -> Option<Self> {
        let mut count: u32 = 0;
        for line in text.lines() {
            let fields: Vec<u32> = line
                .split_whitespace()
                .filter_map(|field| field.parse().ok())
                .collect();
            match fields.as_slice() {
                [first, _, more] if *first == count => count = count.saturating_add(*more),
                _ => {}
            }
        }
        let enough = Self::of_slot(0).is_some_and(|slot| count > slot.first);
        (!enough && count > 0).then_some(Self {
            first: 0,
            of_namespace: Some(count),
        })
    }

    /// The workload's root, counted from the agent's id.
    pub const fn workload_offset(self) -> u32 {
        match self.of_namespace {
            Some(0 | 1) => 0,
            Some(_) | None => 1,
        }
    }

    /// The workload's root.
    pub const fn workload(self) -> u32 {
        self.first + self.workload_offset()
    }

    /// How many ids the workload has.
    pub fn workload_count(self) -> u32 {
        match self.of_namespace {
            Some(count) => (count - self.workload_offset()).clamp(1, Self::WORKLOAD_COUNT_MAX),
            None => Self::WORKLOAD_COUNT_MAX,
        }
    }

    /// How many ids there are, the agent's included.
    pub fn count(self) -> u32 {
        self.workload_offset() + self.workload_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_ids_that_its_map_says() {
        let of = |text| IdRange::of_uid_map(text);
        assert_eq!(of("         0          0 4294967295\n"), None);
        assert_eq!(of(""), None);
        let rootless = of("0 1000 1\n1 100000 65536\n").unwrap();
        assert_eq!((rootless.first, rootless.workload()), (0, 1));
        assert_eq!(
            (rootless.count(), rootless.workload_count()),
            (65_537, 65_536)
        );
        let pod = of("0 524288 65536\n").unwrap();
        assert_eq!((pod.count(), pod.workload_count()), (65_536, 65_535));
        let single = of("0 1000 1\n").unwrap();
        assert_eq!(
            (single.workload(), single.count(), single.workload_count()),
            (0, 1, 1)
        );
        let own = IdRange::of_slot(1).unwrap();
        assert_eq!((own.workload() - own.first, own.count()), (1, 65_537));
    }
}
