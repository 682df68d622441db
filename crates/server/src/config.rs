//! What a server is told at its start.

use std::{
    env, io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

pub use outlive_api::launch::Cidr;

use crate::limits::{
    REQUESTS_PER_SECOND_DEFAULT, SANDBOXES_OWNED_MAX_DEFAULT, SNAPSHOTS_OWNED_MAX_DEFAULT,
};
pub use crate::runtime::RuntimeChoice;

/// The address a server listens on unless it is told another.
pub const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);

/// The addresses of sandboxes unless the server is told others: `10.201.0.0/16`.
pub const POOL_DEFAULT: Cidr = Cidr::of_16([10, 201]);

/// The configuration of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Its data directory.
    pub data: PathBuf,
    /// The `outlive-agent` binary; without one it is looked for, beside our own executable.
    pub agent: Option<PathBuf>,
    /// The runtime backend.
    pub runtime: RuntimeChoice,
    /// The file of templates; without one, `templates.yaml` in the data directory, if it is there.
    pub templates: Option<PathBuf>,
    /// Bounds of every tenant.
    pub tenant: TenantLimits,
    /// The addresses of sandboxes with a network of their own.
    pub pool: Cidr,
}

/// Bounds of every tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLimits {
    /// Sandboxes at one time.
    pub sandboxes_max: u32,
    /// Snapshots at one time.
    pub snapshots_max: u32,
    /// Requests a second, averaged over a second or two.
    pub requests_per_second_max: u32,
}

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            sandboxes_max: SANDBOXES_OWNED_MAX_DEFAULT,
            snapshots_max: SNAPSHOTS_OWNED_MAX_DEFAULT,
            requests_per_second_max: REQUESTS_PER_SECOND_DEFAULT,
        }
    }
}

impl Config {
    /// The defaults with this data directory.
    pub fn new(data: PathBuf) -> Self {
        Self {
            listen: LISTEN_DEFAULT,
            data,
            agent: None,
            runtime: RuntimeChoice::Auto,
            templates: None,
            tenant: TenantLimits::default(),
            pool: POOL_DEFAULT,
        }
    }

    /// The agent's binary: the one named, `OUTLIVE_AGENT`, or the one beside this executable.
    pub(crate) fn agent(&self) -> io::Result<PathBuf> {
        let named = self
            .agent
            .clone()
            .or_else(|| env::var_os("OUTLIVE_AGENT").map(PathBuf::from));
        let path = match named {
            Some(path) => path,
            None => env::current_exe()?.with_file_name("outlive-agent"),
        };
        std::path::absolute(path)
    }
}
