//! A server of our own to measure, and the few calls that the rows make to it.

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Where the measured program puts `bench-child` inside the sandbox.
pub(crate) const CHILD_INSIDE: &str = "/tmp/bench-child";

/// A running server, with one sandbox for most rows, ended and removed when dropped.
pub(crate) struct Host {
    server: Child,
    data: TempDir,
    address: String,
    token: String,
    /// The connection of the call before: clients keep theirs, too.
    kept: Mutex<Option<BufReader<TcpStream>>>,
    /// The sandbox that rows use; empty where there is none.
    pub(crate) sandbox: String,
}

/// The path of a program that was built beside this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let path = env::current_exe()?.with_file_name(name);
    ensure!(
        path.exists(),
        "{} is missing: build the whole workspace in release mode",
        path.display()
    );
    Ok(path)
}

impl Host {
    /// Starts a server on a fresh data directory below `parent` and makes a sandbox.
    pub(crate) fn start(parent: &Path) -> Result<Self> {
        let mut host = Self::start_empty(parent)?;
        host.sandbox = host.create_sandbox()?;
        host.upload_child()?;
        Ok(host)
    }

    /// Starts a server without a sandbox.
    pub(crate) fn start_empty(parent: &Path) -> Result<Self> {
        let data = tempfile::tempdir_in(parent)?;
        let server = spawn_server(data.path())?;
        let mut host = Self {
            server,
            address: String::new(),
            token: String::new(),
            kept: Mutex::default(),
            sandbox: String::new(),
            data,
        };
        host.wait_until_ready()?;
        Ok(host)
    }

    /// Kills the server and starts another one on the same directory.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.server.kill()?;
        self.server.wait()?;
        fs::remove_file(self.data.path().join("endpoint"))?;
        self.server = spawn_server(self.data.path())?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let endpoint =
                fs::read_to_string(self.data.path().join("endpoint")).unwrap_or_default();
            let token =
                fs::read_to_string(self.data.path().join("admin.token")).unwrap_or_default();
            if !endpoint.trim().is_empty() && !token.trim().is_empty() {
                endpoint
                    .trim()
                    .trim_start_matches("http://")
                    .trim_end_matches('/')
                    .clone_into(&mut self.address);
                token.trim().clone_into(&mut self.token);
                return Ok(());
            }
            ensure!(
                begun.elapsed() < Duration::from_secs(20),
                "the server did not get ready"
            );
            pause(Duration::from_millis(2));
        }
    }

    /// Makes a sandbox and answers its id.
    pub(crate) fn create_sandbox(&self) -> Result<String> {
        let made = self.call(
            "POST",
            "/api/v1/sandboxes",
            Some(&json!({"template": "default"})),
        )?;
        Ok(text(&made, "sandbox_id")?.to_owned())
    }

    fn upload_child(&self) -> Result<()> {
        let program = fs::read(beside("bench-child")?)?;
        let script = format!("cat > {CHILD_INSIDE} && chmod 755 {CHILD_INSIDE}");
        let session = self.session(&json!({"command": ["sh", "-c", script]}))?;
        let parts: Vec<&[u8]> = program.chunks(2 * 1024 * 1024).collect();
        for (at, part) in parts.iter().enumerate() {
            let data = base64_simd::STANDARD.encode_to_string(part);
            let body = json!({"input_id": format!("part-{at}"), "data_base64": data, "eof": at + 1 == parts.len()});
            self.call(
                "POST",
                &format!("{}/inputs", self.session_path(&session)),
                Some(&body),
            )?;
        }
        self.wait_for_exit(&session)?;
        self.delete(&session)
    }

    /// Path of the API for `session`.
    pub(crate) fn session_path(&self, session: &str) -> String {
        format!("/api/v1/sandboxes/{}/sessions/{session}", self.sandbox)
    }

    /// Creates a session and answers its id.
    pub(crate) fn session(&self, spec: &Value) -> Result<String> {
        let made = self.call(
            "POST",
            &format!("/api/v1/sandboxes/{}/sessions", self.sandbox),
            Some(spec),
        )?;
        Ok(text(&made, "id")?.to_owned())
    }

    /// Deletes a session.
    pub(crate) fn delete(&self, session: &str) -> Result<()> {
        self.call("DELETE", &self.session_path(session), None)
            .map(drop)
    }

    /// The session as the API shows it.
    pub(crate) fn get(&self, session: &str) -> Result<Value> {
        self.call("GET", &self.session_path(session), None)
    }

    /// Follows the session from its latest event until its exit, without reading its output twice.
    pub(crate) fn wait_for_exit(&self, session: &str) -> Result<Value> {
        loop {
            let view = self.get(session)?;
            if matches!(text(&view, "phase")?, "exited" | "failed" | "stopped") {
                return Ok(view);
            }
            let latest = view["cursor"]["latest"].as_u64().unwrap_or(0);
            let path = format!(
                "{}/events?after={latest}&limit=1&types=attempt.exited&wait_ms=10000",
                self.session_path(session)
            );
            self.call("GET", &path, None)?;
        }
    }

    /// One call, on the connection of the one before if that is free; answers `data` of the envelope.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, answer) = self.raw_call(method, path, body)?;
        let value: Value = serde_json::from_slice(&answer)
            .with_context(|| format!("{method} {path}: {status} without JSON"))?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {status} {value}");
        }
        Ok(value.get("data").cloned().unwrap_or(value))
    }

    /// The same, but answers the status and the body as it came.
    pub(crate) fn raw_call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Vec<u8>)> {
        let kept = self.kept().take().filter(still_open);
        let mut stream = match kept {
            Some(kept) => kept,
            None => BufReader::new(self.connect()?),
        };
        self.send(stream.get_mut(), method, path, body, "")?;
        let head = read_head(&mut stream)?;
        let mut answer = Vec::new();
        if head.chunked {
            while let Some(chunk) = read_chunk(&mut stream)? {
                answer.extend_from_slice(&chunk);
            }
        } else {
            (&mut stream).take(head.length).read_to_end(&mut answer)?;
        }
        *self.kept() = Some(stream);
        Ok((head.status, answer))
    }

    fn kept(&self) -> MutexGuard<'_, Option<BufReader<TcpStream>>> {
        // It is whole at every point where a holder could have panicked.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Sends a request on a new connection and leaves the answer to the caller.
    pub(crate) fn open(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        extra: &str,
    ) -> Result<TcpStream> {
        let mut stream = self.connect()?;
        self.send(&mut stream, method, path, body, extra)?;
        Ok(stream)
    }

    fn send(
        &self,
        stream: &mut TcpStream,
        method: &str,
        path: &str,
        body: Option<&Value>,
        extra: &str,
    ) -> Result<()> {
        let body = body.map_or_else(String::new, Value::to_string);
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{kind}{extra}Content-Length: {}\r\n\r\n{body}",
            self.address,
            self.token,
            body.len()
        );
        Ok(stream.write_all(request.as_bytes())?)
    }

    /// Opens an event stream after `after`; the head of the answer is already read.
    pub(crate) fn follow(
        &self,
        session: &str,
        after: u64,
        query: &str,
    ) -> Result<BufReader<TcpStream>> {
        let path = format!(
            "{}/events/stream?after={after}{query}",
            self.session_path(session)
        );
        let mut stream = BufReader::with_capacity(
            256 * 1024,
            self.open("GET", &path, None, "Connection: close\r\n")?,
        );
        let head = read_head(&mut stream)?;
        ensure!(head.status == 200, "{path}: {}", head.status);
        Ok(stream)
    }

    /// Address and token for a WebSocket.
    pub(crate) fn credentials(&self) -> (&str, &str) {
        (&self.address, &self.token)
    }

    /// Process id of the server.
    pub(crate) fn server_pid(&self) -> u32 {
        self.server.id()
    }

    /// Process id of the process of `title` (its `argv[0]`) that serves the sandbox.
    pub(crate) fn pid_of(&self, title: &str) -> Result<u32> {
        for entry in fs::read_dir("/proc")? {
            let entry = entry?;
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            if words.next() == Some(title.as_bytes())
                && words.next() == Some(self.sandbox.as_bytes())
            {
                return Ok(pid);
            }
        }
        bail!("no {title} for {}", self.sandbox)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.sandbox.is_empty() {
            let path = format!("/api/v1/sandboxes/{}", self.sandbox);
            if let Err(error) = self.call("DELETE", &path, None) {
                crate::report::say(&format!("sandbox not removed: {error}"));
            }
        }
        // The server is gone either way; an error means that it already was.
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

/// Whether the server has not ended a connection that it had answered on.
fn still_open(kept: &BufReader<TcpStream>) -> bool {
    let stream = kept.get_ref();
    let quiet = stream
        .set_nonblocking(true)
        .and_then(|()| stream.peek(&mut [0]));
    let is_quiet = quiet.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    is_quiet && stream.set_nonblocking(false).is_ok()
}

fn spawn_server(data: &Path) -> Result<Child> {
    let log = fs::File::create(data.join("bench-server.log"))?;
    Command::new(beside("outlive")?)
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("can't start outlive serve")
}

/// A field that must be text.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("{key} is missing in {value}"))
}

/// Waits; the one place of the benchmarks that does.
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Head of an HTTP answer.
pub(crate) struct Head {
    /// The status.
    pub(crate) status: u16,
    chunked: bool,
    length: u64,
}

/// Reads the status line and the headers.
pub(crate) fn read_head(stream: &mut impl BufRead) -> Result<Head> {
    let mut head = Head {
        status: 0,
        chunked: false,
        length: 0,
    };
    loop {
        let mut line = String::new();
        ensure!(
            stream.read_line(&mut line)? > 0,
            "the connection ended before the answer"
        );
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            return Ok(head);
        }
        if let Some(rest) = line.strip_prefix("http/1.1 ") {
            head.status = rest.split(' ').next().unwrap_or("").parse()?;
        } else if let Some(rest) = line.strip_prefix("content-length:") {
            head.length = rest.trim().parse()?;
        } else if line.starts_with("transfer-encoding:") {
            head.chunked = line.contains("chunked");
        }
    }
}

/// Reads one chunk of a chunked body; none at its end.
pub(crate) fn read_chunk(stream: &mut impl BufRead) -> Result<Option<Vec<u8>>> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let length = usize::from_str_radix(line.trim(), 16).context("bad chunk")?;
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk)?;
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}
