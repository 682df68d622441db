//! A stable hash: the same bytes give the same number on every machine, in every version.
//!
//! Journals on disk hold these numbers, so the function must never change. It tells retries from
//! conflicts and is no defence against someone who looks for collisions: whoever finds one only
//! confuses a session that is already theirs.

use minicbor::{Decode, Encode};

/// 128 bits of a stable hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct Digest128 {
    /// The upper half.
    #[n(0)]
    pub high: u64,
    /// The lower half.
    #[n(1)]
    pub low: u64,
}

impl Digest128 {
    /// As one number.
    pub fn as_u128(self) -> u128 {
        (u128::from(self.high) << 64) | u128::from(self.low)
    }
}

/// Takes bytes in pieces. Where one piece ends and the next begins is part of the hash, so that
/// `("ab", "c")` and `("a", "bc")` differ.
#[derive(Debug, Clone)]
pub struct StableHasher {
    high: u64,
    low: u64,
}

const KEY_HIGH: u64 = 0x9e37_79b9_7f4a_7c15;
const KEY_LOW: u64 = 0xc2b2_ae3d_27d4_eb4f;
const KEY_WORD: u64 = 0xa076_1d64_78bd_642f;
const KEY_END: u64 = 0xe703_7ed1_a0b4_28db;

impl Default for StableHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl StableHasher {
    /// With nothing taken yet.
    pub fn new() -> Self {
        Self {
            high: KEY_HIGH,
            low: KEY_LOW,
        }
    }

    /// Takes one piece.
    #[must_use]
    pub fn piece(mut self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            for (to, from) in last.iter_mut().zip(rest) {
                *to = *from;
            }
            self.word(u64::from_le_bytes(last));
        }
        self.word(bytes.len() as u64 ^ KEY_END);
        self
    }

    /// Takes one number.
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.word(number);
        self
    }

    /// 64 bits of the result.
    pub fn finish64(self) -> u64 {
        let digest = self.finish128();
        fold(digest.high ^ KEY_HIGH, digest.low ^ KEY_END)
    }

    /// 128 bits of the result.
    pub fn finish128(mut self) -> Digest128 {
        self.word(KEY_END);
        self.word(KEY_WORD);
        Digest128 {
            high: self.high,
            low: self.low,
        }
    }

    fn word(&mut self, word: u64) {
        // Two lanes with different keys, each fed by the other: 128 bits of state.
        let high = fold(self.high ^ word, KEY_WORD ^ self.low.rotate_left(23));
        self.low = fold(
            self.low.wrapping_add(word),
            KEY_END ^ self.high.rotate_left(41),
        )
        .wrapping_add(word.rotate_left(32));
        self.high = high ^ word.wrapping_mul(KEY_LOW);
    }
}

/// The two halves of the full product, folded into one.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the halves are what is wanted"
    )]
    let folded = (product as u64) ^ ((product >> 64) as u64);
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_disk_never_change() {
        let of = |text: &str| {
            StableHasher::new()
                .piece(text.as_bytes())
                .finish128()
                .as_u128()
        };
        expect_test::expect![[r"
            275fc0e2650c26c9787ca7b4884591e6
            eebeb7bb1a81b3b9ed877edf9c34e386
            f4a1c89046a43a9fd180ad19034f9a27
            94c46cb4d130be9a
        "]]
        .assert_eq(&format!(
            "{:032x}\n{:032x}\n{:032x}\n{:016x}\n",
            of(""),
            of("input-1"),
            of("0123456789abcdef"),
            StableHasher::new().piece(b"input-1").number(7).finish64(),
        ));
    }

    #[test]
    fn borders_between_pieces_count() {
        let ab_c = StableHasher::new().piece(b"ab").piece(b"c").finish64();
        let a_bc = StableHasher::new().piece(b"a").piece(b"bc").finish64();
        assert_ne!(ab_c, a_bc);
        let zero = StableHasher::new().piece(&[0]).finish64();
        let zeros = StableHasher::new().piece(&[0, 0]).finish64();
        assert_ne!(zero, zeros);
    }

    #[test]
    fn a_million_near_neighbours_do_not_collide() {
        let mut seen: Vec<u64> = (0_u32..1_000_000)
            .map(|n| StableHasher::new().piece(&n.to_le_bytes()).finish64())
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1_000_000);
    }
}
