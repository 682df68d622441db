//! The supervisor's side of the keeper's socket.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::net::sockopt;

use super::{
    handover::VERSION as HANDOVER_VERSION,
    wire::{Answer, Ask, ExitRecord, KeeperStatus, Label, receive, send},
};
use crate::{
    limits::{KEEPER_ANSWER_MAX, KEEPER_BATCH_MAX, KEEPER_MESSAGE_BYTES_MAX},
    log, sys,
};

/// A kept descriptor, as it comes back.
#[derive(Debug)]
pub struct Kept {
    /// What it is called.
    pub label: Label,
    /// A copy of it; the keeper's stays open.
    pub fd: OwnedFd,
}

/// Asks the keeper. Clones share one socket; each call waits for its answer, some 20 µs.
#[derive(Debug, Clone)]
pub struct KeeperClient {
    line: Arc<Mutex<Line>>,
}

#[derive(Debug)]
struct Line {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// Why the keeper did not do it.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// It refused; nothing changed.
    #[error("the keeper refused: {0}")]
    Refused(String),
    /// Its socket failed.
    #[error("the keeper's socket: {0}")]
    Io(#[from] io::Error),
    /// It is gone, and the sandbox with it.
    #[error("the keeper is gone")]
    Gone,
}

impl KeeperClient {
    /// Talks over this seqpacket socket.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(KEEPER_ANSWER_MAX))?;
        Ok(Self {
            line: Arc::new(Mutex::new(Line {
                socket,
                buffer: vec![0; KEEPER_MESSAGE_BYTES_MAX],
            })),
        })
    }

    /// A copy of the socket, to see when the keeper is gone: then it hangs up.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.socket.try_clone()
    }

    /// Has these kept. All or none; a name that exists is replaced.
    pub fn put(&self, items: &[(Label, BorrowedFd<'_>)]) -> Result<(), KeeperError> {
        for batch in items.chunks(KEEPER_BATCH_MAX) {
            let labels = batch.iter().map(|(label, _)| label.clone()).collect();
            let fds: Vec<_> = batch.iter().map(|(_, fd)| *fd).collect();
            self.done(&Ask::Put(labels), &fds)?;
        }
        Ok(())
    }

    /// Copies of everything that is kept.
    pub fn get_all(&self) -> Result<Vec<Kept>, KeeperError> {
        let mut all = Vec::new();
        let mut from = Some(0);
        while let Some(position) = from {
            let (answer, fds) = self.ask(&Ask::Get { from: position }, &[])?;
            let Answer::Page { labels, next } = answer else {
                confused("another answer than was asked for");
            };
            if labels.len() != fds.len() {
                confused("another answer than was asked for");
            }
            all.extend(
                labels
                    .into_iter()
                    .zip(fds)
                    .map(|(label, fd)| Kept { label, fd }),
            );
            from = next;
        }
        Ok(all)
    }

    /// Has these closed. When this returns, the keeper's copies are closed.
    pub fn del(&self, names: &[String]) -> Result<(), KeeperError> {
        for batch in names.chunks(KEEPER_BATCH_MAX) {
            self.done(&Ask::Del(batch.to_vec()), &[])?;
        }
        Ok(())
    }

    /// Exit records of the processes that the keeper reaped, oldest first.
    pub fn exits(&self) -> Result<Vec<ExitRecord>, KeeperError> {
        let mut all = Vec::new();
        let mut from = Some(0);
        while let Some(position) = from {
            let (answer, _) = self.ask(&Ask::Exits { from: position }, &[])?;
            let Answer::Exits { records, next } = answer else {
                confused("another answer than was asked for");
            };
            all.extend(records);
            from = next;
        }
        Ok(all)
    }

    /// Says that this supervisor serves.
    pub fn ready(&self) -> Result<(), KeeperError> {
        self.done(&Ask::Ready, &[])
    }

    /// Has later supervisors started from this executable. Leave afterwards, to be replaced.
    pub fn upgrade(&self, exe: BorrowedFd<'_>) -> Result<(), KeeperError> {
        self.done(&Ask::Upgrade, &[exe])
    }

    /// Has the keeper replace itself by the newest executable.
    pub fn reexec(&self) -> Result<(), KeeperError> {
        self.done(
            &Ask::Reexec {
                reads: HANDOVER_VERSION,
            },
            &[],
        )
    }

    /// Says that the runtime ends: exit after this, and the keeper exits too.
    pub fn leave(&self) -> Result<(), KeeperError> {
        self.done(&Ask::Leave, &[])
    }

    /// State of the keeper.
    pub fn status(&self) -> Result<KeeperStatus, KeeperError> {
        match self.ask(&Ask::Status, &[])?.0 {
            Answer::Status(status) => Ok(status),
            _ => confused("another answer than was asked for"),
        }
    }

    fn done(&self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<(), KeeperError> {
        match self.ask(ask, fds)?.0 {
            Answer::Done => Ok(()),
            _ => confused("another answer than was asked for"),
        }
    }

    fn ask(
        &self,
        ask: &Ask,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), KeeperError> {
        // A caller that panicked between send and receive leaves an answer behind: the process
        // ends on the first call that meets it.
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let line = &mut *line;
        send(line.socket.as_fd(), ask, fds)?;
        match receive(line.socket.as_fd(), &mut line.buffer) {
            Ok(Some((Answer::Refused(why), _))) => Err(KeeperError::Refused(why)),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(KeeperError::Gone),
            // It may still come, and would pass for the answer to the next question.
            Err(error) => confused(&error.to_string()),
        }
    }
}

/// Ends the supervisor, whose every later answer would be that of the question before. The keeper
/// starts the next, with a fresh socket.
fn confused(why: &str) -> ! {
    log::warn(format_args!(
        "no answer of the keeper can be trusted: {why}"
    ));
    sys::exit_now(70);
}
