//! What the agent's tests share: a supervisor small enough to be seen through, a sandbox that is
//! driven through it, and a runner for tests whose own program is the agent under test.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    reason = "test"
)]

pub mod escape;
pub mod fixture;
pub mod image;
pub mod sandbox;
pub mod stories;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

/// One story and its name.
pub type Story = (&'static str, fn());

/// Shows a face of the agent when the arguments name one, else tells the stories whose name
/// contains the first argument that isn't an option.
pub fn main(stories: &[Story]) -> ExitCode {
    if let Some((title, face)) = outlive_agent::face::find(fixture::main) {
        return outlive_agent::face::finish(&title, face());
    }
    if let Some(attempts) = escape::find() {
        return attempts();
    }
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let mut failed = 0;
    for (name, story) in stories {
        if filter.as_ref().is_some_and(|f| !name.contains(f.as_str())) {
            continue;
        }
        let from = outlive_agent::sys::boot_clock();
        let outcome = catch_unwind(AssertUnwindSafe(story));
        let took = outlive_agent::sys::boot_clock().saturating_sub(from);
        if outcome.is_ok() {
            println!("test {name} ... ok ({} ms)", took.as_millis());
        } else {
            println!("test {name} ... FAILED");
            failed += 1;
        }
    }
    println!("{failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
