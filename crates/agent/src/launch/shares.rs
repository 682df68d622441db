//! A sandbox's share of what the kernel counts for one user of the host over all sandboxes.
//!
//! The kernel counts for who has something and for the owner of every user namespace around it, so
//! what the agent's namespace may have is what all that is inside may have together.

use std::io::Write as _;

use crate::limits::{INOTIFY_INSTANCES_MAX, INOTIFY_WATCHES_MAX, NAMESPACES_MAX};

/// Where the kernel has what the user namespace of the reader may have.
const DIRECTORY: &str = "/proc/sys/user";
const INSTANCES: &str = "max_inotify_instances";

/// What is counted, and how much of it a sandbox may have.
const COUNTED: [(&str, u64); 10] = [
    (INSTANCES, INOTIFY_INSTANCES_MAX),
    ("max_inotify_watches", INOTIFY_WATCHES_MAX),
    ("max_cgroup_namespaces", NAMESPACES_MAX),
    ("max_ipc_namespaces", NAMESPACES_MAX),
    ("max_mnt_namespaces", NAMESPACES_MAX),
    ("max_net_namespaces", NAMESPACES_MAX),
    ("max_pid_namespaces", NAMESPACES_MAX),
    ("max_time_namespaces", NAMESPACES_MAX),
    ("max_user_namespaces", NAMESPACES_MAX),
    ("max_uts_namespaces", NAMESPACES_MAX),
];

/// What one sandbox may have.
pub(super) struct Shares(Vec<(&'static str, u64)>);

impl Shares {
    /// At most half of what we may have ourselves. Kinds that the kernel doesn't know need no limit.
    pub(super) fn read(off: &mut Vec<String>) -> Self {
        let mut shares = Vec::new();
        for (name, most) in COUNTED {
            let text = std::fs::read_to_string(format!("{DIRECTORY}/{name}"));
            match text.map(|text| text.trim().parse::<u64>()) {
                Ok(Ok(all)) => shares.push((name, share(all, most))),
                Ok(Err(_)) => off.push(unlimited(name, &"no number")),
                Err(e) if name == INSTANCES => off.push(unlimited(name, &e)),
                Err(_) => {} // An older kernel.
            }
        }
        Self(shares)
    }

    /// Limits the user namespace that we are root of.
    pub(super) fn set(&self, off: &mut Vec<String>) {
        for (name, share) in &self.0 {
            let set = std::fs::OpenOptions::new()
                .write(true)
                .open(format!("{DIRECTORY}/{name}"))
                .and_then(|mut file| file.write_all(share.to_string().as_bytes()));
            if let Err(e) = set {
                off.push(unlimited(name, &e));
            }
        }
    }
}

fn share(all: u64, most: u64) -> u64 {
    most.min(all / 2).max(1)
}

fn unlimited(name: &str, why: &dyn std::fmt::Display) -> String {
    format!("{name}: {why}; a sandbox may take all that the host has")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_half() {
        assert_eq!(share(8192, 64), 64);
        assert_eq!(share(100, 64), 50);
        assert_eq!(share(1, 64), 1);
    }
}
