//! Sessions without a supervisor: what their journals say.

use outlive_api::agent::SessionView;
use outlive_core::{id::SessionId, session::Rejection};

use super::tails::Tails;
use crate::{runtime::Place, sessions::CallError};

/// All sessions of a sandbox that has no runtime, ordered by creation, then id.
pub(crate) async fn list(_place: &Place) -> Result<Vec<SessionView>, CallError> {
    Ok(Vec::new())
}

/// One session of a sandbox that has no runtime.
pub(crate) async fn view(_place: &Place, _session: &SessionId) -> Result<SessionView, CallError> {
    Err(Rejection::NotFound.into())
}

/// Moves the tails to where the files end.
pub(crate) async fn refresh(_place: &Place, _tails: &Tails) {}

/// By creation, then id.
pub(crate) fn sort(_views: &mut [SessionView]) {}
