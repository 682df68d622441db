//! Long calls: bytes that are sent, and lines that tell how far the server is.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::{Call, Client, transport};
use crate::{
    error::{Failure, Result},
    limits::ANSWER_BYTES_MAX,
};

/// Bytes to send.
pub struct Upload<'a> {
    /// Where.
    pub path: &'a str,
    /// What is said of them.
    pub query: Vec<(&'static str, String)>,
    /// The bytes.
    pub body: Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>,
    /// How many, when known.
    pub length: Option<u64>,
}

impl std::fmt::Debug for Upload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What asks for lines that tell how far a long call is.
const LINES: &str = "application/x-ndjson";

impl Client {
    /// Sends bytes and follows what the server makes of them; gives the `field` of the line that
    /// ends it.
    pub async fn upload(
        &self,
        upload: Upload<'_>,
        field: &str,
        on_line: impl FnMut(&Value),
    ) -> Result<Value> {
        let mut request = self
            .request(Method::POST, upload.path)
            .query(&upload.query)
            .header("Accept", LINES)
            .header("Content-Type", "application/octet-stream");
        if let Some(length) = upload.length {
            request = request.header("Content-Length", length);
        }
        let body = reqwest::Body::wrap_stream(upload.body);
        self.lines(request.body(body), upload.path, field, on_line)
            .await
    }

    /// Makes a long call and follows it; gives the `field` of the line that ends it.
    pub async fn follow(
        &self,
        call: Call<'_>,
        field: &str,
        on_line: impl FnMut(&Value),
    ) -> Result<Value> {
        let mut request = self.request(call.method, call.path).header("Accept", LINES);
        if let Some(body) = call.body {
            request = request.json(body);
        }
        self.lines(request, call.path, field, on_line).await
    }

    async fn lines(
        &self,
        request: RequestBuilder,
        path: &str,
        field: &str,
        mut on_line: impl FnMut(&Value),
    ) -> Result<Value> {
        let sent = request.send().await;
        let mut response = sent.map_err(|error| transport(self.url(), &error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        if status != StatusCode::OK {
            return self.read_answer(response, path).await;
        }
        let mut waiting = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| transport(self.url(), &error))?
        {
            waiting.extend_from_slice(&chunk);
            while let Some(end) = waiting.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = waiting.drain(..=end).collect();
                let line: Value = serde_json::from_slice(&line)
                    .map_err(|_| Failure::protocol("a line of the answer is no JSON"))?;
                match line["type"].as_str() {
                    Some("done") => return Ok(line[field].clone()),
                    Some("error") => {
                        let envelope = json!({"success": false, "error": line["error"]});
                        let bytes = envelope.to_string();
                        let mut failure = self.refusal(status, &headers, bytes.as_bytes(), path);
                        failure.status = None; // That of the answer, which began well.
                        return Err(failure);
                    }
                    _ => on_line(&line),
                }
            }
            if waiting.len() > ANSWER_BYTES_MAX {
                return Err(Failure::protocol("a line of the answer is absurdly long"));
            }
        }
        Err(Failure::protocol(
            "the server went before it was done; what it had begun it finishes or takes back",
        ))
    }
}
