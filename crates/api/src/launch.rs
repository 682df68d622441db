//! What `outlive-agent launch` is told, and what it answers.
//!
//! The server writes one [`LaunchConfig`] in CBOR to the launcher's standard input and reads one
//! [`LaunchOutcome`] in CBOR from its standard output. The answer comes once the supervisor's
//! socket accepts; the launcher has left by then, and the keeper is nobody's child.

mod copy;
mod ids;
mod isolation;
mod network;

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use outlive_core::id::{Generation, SandboxId};
pub use outlive_core::spec::User;

pub use self::{
    copy::{Copied, CopyConfig, CopyNews},
    ids::IdRange,
    isolation::{Isolation, IsolationTier},
    network::{Cidr, CidrError, Egress, EgressRule, Link, NetworkMode, Transport, Verdict, WayOut},
};

/// `argv[0]` of a launcher that is told for whom it works, by `argv[1]`, which is a sandbox's id. The
/// keeper that it becomes has room for its own title then.
pub const LAUNCHER_TITLE: &str = "outlive-launcher";

/// One generation of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct LaunchConfig {
    /// Whose.
    #[n(0)]
    pub sandbox: SandboxId,
    /// Which runtime of it.
    #[n(1)]
    pub generation: Generation,
    /// The sandbox's directory on the host, absolute: `state/`, `own/` and its disk lie in it.
    /// The disk is `upper/` and `work/`, or those in `disk/`, which its file system counts.
    #[n(2)]
    pub directory: String,
    /// How far its processes are kept apart.
    #[n(3)]
    pub runtime: RuntimeKind,
    /// Host ids for the agent and the workload; [`RuntimeKind::Process`] needs none.
    #[n(4)]
    pub ids: Option<IdRange>,
    /// Where the root file system comes from.
    #[n(5)]
    pub image: Image,
    /// What the network namespace reaches.
    #[n(6)]
    pub network: NetworkMode,
    /// Host name inside.
    #[n(7)]
    pub hostname: String,
    /// Variables of every attempt, below those of the session.
    #[n(8)]
    pub env: BTreeMap<String, String>,
    /// Whom attempts run as.
    #[n(9)]
    pub user: User,
    /// Working directory of attempts that name none; empty is the user's home.
    #[n(10)]
    pub cwd: String,
    /// Limits of the workload as a whole.
    #[n(11)]
    pub limits: Limits,
    /// The way out, with [`NetworkMode::Bridge`].
    #[n(12)]
    pub way_out: Option<WayOut>,
    /// What to do with sessions of another sandbox that lie in the state directory.
    #[n(13)]
    #[cbor(default)]
    pub copied_sessions: CopiedSessions,
    /// What its file system sees to, where it counts what lies on a disk.
    #[n(14)]
    pub quota: Option<Quota>,
}

impl LaunchConfig {
    /// What the server keeps it in, in the sandbox's directory, for whoever tidies up.
    pub const FILE: &str = "launch.cbor";
}

/// What `outlive-agent hold` is told.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct HoldConfig {
    /// The directory of this server's sandboxes, absolute: one directory for each.
    #[n(0)]
    pub sandboxes: String,
}

impl HoldConfig {
    /// What it answers once the rules are there. It goes on until nobody reads its answers.
    pub const READY: [u8; 1] = *b"+";
}

/// What `outlive-agent drop` is told: directories whose disk goes, where its file system counts it.
/// One that is full can't be removed file by file.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct DropConfig {
    /// Absolute.
    #[n(0)]
    pub directories: Vec<String>,
}

/// What to do with sessions of another sandbox.
///
/// | whose sessions | [`Refuse`](Self::Refuse) | [`Clear`](Self::Clear) |
/// |---|---|---|
/// | this sandbox's | kept | kept |
/// | nobody says | taken over | removed |
/// | another's | not launched | removed |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum CopiedSessions {
    /// Nothing is launched.
    #[n(0)]
    #[default]
    Refuse,
    /// They are removed: the directory is a copy, and the processes belong elsewhere.
    #[n(1)]
    Clear,
}

/// How far processes are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum RuntimeKind {
    /// Nested namespaces.
    #[n(0)]
    Namespace,
    /// None: processes of the server's own user.
    #[n(1)]
    Process,
    /// None, but the workload and the agent have a user each.
    #[n(2)]
    TwoUid,
}

impl RuntimeKind {
    /// The name that people use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Process => "process",
            Self::TwoUid => "two-uid",
        }
    }
}

/// Where the root file system comes from.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Image {
    /// The host's `/usr`, a generated `/etc`, and nothing else of the host.
    #[n(0)]
    Host {
        /// The generated layer, absolute path on the host; [`RuntimeKind::Process`] needs none.
        #[n(0)]
        #[cbor(default)]
        layer: String,
    },
    /// Extracted layers of a root file system, topmost first, absolute paths on the host. Their
    /// whiteouts are overlayfs's own.
    #[n(1)]
    Layers(#[n(0)] Vec<String>),
}

/// Limits of the workload as a whole. A limit that can't be enforced is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Limits {
    /// Memory, bytes.
    #[n(0)]
    pub memory_bytes_max: Option<u64>,
    /// Processes and threads.
    #[n(1)]
    pub pids_max: Option<u32>,
    /// CPU, thousandths of one core.
    #[n(2)]
    pub cpu_millis_max: Option<u32>,
    /// Processes and threads where nobody asked: enforced if that can be, else told as off.
    #[n(3)]
    pub pids_wished: Option<u32>,
}

/// What a file system that counts lets a workload write. A disk that was made where it did not
/// count is not counted later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct Quota {
    /// Bytes.
    #[n(0)]
    pub bytes_max: Option<u64>,
}

/// What `outlive-agent limit` answers.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Limited {
    /// The limits hold.
    #[n(0)]
    Done,
    /// One can't be had while the sandbox runs; all are what they were.
    #[n(1)]
    Refused(#[n(0)] LaunchFailure),
}

/// What the launcher answers.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum LaunchOutcome {
    /// The supervisor's socket accepts.
    #[n(0)]
    Started(#[n(0)] Launched),
    /// Nothing was left behind.
    #[n(1)]
    Failed(#[n(0)] LaunchFailure),
}

/// A running agent.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Launched {
    /// The keeper's process id on the host.
    #[n(0)]
    pub keeper_pid: u32,
    /// When it started, clock ticks since boot (`/proc/PID/stat`, field 22).
    #[n(1)]
    pub keeper_start_ticks: u64,
    /// What was reached.
    #[n(2)]
    pub isolation: Isolation,
}

/// Why nothing was launched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Encode, Decode)]
#[error("{step}: {message}")]
pub struct LaunchFailure {
    /// The step that failed, as a short phrase.
    #[n(0)]
    pub step: String,
    /// What the system said.
    #[n(1)]
    pub message: String,
    /// Whether the host lacks what this runtime needs, rather than a passing fault.
    #[n(2)]
    pub unsupported: bool,
}
