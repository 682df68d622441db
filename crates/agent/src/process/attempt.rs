//! An attempt as a bundle of descriptors, and how it is found again in the keeper.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use outlive_core::{event::Stream, id::SessionId};

use super::{cgroup::AttemptCgroup, spawn::ExecStatus};
use crate::{
    keeper::{KeeperClient, KeeperError, Kept, Label},
    log, sys,
};

/// Which attempt of which session.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey {
    /// The session.
    pub session: SessionId,
    /// 1 for its first attempt.
    pub number: u32,
}

impl fmt::Display for AttemptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.session, self.number)
    }
}

/// The descriptors of an attempt, by the last part of their name in the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Pidfd,
    Stdin,
    Stdout,
    Stderr,
    Master,
    SpillRead,
    SpillWrite,
    Status,
    Cgroup,
    CgroupMemory,
}

impl Part {
    const ALL: [Self; 10] = [
        Self::Pidfd,
        Self::Stdin,
        Self::Stdout,
        Self::Stderr,
        Self::Master,
        Self::SpillRead,
        Self::SpillWrite,
        Self::Status,
        Self::Cgroup,
        Self::CgroupMemory,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Pidfd => "pid",
            Self::Stdin => "stdin",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Master => "tty",
            Self::SpillRead => "spill-read",
            Self::SpillWrite => "spill-write",
            Self::Status => "status",
            Self::Cgroup => "cgroup",
            Self::CgroupMemory => "cgroup-memory",
        }
    }
}

impl AttemptKey {
    pub(super) fn name(&self, part: Part) -> String {
        format!("{self}/{}", part.text())
    }

    fn parse(name: &str) -> Option<(Self, Part)> {
        let mut fields = name.split('/');
        let session = SessionId::parse(fields.next()?).ok()?;
        let number = fields.next()?.parse().ok()?;
        let text = fields.next()?;
        let part = Part::ALL.into_iter().find(|p| p.text() == text)?;
        (fields.next().is_none()).then_some((Self { session, number }, part))
    }
}

/// Where output comes from, as the pump wants it.
#[derive(Debug)]
pub enum Source {
    /// The read end of a pipe.
    Pipe {
        /// Which stream it is.
        stream: Stream,
        /// The read end.
        pipe: OwnedFd,
    },
    /// A terminal's master, and the pipe through which its bytes reach a file.
    Terminal {
        /// The master, shared with whoever writes to it.
        master: Arc<OwnedFd>,
        /// Read end of the spill pipe.
        spill_read: OwnedFd,
        /// Write end of it.
        spill_write: OwnedFd,
    },
}

/// One process that was started for a session, and everything that belongs to it.
#[derive(Debug)]
pub struct Attempt {
    /// Which.
    pub key: AttemptKey,
    /// Its id as seen inside the sandbox, for people.
    pub pid: u32,
    /// Its id as the agent counts. Never used to signal: that is what `pidfd` is for.
    pub outer_pid: u32,
    /// The process itself; readable once it ended.
    pub pidfd: Arc<OwnedFd>,
    /// Where input goes: the write end of a pipe, non-blocking. Terminals take it by `terminal`.
    pub stdin: Option<OwnedFd>,
    /// The terminal's master, non-blocking.
    pub terminal: Option<Arc<OwnedFd>>,
    /// Where output comes from; taken by the pump.
    pub sources: Vec<Source>,
    /// Tells whether the program was reached.
    pub exec_status: ExecStatus,
    /// Its processes.
    pub cgroup: AttemptCgroup,
}

impl Attempt {
    /// Has the keeper keep copies of all descriptors.
    pub(super) fn keep(&self, keeper: &KeeperClient) -> Result<(), KeeperError> {
        let mut parts: Vec<(Part, BorrowedFd<'_>)> = vec![
            (Part::Pidfd, self.pidfd.as_fd()),
            (Part::Status, self.exec_status.as_fd()),
        ];
        parts.extend(self.stdin.as_ref().map(|fd| (Part::Stdin, fd.as_fd())));
        for source in &self.sources {
            match source {
                Source::Pipe { stream, pipe } => {
                    let part = match stream {
                        Stream::Stderr => Part::Stderr,
                        Stream::Stdout | Stream::Pty => Part::Stdout,
                    };
                    parts.push((part, pipe.as_fd()));
                }
                Source::Terminal {
                    master,
                    spill_read,
                    spill_write,
                } => parts.extend([
                    (Part::Master, master.as_fd()),
                    (Part::SpillRead, spill_read.as_fd()),
                    (Part::SpillWrite, spill_write.as_fd()),
                ]),
            }
        }
        let (unified, memory) = self.cgroup.dirs();
        parts.extend(unified.map(|fd| (Part::Cgroup, fd)));
        parts.extend(memory.map(|fd| (Part::CgroupMemory, fd)));
        let items: Vec<_> = parts
            .into_iter()
            .map(|(part, fd)| (self.label(part), fd))
            .collect();
        keeper.put(&items)
    }

    fn label(&self, part: Part) -> Label {
        let (pid, note) = match part {
            Part::Pidfd => (self.outer_pid, u64::from(self.pid)),
            _ => (0, 0),
        };
        Label {
            name: self.key.name(part),
            pid,
            note,
        }
    }

    /// Has the keeper forget everything of this attempt, its exit record included.
    ///
    /// Last step of an attempt's life: its end is on disk by then.
    pub fn forget(&self, keeper: &KeeperClient) -> Result<(), KeeperError> {
        keeper.del(&Part::ALL.map(|part| self.key.name(part)))
    }

    /// Kills what nobody owns: the way out when a start or a takeover fails half-way.
    pub fn abandon(&self) {
        if let Err(error) = self.cgroup.kill_tree(self.outer_pid) {
            log::warn(format_args!(
                "{}: its tree is not killed: {error}",
                self.key
            ));
        }
        // Without a group it is found only once it leads a session of its own.
        match sys::pidfd_signal(self.pidfd.as_fd(), 9) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {} // It is gone.
            Err(error) => log::warn(format_args!("{}: it is not killed: {error}", self.key)),
        }
    }

    /// Has the keeper close its copy of the input, after ours was closed: end of file.
    ///
    /// Journal the intent first, and do it again when taking over.
    pub fn close_input(&mut self, keeper: &KeeperClient) -> Result<(), KeeperError> {
        drop(self.stdin.take());
        keeper.del(&[self.key.name(Part::Stdin)])
    }

    /// Has the keeper close its copies of the terminal, after the pump gave up its own:
    /// hangup, once `terminal` is dropped too.
    pub fn close_terminal(&mut self, keeper: &KeeperClient) -> Result<(), KeeperError> {
        drop(self.terminal.take());
        keeper.del(&[Part::Master, Part::SpillRead, Part::SpillWrite].map(|p| self.key.name(p)))
    }
}

impl AttemptKey {
    /// Has the keeper close its copies of the output's pipes, once nobody writes to them any more.
    pub fn close_output(&self, keeper: &KeeperClient) -> Result<(), KeeperError> {
        keeper.del(&[Part::Stdout, Part::Stderr].map(|p| self.name(p)))
    }
}

/// What a supervisor finds of the one before it.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Attempts whose process was made, running or not, ordered by key.
    pub attempts: Vec<Attempt>,
    /// Everything else that was kept.
    pub others: Vec<Kept>,
}

/// Puts attempts together again from what the keeper kept.
pub fn recover(kept: Vec<Kept>) -> Recovered {
    let mut parts: BTreeMap<AttemptKey, BTreeMap<Part, Kept>> = BTreeMap::new();
    let mut others = Vec::new();
    for item in kept {
        match AttemptKey::parse(&item.label.name) {
            Some((key, part)) => {
                parts.entry(key).or_default().insert(part, item);
            }
            None => others.push(item),
        }
    }
    let attempts = parts
        .into_iter()
        .filter_map(|(key, parts)| assemble(key, parts))
        .collect();
    Recovered { attempts, others }
}

/// `None` when the process itself isn't there: then the keeper never had the attempt whole.
fn assemble(key: AttemptKey, mut parts: BTreeMap<Part, Kept>) -> Option<Attempt> {
    let pidfd = parts.remove(&Part::Pidfd)?;
    let mut take = |part| parts.remove(&part).map(|kept| kept.fd);
    let mut sources = Vec::new();
    for (part, stream) in [
        (Part::Stdout, Stream::Stdout),
        (Part::Stderr, Stream::Stderr),
    ] {
        sources.extend(take(part).map(|pipe| Source::Pipe { stream, pipe }));
    }
    let terminal = take(Part::Master).map(Arc::new);
    if let (Some(master), Some(spill_read), Some(spill_write)) =
        (&terminal, take(Part::SpillRead), take(Part::SpillWrite))
    {
        sources.push(Source::Terminal {
            master: Arc::clone(master),
            spill_read,
            spill_write,
        });
    }
    Some(Attempt {
        pid: u32::try_from(pidfd.label.note).unwrap_or(0),
        outer_pid: pidfd.label.pid,
        pidfd: Arc::new(pidfd.fd),
        stdin: take(Part::Stdin),
        terminal,
        sources,
        exec_status: ExecStatus::new(take(Part::Status)?),
        cgroup: AttemptCgroup::recovered(&key, take(Part::Cgroup), take(Part::CgroupMemory)),
        key,
    })
}
