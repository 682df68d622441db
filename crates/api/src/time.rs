//! Times as clients read them: RFC 3339 in UTC with nanoseconds, and Go's durations.

use std::fmt::Write as _;

use jiff::fmt::temporal::Pieces;
use jiff::tz::TimeZone;
use outlive_core::time::Timestamp;

/// How the wire says "not set": Go's zero time, which every client can parse.
pub const NOT_SET: &str = "0001-01-01T00:00:00Z";

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Bytes of every formatted time: `2026-11-29T20:06:16.000000001Z`.
pub const TEXT_BYTES: usize = 30;

/// A time as text, always with nine decimals.
pub fn text(at: Timestamp) -> String {
    let mut out = Vec::with_capacity(TEXT_BYTES);
    Formatter::default().append(at, &mut out);
    String::from_utf8(out).unwrap_or_default()
}

/// A time from RFC 3339 text, as a client gives it. One that is further away than we can count, such
/// as the end of the year 9999, is the last that we can (in the year 2262).
pub fn parse(text: &str) -> Result<Timestamp, BadTime> {
    let Ok(parsed) = text.parse::<jiff::Timestamp>() else {
        return beyond(text);
    };
    let (first, last) = (i128::from(i64::MIN), i128::from(i64::MAX));
    let nanos = i64::try_from(parsed.as_nanosecond().clamp(first, last)).map_err(|_| BadTime)?;
    Ok(Timestamp::from_unix_nanos(nanos))
}

/// The last day of the year 9999 is written well, and later than what is counted in any place.
fn beyond(text: &str) -> Result<Timestamp, BadTime> {
    let pieces = Pieces::parse(text).map_err(|_| BadTime)?;
    let is_whole = pieces.time().is_some() && pieces.offset().is_some();
    if is_whole && pieces.date().year() == 9999 {
        Ok(Timestamp::from_unix_nanos(i64::MAX))
    } else {
        Err(BadTime)
    }
}

/// The text is not an RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time")]
pub struct BadTime;

/// Formats times that mostly fall into one second: the calendar part is kept from call to call.
#[derive(Debug, Clone)]
pub struct Formatter {
    second: i64,
    calendar: [u8; 20],
}

impl Default for Formatter {
    fn default() -> Self {
        Self {
            second: 0,
            calendar: *b"1970-01-01T00:00:00.",
        }
    }
}

impl Formatter {
    /// Appends a time, always [`TEXT_BYTES`] long.
    pub fn append(&mut self, at: Timestamp, out: &mut Vec<u8>) {
        let second = at.unix_nanos().div_euclid(NANOS_PER_SECOND);
        if second != self.second {
            self.calendar = calendar(second);
            self.second = second;
        }
        out.extend_from_slice(&self.calendar);
        let mut rest = at.unix_nanos().rem_euclid(NANOS_PER_SECOND).unsigned_abs();
        let mut digits = *b"000000000Z";
        for digit in digits[..9].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        out.extend_from_slice(&digits);
    }
}

fn calendar(second: i64) -> [u8; 20] {
    // An i64 of nanoseconds spans the years 1677 to 2262, all of which jiff knows.
    let at = TimeZone::UTC
        .to_datetime(jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::UNIX_EPOCH));
    let mut out = [b'0'; 20];
    let mut put = |from: usize, width: usize, value: i16| {
        let mut value = value.unsigned_abs();
        for place in out[from..from + width].iter_mut().rev() {
            *place = b'0' + (value % 10) as u8;
            value /= 10;
        }
    };
    put(0, 4, at.year());
    put(5, 2, i16::from(at.month()));
    put(8, 2, i16::from(at.day()));
    put(11, 2, i16::from(at.hour()));
    put(14, 2, i16::from(at.minute()));
    put(17, 2, i16::from(at.second()));
    (out[4], out[7], out[10], out[13], out[16], out[19]) = (b'-', b'-', b'T', b':', b':', b'.');
    out
}

/// A duration of whole milliseconds as Go prints it: `250ms`, `1s`, `1.5s`, `1m0s`, `1h0m0.5s`.
pub fn go_duration(ms: u32) -> String {
    if ms == 0 {
        return "0s".into();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (hours, minutes) = (ms / 3_600_000, ms / 60_000 % 60);
    let (seconds, rest) = (ms / 1000 % 60, ms % 1000);
    let mut out = String::new();
    let fine = if hours > 0 {
        write!(out, "{hours}h{minutes}m")
    } else if minutes > 0 {
        write!(out, "{minutes}m")
    } else {
        Ok(())
    }
    .and_then(|()| write!(out, "{seconds}"));
    debug_assert!(fine.is_ok(), "writing to a string can't fail");
    if rest > 0 {
        let decimals = format!(".{rest:03}");
        out.push_str(decimals.trim_end_matches('0'));
    }
    out.push('s');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn times_are_what_jiff_prints(nanos in any::<i64>()) {
            let expected = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap();
            let at = Timestamp::from_unix_nanos(nanos);
            prop_assert_eq!(text(at), format!("{expected:.9}"));
            prop_assert_eq!(parse(&text(at)), Ok(at));
        }
    }

    #[test]
    fn a_time_for_never_is_the_last_that_can_be_told() {
        let last = Timestamp::from_unix_nanos(i64::MAX);
        assert_eq!(parse("9999-12-31T23:59:59Z"), Ok(last));
        assert_eq!(parse("2500-01-01T00:00:00Z"), Ok(last));
        for bad in ["tomorrow", "9999-12-31", "9999-12-32T00:00:00Z"] {
            assert_eq!(parse(bad), Err(BadTime), "{bad}");
        }
    }

    #[test]
    fn durations_are_what_go_prints() {
        for (ms, text) in [
            (0, "0s"),
            (1, "1ms"),
            (250, "250ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (1050, "1.05s"),
            (1001, "1.001s"),
            (60_000, "1m0s"),
            (61_500, "1m1.5s"),
            (3_600_000, "1h0m0s"),
            (3_660_500, "1h1m0.5s"),
        ] {
            assert_eq!(go_duration(ms), text);
        }
    }
}
