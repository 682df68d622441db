//! Signals by name: what clients send and what events say. Linux numbers.

use std::borrow::Cow;

const NAMES: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// What a client may send by name; the others only by number.
const SENDABLE: [(&str, u8); 10] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("WINCH", 28),
];

/// Longest text that can name a signal.
const TEXT_BYTES_MAX: usize = 16;

/// The text names no signal that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unsupported signal")]
pub struct UnsupportedSignal;

/// The number that a client means: a name in any case with or without `SIG`, or 1 to 64.
pub fn parse(text: &str) -> Result<u8, UnsupportedSignal> {
    let text = text.trim();
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        return Err(UnsupportedSignal);
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        let number: u8 = text.parse().map_err(|_| UnsupportedSignal)?;
        return if (1..=64).contains(&number) {
            Ok(number)
        } else {
            Err(UnsupportedSignal)
        };
    }
    let upper = text.to_ascii_uppercase();
    let short = upper.strip_prefix("SIG").unwrap_or(&upper);
    SENDABLE
        .iter()
        .find(|(name, _)| *name == short)
        .map(|(_, number)| *number)
        .ok_or(UnsupportedSignal)
}

/// The name of a signal: `SIGTERM`, `SIGRTMIN+3`.
pub fn name(number: u8) -> Cow<'static, str> {
    match number {
        1..=31 => Cow::Borrowed(NAMES[usize::from(number) - 1]),
        34 => Cow::Borrowed("SIGRTMIN"),
        35..=64 => Cow::Owned(format!("SIGRTMIN+{}", number - 34)),
        _ => Cow::Owned(format!("SIG{number}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_form() {
        for (text, number) in [
            ("TERM", 15),
            ("SIGTERM", 15),
            ("sigterm", 15),
            ("Kill", 9),
            ("WINCH", 28),
            ("1", 1),
            ("64", 64),
            (" 15 ", 15),
        ] {
            assert_eq!(parse(text), Ok(number), "{text}");
        }
        for text in [
            "",
            "0",
            "65",
            "-1",
            "SIG",
            "SEGV",
            "TERMX",
            "9999999999",
            "1.5",
            "SIGSIGTERM",
        ] {
            assert_eq!(parse(text), Err(UnsupportedSignal), "{text}");
        }
    }

    #[test]
    fn every_number_has_a_name() {
        assert_eq!(name(9), "SIGKILL");
        assert_eq!(name(15), "SIGTERM");
        assert_eq!(name(28), "SIGWINCH");
        assert_eq!(name(31), "SIGSYS");
        assert_eq!(name(37), "SIGRTMIN+3");
        for (short, number) in SENDABLE {
            assert_eq!(name(number), format!("SIG{short}"));
        }
    }
}
