//! How a registry is asked. Whoever runs it: what it answers is bounded in bytes and in time, and
//! a password goes nowhere unencrypted that the client did not name.

use std::time::Duration;

use http_auth::ChallengeRef;
use oci_spec::distribution::Reference;
use reqwest::{
    Client, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, WWW_AUTHENTICATE},
    redirect,
};
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    images::{Digest, ImageError, bundle::parse},
    limits::{
        IMAGE_JSON_BYTES_MAX, REGISTRY_ANSWER_MAX, REGISTRY_COMPLAINT_MAX, REGISTRY_CONNECT_MAX,
        REGISTRY_NOTE_BYTES_MAX, REGISTRY_PACE_BYTES, REGISTRY_REDIRECTS_MAX, REGISTRY_SILENCE_MAX,
    },
};

/// Manifests and indexes of both kinds.
const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, \
                         application/vnd.oci.image.index.v1+json, \
                         application/vnd.docker.distribution.manifest.v2+json, \
                         application/vnd.docker.distribution.manifest.list.v2+json";

/// How long a registry may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// For a description or a token, all of it.
    pub(super) answer: Duration,
    /// For the next part of a layer.
    pub(super) silence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            answer: REGISTRY_ANSWER_MAX,
            silence: REGISTRY_SILENCE_MAX,
        }
    }
}

/// One repository of a registry.
pub(super) struct Asking {
    client: Client,
    reference: Reference,
    /// Where its manifests and blobs are.
    base: String,
    login: Option<(String, String)>,
    /// What the registry wanted to see when it was asked last.
    authorization: Option<HeaderValue>,
    patience: Patience,
}

impl std::fmt::Debug for Asking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Asking").field(&self.base).finish()
    }
}

/// What is given for a password, or for nothing.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// Why a registry refuses.
#[derive(Deserialize)]
struct Complaints {
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct Complaint {
    code: String,
    #[serde(default)]
    message: String,
}

impl Asking {
    /// Prepares to ask; makes no connection yet. `plain`: the registry has no TLS.
    pub(super) fn new(
        reference: &Reference,
        plain: bool,
        login: Option<(String, String)>,
        patience: Patience,
    ) -> Result<Self, ImageError> {
        if rustls::crypto::CryptoProvider::get_default().is_none()
            && rustls::crypto::ring::default_provider()
                .install_default()
                .is_err()
        {
            tracing::trace!("another thread chose how to encrypt");
        }
        let client = Client::builder()
            .connect_timeout(REGISTRY_CONNECT_MAX)
            .user_agent(concat!("outlive/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::limited(REGISTRY_REDIRECTS_MAX))
            .https_only(!plain)
            .build()
            .map_err(|error| ImageError::Failed(format!("no client for registries: {error}")))?;
        let scheme = if plain { "http" } else { "https" };
        let registry = reference.resolve_registry();
        Ok(Self {
            client,
            base: format!("{scheme}://{registry}/v2/{}", reference.repository()),
            reference: reference.clone(),
            login,
            authorization: None,
            patience,
        })
    }

    /// A manifest or an index, by its tag or digest.
    pub(super) async fn manifest(&mut self, wanted: &str) -> Result<Vec<u8>, ImageError> {
        let url = format!("{}/manifests/{wanted}", self.base);
        let patience = self.patience.answer;
        let answered = timeout(patience, async {
            let answer = self.get(&url, MANIFESTS).await?;
            let what = "a manifest of the registry, bytes";
            self.small(answer, what, IMAGE_JSON_BYTES_MAX).await
        })
        .await;
        answered.unwrap_or_else(|_elapsed| Err(self.too_slow()))
    }

    /// Passes a blob on as it comes; never more than `announced`.
    pub(super) async fn blob(
        &mut self,
        digest: Digest,
        announced: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let url = format!("{}/blobs/{digest}", self.base);
        let patience = self.patience.answer;
        let answered = timeout(patience, self.get(&url, "*/*")).await;
        let mut answer = answered.unwrap_or_else(|_elapsed| Err(self.too_slow()))?;
        let mut came = 0_u64;
        let mut paced = 0_u64;
        let mut until = Instant::now() + self.patience.silence;
        loop {
            let next = timeout_at(until, answer.chunk()).await;
            let next = next.map_err(|_elapsed| self.too_slow())?;
            let Some(bytes) = next.map_err(|error| self.failed(&error))? else {
                return Ok(());
            };
            came += bytes.len() as u64;
            if came > announced {
                return Err(self.said("it sends more than it announced", false));
            }
            take(&bytes)?;
            if came - paced >= REGISTRY_PACE_BYTES {
                paced = came;
                until = Instant::now() + self.patience.silence;
            }
        }
    }

    /// Asks, and once more with what the registry wants to see.
    async fn get(&mut self, url: &str, accept: &str) -> Result<Response, ImageError> {
        let mut answer = self.send(url, accept).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            self.authorize(answer.headers()).await?;
            answer = self.send(url, accept).await?;
        }
        self.good(answer).await
    }

    async fn send(&self, url: &str, accept: &str) -> Result<Response, ImageError> {
        let mut request = self.client.get(url).header(ACCEPT, accept);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        request.send().await.map_err(|error| self.failed(&error))
    }

    /// Gets what the registry wants to see: a token, or the password itself.
    async fn authorize(&mut self, headers: &HeaderMap) -> Result<(), ImageError> {
        let texts: Vec<&str> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|text| text.to_str().ok())
            .collect();
        let challenges: Vec<ChallengeRef<'_>> = texts
            .iter()
            .filter_map(|text| http_auth::parse_challenges(text).ok())
            .flatten()
            .collect();
        let of = |scheme: &str| {
            challenges
                .iter()
                .find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme))
        };
        let text = match (of("Bearer"), of("Basic"), &self.login) {
            (Some(bearer), _, _) => format!("Bearer {}", self.token(bearer).await?),
            (None, Some(_), Some((user, password))) => {
                let pair = format!("{user}:{password}");
                let encoded = base64_simd::STANDARD.encode_to_string(pair);
                format!("Basic {encoded}")
            }
            (None, _, _) => return Err(self.wants_another()),
        };
        let mut value = HeaderValue::try_from(text)
            .map_err(|_| self.said("its token can't be sent back", false))?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(())
    }

    async fn token(&self, challenge: &ChallengeRef<'_>) -> Result<String, ImageError> {
        let parameter = |name: &str| {
            let found = challenge
                .params
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let realm = parameter("realm")
            .ok_or_else(|| self.said("it does not say where its tokens are", false))?;
        let scope = parameter("scope")
            .unwrap_or_else(|| format!("repository:{}:pull", self.reference.repository()));
        let mut request = self.client.get(realm).query(&[("scope", scope)]);
        if let Some(service) = parameter("service") {
            request = request.query(&[("service", service)]);
        }
        if let Some((user, password)) = &self.login {
            request = request.basic_auth(user, Some(password));
        }
        let answer = request.send().await.map_err(|error| self.failed(&error))?;
        let refused = [StatusCode::FORBIDDEN, StatusCode::BAD_REQUEST];
        if refused.contains(&answer.status()) {
            return Err(self.wants_another());
        }
        let answer = self.good(answer).await?;
        let what = "a token of the registry, bytes";
        let bytes = self.small(answer, what, REGISTRY_NOTE_BYTES_MAX).await?;
        let token: Token = parse("the registry's token", &bytes)?;
        token
            .token
            .or(token.access_token)
            .ok_or_else(|| self.said("it gives no token", false))
    }

    /// What it says, if that is not too much.
    async fn small(
        &self,
        mut answer: Response,
        what: &'static str,
        bytes_max: u64,
    ) -> Result<Vec<u8>, ImageError> {
        let too_large = || ImageError::TooLarge {
            what,
            max: bytes_max,
        };
        if answer.content_length().is_some_and(|n| n > bytes_max) {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        while let Some(more) = answer.chunk().await.map_err(|error| self.failed(&error))? {
            if (bytes.len() + more.len()) as u64 > bytes_max {
                return Err(too_large());
            }
            bytes.extend_from_slice(&more);
        }
        Ok(bytes)
    }

    /// An answer that is none is told in the registry's own words, as far as they go.
    async fn good(&self, answer: Response) -> Result<Response, ImageError> {
        let status = answer.status();
        if status == StatusCode::OK {
            return Ok(answer);
        }
        if status == StatusCode::UNAUTHORIZED {
            return Err(self.wants_another());
        }
        if status == StatusCode::NOT_FOUND {
            let message = format!("it has no {}", self.reference.repository());
            return Err(self.said(&message, false));
        }
        let passing = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let what = "a complaint of the registry, bytes";
        let complaint = match self.small(answer, what, REGISTRY_NOTE_BYTES_MAX).await {
            Ok(bytes) => complaint(&bytes),
            Err(_) => None, // The status says enough.
        };
        let message = complaint.unwrap_or_else(|| format!("it answers {status}"));
        Err(self.said(&message, passing))
    }

    fn wants_another(&self) -> ImageError {
        self.said("it wants another user name or password", false)
    }

    fn too_slow(&self) -> ImageError {
        self.said("it takes too long to answer", true)
    }

    fn failed(&self, error: &reqwest::Error) -> ImageError {
        let passing = !error.is_redirect() && !error.is_builder();
        self.said(&innermost(error), passing)
    }

    fn said(&self, message: &str, passing: bool) -> ImageError {
        ImageError::Registry {
            registry: self.reference.resolve_registry().to_owned(),
            message: format!("{}: {message}", self.reference),
            passing,
        }
    }
}

/// What a registry complains about, if it does so as the specification says.
fn complaint(bytes: &[u8]) -> Option<String> {
    let complaints: Complaints = serde_json::from_slice(bytes).ok()?;
    let first = complaints.errors.into_iter().next()?;
    let text = format!("{}: {}", first.code, first.message);
    let shown = text.chars().filter(|c| !c.is_control());
    Some(shown.take(REGISTRY_COMPLAINT_MAX).collect())
}

/// The text of what lies behind an error.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
