//! Which events of a page the caller wants: by type, stream, attempt.
//!
//! A filter never hides a gap: whoever reads only output must still learn that some is lost.

use outlive_api::{
    error::ApiError,
    event::{KINDS, StreamName},
    limits::FILTER_TYPES_MAX,
    record::{KIND_OUTPUT, kinds_of, stream_code},
};
use outlive_core::id::{AttemptId, SessionId};
use outlive_journal::{KIND_GAP, Record};

use crate::http::extract::Query;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    /// Bit n: records of kind n.
    kinds: Option<u64>,
    stream: Option<u8>,
    attempt: Option<(SessionId, AttemptId)>,
    /// The last number that was compared with `attempt`, and whether it is that one.
    compared: Option<(u32, bool)>,
}

impl Filter {
    /// From `types` (names with commas between them), `stream` and `attempt_id`.
    pub(super) fn parse(query: &Query, session: &SessionId) -> Result<Self, ApiError> {
        let mut out = Self::default();
        let names: Vec<&str> = query
            .all("types")
            .flat_map(|names| names.split(','))
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        if names.len() > FILTER_TYPES_MAX {
            return Err(ApiError::invalid(format!(
                "types has more than {FILTER_TYPES_MAX} names"
            )));
        }
        for name in names {
            if !KINDS.contains(&name) {
                return Err(ApiError::invalid(format!("types: unknown type {name:?}")));
            }
            let bits = kinds_of(name)
                .iter()
                .fold(0, |bits, kind| bits | 1 << *kind);
            out.kinds = Some(out.kinds.unwrap_or(0) | bits);
        }
        out.stream = match query.get("stream") {
            None => None,
            Some("stdout") => Some(stream_code(StreamName::Stdout.into())),
            Some("stderr") => Some(stream_code(StreamName::Stderr.into())),
            Some("pty") => Some(stream_code(StreamName::Pty.into())),
            Some(_) => return Err(ApiError::invalid("stream must be stdout, stderr or pty")),
        };
        if let Some(text) = query.get("attempt_id") {
            let id = AttemptId::parse(text)
                .map_err(|_| ApiError::invalid("attempt_id is not an attempt's id"))?;
            out.attempt = Some((session.clone(), id));
        }
        Ok(out)
    }

    /// Whether it lets everything through.
    pub(super) const fn is_open(&self) -> bool {
        self.kinds.is_none() && self.stream.is_none() && self.attempt.is_none()
    }

    /// Whether the record passes.
    pub(super) fn passes(&mut self, record: &Record) -> bool {
        if record.kind == KIND_GAP {
            return true;
        }
        if let Some(kinds) = self.kinds
            && (record.kind >= 64 || kinds & 1 << record.kind == 0)
        {
            return false;
        }
        if let Some(stream) = self.stream
            && (record.kind != KIND_OUTPUT || record.stream != stream)
        {
            return false;
        }
        self.is_attempt(record.attempt)
    }

    fn is_attempt(&mut self, number: u32) -> bool {
        let Some((session, wanted)) = &self.attempt else {
            return true;
        };
        match self.compared {
            Some((compared, same)) if compared == number => same,
            _ => {
                let same = AttemptId::derive(session, number) == *wanted;
                self.compared = Some((number, same));
                same
            }
        }
    }
}
