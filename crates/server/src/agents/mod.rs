//! Links to live supervisors, and what is known of those that are away.
//!
//! ```text
//!   Agent ── keeper (pidfd) ── gone? ──► the sandbox's task replaces the runtime
//!     │
//!     └─ connect ► handshake ► Watch ► tails move ─┐
//!           ▲                                      │ link closed: the supervisor restarts
//!           └──────────────────────────────────────┘
//! ```
//! A supervisor that says nothing while calls wait, and does not greet somebody new either, is
//! silent: calls end with that word instead of waiting for ever, and its link stays for when it
//! goes on. However long a call takes, it goes on as long as anything is heard.
//!
//! A call waits while a supervisor restarts. When a link breaks under a call, nobody knows
//! whether the call arrived; [`asked::Asked`] says per request what is done about it.

pub(crate) mod agent;
pub(crate) mod asked;
pub(crate) mod keeper;
pub(crate) mod link;
pub(crate) mod offline;
pub(crate) mod tails;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod upgrade;
