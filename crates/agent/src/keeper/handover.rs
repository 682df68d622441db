//! A keeper's whole state, which the launcher puts together, and which stands in a sealed memory file
//! when a keeper replaces itself without losing a descriptor or a child.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use minicbor::{Decode, Encode};
use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    io::{FdFlags, fcntl_setfd},
};

use super::wire::{ExitRecord, Label};
use crate::sys;

/// Name of the variable that tells a keeper where its state is.
const HANDOVER_ENV: &str = "OUTLIVE_HANDOVER_FD";
/// Version of this format. A keeper reads its own and older ones.
pub(super) const VERSION: u32 = 1;
/// `argv[0]` of a keeper.
pub const KEEPER_TITLE: &str = "outlive-keeper";

/// How the keeper stands to its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Place {
    /// PID 1 of its own pid namespace: when it goes, all goes.
    #[n(0)]
    Init,
    /// A subreaper beside other processes of the host.
    #[n(1)]
    Subreaper,
}

/// Everything a keeper needs to go on. Descriptors stand as numbers: they stay open over exec.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Handover {
    /// Format.
    #[n(0)]
    pub version: u32,
    /// The sandbox's id, for the title.
    #[n(1)]
    pub sandbox: String,
    /// How it stands.
    #[n(2)]
    pub place: Place,
    /// Executable of supervisors and later keepers.
    #[n(3)]
    pub exe: RawFd,
    /// The one before, until the new one proved itself.
    #[n(4)]
    pub previous_exe: Option<RawFd>,
    /// Where the launcher waits for one byte.
    #[n(5)]
    pub ready: Option<RawFd>,
    /// The file of exit records.
    #[n(6)]
    pub exits_file: RawFd,
    /// The store.
    #[n(7)]
    pub kept: Vec<(Label, RawFd)>,
    /// The records.
    #[n(8)]
    pub exits: Vec<ExitRecord>,
    /// The supervisor, when one runs.
    #[n(9)]
    pub supervisor: Option<SupervisorHandover>,
    /// Crashes of supervisors in a row that weren't ready.
    #[n(10)]
    pub crashes: u32,
    /// Supervisors started so far.
    #[n(11)]
    pub starts: u64,
    /// How often the keeper replaced itself.
    #[n(12)]
    pub reexecs: u32,
    /// The runtime ends.
    #[n(13)]
    pub leaving: bool,
    /// Process id of `sbx-init`, where there is one.
    #[n(14)]
    pub init_pid: Option<u32>,
}

/// A running supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct SupervisorHandover {
    /// Its id.
    #[n(0)]
    pub pid: u32,
    /// Our end of its socket; none when it closed its own.
    #[n(1)]
    pub socket: Option<RawFd>,
    /// It said that it serves.
    #[n(2)]
    pub ready: bool,
}

impl Handover {
    /// The state of a keeper that has just begun.
    pub fn new(sandbox: String, place: Place, exe: &OwnedFd, exits_file: &OwnedFd) -> Self {
        Self {
            version: VERSION,
            sandbox,
            place,
            exe: exe.as_raw_fd(),
            previous_exe: None,
            ready: None,
            exits_file: exits_file.as_raw_fd(),
            kept: Vec::new(),
            exits: Vec::new(),
            supervisor: None,
            crashes: 0,
            starts: 0,
            reexecs: 0,
            leaving: false,
            init_pid: None,
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let supervisor = self.supervisor.as_ref().and_then(|s| s.socket);
        [self.exe, self.exits_file]
            .into_iter()
            .chain(self.previous_exe)
            .chain(self.ready)
            .chain(supervisor)
            .chain(self.kept.iter().map(|(_, fd)| *fd))
    }

    /// Becomes a keeper with this state. Returns only on failure, with nothing changed.
    pub fn exec(&self, exe: BorrowedFd<'_>) -> io::Error {
        match self.try_exec(exe) {
            Ok(never) => match never {},
            Err(e) => e,
        }
    }

    fn try_exec(&self, exe: BorrowedFd<'_>) -> io::Result<std::convert::Infallible> {
        let bytes = minicbor::to_vec(self).map_err(io::Error::other)?;
        let memory = sealed_memory("outlive-handover", &bytes)?;
        let environment = CString::new(format!("{HANDOVER_ENV}={}", memory.as_raw_fd()))
            .map_err(io::Error::other)?;
        let title = CString::new(KEEPER_TITLE).map_err(io::Error::other)?;
        let sandbox = CString::new(self.sandbox.clone()).map_err(io::Error::other)?;
        self.set_close_on_exec(FdFlags::empty())?;
        fcntl_setfd(&memory, FdFlags::empty())?;
        let error = sys::exec_fd(exe, &[title, sandbox], &[environment]);
        self.set_close_on_exec(FdFlags::CLOEXEC)?;
        Err(error)
    }

    fn set_close_on_exec(&self, flags: FdFlags) -> io::Result<()> {
        for raw in self.descriptors() {
            fcntl_setfd(sys::borrow_fd(raw), flags)?;
        }
        Ok(())
    }

    /// Reads the state that this program was started with.
    pub(super) fn take() -> io::Result<Self> {
        let raw = std::env::var(HANDOVER_ENV).map_err(io::Error::other)?;
        let memory = sys::inherit_fd(raw.parse().map_err(io::Error::other)?)?;
        let length = usize::try_from(rustix::fs::fstat(&memory)?.st_size);
        let mut bytes = vec![0; length.map_err(io::Error::other)?];
        let mut at = 0;
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&memory, rest, at as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => at += n,
            }
        }
        let handover: Self = minicbor::decode(&bytes).map_err(io::Error::other)?;
        if handover.version > VERSION {
            return Err(io::Error::other(
                "the keeper before was newer than this one",
            ));
        }
        handover.set_close_on_exec(FdFlags::CLOEXEC)?;
        Ok(handover)
    }
}

/// A file in memory that nobody can change any more.
pub(crate) fn sealed_memory(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        at += rustix::io::pwrite(&memory, rest, at as u64)?;
    }
    seal(&memory)?;
    Ok(memory)
}

/// A copy of an executable in memory, so that nothing on disk is needed any more.
pub(crate) fn sealed_copy(exe: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let memory = memfd_create(
        "outlive-agent",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    let mut from = 0;
    while rustix::fs::sendfile(&memory, exe, Some(&mut from), 1 << 30)? > 0 {}
    let mut magic = [0; 4];
    if rustix::io::pread(&memory, &mut magic, 0)? != magic.len() || magic != *b"\x7fELF" {
        return Err(io::Error::other("not an ELF executable"));
    }
    seal(&memory)?;
    Ok(memory)
}

fn seal(memory: impl AsFd) -> io::Result<()> {
    fcntl_add_seals(
        memory,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    Ok(())
}

/// Whether this descriptor is a sealed file in memory.
pub(super) fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::WRITE))
}
