//! What is said to and by a sandbox.

use std::time::Duration;

use super::Sandbox;
use crate::{
    id::{Generation, SnapshotId},
    limits::DISK_ROOM_MAX,
    time::Timestamp,
};

/// An enum that is a word in the store.
macro_rules! words {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every one of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word for it.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// What the word means.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words! {
    /// What was asked of a sandbox.
    pub enum Desired {
        /// It should have a runtime that runs.
        Running = "running",
        /// Its runtime should stand still.
        Frozen = "frozen",
        /// It should keep its disk only.
        Released = "released",
        /// It should leave no trace.
        Deleted = "deleted",
    }
}

words! {
    /// What is known of a sandbox.
    pub enum Observed {
        /// A runtime is being started.
        Starting = "starting",
        /// Its supervisor answers.
        Running = "running",
        /// Its processes are being stopped where they stand.
        Freezing = "freezing",
        /// Its processes stand still; its supervisor answers reads.
        Frozen = "frozen",
        /// Its processes are about to go on.
        Thawing = "thawing",
        /// Its runtime is being ended, the disk stays.
        Releasing = "releasing",
        /// It has no runtime.
        Released = "released",
        /// No runtime could be started; a waking call tries again.
        Failed = "failed",
        /// It is being removed.
        Deleting = "deleting",
    }
}

words! {
    /// Why a sandbox has no runtime.
    pub enum ReleaseWhy {
        /// Somebody paused it.
        Pause = "pause",
        /// Its `ttl` passed.
        Ttl = "ttl",
        /// It was not used for long.
        AutoStop = "auto_stop",
        /// The runtime died and was not to be replaced at once.
        RuntimeLost = "runtime_lost",
    }
}

/// Whether a call may wake a sandbox that was released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AutoResume {
    /// It may.
    Yes,
    /// Only a resume may.
    No,
}

/// What a sandbox was made to do by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Released so long after its creation, resume or refresh.
    pub ttl: Option<Duration>,
    /// Deleted so long after its creation.
    pub hard_ttl: Option<Duration>,
    /// Whether calls wake it when it is released. A frozen one is always woken.
    pub auto_resume: AutoResume,
    /// Frozen so long after the last thing that counts.
    pub freeze_after_idle: Option<Duration>,
    /// Whether a hold counts as such a thing.
    pub holds: Holds,
}

/// Whether a hold keeps a sandbox awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holds {
    /// It does.
    Count,
    /// It is only remembered.
    DontCount,
}

/// A request of a client that keeps a sandbox awake.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hold {
    /// Its identifier.
    pub id: String,
    /// Who asked, in the client's words.
    pub owner: String,
    /// When it was taken.
    pub since: Timestamp,
    /// When it ends by itself.
    pub expires_at: Timestamp,
}

/// What a sandbox is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A call needs a runtime that runs.
    Wake,
    /// Somebody wants it running, whatever [`Policy::auto_resume`] says.
    Resume,
    /// Somebody wants its processes to stand still.
    Suspend,
    /// Somebody wants its runtime gone and its disk kept.
    Release(ReleaseWhy),
    /// Somebody wants its disk to be what a snapshot holds.
    Restore(SnapshotId),
    /// Somebody wants it gone.
    Delete,
    /// Its deadline moves: so long from now, or by the `ttl`.
    Refresh(Option<Duration>),
    /// Its `ttl` was set anew or turned off, as the policy says now.
    TtlChanged,
    /// Its `hard_ttl` was set anew or turned off, as the policy says now.
    HardTtlChanged,
    /// Keep it awake for a while.
    Hold(Hold),
    /// Do so no longer.
    DropHold(String),
    /// A deadline may have passed; see [`Sandbox::next_deadline`].
    DeadlinePassed {
        /// When the last thing that counts for the idle rule ended; nothing while one goes on.
        quiet_since: Option<Timestamp>,
    },
    /// The host was looked at.
    Found {
        /// Whether a runtime lives.
        lives: bool,
    },
    /// The host could not be looked at.
    NotLooked,
    /// The supervisor of the runtime answered.
    Answered {
        /// Its generation.
        generation: Generation,
        /// Whether its workload stands still.
        frozen: bool,
    },
    /// It did not answer in time, although its runtime lives.
    Unanswered,
    /// Nothing is left of a runtime that is gone.
    Swept,
    /// Something may be left.
    NotSwept,
    /// A generation was started and answers.
    Started,
    /// A generation was not started, and nothing of it is left.
    NotStarted,
    /// A generation was not started, and something of it may be left.
    HalfStarted,
    /// The workload stands still, and everything it said is on the disk.
    Froze,
    /// It does not, or nobody knows.
    NotFrozen,
    /// The workload goes on.
    Thawed,
    /// Whether it does is not known.
    NotThawed,
    /// No runtime is left.
    Ended,
    /// One may be left.
    NotEnded,
    /// The disk is what the snapshot holds.
    Restored,
    /// It is not, and never will be: the disk is what it was.
    NotRestored,
    /// Nobody knows which of both it is.
    HalfRestored,
    /// It could not be removed altogether.
    NotRemoved,
    /// The runtime ended by itself.
    Gone,
    /// More is on its disk than may be.
    DiskOver,
    /// What is on its disk fits.
    DiskFits,
}

/// What to do about an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The state from now on; stored before the effect is performed.
    pub next: Sandbox,
    /// What to perform. What came of it is the next input.
    pub effect: Option<Effect>,
    /// What becomes of the input once the effects came to rest.
    pub then: Then,
}

/// What becomes of an input once the effects that it caused came to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It is over.
    Done,
    /// Something had to be finished first: decide it once more.
    Again,
}

/// What the task performs, and the inputs that may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Look for a runtime: [`Input::Found`], [`Input::NotLooked`].
    Look,
    /// Link to the runtime that lives: [`Input::Answered`], [`Input::Unanswered`].
    Greet,
    /// Sweep up after a runtime that is gone: [`Input::Swept`], [`Input::NotSwept`].
    Sweep,
    /// Start the generation: [`Input::Started`], [`Input::NotStarted`],
    /// [`Input::HalfStarted`].
    Start,
    /// Stop the workload: [`Input::Froze`], [`Input::NotFrozen`].
    Freeze,
    /// Let it go on: [`Input::Thawed`], [`Input::NotThawed`].
    Thaw,
    /// End the runtime and sweep up: [`Input::Ended`], [`Input::NotEnded`].
    End,
    /// Put the disk back to [`Sandbox::restoring`]: [`Input::Restored`], [`Input::NotRestored`],
    /// [`Input::HalfRestored`].
    Restore,
    /// End the runtime, remove everything and end the task; else [`Input::NotRemoved`].
    Remove,
}

/// Why an input changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is gone or about to go.
    #[error("sandbox not found")]
    Deleted,
    /// It is released, and calls may not wake it.
    #[error("the sandbox is paused and auto_resume is off; resume it first")]
    Paused,
    /// It has no runtime and is trying to get one.
    #[error("the sandbox is starting; try again in a moment")]
    Starting,
    /// It has no runtime that could stand still.
    #[error("the sandbox could not be started; resume it first")]
    Failed,
    /// It is held by as many as may hold it.
    #[error("the sandbox has as many holds as it may have ({0}); end one first")]
    TooManyHolds(usize),
    /// There is no such hold, or it ended.
    #[error("hold not found")]
    NoHold,
    /// More is on its disk than may be.
    #[error(
        "the sandbox stands still because its disk is full; resume it and remove files within \
         {} s, or raise resources.disk",
        DISK_ROOM_MAX.as_secs()
    )]
    DiskFull,
}
