//! What a session is, and what happens to it: pure rules, no clock, no I/O, no randomness.
//!
//! Everything in this crate is a function of its arguments. The supervisor reads clocks, moves
//! bytes and starts processes; this crate only says what those things mean.
//!
//! ```text
//!            decide(&self, now, &Input) -> Result<Decision, Rejection>     reads, changes nothing
//!  driver ──► append Decision.events to the journal, sync if they are durable
//!            apply(&mut self, &Event)                                      the only change
//!            perform Decision.effects                                      outside this crate
//! ```
//!
//! Recovery is `apply` over the journal, so a decision must never look at anything that is not
//! an event: the same inputs give the same bytes out, on every machine, for ever.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::wildcard_enum_match_arm)]

pub mod event;
pub mod hash;
pub mod id;
pub mod limits;
pub mod readiness;
pub mod receipt;
pub mod restart;
pub mod sandbox;
pub mod session;
pub mod spec;
pub mod time;
