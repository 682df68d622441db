//! Who waits for a command is told when the sandbox stands still: why, and what to do.
//!
//! ```text
//!            session.paused: look once                session.resumed, or a new attempt
//!   goes on ───────────────────────────► stands still ─────────────────────────────────► goes on
//! ```
//! Looking never wakes a sandbox. Of a replay only its end counts.

use serde_json::Value;

use super::Attachment;
use crate::{
    client::Call,
    error::Result,
    event::Event,
    names::{sandbox_path, sleeper_path},
};

/// See the module.
#[derive(Debug)]
pub struct Standstill {
    /// Events up to here are older than our being connected.
    replay_until: u64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    GoesOn,
    /// An event said so, and nobody looked yet.
    Seen,
    Told,
}

impl Standstill {
    /// Nothing is known yet.
    pub fn new(attachment: &Attachment<'_>) -> Self {
        Self {
            replay_until: attachment.view["cursor"]["latest"].as_u64().unwrap_or(0),
            state: State::GoesOn,
        }
    }

    /// Whether it stands still, as far as is known.
    pub fn stands(&self) -> bool {
        self.state != State::GoesOn
    }

    /// Looks at the next event; `Some` when there is something to say.
    pub async fn look(&mut self, attachment: &Attachment<'_>, event: &Event) -> Option<String> {
        match event.kind.as_str() {
            "session.paused" if self.state == State::GoesOn => self.state = State::Seen,
            "session.resumed" | "attempt.starting" => {
                let before = std::mem::replace(&mut self.state, State::GoesOn);
                return (before == State::Told).then(|| "the sandbox goes on".to_owned());
            }
            _ => {}
        }
        if self.state != State::Seen || event.seq < self.replay_until {
            return None;
        }
        let sandbox = attachment.sandbox;
        let said = match why(attachment).await {
            Ok(said) => said,
            Err(failure) => Some(format!(
                "the sandbox stands still, and why is not known ({}); `outlive sandbox get \
                 {sandbox}` shows it",
                failure.message
            )),
        };
        self.state = match said {
            Some(_) => State::Told,
            None => State::GoesOn,
        };
        said
    }
}

/// Why the sandbox stands still; nothing when it does not any more.
async fn why(attachment: &Attachment<'_>) -> Result<Option<String>> {
    let sandbox = attachment.sandbox;
    let client = attachment.client;
    let path = format!("{}/activity", sleeper_path(sandbox)?);
    let now = client.call(Call::get(&path).bare()).await?;
    Ok(match now["state"].as_str() {
        Some("freezing" | "frozen") if now["disk_full"] == true => {
            let shown = client.call(Call::get(&sandbox_path(sandbox)?)).await?;
            Some(full(sandbox, &shown["disk"]))
        }
        Some("freezing" | "frozen") => Some(format!(
            "the sandbox sleeps; wake it: outlive sandbox wake {sandbox}"
        )),
        Some("releasing" | "released") => Some(format!(
            "the sandbox is paused; resume it: outlive sandbox resume {sandbox}"
        )),
        _ => None,
    })
}

/// What there is to say about a full disk.
fn full(sandbox: &str, disk: &Value) -> String {
    let limit = disk["limit"].as_str().unwrap_or_default();
    let used = disk["used_bytes"].as_u64();
    let used = used.map_or_else(String::new, |used| {
        format!(" ({} of {limit})", indicatif::HumanBytes(used))
    });
    let more = doubled(limit).unwrap_or_else(|| "SIZE".to_owned());
    format!(
        "the sandbox stands still: its disk is full{used}\n  \
         raise the limit: outlive sandbox update {sandbox} --disk {more}\n  \
         or make room:    outlive sandbox resume {sandbox}, and remove files within a minute\n  \
         then wake it:    outlive sandbox wake {sandbox}"
    )
}

/// Twice as much: `16Mi` becomes `32Mi`.
fn doubled(size: &str) -> Option<String> {
    let end = size.find(|letter: char| !letter.is_ascii_digit());
    let (number, unit) = size.split_at(end.unwrap_or(size.len()));
    let twice = number.parse::<u64>().ok()?.checked_mul(2)?;
    (unit.is_empty() || !unit.starts_with('.')).then(|| format!("{twice}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_limit_is_proposed() {
        for (size, twice) in [
            ("16Mi", Some("32Mi")),
            ("1000", Some("2000")),
            ("1.5Gi", None),
        ] {
            assert_eq!(doubled(size).as_deref(), twice, "{size}");
        }
    }
}
