//! What a supervisor finds when it starts: its keeper, its configuration, and everything that
//! the supervisor before it left.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use outlive_api::launch::{Isolation, LaunchConfig, RuntimeKind};

use crate::{
    account::{Account, Credentials, UnknownName},
    keeper::{ExitRecord, KEEPER_FD_ENV, KeeperClient, KeeperError, Kept},
    process::{
        Attempt, Crowd, Pump, Spawner, cgroup::WorkloadCgroups, manner::Manner, recover,
        spawn::INNER_ROOT,
    },
    sys,
};

/// Name in the keeper of the launch configuration.
pub const CONFIG: &str = "launch/config";
/// Name in the keeper of the isolation that was reached.
pub const ISOLATION: &str = "launch/isolation";

/// Everything a supervisor starts with. The working directory is the state directory.
#[derive(Debug)]
pub struct Inheritance {
    /// The way to the keeper.
    pub keeper: KeeperClient,
    /// How the sandbox was launched.
    pub config: LaunchConfig,
    /// What was reached.
    pub isolation: Isolation,
    /// The workload's root, when it isn't ours.
    pub root: Option<OwnedFd>,
    /// Starts attempts.
    pub spawner: Spawner,
    /// Moves output.
    pub pump: Pump,
    /// The workload's control groups.
    pub cgroups: WorkloadCgroups,
    /// The workload where it has no control group.
    pub crowd: Crowd,
    /// Attempts of supervisors before this one, ordered by key.
    pub attempts: Vec<Attempt>,
    /// Everything else that was kept.
    pub others: Vec<Kept>,
    /// How processes ended that the keeper reaped, or a keeper before it.
    pub exits: Vec<ExitRecord>,
}

/// Why a supervisor can't start.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// It wasn't started by a keeper, or the system failed.
    #[error("taking over: {0}")]
    Io(#[from] io::Error),
    /// The keeper failed.
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    /// The keeper lacks what the launcher puts there.
    #[error("the keeper doesn't hold `{0}`")]
    Missing(&'static str),
}

/// Names and hides the process, and finds its keeper. Call it first in `main`.
pub fn keeper() -> Result<KeeperClient, InheritError> {
    sys::set_comm(c"outlive-supervis")?;
    sys::hide_memory()?;
    let raw = std::env::var(KEEPER_FD_ENV).map_err(io::Error::other)?;
    let socket = sys::inherit_fd(raw.parse().map_err(io::Error::other)?)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(io::Error::from)?;
    Ok(KeeperClient::new(socket)?)
}

impl Inheritance {
    /// Takes over what this keeper has.
    pub fn take(keeper: KeeperClient) -> Result<Self, InheritError> {
        // The keeper may still be on its way.
        let pump = Pump::start()?;
        let kept = keeper.get_all()?;
        let read = |name: &'static str| {
            let kept = kept.iter().find(|k| k.label.name == name);
            let kept = kept.ok_or(InheritError::Missing(name))?;
            read_memory(kept.fd.as_fd()).map_err(InheritError::from)
        };
        let config: LaunchConfig = minicbor::decode(&read(CONFIG)?).map_err(io::Error::other)?;
        let isolation = minicbor::decode(&read(ISOLATION)?).map_err(io::Error::other)?;
        let spawner = Spawner::start(keeper.clone(), &kept, Manner::of(&config))?;
        let cgroups = WorkloadCgroups::from_kept(&kept)?;
        let crowd = Crowd::from_kept(&kept)?;
        let exits = keeper.exits()?;
        let root = kept.iter().find(|k| k.label.name == INNER_ROOT);
        let root = root.map(|k| k.fd.try_clone()).transpose()?;
        let recovered = recover(kept);
        Ok(Self {
            pump,
            attempts: recovered.attempts,
            others: recovered.others,
            keeper,
            config,
            isolation,
            spawner,
            cgroups,
            crowd,
            exits,
            root,
        })
    }
}

impl Inheritance {
    /// Whom attempts run as that name nobody: the configured user, or nobody else than us.
    pub fn user(&self) -> Result<Option<Credentials>, UnknownName> {
        match self.config.runtime {
            RuntimeKind::Namespace => {
                let account = Account::find(self.root.as_ref(), &self.config.user)?;
                Ok(Some(account.credentials))
            }
            RuntimeKind::Process => Ok(None),
            RuntimeKind::TwoUid => Ok(self.config.ids.map(|ids| Credentials {
                uid: ids.workload(),
                gid: ids.workload(),
                groups: Vec::new(),
            })),
        }
    }
}

/// Reads a memory file from its start, whatever its position, which is shared.
fn read_memory(fd: std::os::fd::BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let length = usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(io::Error::other)?;
    let mut bytes = vec![0; length];
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd, rest, at as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => at += n,
        }
    }
    Ok(bytes)
}
