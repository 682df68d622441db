//! Arguments of `key`.

use clap::{Subcommand, ValueEnum};

/// What a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Role {
    /// Everything, keys included.
    Admin,
    /// The owner's sandboxes and sessions.
    Member,
    /// Reads only.
    ReadOnly,
}

impl Role {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Member => "member",
            Self::ReadOnly => "read_only",
        }
    }
}

/// The commands of `key`.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Make a key; it is shown this once.
    #[command(after_help = "Example:\n  outlive key create --owner team-a --role member --name ci")]
    Create {
        /// Whose sandboxes it reaches.
        #[arg(long)]
        owner: String,
        /// What it may do.
        #[arg(long, value_enum, default_value = "member")]
        role: Role,
        /// A label.
        #[arg(long)]
        name: Option<String>,
        /// When it ends: an RFC 3339 time.
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// List the keys, without their secrets.
    #[command(after_help = "Example:\n  outlive key list")]
    List,
    /// End a key; its open streams end within seconds.
    #[command(after_help = "Example:\n  outlive key revoke key-0a1b2c3d-4e5")]
    Revoke {
        /// The key's id, not the key.
        id: String,
    },
}
