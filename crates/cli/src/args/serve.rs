//! Arguments of `serve`, `demo` and `doctor`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, ValueEnum};
use outlive_server::{Cidr, TenantLimits};

/// What runs a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RuntimeKind {
    /// Linux namespaces: isolated.
    Namespace,
    /// No namespaces, but each sandbox and its agent have a user of their own; takes root.
    TwoUid,
    /// Plain processes of this user: no isolation.
    Process,
}

impl RuntimeKind {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::TwoUid => "two-uid",
            Self::Process => "process",
        }
    }
}

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Address to listen on; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:7070", value_name = "ADDR")]
    pub listen: SocketAddr,

    /// Folder for everything the server keeps. Once it answers, DIR/endpoint holds its URL and
    /// DIR/admin.token a key [default: /var/lib/outlive as root, else `~/.local/share/outlive`].
    #[arg(long, env = "OUTLIVE_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// What runs the sandboxes [default: the first that this machine can].
    #[arg(long, env = "OUTLIVE_RUNTIME", value_enum, value_name = "KIND")]
    pub runtime: Option<RuntimeKind>,

    /// The `outlive-agent` program [default: beside this program].
    #[arg(long, env = "OUTLIVE_AGENT", value_name = "FILE")]
    pub agent: Option<PathBuf>,

    /// Addresses for sandboxes with a network of their own: an IPv4 network that nothing else of
    /// this host's neighbourhood has.
    #[arg(long, default_value_t = outlive_server::POOL_DEFAULT, value_name = "CIDR")]
    pub sandbox_addresses: Cidr,

    /// Most sandboxes of one owner.
    #[arg(long, default_value_t = TenantLimits::default().sandboxes_max, value_name = "COUNT")]
    pub sandboxes_per_owner_max: u32,

    /// Most snapshots of one owner.
    #[arg(long, default_value_t = TenantLimits::default().snapshots_max, value_name = "COUNT")]
    pub snapshots_per_owner_max: u32,

    /// Most requests of one owner in a second, over two seconds.
    #[arg(
        long,
        default_value_t = TenantLimits::default().requests_per_second_max,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub requests_per_owner_second_max: u32,

    /// Templates of sandboxes, as YAML [default: DIR/templates.yaml, if it is there].
    #[arg(long, env = "OUTLIVE_TEMPLATES", value_name = "FILE")]
    pub template_file: Option<PathBuf>,

    /// What to log, to standard error: a level, or filters as in `info,outlive_server=debug`.
    #[arg(
        long,
        env = "OUTLIVE_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    pub log: String,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// What runs the sandbox [default: the first that this machine can].
    #[arg(long, env = "OUTLIVE_RUNTIME", value_enum, value_name = "KIND")]
    pub runtime: Option<RuntimeKind>,

    /// The `outlive-agent` program [default: beside this program].
    #[arg(long, env = "OUTLIVE_AGENT", value_name = "FILE")]
    pub agent: Option<PathBuf>,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Folder for everything that the server keeps, for what its file system can [default: that of
    /// `serve`].
    #[arg(long, env = "OUTLIVE_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// The `outlive-agent` program [default: beside this program].
    #[arg(long, env = "OUTLIVE_AGENT", value_name = "FILE")]
    pub agent: Option<PathBuf>,
}
