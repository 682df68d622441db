//! Where a reader begins: the rules of `after` and `Last-Event-ID`.
//!
//! | given | from |
//! |---|---|
//! | nothing | the earliest event that is kept, never an error |
//! | below `earliest - 1` | 410 `event_cursor_expired` |
//! | `earliest - 1 ..= latest` | the event after it |
//! | above `latest` | 400 `cursor_ahead`: a cursor of another journal, or of the future |

use axum::http::HeaderMap;
use outlive_api::error::ApiError;

use crate::{
    http::extract::{Query, header_text, number},
    sessions::Tail,
};

/// What the caller gave as its cursor. `Last-Event-ID` wins over `after`.
pub(super) fn given(query: &Query, headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    match header_text(headers, "last-event-id")? {
        Some(text) => number("Last-Event-ID", &text, 0, u64::MAX).map(Some),
        None => query.number("after", 0, u64::MAX),
    }
}

/// The cursor to begin with: everything after it is sent.
pub(super) fn resolve(given: Option<u64>, tail: &Tail) -> Result<u64, ApiError> {
    let oldest = tail.earliest.saturating_sub(1);
    match given {
        None => Ok(oldest),
        Some(after) if after > tail.latest => Err(ApiError::cursor_ahead(tail.latest)),
        Some(after) if after < oldest => Err(ApiError::cursor_expired(tail.earliest)),
        Some(after) => Ok(after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::Life;

    fn at(given: Option<u64>, earliest: u64, latest: u64) -> Result<u64, u16> {
        let tail = Tail {
            earliest,
            latest,
            life: Life::Present,
        };
        resolve(given, &tail).map_err(|error| error.status)
    }

    #[test]
    fn every_cell_of_the_table() {
        assert_eq!(at(None, 1, 0), Ok(0));
        assert_eq!(at(None, 194, 300), Ok(193));
        assert_eq!(at(None, 301, 300), Ok(300), "nothing is kept");
        assert_eq!(at(Some(0), 1, 9), Ok(0));
        assert_eq!(
            at(Some(0), 2, 9),
            Err(410),
            "0 too, once something was trimmed"
        );
        assert_eq!(at(Some(192), 194, 300), Err(410));
        assert_eq!(at(Some(193), 194, 300), Ok(193));
        assert_eq!(at(Some(300), 194, 300), Ok(300));
        assert_eq!(at(Some(300), 301, 300), Ok(300));
        assert_eq!(at(Some(301), 194, 300), Err(400));
    }

    #[test]
    fn the_header_wins_and_must_be_a_number() {
        let query = Query::new(vec![("after".into(), "3".into())]);
        let mut headers = HeaderMap::new();
        assert_eq!(given(&query, &headers), Ok(Some(3)));
        headers.insert("last-event-id", "7".parse().unwrap());
        assert_eq!(given(&query, &headers), Ok(Some(7)));
        for text in ["-1", "abc", "1.5", "99999999999999999999"] {
            headers.insert("last-event-id", text.parse().unwrap());
            assert_eq!(given(&query, &headers).unwrap_err().status, 400, "{text}");
        }
    }
}
