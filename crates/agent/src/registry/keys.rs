//! Which session belongs to which idempotency key, found from both sides: a session that goes
//! takes its key along, whether or not it was ever made.

use std::collections::HashMap;

use outlive_core::id::SessionId;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Keys {
    sessions: HashMap<String, SessionId>,
    keys: HashMap<SessionId, String>,
}

impl Keys {
    pub(super) fn insert(&mut self, key: String, session: SessionId) {
        self.keys.insert(session.clone(), key.clone());
        self.sessions.insert(key, session);
    }

    pub(super) fn get(&self, key: &str) -> Option<&SessionId> {
        self.sessions.get(key)
    }

    /// Frees the key of a session, if it has one.
    pub(super) fn remove(&mut self, session: &SessionId) {
        let Some(key) = self.keys.remove(session) else {
            return;
        };
        if self.sessions.get(&key) == Some(session) {
            self.sessions.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_free_when_its_session_went_and_nobody_elses() {
        let (one, two) = (SessionId::from_bits(1), SessionId::from_bits(2));
        let mut keys = Keys::default();
        keys.insert("a".to_owned(), one.clone());
        keys.insert("b".to_owned(), two.clone());
        keys.remove(&one);
        keys.remove(&one);
        assert_eq!((keys.get("a"), keys.get("b")), (None, Some(&two)));
        // Two journals that claim one key: the later has it.
        keys.insert("b".to_owned(), one.clone());
        keys.remove(&two);
        assert_eq!(keys.get("b"), Some(&one));
    }
}
