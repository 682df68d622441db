//! The agent: everything of outlive that stands beside the processes it keeps.
//!
//! One program with several faces, told apart by argv:
//!
//! ```text
//!   outlive-agent launch      makes the namespaces, becomes or starts the keeper, answers, leaves
//!   outlive-keeper SANDBOX    PID 1: keeps descriptors, reaps, restarts the supervisor
//!   outlive-supervisor SANDBOX  drives the sessions of the sandbox
//!   sbx-init                  PID 1 of the workload, reaps
//!   outlive-agent sweep       removes what a dead sandbox left in the kernel
//!   outlive-agent probe       says what this machine can do
//! ```
//!
//! [`inherit::Inheritance::take`] is where a supervisor begins; [`process`] is what it acts with.

pub mod inherit;
pub mod init;
pub mod keeper;
pub mod limits;
pub mod process;
pub mod supervisor;
pub mod sys;
