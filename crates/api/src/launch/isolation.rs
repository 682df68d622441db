//! How well the agent and the host are protected from the workload.

use minicbor::{Decode, Encode};

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
