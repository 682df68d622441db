//! Tests of the session machine.
#![expect(
    clippy::expect_used,
    clippy::format_push_string,
    clippy::print_stdout,
    reason = "a test's tools"
)]

mod exhaustive;
mod scenarios;
mod words;
mod world;
