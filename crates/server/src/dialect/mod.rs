//! The HTTP dialects: one engine, spoken to in several ways.

pub mod supervised;
