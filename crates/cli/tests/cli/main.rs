//! The command line as its users meet it: the program, its output, its exit codes.
#![expect(clippy::unwrap_used, reason = "test")]

mod calls;
mod copy;
mod ending;
mod exec;
mod follow;
mod output;
mod real;
mod reference;
mod run;
mod sandbox;
mod support;
mod tables;
