//! What `outlive-agent launch` is told, and what it answers.
//!
//! The server writes one [`LaunchConfig`] in CBOR to the launcher's standard input and reads one
//! [`LaunchOutcome`] in CBOR from its standard output. The answer comes once the supervisor's
//! socket accepts; the launcher has left by then, and the keeper is nobody's child.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr, str::FromStr};

use minicbor::{Decode, Encode};
use outlive_core::id::{Generation, SandboxId};
pub use outlive_core::spec::User;

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
}

impl LaunchConfig {
    /// What the server keeps it in, in the sandbox's directory, for whoever tidies up.
    pub const FILE: &str = "launch.cbor";
}

/// What `outlive-agent tidy` is told.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct TidyConfig {
    /// The directory of this server's sandboxes, absolute: one directory for each.
    #[n(0)]
    pub sandboxes: String,
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

/// User and group ids of one sandbox, as the launcher counts.
///
/// ```text
///   root of the machine      FIRST  FIRST+1 … FIRST+65,536      no two sandboxes share one
///   root of a namespace      0      1 … (as many as it has)     all sandboxes share them
///   of one that has one id   0      0                           everybody shares it
///                            agent  workload
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub struct IdRange {
    /// The first; the agent's. The workload's root is the next.
    #[n(0)]
    pub first: u32,
    /// How many ids there are, where the launcher is root of a user namespace only. Mounts can't
    /// be shown through other ids there: layers of images lie under the ids that they have inside.
    #[n(1)]
    pub of_namespace: Option<u32>,
}

impl IdRange {
    /// How many ids the workload has at most.
    pub const WORKLOAD_COUNT_MAX: u32 = 65_536;

    /// The range of slot 0, 1, …: far above real users, `0x2_0000` apart.
    pub const fn of_slot(slot: u16) -> Option<Self> {
        // 0x1000_0000 + 28,671 × 0x2_0000 still ends below 2^32 - 2^16.
        if slot <= 28_671 {
            Some(Self {
                first: 0x1000_0000 + (slot as u32) * 0x2_0000,
                of_namespace: None,
            })
        } else {
            None
        }
    }

    /// What all sandboxes share, by a process's `/proc/PID/uid_map`; `None` where there are enough
    /// ids for every sandbox to have its own.
    pub fn of_uid_map(text: &str) -> Option<Self> {
        let mut count: u32 = 0;
        for line in text.lines() {
            let fields: Vec<u32> = line
                .split_whitespace()
                .filter_map(|field| field.parse().ok())
                .collect();
            match fields.as_slice() {
                [first, _, more] if *first == count => count = count.saturating_add(*more),
                _ => {}
            }
        }
        let enough = Self::of_slot(0).is_some_and(|slot| count > slot.first);
        (!enough && count > 0).then_some(Self {
            first: 0,
            of_namespace: Some(count),
        })
    }

    /// The workload's root, counted from the agent's id.
    pub const fn workload_offset(self) -> u32 {
        match self.of_namespace {
            Some(0 | 1) => 0,
            Some(_) | None => 1,
        }
    }

    /// The workload's root.
    pub const fn workload(self) -> u32 {
        self.first + self.workload_offset()
    }

    /// How many ids the workload has.
    pub fn workload_count(self) -> u32 {
        match self.of_namespace {
            Some(count) => (count - self.workload_offset()).clamp(1, Self::WORKLOAD_COUNT_MAX),
            None => Self::WORKLOAD_COUNT_MAX,
        }
    }

    /// How many ids there are, the agent's included.
    pub fn count(self) -> u32 {
        self.workload_offset() + self.workload_count()
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
    /// An address of its own behind the host's, and rules about what it reaches.
    #[n(2)]
    Bridge,
}

/// How a sandbox with an address of its own reaches others.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct WayOut {
    /// The addresses of this server's sandboxes; the first is the gateway's.
    #[n(0)]
    pub pool: Cidr,
    /// Which address of the pool is tried first: the sandbox's slot.
    #[n(1)]
    pub preferred: u16,
    /// What it reaches.
    #[n(2)]
    pub egress: Egress,
}

/// What a sandbox reaches. Never the host itself, nor another sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Egress {
    /// What holds where no rule does.
    #[n(0)]
    pub default: Verdict,
    /// The first that matches counts.
    #[n(1)]
    pub rules: Vec<EgressRule>,
}

/// What becomes of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Verdict {
    /// It passes.
    #[default]
    #[n(0)]
    Allow,
    /// It is refused, and its sender is told.
    #[n(1)]
    Deny,
}

/// Addresses, ports of them, and what becomes of traffic there.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct EgressRule {
    /// The addresses.
    #[n(0)]
    pub cidr: Cidr,
    /// First and last ports; empty is everything.
    #[n(1)]
    pub ports: Vec<(u16, u16)>,
    /// What becomes of it.
    #[n(2)]
    #[cbor(default)]
    pub verdict: Verdict,
    /// Whose ports they are.
    #[n(3)]
    #[cbor(default)]
    pub transport: Transport,
}

/// What has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Transport {
    /// TCP and UDP; without ports, other protocols too.
    #[default]
    #[n(0)]
    Any,
    /// TCP.
    #[n(1)]
    Tcp,
    /// UDP.
    #[n(2)]
    Udp,
}

/// IPv4 addresses with a common beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub struct Cidr {
    /// The first of them.
    #[n(0)]
    first: [u8; 4],
    /// How many bits are common, 0 to 32.
    #[n(1)]
    bits: u8,
}

/// A text that names no addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an IPv4 network such as 192.0.2.0/24, or bits beyond its length are set")]
pub struct CidrError;

impl Cidr {
    /// The addresses that have `bits` bits with `first` in common, whose others are 0.
    pub fn new(first: Ipv4Addr, bits: u8) -> Result<Self, CidrError> {
        let mask = mask(bits).ok_or(CidrError)?;
        if first.to_bits() & !mask != 0 {
            return Err(CidrError);
        }
        Ok(Self {
            first: first.octets(),
            bits,
        })
    }

    /// The addresses that have `bits` bits in common with this one, whatever its others are;
    /// `None` where there are not so many bits.
    pub fn around(address: Ipv4Addr, bits: u8) -> Option<Self> {
        let first = Ipv4Addr::from_bits(address.to_bits() & mask(bits)?);
        Self::new(first, bits).ok()
    }

    /// The 65,536 addresses that begin with these two bytes.
    pub const fn of_16([a, b]: [u8; 2]) -> Self {
        Self {
            first: [a, b, 0, 0],
            bits: 16,
        }
    }

    /// The first address.
    pub fn first(self) -> Ipv4Addr {
        Ipv4Addr::from(self.first)
    }

    /// The address at this place, from 0; `None` beyond the last.
    pub fn nth(self, index: u32) -> Option<Ipv4Addr> {
        let mask = mask(self.bits)?;
        (index & mask == 0).then(|| Ipv4Addr::from_bits(self.first().to_bits() | index))
    }
}

fn mask(bits: u8) -> Option<u32> {
    match bits {
        0 => Some(0),
        1..=32 => Some(u32::MAX << (32 - bits)),
        _ => None,
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.bits)
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// `192.0.2.0/24`, or one address.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (first, bits) = match text.split_once('/') {
            Some((first, bits)) => (first, bits.parse().map_err(|_| CidrError)?),
            None => (text, 32),
        };
        Self::new(first.parse().map_err(|_| CidrError)?, bits)
    }
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

    /// What is weaker there than in the first, one sentence each.
    pub const fn weaker(self) -> &'static [&'static str] {
        match self {
            Self::Nested => &[],
            Self::TwoUid => &[
                "isolation: the host's files, processes and network are in sight; commands read \
                 what everybody on the host may read",
                "users: all sessions of a sandbox run as one user; there is no root inside",
            ],
            Self::None => &[
                "isolation: commands run as the server's own user, beside the agent",
                "journal protection: commands can read and change it",
            ],
        }
    }

    /// The tier of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Nested, Self::TwoUid, Self::None]
            .into_iter()
            .find(|tier| tier.name() == name)
    }

    /// Whether it keeps processes apart less than the other does.
    pub const fn is_weaker_than(self, other: Self) -> bool {
        self.strength() < other.strength()
    }

    const fn strength(self) -> u8 {
        match self {
            Self::Nested => 2,
            Self::TwoUid => 1,
            Self::None => 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_ids_that_its_map_says() {
        let of = |text| IdRange::of_uid_map(text);
        assert_eq!(of("         0          0 4294967295\n"), None);
        assert_eq!(of(""), None);
        let rootless = of("0 1000 1\n1 100000 65536\n").unwrap();
        assert_eq!((rootless.first, rootless.workload()), (0, 1));
        assert_eq!(
            (rootless.count(), rootless.workload_count()),
            (65_537, 65_536)
        );
        let pod = of("0 524288 65536\n").unwrap();
        assert_eq!((pod.count(), pod.workload_count()), (65_536, 65_535));
        let single = of("0 1000 1\n").unwrap();
        assert_eq!(
            (single.workload(), single.count(), single.workload_count()),
            (0, 1, 1)
        );
        let own = IdRange::of_slot(1).unwrap();
        assert_eq!((own.workload() - own.first, own.count()), (1, 65_537));
    }

    #[test]
    fn networks_are_read_as_they_are_written() {
        for text in ["0.0.0.0/0", "10.201.0.0/16", "192.0.2.7/32"] {
            assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
        }
        assert_eq!(
            "192.0.2.7".parse::<Cidr>().unwrap().to_string(),
            "192.0.2.7/32"
        );
        for bad in [
            "",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "::/0",
            "10.0/8",
            "a/8",
        ] {
            assert_eq!(bad.parse::<Cidr>(), Err(CidrError), "{bad}");
        }
        let pool: Cidr = "10.201.0.0/30".parse().unwrap();
        assert_eq!(pool.nth(3), Some(Ipv4Addr::new(10, 201, 0, 3)));
        assert_eq!(pool.nth(4), None);
    }
}
