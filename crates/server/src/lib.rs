//! The server: everything between a client's request and a sandbox's supervisor.
//!
//! Dialects translate HTTP into calls of [`sessions::SandboxHandle`]; the sandboxes behind that
//! border are found, woken and watched by the rest of this crate.

pub mod http;
pub mod sessions;
