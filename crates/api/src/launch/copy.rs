//! What `outlive-agent copy` is told, and what it says.

use minicbor::{Decode, Encode};

use super::{IdRange, LaunchFailure};

/// What `outlive-agent copy` is told: where a sandbox's disk lies and where its copy goes.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct CopyConfig {
    /// The source's directory on the host, absolute.
    #[n(0)]
    pub from: String,
    /// The copy's directory on the host, absolute; it exists and has no disk yet.
    #[n(1)]
    pub to: String,
    /// The host ids of the source and of the copy; files of the first are given to the second.
    #[n(2)]
    pub ids: Option<(IdRange, IdRange)>,
    /// Whether the copy is made so that its file system counts what lies in it.
    #[n(3)]
    #[cbor(default)]
    pub counted: bool,
}

/// What it says meanwhile, each with four bytes of length (little-endian) before it; the last is
/// `Done` or `Failed`.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum CopyNews {
    /// So far.
    #[n(0)]
    Progress(#[n(0)] Copied),
    /// Everything is copied and on the disk.
    #[n(1)]
    Done(#[n(0)] Copied),
    /// Something is missing; whatever was copied is of no use.
    #[n(2)]
    Failed(#[n(0)] LaunchFailure),
    /// Directories are nested deeper than a copy follows them; where, in words.
    #[n(3)]
    TooDeep(#[n(0)] String),
}

/// How much was copied.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Copied {
    /// Regular files.
    #[n(0)]
    pub files: u64,
    /// Their bytes, without holes.
    #[n(1)]
    pub bytes: u64,
    /// Of these, bytes that the file system shares between both.
    #[n(2)]
    pub shared_bytes: u64,
    /// Sockets, devices and attributes that were not copied.
    #[n(3)]
    pub left_out: u64,
}
