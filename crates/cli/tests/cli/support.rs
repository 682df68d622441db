//! What the tests of the command line share: the program itself, and a server that does exactly
//! what a test tells it to.
#![expect(
    clippy::disallowed_methods,
    reason = "a test's tasks end with its runtime"
)]

use std::{
    collections::BTreeMap,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    task::JoinHandle,
};

/// Longest time any step of a test may take; reaching it fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// The program with an environment of its own.
pub(crate) struct Outlive {
    home: TempDir,
    env: BTreeMap<String, String>,
}

/// What a run of the program left.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| panic!("no exit code: {self:?}"))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }
}

impl Outlive {
    /// Talks to this server.
    pub(crate) fn new(url: &str) -> Self {
        let mut this = Self::without_server();
        this.set("OUTLIVE_URL", url);
        this.set("OUTLIVE_TOKEN", "a-key");
        this
    }

    /// Knows no server.
    pub(crate) fn without_server() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut this = Self {
            home,
            env: BTreeMap::new(),
        };
        let home = this.home.path().to_str().unwrap().to_owned();
        this.set("HOME", &home);
        this.set("OUTLIVE_DATA", &format!("{home}/data"));
        this
    }

    pub(crate) fn home(&self) -> &std::path::Path {
        self.home.path()
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) {
        self.env.insert(key.to_owned(), value.to_owned());
    }

    pub(crate) fn command<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(
        &self,
        args: I,
    ) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_outlive"));
        command.args(args);
        command
    }

    /// Another program in the same environment.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command line, words separated by spaces.
    pub(crate) async fn run(&self, line: &str) -> Done {
        self.args(line.split_whitespace()).await
    }

    pub(crate) async fn args<I: IntoIterator<Item = S>, S: AsRef<std::ffi::OsStr>>(
        &self,
        args: I,
    ) -> Done {
        finish(self.command(args).spawn().unwrap()).await
    }
}

/// Waits for a run to end.
pub(crate) async fn finish(child: Child) -> Done {
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output())
        .await
        .expect("the program did not end")
        .unwrap();
    Done {
        status: output.status,
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path with query.
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn is(&self, method: &str, end: &str) -> bool {
        let path = self.target.split('?').next().unwrap();
        self.method == method && path.ends_with(end)
    }
}

/// What the fake server does with a request.
pub(crate) enum Reply {
    /// An envelope.
    Json(u16, Value),
    /// A stream of these bytes, then its clean end.
    Stream(String),
    /// A stream of these bytes, then a connection that breaks.
    Broken(String),
    /// A stream of these bytes that stays open.
    Open(String),
    /// The connection breaks before an answer.
    Nothing,
    /// A WebSocket: these texts, then a close frame with this code, or none at all.
    WebSocket(Vec<String>, Option<u16>),
}

impl Reply {
    pub(crate) fn ok(status: u16, data: impl Into<Value>) -> Self {
        Self::Json(status, json!({"success": true, "data": data.into()}))
    }

    pub(crate) fn error(status: u16, code: &str, message: &str, details: impl Into<Value>) -> Self {
        let error = json!({"code": code, "message": message, "details": details.into()});
        Self::Json(status, json!({"success": false, "error": error}))
    }
}

/// A server that does what it is told and remembers what it was asked.
pub(crate) struct Fake {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Starts it; `act` gets each request and how many came before.
    pub(crate) async fn start(
        act: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (log, act) = (Arc::clone(&seen), Arc::new(act));
        let task = tokio::task::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (log, act) = (Arc::clone(&log), Arc::clone(&act));
                tokio::task::spawn(async move {
                    serve(stream, &log, &*act).await;
                });
            }
        });
        Self { url, seen, task }
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// The requests with this method and end of their path.
    pub(crate) fn calls(&self, method: &str, end: &str) -> Vec<Request> {
        self.seen()
            .into_iter()
            .filter(|request| request.is(method, end))
            .collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<Request>>,
    act: &(dyn Fn(&Request, usize) -> Reply + Send + Sync),
) {
    let Some(request) = read_request(&mut stream).await else {
        return;
    };
    let before = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        log.len() - 1
    };
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let answer = match act(&request, before) {
        Reply::Nothing => return,
        Reply::Json(status, value) => {
            let body = value.to_string();
            let retry = if status == 429 {
                "Retry-After: 0\r\n"
            } else {
                ""
            };
            format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nX-Request-Id: req-1\r\n\
                 {retry}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            )
        }
        Reply::Stream(text) => format!("{head}{}0\r\n\r\n", chunk(&text)),
        Reply::Broken(text) => format!("{head}{}", chunk(&text)),
        Reply::Open(text) => {
            stream
                .write_all(format!("{head}{}", chunk(&text)).as_bytes())
                .await
                .unwrap();
            // Until the client leaves.
            while matches!(stream.read(&mut [0; 1024]).await, Ok(1..)) {}
            return;
        }
        Reply::WebSocket(texts, close) => {
            return web_socket(stream, &request, texts, close).await;
        }
    };
    stream.write_all(answer.as_bytes()).await.unwrap();
}

async fn web_socket(stream: TcpStream, request: &Request, texts: Vec<String>, close: Option<u16>) {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::{
        WebSocketStream,
        tungstenite::{
            Message,
            handshake::derive_accept_key,
            protocol::{CloseFrame, Role},
        },
    };
    let mut stream = stream;
    let key = request.headers.get("sec-websocket-key").unwrap();
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {}\r\n\r\n",
        derive_accept_key(key.as_bytes())
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    for text in texts {
        socket.send(Message::Text(text.into())).await.unwrap();
    }
    if let Some(code) = close {
        let frame = CloseFrame {
            code: code.into(),
            reason: "as the test says".into(),
        };
        socket.send(Message::Close(Some(frame))).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let mut body = bytes.split_off(head_end + 4);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Request {
        method,
        target,
        headers,
        body,
    })
}

pub(crate) const SANDBOX: &str = "sbx-00000000-001";
pub(crate) const SESSION: &str = "ses-00000000-001";
pub(crate) const ATTEMPT: &str = "att-00000000-001";

/// An event with further fields.
pub(crate) fn event(seq: u64, kind: &str, more: &Value) -> Value {
    let mut event = json!({
        "seq": seq, "session_id": SESSION, "runtime_generation": 1, "attempt_id": ATTEMPT,
        "type": kind, "occurred_at": "2026-01-31T12:34:56.789Z",
    });
    for (key, value) in more.as_object().unwrap() {
        event[key] = value.clone();
    }
    event
}

pub(crate) fn output(seq: u64, stream: &str, text: &str) -> Value {
    let data = base64_simd::STANDARD.encode_to_string(text);
    event(
        seq,
        "output",
        &json!({"stream": stream, "data_base64": data}),
    )
}

pub(crate) fn exited(seq: u64, more: &Value) -> Value {
    event(seq, "attempt.exited", more)
}

/// Events as a stream sends them.
pub(crate) fn sse(events: &[Value]) -> String {
    let frames: Vec<String> = events
        .iter()
        .map(|event| {
            format!(
                "id: {}\nevent: {}\ndata: {event}\n\n",
                event["seq"], event["type"]
            )
        })
        .collect();
    frames.concat()
}

/// A session as the server shows it.
pub(crate) fn session(phase: &str, latest: u64) -> Value {
    json!({
        "id": SESSION,
        "spec": {"name": "worker", "command": ["true"], "io": {"mode": "pipes"},
                 "lifecycle": {"restart": {"policy": "never"}}},
        "phase": phase,
        "attempt": {"id": ATTEMPT, "number": 1, "pid": 7},
        "restart_count": 0,
        "cursor": {"earliest": 1, "latest": latest},
        "updated_at": "2026-01-31T12:34:56Z",
    })
}

/// The parameter `after` of a stream.
pub(crate) fn after(request: &Request) -> Option<u64> {
    let query = request.target.split_once('?')?.1;
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("after="))
        .map(|text| text.parse().unwrap())
}

/// A relay whose other end can be moved, for a server that comes back at another address.
pub(crate) struct Relay {
    url: String,
    target: Arc<Mutex<String>>,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let target: Arc<Mutex<String>> = Arc::default();
        let shared = Arc::clone(&target);
        let task = tokio::task::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let address = shared.lock().unwrap().clone();
                tokio::task::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(address).await {
                        // A connection that breaks on one side breaks on the other.
                        drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
                    }
                });
            }
        });
        Self { url, target, task }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn point_to(&self, url: &str) {
        url.trim()
            .trim_start_matches("http://")
            .clone_into(&mut self.target.lock().unwrap());
    }
}
