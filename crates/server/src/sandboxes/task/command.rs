//! What the task of a sandbox is asked, and where its answers go.

use outlive_core::{
    id::{SandboxId, SnapshotId},
    sandbox::Hold,
};
use tokio::sync::{mpsc, oneshot};

use crate::{
    runtime::{Progress, Whose},
    sandboxes::{config::ConfigChange, disk::DiskIs, going_away, seconds},
    sessions::CallError,
};

/// Where the answer to a command goes.
pub(in crate::sandboxes) type Reply = oneshot::Sender<Result<(), CallError>>;

/// What a sandbox is asked.
#[derive(Debug)]
pub(in crate::sandboxes) enum Command {
    /// Have a runtime that runs, if calls may wake it.
    Wake(Reply),
    /// Have a runtime that runs.
    Resume(Reply),
    /// Stand still.
    Suspend(Reply),
    /// Keep the disk only.
    Pause(Reply),
    /// Move the deadline: this many seconds from now, or the `ttl`.
    Refresh(Option<u64>, Reply),
    /// Stay awake for a while.
    Hold(Box<Hold>, Reply),
    /// Do so no longer.
    DropHold(String, Reply),
    /// Have the disk copied to another sandbox or to a snapshot.
    Copy(Box<CopyTo>, Reply),
    /// Have the disk put back to a snapshot.
    Restore(Box<RestoreTo>, Reply),
    /// Another configuration.
    Configure(Box<ConfigChange>, Reply),
    /// How full its disk is.
    Disk(DiskIs, Reply),
    /// Leave no trace.
    Delete(Reply),
}

impl Command {
    /// Who asked.
    pub(super) fn into_reply(self) -> Reply {
        match self {
            Self::Wake(reply)
            | Self::Resume(reply)
            | Self::Suspend(reply)
            | Self::Pause(reply)
            | Self::Refresh(_, reply)
            | Self::Hold(_, reply)
            | Self::DropHold(_, reply)
            | Self::Copy(_, reply)
            | Self::Restore(_, reply)
            | Self::Configure(_, reply)
            | Self::Disk(_, reply)
            | Self::Delete(reply) => reply,
        }
    }
}

/// Where the copy of a disk goes.
#[derive(Debug)]
pub(in crate::sandboxes) struct CopyTo {
    pub(in crate::sandboxes) target: Target,
    pub(in crate::sandboxes) slot: u16,
    pub(in crate::sandboxes) progress: Progress,
}

/// What gets the copy of a disk.
#[derive(Debug)]
pub(in crate::sandboxes) enum Target {
    Sandbox(SandboxId),
    Snapshot(SnapshotId),
}

impl Target {
    pub(in crate::sandboxes) const fn whose(&self) -> Whose<'_> {
        match self {
            Self::Sandbox(id) => Whose::Sandbox(id),
            Self::Snapshot(id) => Whose::Snapshot(id),
        }
    }
}

/// What a disk is put back to.
#[derive(Debug)]
pub(in crate::sandboxes) struct RestoreTo {
    pub(in crate::sandboxes) snapshot: SnapshotId,
    pub(in crate::sandboxes) progress: Progress,
}

/// Sends a command and waits until it is carried out.
pub(in crate::sandboxes) async fn ask(
    mailbox: &mpsc::Sender<Command>,
    command: impl FnOnce(Reply) -> Command,
) -> Result<(), CallError> {
    let (reply, answer) = oneshot::channel();
    match mailbox.try_send(command(reply)) {
        Ok(()) => {}
        Err(mpsc::error::TrySendError::Full(_)) => {
            return Err(CallError::Unavailable {
                message: "too many calls wait for this sandbox".to_owned(),
                retry_after: seconds(1),
            });
        }
        // Its task ends with the sandbox or with the server.
        Err(mpsc::error::TrySendError::Closed(_)) => return Err(CallError::NoSandbox),
    }
    answer.await.unwrap_or_else(|_gone| Err(going_away()))
}

pub(super) fn answer(reply: Reply, result: Result<(), CallError>) {
    if reply.send(result).is_err() {
        tracing::trace!("a caller left before its answer");
    }
}
