//! Who calls: bearer keys, kept as SHA-256, and what a role allows.
//!
//! A key comes in the `Authorization` header or not at all. It is hashed before anything else
//! happens to it; only the hash is looked up, compared and remembered.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use outlive_api::{
    error::{ApiError, ErrorCode},
    keys::Role,
};
use outlive_core::time::Timestamp;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    http::reply::Failure,
    limits::{DEADLINE_SLEEP_MAX, KEY_CACHE_MAX_AGE, TOKEN_BYTES_MAX},
    rate::Rates,
    sessions::Caller,
    store::{KeyHash, KeyRecord, Owner, Store, StoreError},
};

/// What every key of ours starts with, so that a leaked one is recognised.
const KEY_PREFIX: &str = "olv_";

/// Knows keys.
#[derive(Debug)]
pub(crate) struct Auth {
    store: Arc<dyn Store>,
    rates: Rates,
    /// Keys that were used. Only valid keys get here, so the store bounds it.
    known: Mutex<HashMap<KeyHash, Known>>,
    /// Counts revocations. Changed under the lock of `known`: a look at the store that began
    /// before one is not remembered after it.
    revocations: AtomicU64,
    /// Something about `known` changed.
    changed: Notify,
}

#[derive(Debug)]
struct Known {
    caller: Caller,
    expires_at: Option<Timestamp>,
    fetched: Instant,
}

impl Auth {
    /// Over this store.
    pub(crate) fn new(store: Arc<dyn Store>, rates: Rates) -> Self {
        Self {
            store,
            rates,
            known: Mutex::new(HashMap::new()),
            revocations: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }

    /// Makes a key and keeps its hash; the key itself is known to the caller only.
    pub(crate) async fn issue(
        &self,
        owner: Owner,
        role: Role,
        name: String,
        expires_at: Option<Timestamp>,
    ) -> Result<(KeyRecord, String), IssueError> {
        let key = new_key()?;
        let record = KeyRecord {
            id: format!("key-{}", uuid::Uuid::now_v7().simple()),
            hash: hash(&key),
            owner,
            role,
            name,
            created_at: clock::now(),
            expires_at,
            revoked_at: None,
        };
        self.store.insert_key(&record).await?;
        Ok((record, key))
    }

    /// Revokes a key and ends its streams. Tells whether there is such a key.
    pub(crate) async fn revoke(&self, id: &str) -> Result<bool, StoreError> {
        let Some(hash) = self.store.revoke_key(id, clock::now()).await? else {
            return Ok(false);
        };
        let mut known = self.known();
        self.revocations.fetch_add(1, Ordering::SeqCst);
        if let Some(known) = known.remove(&hash) {
            known.caller.revoked.cancel();
        }
        Ok(true)
    }

    /// Whether this key is valid now.
    pub(crate) async fn knows(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.caller(key).await?.is_some())
    }

    /// Ends the streams of keys that expire. Runs until it is dropped.
    pub(crate) async fn expire(self: Arc<Self>) {
        loop {
            let now = clock::now();
            let mut next = DEADLINE_SLEEP_MAX;
            self.known().retain(|_, known| match known.expires_at {
                Some(at) if at <= now => {
                    known.caller.revoked.cancel();
                    false
                }
                Some(at) => {
                    next = next.min(at.since(now));
                    true
                }
                None => true,
            });
            tokio::select! {
                () = sleep(next) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    pub(crate) async fn caller(&self, key: &str) -> Result<Option<Caller>, StoreError> {
        if key.is_empty() || key.len() > TOKEN_BYTES_MAX {
            return Ok(None);
        }
        let hash = hash(key);
        let now = clock::now();
        if let Some(known) = self.known().get(&hash)
            && known.fetched.elapsed() < KEY_CACHE_MAX_AGE
            && known.expires_at.is_none_or(|at| now < at)
        {
            return Ok(Some(known.caller.clone()));
        }
        let (found, mut known) = loop {
            let revocations = self.revocations.load(Ordering::SeqCst);
            let found = self.store.key_by_hash(&hash).await?;
            let known = self.known();
            if self.revocations.load(Ordering::SeqCst) == revocations {
                break (found, known);
            }
        };
        let found = found.filter(|record| {
            bool::from(record.hash.ct_eq(&hash))
                && record.revoked_at.is_none()
                && record.expires_at.is_none_or(|at| now < at)
        });
        let Some(record) = found else {
            if let Some(stale) = known.remove(&hash) {
                stale.caller.revoked.cancel();
            }
            return Ok(None);
        };
        // The token of open streams stays the same from one look at the store to the next.
        let revoked = known
            .get(&hash)
            .map_or_else(CancellationToken::new, |known| known.caller.revoked.clone());
        let caller = Caller {
            owner: Arc::from(record.owner.as_str()),
            role: record.role,
            key_id: Arc::from(record.id),
            revoked,
        };
        let entry = Known {
            caller: caller.clone(),
            expires_at: record.expires_at,
            fetched: Instant::now(),
        };
        known.insert(hash, entry);
        drop(known);
        if record.expires_at.is_some() {
            self.changed.notify_one();
        }
        Ok(Some(caller))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<KeyHash, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IssueError {
    /// The system gives no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Lets requests with a valid key pass, with the [`Caller`] in their extensions.
pub(crate) async fn require_key(
    State(auth): State<Arc<Auth>>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match bearer(request.headers()) {
        Some(key) => auth.caller(key).await,
        None => Ok(None),
    };
    let caller = match caller {
        Ok(Some(caller)) => caller,
        Ok(None) => return unauthorized(),
        Err(error) => {
            tracing::error!(%error, "the store failed");
            return Failure(ApiError::new(
                ErrorCode::InternalError,
                "the server's store failed",
            ))
            .into_response();
        }
    };
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if caller.role == Role::ReadOnly && !reads {
        return Failure(ApiError::new(
            ErrorCode::Forbidden,
            "this key may only read",
        ))
        .into_response();
    }
    if let Err(retry_after) = auth.rates.take(&caller.owner, Instant::now()) {
        return Failure(
            ApiError::new(ErrorCode::QuotaExceeded, "too many requests in a second")
                .with_retry_after(retry_after),
        )
        .into_response();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

fn unauthorized() -> Response {
    Failure(ApiError::new(
        ErrorCode::Unauthorized,
        "a valid API key is needed",
    ))
    .into_response()
}

fn hash(key: &str) -> KeyHash {
    Sha256::digest(key.as_bytes()).into()
}

fn new_key() -> Result<String, getrandom::Error> {
    let mut bits = [0_u8; 32];
    getrandom::fill(&mut bits)?;
    let mut key = KEY_PREFIX.to_owned();
    for nibble in bits.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        key.extend(char::from_digit(nibble.into(), 16));
    }
    Ok(key)
}
/// Refuses everybody but admins, in these words.
pub(crate) fn admins_only(caller: &Caller, refusal: &'static str) -> Result<(), ApiError> {
    match caller.role {
        Role::Admin => Ok(()),
        Role::Member | Role::ReadOnly => Err(ApiError::new(ErrorCode::Forbidden, refusal)),
    }
}
