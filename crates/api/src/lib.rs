//! The shapes that cross our borders: JSON for clients, CBOR between server and supervisor.
//!
//! JSON names, base64, HTTP statuses and error codes live here and in the dialects only.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod agent;
pub mod context;
pub mod encode;
pub mod error;
pub mod event;
pub mod image;
pub mod keys;
pub mod launch;
pub mod limits;
pub mod named;
pub mod network;
pub mod policy;
pub mod record;
pub mod sandbox;
pub mod session;
pub mod signal;
pub mod snapshot;
pub mod spec;
pub mod time;
pub mod upgrade;
pub mod ws;
