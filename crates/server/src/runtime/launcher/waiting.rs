//! Launchers, one of which waits: to start the program takes a millisecond that nobody who asks for a
//! sandbox need wait for.
//!
//! It has no sandbox, no log and nothing to do before it is told, over a socket, and ends by itself
//! when the socket does, be it that the server was killed.

use std::{
    fs::File,
    io::{self, IoSlice},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream as Socket,
    },
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outlive_api::launch::LAUNCHER_TITLE;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    net::UnixStream,
    process::Child,
    time::timeout,
};

use super::{
    super::RuntimeError,
    blocking,
    program::{Program, give_up, hear, launcher_failed},
};

/// What stands where a sandbox's id will: as long as that, so that the keeper's title fits.
const NO_SANDBOX: &str = "(no sandbox yet)";

/// See the module.
#[derive(Debug)]
pub(super) struct Launchers {
    program: Program,
    spare: Arc<Mutex<Spare>>,
}

/// The one for the next sandbox.
#[derive(Debug, Default)]
enum Spare {
    #[default]
    None,
    Starts,
    Waits(Launcher),
}

/// `outlive-launcher` before it is told for whom it works. Dropped untold it ends by itself.
#[derive(Debug)]
pub(super) struct Launcher {
    child: Child,
    socket: Socket,
}

impl Launchers {
    pub(super) fn new(program: Program) -> Self {
        Self {
            program,
            spare: Arc::default(),
        }
    }

    /// The one that waits, or one that is started now.
    pub(super) async fn take(&self, log: &File) -> Result<Launcher, RuntimeError> {
        if let Some(mut waiting) = waiting_in(&self.spare)
            && matches!(waiting.child.try_wait(), Ok(None))
        {
            return Ok(waiting);
        }
        let program = self.program.clone();
        let started = blocking(move || Launcher::start(&program)).await?;
        started.map_err(|error| launcher_failed(&error.to_string(), log))
    }

    /// Has one wait from now on. Waits for nothing itself.
    pub(super) fn have_one_wait(&self) {
        let mut spare = locked(&self.spare);
        if !matches!(*spare, Spare::None) {
            return;
        }
        *spare = Spare::Starts;
        drop(spare);
        let (program, spare) = (self.program.clone(), Arc::clone(&self.spare));
        tokio::task::spawn_blocking(move || {
            let started = Launcher::start(&program);
            *locked(&spare) = match started {
                Ok(launcher) => Spare::Waits(launcher),
                // Whoever needs one starts it, and is told.
                Err(error) => {
                    tracing::debug!(%error, "no launcher waits");
                    Spare::None
                }
            };
        });
    }
}

fn waiting_in(spare: &Mutex<Spare>) -> Option<Launcher> {
    let mut spare = locked(spare);
    match std::mem::take(&mut *spare) {
        Spare::Waits(launcher) => Some(launcher),
        other => {
            *spare = other;
            None
        }
    }
}

fn locked(spare: &Mutex<Spare>) -> MutexGuard<'_, Spare> {
    spare.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Launcher {
    fn start(program: &Program) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair()?;
        ours.set_nonblocking(true)?;
        let mut command = program.command();
        command
            .arg0(LAUNCHER_TITLE)
            .arg(NO_SANDBOX)
            .stdin(OwnedFd::from(theirs));
        let child = program.spawned(command, Stdio::null())?;
        Ok(Self {
            child,
            socket: ours,
        })
    }

    /// Has it launch this, and write to this log; its answer. It is not killed with us: what it
    /// began it may finish, and the next server finds it, by the lock that the log bears. A failure
    /// comes with what the log says.
    pub(super) async fn carry_out(
        mut self,
        message: &[u8],
        log: &File,
        within: Duration,
    ) -> Result<Vec<u8>, RuntimeError> {
        let conversation = async {
            tell(self.socket, message, log).await?;
            hear(&mut self.child).await
        };
        let answer = match timeout(within, conversation).await {
            Ok(answer) => answer,
            Err(_elapsed) => give_up(&mut self.child).await,
        };
        answer.map_err(|error| launcher_failed(&error.to_string(), log))
    }
}

/// The log comes with the first byte.
async fn tell(socket: Socket, message: &[u8], log: &File) -> io::Result<()> {
    let mut socket = UnixStream::from_std(socket)?;
    let sent = socket
        .async_io(Interest::WRITABLE, || {
            let fds = [log.as_fd()];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let sent = sendmsg(
                &socket,
                &[IoSlice::new(message)],
                &mut control,
                SendFlags::NOSIGNAL,
            )?;
            Ok(sent)
        })
        .await?;
    socket
        .write_all(message.get(sent..).unwrap_or_default())
        .await?;
    socket.shutdown().await
}
