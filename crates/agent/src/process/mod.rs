//! Operating-system processes: start, streams, output, end, and the whole tree of each.
//!
//! Nothing here knows sessions' rules or journals' formats. The driver asks the [`Spawner`] for
//! an [`Attempt`], gives its [`Source`]s to the [`Pump`], opens the [`Gate`], and asks
//! [`exit`] how it ended.
//!
//! ```text
//!   Spawner::spawn ─► child waits at the gate ─► every descriptor is in the keeper
//!        │                                             │
//!        ▼                                             ▼
//!    Spawned { attempt, gate } ─► Pump::attach ─► Gate::open ─► exec status: running | failed
//! ```
//!
//! A supervisor that starts finds the attempts of the one before by [`recover`].

pub mod cgroup;
pub(crate) mod child;
mod crowd;
pub mod exit;
pub(crate) mod fence;
mod filter;
pub(crate) mod manner;
pub mod pipes;
pub mod pty;
pub mod pump;
pub mod spawn;

mod attempt;

pub use attempt::{Attempt, AttemptKey, Recovered, Source, recover};
pub use crowd::Crowd;
pub use pump::{OutputSink, Pump, SinkError, SourceEnd, SourceId};
pub use spawn::{ExecOutcome, Gate, SpawnError, SpawnRequest, Spawned, Spawner, StartStage};
