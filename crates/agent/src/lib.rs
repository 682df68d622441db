//! The agent: everything of outlive that stands beside the processes it keeps.
//!
//! One program with several faces, told apart by argv:
//!
//! ```text
//!   outlive-agent launch      makes the namespaces, becomes or starts the keeper, answers, leaves
//!   outlive-launcher          the same, for a server that tells it later, over a socket
//!   outlive-keeper SANDBOX    PID 1: keeps descriptors, reaps, restarts the supervisor
//!   outlive-supervisor SANDBOX  drives the sessions of the sandbox
//!   sbx-init                  PID 1 of the workload, reaps
//!   outlive-agent sweep       removes what a dead sandbox left in the kernel
//!   outlive-agent settle      moves its parent to where sandboxes beside it can be limited
//!   outlive-agent hold        has the rules of networks be there while its server lives
//!   outlive-agent tidy-groups removes control groups that nobody sweeps any more
//!   outlive-agent copy        copies the disk of one sandbox to another
//!   outlive-agent egress      changes what a running sandbox reaches
//!   outlive-agent limit       changes what a running sandbox may use
//!   outlive-agent enter       makes an ordinary user root of a user namespace, for a program
//!   outlive-agent probe       says what this machine can do
//! ```
//!
//! [`inherit::keeper`] is where a supervisor begins; [`process`] is what it acts with.

pub mod account;
mod clock;
pub mod copy;
mod driver;
pub mod face;
mod figures;
pub mod inherit;
pub mod init;
mod input;
mod journal;
pub mod keeper;
pub mod launch;
pub mod limits;
mod link;
mod log;
mod machine;
mod owner;
pub mod probe;
pub mod process;
mod processes;
mod registry;
mod reserve;
mod rootless;
mod standstill;
pub mod supervisor;
mod sync;
pub mod sys;
mod tails;
