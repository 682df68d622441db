//! Why something can't be appended.

use std::{io, sync::Arc};

/// Why something can't be appended. Whatever it is, nothing of it is in the journal.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// No space on the disk, or a quota. The same call may succeed later.
    #[error("no space left for the journal")]
    Full,
    /// The disk refused once; this appender takes nothing more. Opening the journal again goes
    /// on with what is there.
    #[error("journal is out of order: {0}")]
    Broken(Arc<io::Error>),
    /// After it was opened, the state has to be handed over by
    /// [`put_checkpoint`](crate::Appender::put_checkpoint) before anything is appended.
    #[error("journal needs a checkpoint first")]
    CheckpointNeeded,
    /// A payload or a checkpoint is longer than a frame can hold.
    #[error("{0} bytes are more than a journal frame holds")]
    TooLong(usize),
    /// A batch must hold at least one record and not more than the limit.
    #[error("a batch can't have {0} records")]
    BatchSize(usize),
    /// The kind belongs to the journal itself.
    #[error("kind {0:#x} is reserved")]
    ReservedKind(u8),
    /// All numbers are used up.
    #[error("the journal has no numbers left")]
    Exhausted,
}

/// Is it about space.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
