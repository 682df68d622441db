//! What the tests of several crates share. Fakes here are small real implementations, not mocks.

pub mod fake_agent;
