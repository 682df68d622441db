//! Quantities of memory and of cores, as Kubernetes writes them.

/// Bytes of a quantity such as `512Mi`, `2G` or `1048576`.
pub(crate) fn bytes_of(quantity: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let text = quantity.trim();
    let (digits, unit) = UNITS
        .iter()
        .find_map(|(name, factor)| text.strip_suffix(name).map(|digits| (digits, *factor)))
        .unwrap_or((text, 1));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Thousandths of a core of a quantity such as `0.5`, `2` or `500m`.
pub(crate) fn millicores_of(quantity: &str) -> Option<u64> {
    let text = quantity.trim();
    if let Some(milli) = text.strip_suffix('m') {
        let plain = !milli.is_empty() && milli.bytes().all(|b| b.is_ascii_digit());
        return plain.then(|| milli.parse().ok()).flatten();
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 3 {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)?
        .checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        assert_eq!(bytes_of("512Mi"), Some(512 << 20));
        assert_eq!(bytes_of("2G"), Some(2_000_000_000));
        assert_eq!(bytes_of("1048576"), Some(1 << 20));
        for bad in ["", "Mi", "-1Mi", "1.5Gi", "99999999999999Ti", "1 Mi", "+1"] {
            assert_eq!(bytes_of(bad), None, "{bad}");
        }
        assert_eq!(millicores_of("0.5"), Some(500));
        assert_eq!(millicores_of("2"), Some(2000));
        assert_eq!(millicores_of("250m"), Some(250));
        for bad in ["", "m", "-1", "0.0001", "1e3", ".5"] {
            assert_eq!(millicores_of(bad), None, "{bad}");
        }
    }
}
