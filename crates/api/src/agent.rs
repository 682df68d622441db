//! The link between the server and the supervisor of one sandbox.
//!
//! A stream socket carries frames: 4 bytes little-endian length, then one CBOR message. The
//! server sends [`Hello`] first and the supervisor answers [`Welcome`]; then the server sends
//! [`Call`]s, several at once, and the supervisor answers each with a [`Reply`] that repeats its
//! number, in any order. After [`Request::Watch`] the supervisor also sends replies with that
//! call's number whenever a journal's tail moves. Output bytes never cross the link: the server
//! reads the journal's files, bounded by the tails that were published here.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use outlive_core::{
    event::Created,
    id::{AttemptId, Generation, SandboxId, SessionId},
    session::{CallMark, EofMode, Rejection, ReplaceCurrent},
    spec::{DesiredState, SessionSpec},
};

/// Version of the link that this build speaks.
pub const LINK_VERSION: u32 = 1;

/// Longest frame, bytes: the largest input (4 MiB) with room for its frame.
pub const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;

/// First message of the server.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// Versions the server speaks, newest first.
    #[n(0)]
    pub versions: Vec<u32>,
    /// Whom it means to talk to.
    #[n(1)]
    pub sandbox: SandboxId,
}

/// First message of the supervisor; the link closes after it when `version` is 0.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// The version chosen, 0 when none fits.
    #[n(0)]
    pub version: u32,
    /// Who answers.
    #[n(1)]
    pub sandbox: SandboxId,
    /// Its generation.
    #[n(2)]
    pub generation: Generation,
    /// How output reaches the journal.
    #[n(3)]
    pub pump: PumpMode,
    /// Build of the supervisor, for people.
    #[n(4)]
    pub build: String,
    /// The workload stands still, or is on its way there: a supervisor that takes over goes on
    /// with a freeze and never thaws by itself.
    #[cbor(n(5), default)]
    pub frozen: bool,
    /// A [`Call::mark`] is remembered with what the call changed, also by the next supervisor.
    #[cbor(n(6), default)]
    pub remembers_calls: bool,
    /// It knows [`Request::Discard`].
    #[cbor(n(7), default)]
    pub discards: bool,
}

/// How output reaches the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum PumpMode {
    /// In the kernel: a kill of the supervisor loses no byte.
    #[n(0)]
    Splice,
    /// Through memory: a kill between read and write loses what was read.
    #[n(1)]
    Copy,
}

/// A request with its number.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Call {
    /// Chosen by the server, not in use by a call that is under way.
    #[n(0)]
    pub number: u64,
    /// What it asks.
    #[n(1)]
    pub request: Request,
    /// What it is known by when it is sent again: an `Update`, `SetDesiredState`, `NewAttempt`,
    /// `Signal` or `Resize` with the mark of one that was carried out is answered from the state as
    /// it is. Other requests do no harm twice and need none.
    #[n(2)]
    pub mark: Option<CallMark>,
}

/// An answer with the number of its call.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Reply {
    /// The call's number.
    #[n(0)]
    pub number: u64,
    /// The answer.
    #[n(1)]
    pub outcome: Outcome,
}

/// What the server asks.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Request {
    /// Variables of the sandbox, for the next attempts. Answer: `Done`.
    #[n(0)]
    Configure {
        /// All of them.
        #[n(0)]
        env: BTreeMap<String, String>,
    },
    /// Answer: `Sessions`, ordered by creation, then id.
    #[n(1)]
    List,
    /// Answer: `Session`.
    #[n(2)]
    Get(#[n(0)] SessionId),
    /// Answer: `Session` for a new one, `Existing` for the same key and specification.
    #[n(3)]
    Create {
        /// The id of the new session.
        #[n(0)]
        session: SessionId,
        /// The facts.
        #[n(1)]
        created: Box<Created>,
    },
    /// Answer: `Session`, once the change is over.
    #[n(4)]
    Update {
        /// Which.
        #[n(0)]
        session: SessionId,
        /// The whole new specification.
        #[n(1)]
        spec: Box<SessionSpec>,
    },
    /// Answer: `Session`, once the change is over.
    #[n(5)]
    SetDesiredState {
        /// Which.
        #[n(0)]
        session: SessionId,
        /// The state.
        #[n(1)]
        state: DesiredState,
    },
    /// Answer: `Session`, once the new attempt runs or failed to start.
    #[n(6)]
    NewAttempt {
        /// Which.
        #[n(0)]
        session: SessionId,
        /// May it end the current one.
        #[n(1)]
        replace: ReplaceCurrent,
    },
    /// Answer: `Written`.
    #[n(7)]
    Write {
        /// Which.
        #[n(0)]
        session: SessionId,
        /// The write.
        #[n(1)]
        write: Write,
    },
    /// Answer: `Done`.
    #[n(8)]
    Signal {
        /// Which.
        #[n(0)]
        session: SessionId,
        /// The attempt the caller means.
        #[n(1)]
        expected: Option<AttemptId>,
        /// 1 to 64.
        #[n(2)]
        signal: u8,
    },
    /// Answer: `Done`.
    #[n(9)]
    Resize {
        /// Which.
        #[n(0)]
        session: SessionId,
        /// The attempt the caller means.
        #[n(1)]
        expected: Option<AttemptId>,
        /// Lines, 1 or more.
        #[n(2)]
        rows: u16,
        /// Columns, 1 or more.
        #[n(3)]
        cols: u16,
    },
    /// Answer: `Done`, once the process and the files are gone.
    #[n(10)]
    Delete(#[n(0)] SessionId),
    /// Answers: `Moved` for every session that exists, then `Watching`, then `Moved` and `Gone`
    /// as they happen. Never ends by itself.
    #[n(11)]
    Watch,
    /// End every attempt because the runtime goes: journal it, seal, sync. Answer: `Done`; then
    /// the supervisor and its keeper leave.
    #[n(12)]
    Release,
    /// Start the supervisor anew from this executable. Answer: `Done`, then the link closes. The
    /// keeper replaces itself by it, too, once the new supervisor serves; a new one that does not
    /// get that far makes way for the old one.
    #[n(13)]
    Upgrade {
        /// Where the supervisor finds it: a path from its state directory, or an absolute one. It
        /// may be gone right after the answer.
        #[n(0)]
        path: String,
    },
    /// Answer: `Health`.
    #[n(14)]
    Health,
    /// Every process of the workload stands still from the answer on, and everything that they
    /// wrote is on disk. Answer: `Done`, also when it is so already; or `Failed` with the reason,
    /// and then the workload runs as before.
    ///
    /// While frozen, `Configure`, `List`, `Get`, `Watch`, `Health`, `Delete`, `Release`, `Discard`,
    /// `Upgrade` and `Thaw` work; everything else is `Rejected` with [`Rejection::Frozen`]. A `Delete` kills at once,
    /// for what stands still can't end in its own way.
    #[n(15)]
    Freeze,
    /// The workload goes on. Answer: `Done`, also when it runs already.
    #[n(16)]
    Thaw,
    /// As `Release`, and nobody needs the journals any more: nothing waits for the disk.
    #[n(17)]
    Discard,
}

/// Input for an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Write {
    /// The attempt the caller means.
    #[n(0)]
    pub expected: Option<AttemptId>,
    /// The caller's id, 1 to 128 characters.
    #[n(1)]
    pub input_id: String,
    /// The bytes, 4 MiB at most.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub data: Vec<u8>,
    /// Close the input after them.
    #[n(3)]
    pub eof: Option<EofMode>,
    /// Answer only after the receipt is on disk.
    #[n(4)]
    pub durable: bool,
}

/// What the supervisor answers.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum Outcome {
    /// It is done.
    #[n(0)]
    Done,
    /// One session.
    #[n(1)]
    Session(#[n(0)] Box<SessionView>),
    /// The session that an earlier creation with the same key made.
    #[n(2)]
    Existing(#[n(0)] Box<SessionView>),
    /// All sessions.
    #[n(3)]
    Sessions(#[n(0)] Vec<SessionView>),
    /// The input's receipt.
    #[n(4)]
    Written {
        /// The attempt that took it.
        #[n(0)]
        attempt: AttemptId,
        /// The id was known, with the same content.
        #[n(1)]
        duplicate: bool,
        /// A retry that the journal can't settle: the bytes may or may not have arrived.
        #[n(2)]
        applied_unknown: bool,
    },
    /// A journal's published window: events `earliest..=latest` may be read.
    #[n(5)]
    Moved {
        /// Whose.
        #[n(0)]
        session: SessionId,
        /// First retained; `latest + 1` when none is.
        #[n(1)]
        earliest: u64,
        /// Last published.
        #[n(2)]
        latest: u64,
    },
    /// The session was deleted.
    #[n(6)]
    Gone {
        /// Which.
        #[n(0)]
        session: SessionId,
    },
    /// Every session that exists was named.
    #[n(7)]
    Watching,
    /// State of the supervisor.
    #[n(8)]
    Health(#[n(0)] Health),
    /// Refused: makes no sense now, nothing happened.
    #[n(9)]
    Rejected(#[n(0)] Rejection),
    /// Our own fault or the machine's: what failed, for the log and the user.
    #[n(10)]
    Failed {
        /// In words.
        #[n(0)]
        message: String,
    },
    /// A call that is sent again may have been carried out, and nobody remembers. Nothing was done
    /// now.
    #[n(11)]
    Forgotten,
}

/// A session as the supervisor knows it.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct SessionView {
    /// Its checkpoint: `outlive_core::session::Session` in its own encoding.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub checkpoint: Vec<u8>,
    /// First retained event; `latest + 1` when none is.
    #[n(1)]
    pub earliest: u64,
    /// Last published event.
    #[n(2)]
    pub latest: u64,
}

/// Figures of a supervisor, for metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
pub struct Health {
    /// Attempts started since the supervisor started.
    #[n(0)]
    pub attempts: u64,
    /// Restarts by policy since the supervisor started.
    #[n(1)]
    pub restarts: u64,
    /// Bytes of all journals on disk.
    #[n(2)]
    pub journal_bytes: u64,
    /// Syncs since the supervisor started.
    #[n(3)]
    pub syncs: u64,
    /// Time spent in them, microseconds.
    #[n(4)]
    pub sync_us: u64,
    /// Sessions whose journal was damaged when it was opened.
    #[n(5)]
    pub damaged: u64,
    /// How often the keeper had to start a supervisor.
    #[n(6)]
    pub supervisor_starts: u64,
    /// How often the keeper replaced itself by a newer executable.
    #[n(7)]
    #[cbor(default)]
    pub keeper_reexecs: u32,
    /// No control group freezes the workload as a whole: each tree is stopped by SIGSTOP, and a
    /// thaw continues what was stopped before, too.
    #[cbor(n(8), default)]
    pub freezes_by_signal: bool,
}
