//! What `outlive-agent launch` is told, and what it answers.
//!
//! The server writes one [`LaunchConfig`] in CBOR to the launcher's standard input and reads one
//! [`LaunchOutcome`] in CBOR from its standard output. The answer comes once the supervisor's
//! socket accepts; the launcher has left by then, and the keeper is nobody's child.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use outlive_core::id::{Generation, SandboxId};

/// One generation of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct LaunchConfig {
    /// Whose.
    #[n(0)]
    pub sandbox: SandboxId,
    /// Which runtime of it.
    #[n(1)]
    pub generation: Generation,
    /// The sandbox's directory on the host, absolute: `state/`, `own/`, `upper/`, `work/` lie in
    /// it.
    #[n(2)]
    pub directory: String,
    /// How far its processes are kept apart.
    #[n(3)]
    pub runtime: RuntimeKind,
    /// Host ids for the agent and the workload; needed by [`RuntimeKind::Namespace`].
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
}

/// Host user and group ids of one sandbox; no two sandboxes share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub struct IdRange {
    /// The first; the agent's. The workload's root is the next.
    #[n(0)]
    pub first: u32,
}

impl IdRange {
    /// How many ids one sandbox takes: the agent's and 65,536 of the workload.
    pub const COUNT: u32 = 65_537;

    /// The range of slot 0, 1, …: far above real users, `0x2_0000` apart.
    pub const fn of_slot(slot: u16) -> Option<Self> {
        // 0x1000_0000 + 28,671 × 0x2_0000 still ends below 2^32 - 2^16.
        if slot <= 28_671 {
            Some(Self {
                first: 0x1000_0000 + (slot as u32) * 0x2_0000,
            })
        } else {
            None
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

/// What the network namespace reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum NetworkMode {
    /// Loopback only.
    #[n(0)]
    None,
    /// The host's network.
    #[n(1)]
    Host,
}

/// Whom attempts run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub struct User {
    /// User id inside.
    #[n(0)]
    pub uid: u32,
    /// Group id inside.
    #[n(1)]
    pub gid: u32,
}

impl User {
    /// The workload's own root.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };
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

/// How well the agent and the host are protected from the workload.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Isolation {
    /// The tier.
    #[n(0)]
    pub tier: IsolationTier,
    /// Whether root of the workload is kept from the journal.
    #[n(1)]
    pub journal_protected: bool,
    /// What is off, one sentence each.
    #[n(2)]
    pub off: Vec<String>,
}

/// See [`Isolation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum IsolationTier {
    /// The workload's user namespace lies inside the agent's.
    #[n(0)]
    Nested,
    /// One set of namespaces, the agent under another user id.
    #[n(1)]
    TwoUid,
    /// One user id for all.
    #[n(2)]
    None,
}

impl IsolationTier {
    /// The name that `doctor` and `healthz` show.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nested => "nested",
            Self::TwoUid => "two-uid",
            Self::None => "none",
        }
    }
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
