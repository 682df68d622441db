//! The supervisor over its link, with real processes: stories of sessions, their input, the
//! supervisor's death, and what is not an everyday matter.
#![expect(clippy::unwrap_used, reason = "test")]

mod faults;
mod freezing;
#[cfg(feature = "privileged")]
#[expect(unreachable_pub, reason = "shared with other test programs")]
#[path = "../common/image.rs"]
mod image;
mod inputs;
mod launcher;
mod launching;
mod left_behind;
mod link;
mod repeated;
mod sessions;
mod slow;
mod supervised;
mod takeover;
