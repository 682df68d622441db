//! A socket that ends when its peer takes nothing any more.
//!
//! A stream of events never waits for its reader, but the connection that carries it does: its
//! buffers stay full for as long as the peer pleases. [`StallIo`] wraps the accepted socket; a
//! write that can't place a single byte for the whole limit fails, and the connection with it. A
//! peer that takes one byte now and then is never cut.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// An accepted socket whose writes may stall for a limited time only.
#[derive(Debug)]
pub struct StallIo<T> {
    inner: T,
    stall_max: Duration,
    /// Runs while a write is blocked.
    blocked: Option<Pin<Box<Sleep>>>,
}

impl<T> StallIo<T> {
    /// Fails writes that make no progress for `stall_max`.
    pub const fn new(inner: T, stall_max: Duration) -> Self {
        Self {
            inner,
            stall_max,
            blocked: None,
        }
    }

    /// The socket itself, for those who watch over it in their own way.
    pub fn into_inner(self) -> T {
        self.inner
    }

    fn watch<R>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if poll.is_ready() {
            self.blocked = None;
            return poll;
        }
        let stall_max = self.stall_max;
        let blocked = self
            .blocked
            .get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(blocked.as_mut().poll(cx));
        // Whoever polls again after the error gets a fresh limit instead of a finished timer.
        blocked.as_mut().reset(Instant::now() + stall_max);
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the peer takes nothing",
        )))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for StallIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for StallIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.watch(cx, poll)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let poll = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.watch(cx, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const STALL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_cut_and_a_slow_one_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = StallIo::new(ours, STALL);
        let slow = async {
            let mut byte = [0];
            for _ in 0..8 {
                tokio::time::advance(STALL.mul_f32(0.9)).await;
                theirs.read_exact(&mut byte).await.unwrap();
            }
            theirs
        };
        let (written, theirs) = tokio::join!(ours.write_all(&[7; 24]), slow);
        written.unwrap();
        let began = Instant::now();
        let error = ours.write_all(&[7; 24]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= STALL && began.elapsed() < STALL * 2);
        drop(theirs);
    }
}
