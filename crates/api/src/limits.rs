//! What a request may carry at most. Larger is refused with the status beside it.

/// Bytes of a request's body: 413.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

pub use outlive_core::limits::{IDEMPOTENCY_KEY_CHARS_MAX, INPUT_BYTES_MAX, INPUT_ID_CHARS_MAX};

/// Characters of a WebSocket's `request_id`: close 1008.
pub const REQUEST_ID_CHARS_MAX: usize = 256;

/// Events of a page when the caller names no number.
pub const PAGE_EVENTS_DEFAULT: u64 = 1000;

/// Most events of a page: 400.
pub const PAGE_EVENTS_MAX: u64 = 10_000;

/// Longest wait for a page's first event, milliseconds: 400.
pub const PAGE_WAIT_MS_MAX: u64 = 30_000;

/// Most event types in one filter: 400.
pub const FILTER_TYPES_MAX: usize = 32;
