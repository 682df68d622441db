//! The keeper: the one process of a sandbox that must not die.
//!
//! It is PID 1 of the agent's pid namespace (in the `process` runtime: a subreaper), knows
//! nothing of sessions, and does four things:
//!
//! ```text
//!   supervisor ──Put/Get/Del──► keeps copies of descriptors, by name
//!   SIGCHLD ──────────────────► writes an exit record, *then* reaps        state/exits
//!   supervisor ends ──────────► starts the next, from an executable it holds open
//!   Upgrade, Reexec ──────────► changes that executable; replaces itself, state in a memfd
//! ```
//!
//! Copies change what closing means: stdin sees its end, and a terminal its hangup, only when
//! the supervisor's *and* the keeper's copies are closed. So: journal the intent, close, `Del`.
//!
//! An exit record stays until a supervisor has the end in a journal. Those that a keeper left
//! behind go to the next runtime's keeper at its launch.
//!
//! Whether a supervisor is started at once or after a delay depends only on crashes *before* it
//! said `Ready`; one that served and was killed is replaced at once.

mod begin;
mod client;
mod handover;
mod run;
mod store;
mod supervisor;
mod wire;

pub(crate) use begin::begin;
pub use client::{KeeperClient, KeeperError, Kept};
pub use handover::{Handover, KEEPER_TITLE, Place, SupervisorHandover};
pub(crate) use handover::{sealed_copy, sealed_memory};
pub use run::main;
pub(crate) use store::decode_exits;
pub use supervisor::{KEEPER_FD_ENV, SUPERVISOR_TITLE};
pub(crate) use supervisor::{Supervisor, allow_open_files};
pub use wire::{ExitRecord, KeeperStatus, Label};

/// One line to standard error, which the launcher led into `agent.log`.
fn log(line: &str) {
    let line = format!("keeper: {line}\n");
    match rustix::io::write(rustix::stdio::stderr(), line.as_bytes()) {
        Ok(_) | Err(_) => {} // There is no other place to say it.
    }
}
