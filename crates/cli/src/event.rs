//! An event of a session as this client reads it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Failure, Result};

/// An event. Fields that this build does not know are kept in the line it came from.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    /// Its number.
    pub seq: u64,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The newest attempt when it happened.
    #[serde(default)]
    pub attempt_id: Option<String>,
    /// `stdout`, `stderr` or `pty`.
    #[serde(default)]
    pub stream: Option<String>,
    /// Output.
    #[serde(default)]
    pub data_base64: Option<String>,
    /// Exit code; negative for a death by signal.
    #[serde(default)]
    pub exit_code: Option<i64>,
    /// The signal's name or number.
    #[serde(default)]
    pub signal: Option<Value>,
    /// Nobody knows how it ended.
    #[serde(default)]
    pub exit_unknown: bool,
    /// Whether memory ran out; `unknown` where nobody can tell.
    #[serde(default)]
    pub oom: Option<Value>,
    /// Why.
    #[serde(default)]
    pub reason: Option<String>,
    /// In words, when it could not be started.
    #[serde(default)]
    pub message: Option<String>,
    /// When.
    #[serde(default)]
    pub occurred_at: String,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// It exited.
    Code(u8),
    /// A signal ended it.
    Signal(u8),
    /// It never ran.
    StartFailed(String),
    /// It ended and nobody knows how; never a number.
    Unknown(String),
}

impl Event {
    /// Reads an event's JSON.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text)
            .map_err(|error| Failure::protocol(format!("an event can't be read: {error}")))
    }

    /// Output bytes.
    pub fn bytes(&self) -> Result<Option<Vec<u8>>> {
        let Some(text) = &self.data_base64 else {
            return Ok(None);
        };
        base64_simd::STANDARD
            .decode_to_vec(text)
            .map(Some)
            .map_err(|error| Failure::protocol(format!("event {}: bad base64: {error}", self.seq)))
    }

    /// How the attempt ended, for `attempt.exited`.
    pub fn ending(&self) -> Option<Ending> {
        if self.kind != "attempt.exited" {
            return None;
        }
        let reason = self.reason.clone().unwrap_or_default();
        if let Some(signal) = self.signal.as_ref().and_then(signal_number) {
            return Some(Ending::Signal(signal));
        }
        let ending = match self.exit_code {
            _ if self.exit_unknown => Ending::Unknown(reason),
            Some(code) => u8::try_from(code).map_or_else(|_| Ending::Unknown(reason), Ending::Code),
            None if reason == "start_failed" => {
                Ending::StartFailed(self.message.clone().unwrap_or_default())
            }
            None => Ending::Unknown(reason),
        };
        Some(ending)
    }

    /// The data as one line of text: control characters escaped, so that an event can neither
    /// break a table nor command the terminal.
    pub fn line(&self) -> Result<String> {
        let bytes = self.bytes()?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        Ok(escaped(text).into_owned())
    }
}

/// Why an attempt ended, for people. The dialect calls a program that ended by itself with 0
/// `stopped`, as if somebody had.
pub fn why(reason: &str) -> Cow<'_, str> {
    match reason {
        "stopped" => Cow::Borrowed("exited"),
        other => escaped(other),
    }
}

/// Text with its control characters escaped.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if character.is_control() {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// The number of a signal given by name (`SIGTERM`, `TERM`) or number.
pub fn signal_number(value: &Value) -> Option<u8> {
    const NAMES: [&str; 31] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
        "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
    ];
    match value {
        Value::Number(number) => number.as_u64().and_then(|number| u8::try_from(number).ok()),
        Value::String(text) => {
            let name = text.strip_prefix("SIG").unwrap_or(text);
            let index = NAMES.iter().position(|known| *known == name);
            index
                .and_then(|index| u8::try_from(index + 1).ok())
                .or_else(|| realtime_signal(name))
                .or_else(|| name.parse().ok())
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
    .filter(|number| (1..=64).contains(number))
}

/// `RTMIN`, `RTMIN+3`, `RTMAX-2` as Linux numbers them for programs: 34 to 64.
fn realtime_signal(name: &str) -> Option<u8> {
    if let Some(rest) = name.strip_prefix("RTMIN") {
        let offset: u8 = if rest.is_empty() {
            0
        } else {
            rest.strip_prefix('+')?.parse().ok()?
        };
        return 34_u8.checked_add(offset);
    }
    let rest = name.strip_prefix("RTMAX")?;
    let offset: u8 = if rest.is_empty() {
        0
    } else {
        rest.strip_prefix('-')?.parse().ok()?
    };
    64_u8.checked_sub(offset)
}

#[cfg(test)]
mod tests {
    use super::{Ending, Event, escaped, signal_number};

    fn ending(fields: &str) -> Option<Ending> {
        let text = format!(r#"{{"seq":1,"type":"attempt.exited",{fields}}}"#);
        Event::parse(&text).unwrap().ending()
    }

    #[test]
    fn an_ending_is_only_what_the_event_says() {
        assert_eq!(ending(r#""exit_code":0"#), Some(Ending::Code(0)));
        assert_eq!(ending(r#""exit_code":255"#), Some(Ending::Code(255)));
        assert_eq!(
            ending(r#""exit_code":-1,"signal":"SIGTERM""#),
            Some(Ending::Signal(15))
        );
        assert_eq!(
            ending(r#""exit_code":-1,"signal":9"#),
            Some(Ending::Signal(9))
        );
        assert_eq!(
            ending(r#""reason":"runtime_replaced""#),
            Some(Ending::Unknown("runtime_replaced".into()))
        );
        assert_eq!(
            ending(r#""exit_unknown":true,"reason":"crashed""#),
            Some(Ending::Unknown("crashed".into()))
        );
        assert_eq!(
            ending(r#""reason":"start_failed","message":"no such file""#),
            Some(Ending::StartFailed("no such file".into()))
        );
        assert_eq!(
            Event::parse(r#"{"seq":1,"type":"session.ready"}"#)
                .unwrap()
                .ending(),
            None
        );
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [
            ("SIGTERM", 15),
            ("KILL", 9),
            ("SIGSYS", 31),
            ("SIGRTMIN+1", 35),
            ("RTMAX", 64),
            ("10", 10),
        ] {
            assert_eq!(signal_number(&text.into()), Some(number), "{text}");
        }
        for text in ["", "SIG", "SIGFOO", "0", "65", "SIGRTMIN+200", "SIGRTMAX-"] {
            assert_eq!(signal_number(&text.into()), None, "{text}");
        }
    }

    #[test]
    fn an_event_cannot_command_the_terminal() {
        assert_eq!(escaped("a\x1b[2Jb\tc\nd"), "a\\u{1b}[2Jb\\tc\\nd");
        assert_eq!(escaped("café ☕"), "café ☕");
    }
}
