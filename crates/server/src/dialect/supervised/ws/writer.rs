//! The writing half of a socket, watched byte by byte.
//!
//! A write that places nothing for [`STALL_MAX`] means that the peer is too slow. It is told so
//! with a close frame once the frame under way has passed, if that still happens within
//! [`LINGER_MAX`]; nothing of the session waits meanwhile.

use std::{io, task::Poll};

use futures_util::poll;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    time::{Instant, timeout, timeout_at},
};

use super::{frame::Close, reading::Peer};
use crate::limits::{LINGER_MAX, PONG_MAX, STALL_MAX};

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
    /// When the peer last took something that had waited for it.
    taken_at: Option<Instant>,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Over a socket.
    pub(in super::super) const fn new(socket: W) -> Self {
        Self {
            socket,
            taken_at: None,
        }
    }

    /// Whether the peer shows no sign of life: it is not heard, and takes nothing.
    pub(in super::super) fn is_gone(&self, peer: &Peer) -> bool {
        peer.is_silent() && !self.is_taking()
    }

    /// Whether the peer took something lately that had waited for it: then it lives, though its
    /// answers wait behind what it has yet to read.
    fn is_taking(&self) -> bool {
        self.taken_at.is_some_and(|at| at.elapsed() < PONG_MAX)
    }

    /// Writes all of it, however slowly, as long as it goes on.
    pub(in super::super) async fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            let mut write = std::pin::pin!(self.socket.write(rest));
            let (wrote, waited) = match poll!(&mut write) {
                Poll::Ready(wrote) => (Ok(wrote), false),
                Poll::Pending => (timeout(STALL_MAX, write).await, true),
            };
            match wrote {
                Ok(Ok(0) | Err(_)) => return Err(WriteError::Gone),
                Ok(Ok(count)) => written += count,
                Err(_elapsed) => return Err(WriteError::Stalled(written)),
            }
            if waited {
                self.taken_at = Some(Instant::now());
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

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, time::sleep};

    use super::*;

    // A client that read slowly was cut off for its answers to pings, which waited behind a megabyte
    // that it had yet to read.
    #[tokio::test(start_paused = true)]
    async fn a_peer_lives_as_long_as_it_takes_what_waits_for_it() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut writer = Writer::new(ours);
        writer.write(&[7; 16]).await.unwrap();
        assert!(!writer.is_taking(), "nothing had to wait");
        let slow = async {
            sleep(STALL_MAX / 2).await;
            theirs.read_exact(&mut [0; 16]).await.unwrap();
        };
        let (written, ()) = tokio::join!(writer.write(&[7; 16]), slow);
        written.unwrap();
        assert!(writer.is_taking());
        sleep(PONG_MAX).await;
        assert!(!writer.is_taking());
    }
}
