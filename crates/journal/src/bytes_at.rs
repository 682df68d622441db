//! Little-endian numbers in byte slices, without a panic.

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let (chunk, _) = bytes.get(at..)?.split_first_chunk::<8>()?;
    Some(u64::from_le_bytes(*chunk))
}

pub(crate) fn i64_at(bytes: &[u8], at: usize) -> Option<i64> {
    let (chunk, _) = bytes.get(at..)?.split_first_chunk::<8>()?;
    Some(i64::from_le_bytes(*chunk))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let (chunk, _) = bytes.get(at..)?.split_first_chunk::<4>()?;
    Some(u32::from_le_bytes(*chunk))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let (chunk, _) = bytes.get(at..)?.split_first_chunk::<2>()?;
    Some(u16::from_le_bytes(*chunk))
}

/// Writes `value` at `at`; `into` is long enough by construction of its callers.
pub(crate) fn put(into: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in into.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}
