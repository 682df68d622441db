//! Durations as people write them: `90`, `2s`, `5m`, `1h`, `7d`. A bare number is of seconds; what
//! isn't whole seconds is rounded up.

/// One that may be 0, in seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
    ];
    let (digits, unit_ms) = units
        .into_iter()
        .find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)))
        .unwrap_or((text, 1000));
    let count: u64 = digits
        .parse()
        .map_err(|_| "write a duration as 90, 2s, 5m, 1h or 7d".to_owned())?;
    let ms = count.checked_mul(unit_ms).ok_or_else(too_long)?;
    Ok(ms.div_ceil(1000))
}

/// One that may be 0 and is at most some 136 years, in seconds.
pub(super) fn short(text: &str) -> Result<u32, String> {
    seconds(text)?.try_into().map_err(|_| too_long())
}

/// One of a second and more, in seconds.
pub(super) fn positive(text: &str) -> Result<u64, String> {
    match seconds(text)? {
        0 => Err("the duration must not be 0".to_owned()),
        seconds => Ok(seconds),
    }
}

fn too_long() -> String {
    "that duration is too long".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_whole_seconds() {
        let good = [
            ("2s", 2),
            ("90", 90),
            ("1500ms", 2),
            ("5m", 300),
            ("1h", 3600),
            ("7d", 604_800),
            ("0", 0),
        ];
        for (text, expected) in good {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        let bad = [
            "",
            "s",
            "-1",
            "1.5s",
            "1w",
            "99999999999999999999h",
            "18446744073709551615h",
        ];
        for text in bad {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_limit_of_nothing_is_a_mistake_and_so_is_one_that_does_not_fit() {
        assert_eq!(positive("1ms"), Ok(1));
        positive("0m").unwrap_err();
        assert_eq!(short("49710d"), Ok(4_294_944_000));
        short("49711d").unwrap_err();
    }
}
