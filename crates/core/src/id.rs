//! Identifiers. Text outside, types inside: a `SessionId` is never mistaken for a sandbox's.

use std::fmt;

use minicbor::{Decode, Encode};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
        #[cbor(transparent)]
        pub struct $name(#[n(0)] String);

        impl $name {
            /// The prefix that every identifier of this kind carries.
            pub const PREFIX: &'static str = $prefix;

            /// Accepts a prefix followed by 1 to 60 characters of `[a-z0-9-]`.
            pub fn parse(text: &str) -> Result<Self, BadId> {
                let rest = text.strip_prefix($prefix).ok_or(BadId)?;
                let fine = (1..=60).contains(&rest.len())
                    && rest.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
                if fine { Ok(Self(text.to_owned())) } else { Err(BadId) }
            }

            /// Makes an identifier from 64 bits: prefix, 8 hexadecimal digits, a dash, 3 more.
            ///
            /// The form is the vendor's: the first 12 characters of a UUID.
            pub fn from_bits(bits: u64) -> Self {
                Self(format!("{}{:08x}-{:03x}", $prefix, (bits >> 32) as u32, bits & 0xfff))
            }

            /// The whole text, prefix included.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// A sandbox: a place with a disk, an owner and a lifetime. Unique in one installation.
    SandboxId,
    "sbx-"
);
text_id!(
    /// A session: the stable identity of one supervised command. Unique in its sandbox.
    SessionId,
    "ses-"
);
text_id!(
    /// One operating-system process execution of a session.
    ///
    /// Derived from the session and the attempt's number, so that an event needs to carry only
    /// the number and two machines that read one journal agree.
    AttemptId,
    "att-"
);

impl AttemptId {
    /// The identifier of attempt `number` (1, 2, …) of `session`.
    pub fn derive(session: &SessionId, number: u32) -> Self {
        // FNV-1a with a finaliser: any stable 64-bit mix serves, since the session's own
        // identifier already is random. It must never change: journals on disk depend on it.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in session.0.bytes().chain(number.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Self::from_bits(hash ^ (hash >> 33))
    }
}

/// The text is not an identifier of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed identifier")]
pub struct BadId;

/// Number of a sandbox's runtime: 1 for the first, one more at each replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Generation(#[n(0)] pub u64);

impl Generation {
    /// The runtime a new sandbox starts with.
    pub const FIRST: Self = Self(1);

    /// The generation that replaces this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
