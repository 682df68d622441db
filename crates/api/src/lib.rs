//! The shapes that cross our borders: JSON for clients, CBOR between server and supervisor.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod agent;
