//! How a launcher, and whoever else works on what it made, is told what to do.

use std::{
    io::{self, IoSliceMut, Read as _},
    mem::MaybeUninit,
    os::fd::OwnedFd,
};

use anyhow::Context as _;
use minicbor::Decode;
use outlive_api::launch::LaunchConfig;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Standard input, whole.
pub(super) fn read<T: for<'b> Decode<'b, ()>>() -> anyhow::Result<T> {
    decode(Vec::new())
}

/// Waits for a server to say it over a socket, which is the standard input. The log that standard
/// error is led to from then on comes with the first byte. Nothing: it went without a word.
pub(super) fn wait() -> anyhow::Result<Option<LaunchConfig>> {
    let mut bytes = vec![0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        rustix::stdio::stdin(),
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let log = control.drain().find_map(log_in);
    rustix::stdio::dup2_stderr(log.context("no log came along")?)?;
    bytes.truncate(received.bytes);
    decode(bytes).map(Some)
}

fn log_in(message: RecvAncillaryMessage<'_>) -> Option<OwnedFd> {
    match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }
}

/// What was said so far, and the rest of it.
fn decode<T: for<'b> Decode<'b, ()>>(mut bytes: Vec<u8>) -> anyhow::Result<T> {
    let mut stdin = io::stdin().take(MESSAGE_BYTES_MAX);
    stdin.read_to_end(&mut bytes)?;
    Ok(minicbor::decode(&bytes)?)
}
