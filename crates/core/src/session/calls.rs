//! Which calls a session carried out, so that one that comes again is not carried out again.
//!
//! Whoever calls waits for an answer, and the supervisor may be killed before it gives one. The
//! same call then reaches the next supervisor, which has to know whether it was carried out. So the
//! first event of a decision names the call that asked for it: both are in the journal or neither.
//!
//! ```text
//! id known ────────────────────────────────────────────► carried out: answer from the state
//! id unknown ── sent for the first time ───────────────► new: decide it
//!            └─ sent again ── nothing was forgotten that may have been it ─► new
//!                          └─ something was ───────────► unknown: neither done nor denied
//! ```
//! A call that was refused is not remembered: nothing happened, and it may be decided anew.

use minicbor::{Decode, Encode};

use super::Session;
use crate::limits::CALLS_KEPT_MAX;

/// Names one call, however often it is sent. Random, made by whoever calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct CallId(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 16]);

/// What a call is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct CallMark {
    /// The same each time that the call is sent.
    #[n(0)]
    pub id: CallId,
    /// Of a call that may have arrived before: the newest event of the session that its caller knew
    /// of when it was first sent. It was decided after that one, if it was. 0 is always true.
    #[n(1)]
    pub again_after: Option<u64>,
}

/// What a call means in the light of those that were carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStanding {
    /// It was not carried out: decide it.
    New,
    /// It was. Nothing is to be done but to wait for what it began.
    CarriedOut,
    /// It may have been, and so many calls followed that nobody remembers.
    Unknown,
}

/// The calls that were carried out last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub(super) struct Calls {
    /// Oldest first.
    #[n(0)]
    newest: Vec<CarriedOut>,
    /// The event that the newest of the forgotten ones led to; 0 when none is forgotten.
    #[n(1)]
    forgotten_up_to: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
struct CarriedOut {
    #[n(0)]
    id: CallId,
    /// The first event that it led to.
    #[n(1)]
    seq: u64,
}

impl Calls {
    pub(super) fn note(&mut self, id: CallId, seq: u64) {
        // Carried out in two parts where the disk was full in between.
        self.newest.retain(|known| known.id != id);
        if self.newest.len() >= CALLS_KEPT_MAX {
            self.forgotten_up_to = self.newest.remove(0).seq;
        }
        self.newest.push(CarriedOut { id, seq });
    }
}

impl Session {
    /// Whether a call has to be decided.
    pub fn call_standing(&self, mark: CallMark) -> CallStanding {
        let Calls {
            newest,
            forgotten_up_to,
        } = &self.calls;
        if newest.iter().any(|known| known.id == mark.id) {
            return CallStanding::CarriedOut;
        }
        match mark.again_after {
            Some(after) if after < *forgotten_up_to => CallStanding::Unknown,
            Some(_) | None => CallStanding::New,
        }
    }
}
