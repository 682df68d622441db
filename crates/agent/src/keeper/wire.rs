//! What keeper and supervisor say to each other: one CBOR message a packet of a seqpacket
//! socket, descriptors beside it. The supervisor asks, the keeper answers, one at a time.

use std::{
    io,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use minicbor::{Decode, Encode};
use outlive_core::event::{ExitStatus, Rusage};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::limits::{KEEPER_BATCH_MAX, KEEPER_MESSAGE_BYTES_MAX};

/// What a kept descriptor is called.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Label {
    /// Its name; a second `Put` under one name replaces the first.
    #[n(0)]
    pub name: String,
    /// For the pidfd of a process: its id as the keeper counts. When the keeper reaps it, its
    /// exit record carries this label's name. 0 for everything else.
    #[n(1)]
    pub pid: u32,
    /// Whatever the supervisor wants to find again.
    #[n(2)]
    pub note: u64,
}

/// The supervisor's side.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) enum Ask {
    /// Keep these; as many descriptors come along. All or none. Answer: `Done`.
    #[n(0)]
    Put(#[n(0)] Vec<Label>),
    /// Copies of all, from this position of the store. Answer: `Page`.
    #[n(1)]
    Get {
        /// 0, or the `next` of the page before.
        #[n(0)]
        from: u32,
    },
    /// Close these; unknown names are fine. Their exit records go too. Answer: `Done`.
    #[n(2)]
    Del(#[n(0)] Vec<String>),
    /// Exit records of processes that the keeper had to reap. Answer: `Exits`.
    #[n(3)]
    Exits {
        /// 0, or the `next` of the page before.
        #[n(0)]
        from: u32,
    },
    /// The supervisor serves. Answer: `Done`.
    #[n(4)]
    Ready,
    /// Start later supervisors from the executable that comes along. Answer: `Done`.
    #[n(5)]
    Upgrade,
    /// The keeper replaces itself by the newest executable. Answer: `Done`, from the new one.
    #[n(6)]
    Reexec {
        /// Newest version of a handover that the new one reads; who asks runs the same executable.
        #[n(0)]
        reads: u32,
    },
    /// The runtime ends: once this supervisor left, the keeper leaves. Answer: `Done`.
    #[n(7)]
    Leave,
    /// Answer: `Status`.
    #[n(8)]
    Status,
}

/// The keeper's side.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub(super) enum Answer {
    /// It is done.
    #[n(0)]
    Done,
    /// Labels of the descriptors that come along, in their order.
    #[n(1)]
    Page {
        /// The labels.
        #[n(0)]
        labels: Vec<Label>,
        /// Where the next page starts.
        #[n(1)]
        next: Option<u32>,
    },
    /// Exit records, oldest first.
    #[n(2)]
    Exits {
        /// The records.
        #[n(0)]
        records: Vec<ExitRecord>,
        /// Where the next page starts.
        #[n(1)]
        next: Option<u32>,
    },
    /// Nothing changed; why.
    #[n(3)]
    Refused(#[n(0)] String),
    /// State of the keeper.
    #[n(4)]
    Status(#[n(0)] KeeperStatus),
}

/// State of the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Encode, Decode)]
pub struct KeeperStatus {
    /// Kept descriptors.
    #[n(0)]
    pub kept: u32,
    /// How often a supervisor was started.
    #[n(1)]
    pub supervisor_starts: u64,
    /// How often the keeper replaced itself.
    #[n(2)]
    pub reexecs: u32,
    /// Whether the keeper still runs an older executable than the one it starts supervisors from.
    #[n(3)]
    #[cbor(default)]
    pub outdated: bool,
}

/// How a process ended that the keeper reaped.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct ExitRecord {
    /// Name of its kept pidfd.
    #[n(0)]
    pub name: String,
    /// Its id as the keeper counts.
    #[n(1)]
    pub pid: u32,
    /// When it started, clock ticks since boot.
    #[n(2)]
    pub start_ticks: u64,
    /// How it ended.
    #[n(3)]
    pub status: ExitStatus,
    /// What it used.
    #[n(4)]
    pub rusage: Rusage,
    /// When the keeper saw it, nanoseconds since 1970.
    #[n(5)]
    pub at_ns: i64,
}

/// Sends one message with descriptors.
pub(super) fn send<M: Encode<()>>(
    socket: impl AsFd,
    message: &M,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = minicbor::to_vec(message).map_err(io::Error::other)?;
    if bytes.len() > KEEPER_MESSAGE_BYTES_MAX || fds.len() > KEEPER_BATCH_MAX {
        return Err(io::Error::other(
            "message to or from the keeper is too long",
        ));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KEEPER_BATCH_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    loop {
        match sendmsg(
            &socket,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Receives one message with its descriptors; `None` when the other side is gone.
pub(super) fn receive<M: for<'b> Decode<'b, ()>>(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KEEPER_BATCH_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            &socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(io::Error::other("message of the keeper's socket was cut"));
    }
    let bytes = buffer.get(..received.bytes).unwrap_or_default();
    let message = minicbor::decode(bytes).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}
