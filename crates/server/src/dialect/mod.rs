//! The HTTP dialects: one engine, spoken to in several ways.

pub(crate) mod named;
pub mod supervised;
