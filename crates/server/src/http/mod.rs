//! HTTP as every dialect uses it: envelopes, heads, bodies, queries, request ids, slow sockets.
//!
//! axum's own rejections are plain text, which the vendor's clients can't read; everything here
//! answers with the envelope instead.

mod descriptors;
pub mod extract;
pub(crate) mod head;
pub(crate) mod lines;
pub mod reply;
pub mod request_id;
pub mod stall;
