//! The accept loop: connections with bounds, and an end that doesn't wait for open streams.

use std::{io, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::net::sockopt::set_tcp_user_timeout;
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    http::stall::StallIo,
    limits::{
        CONNECTIONS_MAX, HEAD_READ_MAX, HEADERS_READ_MAX, PEER_SILENCE_MAX, STALL_MAX,
        UNSENT_BYTES_MAX,
    },
};

/// Accepts until `stop`; connections are tracked by `connections` and end soon after `stop`.
pub(crate) async fn accept(
    listener: TcpListener,
    app: Router,
    stop: CancellationToken,
    connections: TaskTracker,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => return,
        };
        match (place, accepted) {
            (Ok(place), Ok((stream, _peer))) => {
                connections.spawn(serve(stream, app.clone(), stop.clone(), place));
            }
            (Err(_closed), _) => return,
            (Ok(_), Err(error)) => {
                if !is_of_one_connection(&error) {
                    // Most likely too many open files: give connections time to end.
                    tracing::error!(%error, "no connection can be accepted");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn serve(
    stream: TcpStream,
    app: Router,
    stop: CancellationToken,
    place: OwnedSemaphorePermit,
) {
    // One of its own: looking at the server's takes a lock that all connections would share.
    let stop = stop.child_token();
    if let Err(error) = settle(&stream) {
        tracing::debug!(%error, "a connection is gone already");
        return;
    }
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_MAX)
        .max_headers(HEADERS_READ_MAX);
    let io = TokioIo::new(StallIo::new(stream, STALL_MAX));
    let connection = builder
        .serve_connection(io, TowerToHyperService::new(app))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
    drop(place);
}

/// Small answers leave at once; what was written to a peer that vanished is not tried again for a
/// quarter of an hour; and a slow peer is seen to take what it takes. The kernel's own buffer grows
/// to megabytes, and only a third of it that is free again counts as room.
fn settle(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    let silence_ms = u32::try_from(PEER_SILENCE_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(set_tcp_user_timeout(stream, silence_ms)?)
}

fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::tcp_user_timeout;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::{Instant, timeout},
    };

    use super::*;

    /// Our end of a connection, settled, and the peer's.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        settle(&stream).unwrap();
        (stream, client.unwrap())
    }

    // The kernel tried for a quarter of an hour to bring its last bytes to a client whose machine
    // was gone, and its attachment counted as long.
    #[tokio::test]
    async fn the_kernel_gives_a_silent_peer_up_in_time() {
        let (stream, _client) = connection().await;
        let silence = Duration::from_millis(tcp_user_timeout(&stream).unwrap().into());
        assert_eq!(silence, PEER_SILENCE_MAX);
        assert!(stream.nodelay().unwrap());
    }

    // Who connected and said nothing held a place for ever.
    #[tokio::test(start_paused = true)]
    async fn who_connects_and_says_nothing_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let serving = tasks.spawn(accept(listener, Router::new(), stop.clone(), tasks.clone()));
        for said in ["", "GET / HTTP/1.1\r\n"] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(said.as_bytes()).await.unwrap();
            let begun = Instant::now();
            client.read_to_end(&mut Vec::new()).await.unwrap();
            assert!(begun.elapsed() >= HEAD_READ_MAX && begun.elapsed() < 2 * HEAD_READ_MAX);
        }
        stop.cancel();
        serving.await.unwrap();
        tasks.close();
        tasks.wait().await;
    }

    // Whoever read 15 KB a second was cut off: a megabyte had to go before that was seen.
    #[tokio::test]
    async fn a_slow_reader_is_seen_to_read() {
        let (stream, client) = connection().await;
        let block = vec![0; 1 << 20];
        let mut unread = 0;
        // The kernel goes on handing over for a moment after its buffer is full.
        while let Ok(room) = timeout(Duration::from_millis(200), stream.writable()).await {
            room.unwrap();
            match stream.try_write(&block) {
                Ok(count) => unread += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        let mut read = 0;
        let mut room = std::pin::pin!(stream.writable());
        let mut buffer = vec![0; 16 << 10];
        while timeout(Duration::from_millis(20), &mut room).await.is_err() {
            client.readable().await.unwrap();
            read += client.try_read(&mut buffer).unwrap();
            assert!(
                read < 512 << 10,
                "{read} of {unread} bytes, and it counts for nothing"
            );
        }
    }
}
