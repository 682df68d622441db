//! The server: everything between a client's request and a sandbox's supervisor.
//!
//! Dialects translate HTTP into calls of [`sessions::SandboxHandle`]; the sandboxes behind that
//! border are found, woken and watched by the rest of this crate.
//!
//! ```text
//!  app: routes, keys, limits ─► dialect ─► sessions (border) ─► sandboxes ─┬─► store
//!                                                                          ├─► runtime ─► images
//!                                                                          └─► agents
//! ```

mod agents;
mod app;
#[cfg(test)]
mod app_tests;
mod auth;
mod catalog;
mod clock;
pub mod config;
mod data;
pub mod dialect;
pub mod http;
mod ids;
mod images;
mod keys;
pub mod limits;
mod listen;
pub mod metrics;
pub mod openapi;
mod rate;
mod reserve;
mod runtime;
mod sandboxes;
pub mod serve;
pub mod sessions;
mod store;
mod templates;
mod upgrade;

pub use self::{
    config::{Cidr, Config, POOL_DEFAULT, RuntimeChoice, TenantLimits},
    serve::{ServeError, serve},
};
