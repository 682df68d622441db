//! The writing half of a socket, watched byte by byte.
//!
//! A write that places nothing for [`STALL_MAX`] means that the peer is too slow. It is told so
//! with a close frame once the frame under way has passed, if that still happens within
//! [`LINGER_MAX`]; nothing of the session waits meanwhile.

use std::io;

use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    time::{Instant, timeout, timeout_at},
};

use super::frame::Close;
use crate::limits::{LINGER_MAX, STALL_MAX};

/// Why a write did not end well.
#[derive(Debug)]
pub(in super::super) enum WriteError {
    /// The peer is gone.
    Gone,
    /// The peer takes nothing; this many bytes were placed before that.
    Stalled(usize),
}

/// See the module.
#[derive(Debug)]
pub(in super::super) struct Writer<W> {
    socket: W,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Over a socket.
    pub(in super::super) const fn new(socket: W) -> Self {
        Self { socket }
    }

    /// Writes all of it, however slowly, as long as it goes on.
    pub(in super::super) async fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match timeout(STALL_MAX, self.socket.write(rest)).await {
                Ok(Ok(0) | Err(_)) => return Err(WriteError::Gone),
                Ok(Ok(count)) => written += count,
                Err(_elapsed) => return Err(WriteError::Stalled(written)),
            }
        }
        Ok(())
    }

    /// Says goodbye: what is left of the frame under way, then the close frame.
    pub(in super::super) async fn close(&mut self, rest: &[u8], close: &Close) -> io::Result<()> {
        let mut bytes = rest.to_vec();
        close.append(&mut bytes);
        let deadline = Instant::now() + LINGER_MAX;
        let goodbye = async {
            self.socket.write_all(&bytes).await?;
            self.socket.shutdown().await
        };
        timeout_at(deadline, goodbye)
            .await
            .unwrap_or_else(|elapsed| Err(elapsed.into()))
    }
}
