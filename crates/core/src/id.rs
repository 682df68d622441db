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
    /// A snapshot: the files of a sandbox as of one instant. Unique in one installation.
    SnapshotId,
    "snap-"
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

/// What follows [`SessionId::PREFIX`] in the identifier of a context's session.
const CONTEXT_PREFIX: &str = "ctx-";

/// Contexts are sessions with an identifier of their own form, so that a dialect knows them by
/// the identifier alone: `ses-ctx-…` inside, `ctx-…` for their clients.
impl SessionId {
    /// Makes the identifier of a context's session from 64 bits.
    pub fn context_from_bits(bits: u64) -> Self {
        let Self(plain) = Self::from_bits(bits);
        let rest = plain.get(Self::PREFIX.len()..).unwrap_or_default();
        Self(format!("{}{CONTEXT_PREFIX}{rest}", Self::PREFIX))
    }

    /// The session of the context that its clients call `text`: `ctx-` and what may follow.
    pub fn parse_context(text: &str) -> Result<Self, BadId> {
        let id = Self::parse(&format!("{}{text}", Self::PREFIX))?;
        match id.context() {
            Some(rest) if rest.len() > CONTEXT_PREFIX.len() => Ok(id),
            Some(_) | None => Err(BadId),
        }
    }

    /// What the clients of a context call it; none when the session is no context.
    pub fn context(&self) -> Option<&str> {
        let rest = self.0.strip_prefix(Self::PREFIX)?;
        rest.starts_with(CONTEXT_PREFIX).then_some(rest)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_known_by_its_identifier() {
        let id = SessionId::context_from_bits(0x00ab_cdef_1234_5678);
        assert_eq!(id.as_str(), "ses-ctx-00abcdef-678");
        assert_eq!(id.context(), Some("ctx-00abcdef-678"));
        assert_eq!(SessionId::parse_context("ctx-00abcdef-678"), Ok(id.clone()));
        assert_eq!(SessionId::parse(id.as_str()), Ok(id));
        for other in [
            "ctx-",
            "ses-00abcdef-678",
            "00abcdef",
            "",
            "ctx-A",
            "ctx-a/b",
        ] {
            assert_eq!(SessionId::parse_context(other), Err(BadId), "{other}");
        }
        assert_eq!(SessionId::from_bits(7).context(), None);
    }
}
