//! The dialect over a real socket, a real journal and the real session machine.

mod calls;
mod contexts;
pub(crate) mod fake;
mod order;
mod reading;
mod socket;
mod sockets;
mod streams;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, extract::Request, http::HeaderValue, middleware::from_fn,
    response::IntoResponse as _,
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Response, body::Incoming};
use hyper_util::rt::TokioIo;
use outlive_api::keys::Role;
use outlive_core::id::SessionId;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use self::fake::{FakeSandbox, FakeSandboxes, SANDBOX};
use super::{Supervised, router};
use crate::{listen::accept, metrics::Metrics, sessions::Caller};

/// A server with one sandbox.
struct World {
    sandbox: Arc<FakeSandbox>,
    address: SocketAddr,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    revoked: CancellationToken,
    tasks: TaskTracker,
    _stop_at_end: DropGuard,
}

impl World {
    async fn new() -> Self {
        let sandbox = FakeSandbox::new();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let revoked = CancellationToken::new();
        let metrics = Arc::<Metrics>::default();
        let supervised = Supervised::new(
            Arc::new(FakeSandboxes(Arc::clone(&sandbox))),
            Arc::clone(&metrics),
            stop.clone(),
            tasks.clone(),
        );
        let caller = Caller {
            owner: "me".into(),
            role: Role::Member,
            key_id: "key-1".into(),
            revoked: revoked.clone(),
        };
        let app = router::<()>(supervised)
            .layer(from_fn(
                move |mut request: Request, next: axum::middleware::Next| {
                    let mut caller = caller.clone();
                    match request.headers().get("x-as").map(HeaderValue::as_bytes) {
                        Some(b"reader") => caller.role = Role::ReadOnly,
                        Some(b"stranger") => caller.owner = "stranger".into(),
                        _ => {}
                    }
                    request.extensions_mut().insert(caller);
                    async move { next.run(request).await.into_response() }
                },
            ))
            .layer(Extension(()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks.spawn(accept(listener, app, stop.clone(), tasks.clone()));
        Self {
            sandbox,
            address,
            metrics,
            _stop_at_end: stop.clone().drop_guard(),
            stop,
            revoked,
            tasks,
        }
    }

    /// One request on a connection of its own. Its path continues that of the sessions; after
    /// `/../` it continues that of the sandbox.
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        self.tasks.spawn(async move {
            // A connection that is cut under the test shows in what the test reads.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a test's connection ended");
            }
        });
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(match path.strip_prefix("/../") {
                Some(other) => format!("/api/v1/sandboxes/{SANDBOX}/{other}"),
                None => format!("/api/v1/sandboxes/{SANDBOX}/sessions{path}"),
            })
            .header("host", self.address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        sender.send_request(request).await.unwrap()
    }

    /// A request with JSON, and its answer as status and JSON.
    async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.call_with(method, path, &[], body).await
    }

    async fn call_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> (u16, Value) {
        let response = self.send(method, path, headers, body).await;
        let status = response.status().as_u16();
        assert_eq!(
            response.headers()["content-type"],
            "application/json",
            "{method} {path}"
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    /// A session whose child is `cat`.
    async fn cat(&self) -> SessionId {
        self.session(json!({"command": ["/bin/cat"]})).await
    }

    async fn session(&self, spec: Value) -> SessionId {
        let (status, answer) = self.call("POST", "", spec).await;
        assert_eq!(status, 201, "{answer}");
        SessionId::parse(answer["data"]["id"].as_str().unwrap()).unwrap()
    }

    /// Returns once nobody is attached.
    async fn until_detached(&self) {
        let detached = async {
            while self.metrics.attachments.get() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), detached)
            .await
            .unwrap();
    }

    /// All events of a page.
    async fn page(&self, session: &SessionId, query: &str) -> Vec<Value> {
        let path = format!("/{session}/events?{query}");
        let (status, answer) = self.call("GET", &path, Value::Null).await;
        assert_eq!(status, 200, "{answer}");
        answer["data"]["events"].as_array().unwrap().clone()
    }
}

/// The numbers of events.
fn seqs(events: &[Value]) -> Vec<u64> {
    events
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect()
}

/// The types of events.
fn types(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect()
}
