//! What the network namespace of a sandbox reaches, and by which addresses.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use minicbor::{Decode, Encode};

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
    /// Whether it is connected at all.
    #[n(3)]
    #[cbor(default)]
    pub link: Link,
}

/// Whether anything passes a way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Link {
    /// What the rules say.
    #[default]
    #[n(0)]
    Open,
    /// Nothing, in neither direction and not from the host either: the network was taken away
    /// from a sandbox that runs.
    #[n(1)]
    Cut,
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

#[cfg(test)]
mod tests {
    use super::*;

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
