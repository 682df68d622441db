//! Tests of the session machine.
#![expect(
    clippy::expect_used,
    clippy::format_push_string,
    clippy::print_stdout,
    reason = "a test's tools"
)]

mod accounts;
mod exhaustive;
mod model;
mod properties;
mod scenarios;
mod words;
mod world;
