//! One chunk after the other, for interpreters that can't tell two apart.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use outlive_core::id::{SandboxId, SessionId};

type Turn = tokio::sync::Mutex<()>;

/// The turns of all contexts that are waited for now.
#[derive(Debug, Default)]
pub(in super::super) struct Turns(Mutex<HashMap<(SandboxId, SessionId), Weak<Turn>>>);

impl Turns {
    /// The turn of a context.
    pub(super) fn of(&self, sandbox: &SandboxId, session: &SessionId) -> Arc<Turn> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let key = (sandbox.clone(), session.clone());
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Turn::default());
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}
