//! An independent client of WebSockets.

use futures_util::{SinkExt as _, StreamExt as _};
use outlive_core::id::SessionId;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _, protocol::CloseFrame},
};

use super::{World, fake::SANDBOX};

/// Connected to the world.
pub(super) struct Socket(pub(super) WebSocketStream<TcpStream>);

impl Socket {
    /// To a session.
    pub(super) async fn open(world: &World, session: &SessionId, query: &str) -> Self {
        Self::open_at(world, &format!("sessions/{session}/ws?{query}")).await
    }

    /// At an address of the sandbox.
    pub(super) async fn open_at(world: &World, rest: &str) -> Self {
        let stream = TcpStream::connect(world.address).await.unwrap();
        let path = format!("/api/v1/sandboxes/{SANDBOX}/{rest}");
        let request = format!("ws://{}{path}", world.address)
            .into_client_request()
            .unwrap();
        let (socket, response) = client_async(request, stream).await.unwrap();
        assert_eq!(response.status(), 101);
        Self(socket)
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, message: Value) {
        self.0
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }

    /// The next message; protocol frames are passed over.
    pub(super) async fn next(&mut self) -> Value {
        loop {
            match self.0.next().await.unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next message, which is an event.
    pub(super) async fn event(&mut self) -> Value {
        let message = self.next().await;
        assert_eq!(message["type"], "event", "{message}");
        message["event"].clone()
    }

    /// So many events.
    pub(super) async fn events(&mut self, count: usize) -> Vec<Value> {
        let mut out = Vec::new();
        while out.len() < count {
            out.push(self.event().await);
        }
        out
    }

    /// Sends nothing more, without a word.
    pub(super) async fn end_side(&mut self) {
        self.0.get_mut().shutdown().await.unwrap();
    }

    /// Everything until the end: how many messages, and the close frame.
    pub(super) async fn close(mut self) -> (usize, CloseFrame) {
        let mut messages = 0;
        loop {
            match self.0.next().await {
                Some(Ok(Message::Close(Some(frame)))) => return (messages, frame),
                Some(Ok(Message::Text(_))) => messages += 1,
                Some(Ok(_)) => {}
                end => panic!("no close frame, but {end:?}"),
            }
        }
    }
}

/// Holds everything that is asked from now on.
pub(super) async fn hold(world: &World, socket: &mut Socket) {
    world.sandbox.hold_signals.send_replace(true);
    socket
        .send(json!({"type": "signal", "request_id": "held", "signal": "CONT"}))
        .await;
    world.sandbox.held.notified().await;
}
