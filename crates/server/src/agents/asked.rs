//! One call of a client, however often and to however many supervisors it is sent.
//!
//! ```text
//!   sent ─► answered
//!        └─► link lost ─► the next supervisor ─┬─ it does no harm twice ────────► sent again
//!                                              ├─ it is remembered by its mark ─► sent again
//!                                              └─ neither ──► nobody knows whether it took effect
//! ```

use outlive_api::agent::Request;
use outlive_core::{
    id::SessionId,
    session::{CallId, CallMark},
};

use super::link::Lost;

/// See the module.
#[derive(Debug)]
pub(crate) struct Asked {
    request: Request,
    id: CallId,
    /// The newest event that was known when it was first sent; nothing before.
    after: Option<u64>,
    lost: Lost,
    memory: Memory,
}

/// Whether a supervisor, and those after it, know a call again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// By its mark.
    Remembers,
    /// It is of a build that does not.
    Forgets,
}

impl Asked {
    /// That was not sent yet.
    pub(crate) fn new(request: Request) -> Self {
        Self {
            request,
            id: CallId(uuid::Uuid::new_v4().into_bytes()),
            after: None,
            lost: Lost::NotSent,
            memory: Memory::Remembers,
        }
    }

    /// What is asked.
    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    /// Whether it may have been carried out, without an answer.
    pub(crate) fn lost(&self) -> Lost {
        self.lost
    }

    /// What it is known by when it is sent now. `latest` tells the newest event of a session.
    pub(super) fn mark(&mut self, latest: impl FnOnce(&SessionId) -> u64) -> Option<CallMark> {
        let session = marked(&self.request)?;
        let after = *self.after.get_or_insert_with(|| latest(session));
        Some(CallMark {
            id: self.id,
            again_after: (self.lost == Lost::Unknown).then_some(after),
        })
    }

    /// It left, and the link to a supervisor with this memory broke before the answer.
    pub(super) fn lose(&mut self, memory: Memory) {
        self.lost = Lost::Unknown;
        if memory == Memory::Forgets {
            self.memory = Memory::Forgets;
        }
    }

    /// Whether it may be sent to a supervisor with this memory without being carried out twice.
    pub(super) fn may_go_to(&self, memory: Memory) -> bool {
        self.lost == Lost::NotSent
            || is_harmless_twice(&self.request)
            || (self.is_remembered() && memory == Memory::Remembers)
    }

    /// Whether all who may have carried it out know it again.
    pub(crate) fn is_remembered(&self) -> bool {
        marked(&self.request).is_some() && self.memory == Memory::Remembers
    }
}

/// The session of a request that is sent with a mark: what it changes is remembered with it.
fn marked(request: &Request) -> Option<&SessionId> {
    match request {
        Request::Update { session, .. }
        | Request::SetDesiredState { session, .. }
        | Request::NewAttempt { session, .. }
        | Request::Signal { session, .. }
        | Request::Resize { session, .. } => Some(session),
        Request::Configure { .. }
        | Request::List
        | Request::Get(_)
        | Request::Create { .. }
        | Request::Write { .. }
        | Request::Delete(_)
        | Request::Watch
        | Request::Release
        | Request::Discard
        | Request::Freeze
        | Request::Thaw
        | Request::Upgrade { .. }
        | Request::Health => None,
    }
}

/// Whether a request that may have been carried out may be sent to whom does not know it again.
///
/// | request | why |
/// |---|---|
/// | reads, `Configure`, `Watch` | change nothing the second time |
/// | `Create` | its id is new: whether it exists is looked up before it is sent again |
/// | `Update`, `SetDesiredState`, `Resize` | say what should be, not what to do |
/// | `Write` | its input id is remembered by the journal |
/// | `Delete`, `Release`, `Discard` | gone is gone |
/// | `Freeze`, `Thaw` | say how the workload should be |
/// | `NewAttempt` | would replace the attempt that the first one made: not again |
/// | `Signal`, `Upgrade` | would act twice: not again |
fn is_harmless_twice(request: &Request) -> bool {
    match request {
        Request::Configure { .. }
        | Request::List
        | Request::Get(_)
        | Request::Create { .. }
        | Request::Update { .. }
        | Request::SetDesiredState { .. }
        | Request::Write { .. }
        | Request::Resize { .. }
        | Request::Delete(_)
        | Request::Watch
        | Request::Release
        | Request::Discard
        | Request::Freeze
        | Request::Thaw
        | Request::Health => true,
        Request::NewAttempt { .. } | Request::Signal { .. } | Request::Upgrade { .. } => false,
    }
}
