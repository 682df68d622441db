//! What a supervisor asks of its keeper.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use super::{
    super::{
        handover::{VERSION, is_sealed, sealed_copy},
        log,
        wire::{Answer, Ask, KeeperStatus, receive, send},
    },
    Keeper,
};
use crate::limits::EXITS_BATCH_MAX;

impl Keeper {
    /// Answers one question of the supervisor.
    pub(super) fn answer(&mut self) {
        let Some(socket) = self.supervisor.as_mut().and_then(|s| s.socket.take()) else {
            return;
        };
        let received = receive::<Ask>(&socket, &mut self.buffer);
        let (answer, fds) = match received {
            Ok(Some((Ask::Get { from }, _))) => {
                let (labels, fds, next) = self.store.page(from);
                (Answer::Page { labels, next }, fds)
            }
            Ok(Some((Ask::Reexec { reads }, _))) if reads >= VERSION => {
                self.put_socket(socket);
                self.reexec();
                return;
            }
            Ok(Some((ask, fds))) => (self.perform(ask, fds), Vec::new()),
            Ok(None) => return,
            Err(e) => {
                // A supervisor that can't talk is of no use: the socket closes, it will see
                // that its keeper is gone and end, and the next one starts.
                log(&format!("socket of the supervisor: {e}"));
                return;
            }
        };
        match send(&socket, &answer, &fds) {
            Ok(()) => self.put_socket(socket),
            Err(e) => log(&format!("answer to the supervisor: {e}")),
        }
    }

    fn put_socket(&mut self, socket: OwnedFd) {
        if let Some(supervisor) = self.supervisor.as_mut() {
            supervisor.socket = Some(socket);
        }
    }

    fn perform(&mut self, ask: Ask, fds: Vec<OwnedFd>) -> Answer {
        match self.try_perform(ask, fds) {
            Ok(answer) => answer,
            Err(why) => Answer::Refused(why),
        }
    }

    fn try_perform(&mut self, ask: Ask, fds: Vec<OwnedFd>) -> Result<Answer, String> {
        match ask {
            Ask::Put(labels) => self.store.put(labels, fds)?,
            Ask::Del(names) => {
                self.store.del(&names);
                self.exits.del(&names).map_err(|e| e.to_string())?;
            }
            Ask::Exits { from } => {
                self.reap().map_err(|e| e.to_string())?;
                return Ok(self.exits_page(from));
            }
            Ask::Ready => self.supervisor_ready()?,
            Ask::Upgrade => {
                let exe = fds.into_iter().next().ok_or("no executable came along")?;
                let exe = sealed_copy(exe.as_fd()).map_err(|e| e.to_string())?;
                self.previous_exe = Some(std::mem::replace(&mut self.exe, exe));
                self.outdated = true;
            }
            Ask::Leave => self.leaving = true,
            Ask::Status => {
                return Ok(Answer::Status(KeeperStatus {
                    kept: u32::try_from(self.store.len()).unwrap_or(u32::MAX),
                    supervisor_starts: self.starts,
                    reexecs: self.reexecs,
                    outdated: self.outdated,
                }));
            }
            // It would end as it starts, and the runtime with it.
            Ask::Reexec { reads } => {
                return Err(format!(
                    "the new executable reads handovers up to version {reads}, this keeper writes {VERSION}"
                ));
            }
            Ask::Get { .. } => return Err("asked in the wrong place".to_owned()),
        }
        Ok(Answer::Done)
    }

    fn exits_page(&self, from: u32) -> Answer {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let rest = self.exits.records().get(from..).unwrap_or_default();
        let page = rest.get(..EXITS_BATCH_MAX).unwrap_or(rest);
        let next = from + page.len();
        Answer::Exits {
            records: page.to_vec(),
            next: (page.len() < rest.len()).then_some(u32::try_from(next).unwrap_or(u32::MAX)),
        }
    }

    fn supervisor_ready(&mut self) -> Result<(), String> {
        if let Some(ready) = &self.ready {
            match rustix::io::write(ready, b"R") {
                Ok(_) => self.ready = None,
                Err(rustix::io::Errno::PIPE) => {
                    // Before the supervisor begins anything.
                    self.end_unready();
                    return Err("the launcher is gone".to_owned());
                }
                Err(e) => {
                    log(&format!("telling the launcher: {e}"));
                    self.ready = None;
                }
            }
        }
        if let Some(supervisor) = self.supervisor.as_mut() {
            supervisor.ready = true;
        }
        self.crashes = 0;
        self.previous_exe = None;
        Ok(())
    }

    /// Replaces this program. The new one answers; on failure we do.
    fn reexec(&mut self) {
        let error = match self.seal_executable() {
            Ok(()) => self.handover().exec(self.exe.as_fd()),
            Err(e) => e,
        };
        log(&format!("replacing the keeper: {error}"));
        let answer = Answer::Refused(error.to_string());
        if let Some(socket) = self.supervisor.as_ref().and_then(|s| s.socket.as_ref())
            && let Err(e) = send(socket, &answer, &[])
        {
            log(&format!("answer to the supervisor: {e}"));
        }
    }

    fn seal_executable(&mut self) -> io::Result<()> {
        if !is_sealed(self.exe.as_fd()) {
            self.exe = sealed_copy(self.exe.as_fd())?;
        }
        Ok(())
    }
}
