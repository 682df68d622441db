//! A WebSocket to a session. A close before the command's exit is a broken connection, whatever
//! its code says; it is never an exit.

use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async_with_config,
    tungstenite::{
        self, Message,
        client::IntoClientRequest,
        http::{HeaderValue, header::AUTHORIZATION},
        protocol::WebSocketConfig,
    },
};

use crate::{
    client::Client,
    error::{Failure, Result},
    limits::{CONNECT_TIMEOUT, STREAM_LINE_BYTES_MAX, STREAM_SILENCE_MAX},
};

/// An open connection.
pub struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Socket")
    }
}

impl Socket {
    /// Opens a connection that replays what came after `after`.
    pub async fn open(client: &Client, path: &str, after: u64) -> Result<Self> {
        let url = client.url();
        let base = url.strip_prefix("http").ok_or_else(|| {
            Failure::usage(format!(
                "`{url}` is no URL; write http://HOST:PORT or https://HOST"
            ))
        })?;
        let mut request = format!("ws{base}{path}?after={after}")
            .into_client_request()
            .map_err(|error| transport(&error))?;
        if let Some(token) = client.token() {
            let value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| Failure::usage("the key holds characters that no key has"))?;
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let config = WebSocketConfig::default()
            .read_buffer_size(8 * 1024)
            .max_message_size(Some(STREAM_LINE_BYTES_MAX));
        let connect = connect_async_with_config(request, Some(config), true);
        match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
            Err(_) => Err(Failure::new(
                "transport",
                "no answer to the WebSocket's handshake",
            )),
            Ok(Err(tungstenite::Error::Http(answer))) => {
                let status = answer.status();
                let body = answer.body().clone().unwrap_or_default();
                Err(client.refusal(status, answer.headers(), &body, path))
            }
            Ok(Err(error)) => Err(transport(&error)),
            Ok(Ok((socket, _))) => Ok(Self(socket)),
        }
    }

    /// Sends a message.
    pub async fn send(&mut self, message: &Value) -> Result<()> {
        self.0
            .send(Message::Text(message.to_string().into()))
            .await
            .map_err(|error| transport(&error))
    }

    /// Waits for the next text. May be dropped while it waits without losing anything.
    pub async fn receive(&mut self) -> Result<String> {
        loop {
            let message = match tokio::time::timeout(STREAM_SILENCE_MAX, self.0.next()).await {
                Err(_) => return Err(Failure::new("transport", "the connection fell silent")),
                Ok(None) => return Err(Failure::new("transport", "the connection ended")),
                Ok(Some(message)) => message.map_err(|error| transport(&error))?,
            };
            match message {
                Message::Text(text) => return Ok(text.as_str().to_owned()),
                Message::Binary(bytes) => {
                    return String::from_utf8(bytes.into())
                        .map_err(|_| Failure::protocol("a message is not UTF-8"));
                }
                Message::Close(frame) => {
                    let why = frame.map_or_else(String::new, |frame| {
                        format!(" ({} {})", u16::from(frame.code), frame.reason)
                    });
                    return Err(Failure::new(
                        "transport",
                        format!("the server closed the connection{why}"),
                    ));
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

fn transport(error: &tungstenite::Error) -> Failure {
    Failure::transport("talk to the server over WebSocket", error)
}
