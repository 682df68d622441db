//! Tests of the journal, on real files and on a disk that can lose what wasn't synced.
#![expect(clippy::unwrap_used, reason = "test")]

mod basics;
mod common;
mod compat;
mod corrupt;
mod crash;
mod follow;
mod full;
mod model;
mod opening;
mod reading;
mod receipts;
mod retention;
