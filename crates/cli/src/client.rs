//! HTTP calls to the server: one method a verb, errors with their code and next step.
//!
//! Answers stay JSON values: `--json` prints what the server said, fields that this build does
//! not know included.

mod long;

use std::time::Duration;

use reqwest::{
    Method, RequestBuilder, Response, StatusCode,
    header::{HeaderMap, RETRY_AFTER},
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    config::Settings,
    error::{Failure, Result, Retry},
    limits::{
        ANSWER_BYTES_MAX, CONNECT_TIMEOUT, READ_TIMEOUT, RECONNECT_DELAY_INITIAL, RETRY_AFTER_MAX,
        TRIES_MAX,
    },
    next,
};

pub use self::long::Upload;

/// A server and the key for it.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    settings: Settings,
}

/// A call to make.
#[derive(Debug)]
pub struct Call<'a> {
    method: Method,
    path: &'a str,
    query: Vec<(&'static str, String)>,
    idempotency_key: Option<&'a str>,
    body: Option<&'a Value>,
    repeat: Repeat,
    answer: Answer,
}

/// How a call's answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// In `{"success":…,"data":…}`.
    Enveloped,
    /// As it is.
    Bare,
}

/// Whether a call may be made again when its answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// It reads, or the server knows a repetition by its id.
    Safe,
    /// The caller has to look first.
    Never,
}

impl<'a> Call<'a> {
    /// A call that only reads.
    pub fn get(path: &'a str) -> Self {
        Self::new(Method::GET, path, Repeat::Safe)
    }

    /// A call that makes something.
    pub fn post(path: &'a str) -> Self {
        Self::new(Method::POST, path, Repeat::Never)
    }

    /// A call that sets something.
    pub fn put(path: &'a str) -> Self {
        Self::new(Method::PUT, path, Repeat::Never)
    }

    /// A call that removes something.
    pub fn delete(path: &'a str) -> Self {
        Self::new(Method::DELETE, path, Repeat::Never)
    }

    fn new(method: Method, path: &'a str, repeat: Repeat) -> Self {
        Self {
            method,
            path,
            query: Vec::new(),
            idempotency_key: None,
            body: None,
            repeat,
            answer: Answer::Enveloped,
        }
    }

    /// The answer comes without an envelope, as the calls below `/v1/sandbox` have it.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.answer = Answer::Bare;
        self
    }

    /// Adds a query parameter, when there is a value.
    #[must_use]
    pub fn query(mut self, key: &'static str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.query.push((key, value.to_string()));
        }
        self
    }

    /// Adds a body.
    #[must_use]
    pub fn body(mut self, body: &'a Value) -> Self {
        self.body = Some(body);
        self
    }

    /// The server knows a repetition by this key.
    #[must_use]
    pub fn idempotency_key(mut self, key: &'a str) -> Self {
        self.idempotency_key = Some(key);
        self.repeat = Repeat::Safe;
        self
    }

    /// The server knows a repetition by an id in the body.
    #[must_use]
    pub fn repeatable(mut self) -> Self {
        self.repeat = Repeat::Safe;
        self
    }
}

#[derive(Deserialize)]
struct Envelope {
    success: bool,
    #[serde(default)]
    data: Option<Value>,
}

/// A refusal, in whichever envelope.
#[derive(Deserialize)]
struct Refused {
    error: ErrorBody,
}

#[derive(Deserialize)]
struct ErrorBody {
    code: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Option<Value>,
}

impl Client {
    /// Prepares to talk to a server; makes no connection yet.
    pub fn new(settings: Settings) -> Result<Self> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("outlive/", env!("CARGO_PKG_VERSION")));
        if !settings.url.starts_with("https:") {
            // Nothing is encrypted on this way, and a bare machine has no certificates to load.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(|error| {
            Failure::transport("prepare the connection", &error)
                .with_next("has this machine certificates to check a server's by? apt-get install ca-certificates")
        })?;
        Ok(Self { http, settings })
    }

    /// The server's base URL.
    pub fn url(&self) -> &str {
        &self.settings.url
    }

    /// The key.
    pub fn token(&self) -> Option<&str> {
        self.settings.token.as_deref()
    }

    /// Makes a call and gives the answer's `data`.
    ///
    /// A call that is safe to repeat is repeated when the server or the way to it fails; one that
    /// isn't, never.
    pub async fn call(&self, call: Call<'_>) -> Result<Value> {
        let mut delay = RECONNECT_DELAY_INITIAL;
        for _ in 1..TRIES_MAX {
            match self.try_call(&call).await {
                Err(failure) if call.repeat == Repeat::Safe && failure.retry() == Retry::Later => {
                    tokio::time::sleep(wait_before_retry(&failure, delay)).await;
                    delay *= 2;
                }
                other => return other,
            }
        }
        self.try_call(&call).await
    }

    async fn try_call(&self, call: &Call<'_>) -> Result<Value> {
        let mut request = self
            .request(call.method.clone(), call.path)
            .query(&call.query);
        if call.method == Method::GET {
            request = request.timeout(READ_TIMEOUT);
        }
        if let Some(key) = call.idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(body) = call.body {
            request = request.json(body);
        }
        let response = request
            .send()
            .await
            .map_err(|error| transport(self.url(), &error))?;
        match call.answer {
            Answer::Enveloped => self.read_answer(response, call.path).await,
            Answer::Bare => self.read_bare(response, call.path).await,
        }
    }

    /// Reads an answer that has no envelope.
    pub async fn plain(&self, path: &str) -> Result<Value> {
        let request = self.request(Method::GET, path).timeout(READ_TIMEOUT);
        let response = request
            .send()
            .await
            .map_err(|error| transport(self.url(), &error))?;
        self.read_bare(response, path).await
    }

    async fn read_bare(&self, response: Response, path: &str) -> Result<Value> {
        let (status, headers) = (response.status(), response.headers().clone());
        let body = self.read_whole(response).await?;
        match serde_json::from_slice(&body) {
            Ok(value) if status.is_success() => Ok(value),
            _ => Err(self.refusal(status, &headers, &body, path)),
        }
    }

    /// Opens an event stream after `after`; an answer that is no stream is a failure.
    pub async fn open_stream(&self, path: &str, after: Option<u64>) -> Result<Response> {
        let mut request = self
            .request(Method::GET, path)
            .header("Accept", "text/event-stream");
        if let Some(after) = after {
            request = request.query(&[("after", after)]);
        }
        let response = request
            .send()
            .await
            .map_err(|error| transport(self.url(), &error))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        match self.read_answer(response, path).await {
            Err(failure) => Err(failure),
            Ok(_) => Err(Failure::protocol(
                "the server answered something else than a stream",
            )),
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .http
            .request(method, format!("{}{path}", self.settings.url));
        match &self.settings.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn read_answer(&self, response: Response, path: &str) -> Result<Value> {
        let status = response.status();
        let headers = response.headers().clone();
        let bytes = self.read_whole(response).await?;
        match serde_json::from_slice(&bytes) {
            Ok(Envelope {
                success: true,
                data,
            }) if status.is_success() => Ok(data.unwrap_or(Value::Null)),
            _ => Err(self.refusal(status, &headers, &bytes, path)),
        }
    }

    async fn read_whole(&self, mut response: Response) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| transport(self.url(), &error))?
        {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > ANSWER_BYTES_MAX {
                return Err(Failure::protocol("the answer is absurdly large"));
            }
        }
        Ok(bytes)
    }

    /// The failure that an answer tells.
    pub fn refusal(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        path: &str,
    ) -> Failure {
        match serde_json::from_slice(body) {
            Ok(Refused { error }) => from_server(status, headers, error, path),
            Err(_) => unreadable(status, headers),
        }
    }
}

/// How long to wait before a repetition: what the server asks for, else `delay`.
pub fn wait_before_retry(failure: &Failure, delay: Duration) -> Duration {
    failure.retry_after_seconds.map_or(delay, |seconds| {
        Duration::from_secs(seconds).clamp(RECONNECT_DELAY_INITIAL, RETRY_AFTER_MAX)
    })
}

fn transport(url: &str, error: &reqwest::Error) -> Failure {
    Failure::transport(&format!("talk to {url}"), &error.to_string_source())
}

/// `reqwest` puts the URL into its text; ours already names the server.
trait WithoutUrl {
    fn to_string_source(&self) -> Chain;
}

/// The text of an error and of what caused it.
#[derive(Debug)]
struct Chain(String);

impl std::fmt::Display for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Chain {}

impl WithoutUrl for reqwest::Error {
    fn to_string_source(&self) -> Chain {
        let mut deepest: &dyn std::error::Error = self;
        while let Some(source) = deepest.source() {
            deepest = source;
        }
        let kind = if self.is_timeout() {
            "timed out: "
        } else if self.is_connect() {
            "no connection: "
        } else {
            ""
        };
        Chain(format!("{kind}{deepest}"))
    }
}

fn from_server(status: StatusCode, headers: &HeaderMap, error: ErrorBody, path: &str) -> Failure {
    let mut failure = Failure::new(&error.code, error.message);
    failure.status = Some(status.as_u16());
    failure.details = error.details.filter(|details| !details.is_null());
    add_headers(&mut failure, headers);
    failure.next = next::after(&failure, path);
    failure
}

/// An answer that is no envelope: a proxy in between, or no server of ours.
fn unreadable(status: StatusCode, headers: &HeaderMap) -> Failure {
    let mut failure = Failure::protocol(format!(
        "the answer ({status}) is not one of an outlive server"
    ));
    if status.is_server_error() {
        // A proxy's 502 is worth another try; its text is not ours to interpret.
        failure.status = Some(status.as_u16());
    }
    add_headers(&mut failure, headers);
    failure
}

fn add_headers(failure: &mut Failure, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    failure.request_id = text("x-request-id").map(str::to_owned);
    failure.retry_after_seconds = text(RETRY_AFTER.as_str()).and_then(|text| text.parse().ok());
}
