//! What the server must not forget: sandboxes with what was asked of them, snapshots, and API
//! keys.
//!
//! The store holds *intents*. A task writes what it is about to do, does it, and then writes what
//! came of it; a server that is killed in between finds the intent and finishes it. Nothing about
//! sessions is kept here: their journals are the truth.
//!
//! Two implementations are meant to share the trait and the test suite: SQLite for one server,
//! and later PostgreSQL for several.

mod images;
mod snapshots;
pub(crate) mod sqlite;
#[cfg(test)]
mod suite;

use std::{fmt, io};

use futures_util::future::BoxFuture;
use outlive_api::{keys::Role, launch::IsolationTier};
use outlive_core::{
    id::SandboxId,
    sandbox::{Observed, Sandbox},
    time::Timestamp,
};

pub(crate) use self::{
    images::{ImageRecord, ImageStore, ImageUser},
    snapshots::{SnapshotInserted, SnapshotRecord, SnapshotState, SnapshotStore},
};
use crate::{reserve::Full, sandboxes::config::SandboxConfig};

/// What SQLite calls a full disk: of a file, and of the index of its log.
const SQLITE_FULL: [&str; 2] = ["13", "4874"];

/// The answer of a store.
pub(crate) type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The store failed; nothing is known about what it was asked to do.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The database refused or is gone.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
    /// There is no room for it.
    #[error(transparent)]
    Full(#[from] Full),
    /// Its tables could not be made or are of a newer build.
    #[error("the database's tables don't fit this build: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A configuration has no text form.
    #[error("a sandbox's configuration could not be written: {0}")]
    Encode(#[from] serde_json::Error),
    /// A row holds something that this build doesn't understand.
    #[error("row {id} has an unreadable {column}")]
    BadRow {
        /// Its key.
        id: String,
        /// The column.
        column: &'static str,
    },
}

impl StoreError {
    /// Whether the disk had no room for what was to be written.
    fn is_full(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Io(error)) => error.kind() == io::ErrorKind::StorageFull,
            Self::Database(sqlx::Error::Database(error)) => error
                .code()
                .is_some_and(|code| SQLITE_FULL.contains(&&*code)),
            _ => false,
        }
    }
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner(String);

impl Owner {
    /// Accepts 1 to 64 characters of `[A-Za-z0-9._@-]`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let fine = (1..=crate::limits::OWNER_BYTES_MAX).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'@' | b'-'));
        fine.then(|| Self(text.to_owned()))
    }

    /// Its name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The word for a role.
pub(crate) fn role_word(role: Role) -> &'static str {
    match role {
        Role::Admin => "admin",
        Role::Member => "member",
        Role::ReadOnly => "read_only",
    }
}

/// The role that the word means.
pub(crate) fn role_from_word(word: &str) -> Option<Role> {
    [Role::Admin, Role::Member, Role::ReadOnly]
        .into_iter()
        .find(|role| role_word(*role) == word)
}

/// One sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SandboxRecord {
    pub(crate) id: SandboxId,
    pub(crate) owner: Owner,
    pub(crate) template: String,
    pub(crate) config: SandboxConfig,
    /// What was asked of it and what is known of it.
    pub(crate) state: Sandbox,
    /// Names its range of host ids; no two sandboxes share one.
    pub(crate) slot: u16,
    /// How far its processes were kept apart: never less. Nothing before its first start.
    pub(crate) isolation: Option<IsolationTier>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
}

/// Which sandboxes a list wants.
#[derive(Debug, Clone, Default)]
pub(crate) struct SandboxFilter {
    /// Any of these; empty is all.
    pub(crate) observed: Vec<Observed>,
    /// Made from this template.
    pub(crate) template: Option<String>,
    /// None of these.
    pub(crate) hidden: Vec<SandboxId>,
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct SandboxPage {
    /// Ordered by creation, then id.
    pub(crate) records: Vec<SandboxRecord>,
    /// How many there are without the page's bounds.
    pub(crate) total: u64,
}

/// Whether a sandbox was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// It was.
    Yes,
    /// The owner has as many as allowed.
    OverQuota,
    /// Its id or slot is another's: try others.
    Collision,
}

/// SHA-256 of a key.
pub(crate) type KeyHash = [u8; 32];

/// One API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) id: String,
    pub(crate) hash: KeyHash,
    pub(crate) owner: Owner,
    pub(crate) role: Role,
    pub(crate) name: String,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
}

/// The store.
pub(crate) trait Store: SnapshotStore {
    /// Takes a sandbox in unless its owner already has `owned_max`; atomic. It survives what
    /// [`Store::note_sandbox`] does.
    fn insert_sandbox<'a>(
        &'a self,
        record: &'a SandboxRecord,
        owned_max: u32,
    ) -> StoreFuture<'a, Inserted>;

    /// Writes a sandbox anew: it survives a kill of this server when this returns, and a power
    /// loss after [`Store::sync_sandboxes`]. A sandbox that is gone stays gone.
    fn note_sandbox<'a>(&'a self, record: &'a SandboxRecord) -> StoreFuture<'a, ()>;

    /// Has everything that was noted before survive a power loss.
    fn sync_sandboxes(&self) -> StoreFuture<'_, ()>;

    /// Writes a sandbox anew. Durable when it returns.
    fn update_sandbox<'a>(&'a self, record: &'a SandboxRecord) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.note_sandbox(record).await?;
            self.sync_sandboxes().await
        })
    }

    /// Forgets a sandbox.
    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> StoreFuture<'a, ()>;

    /// All sandboxes of everybody, for the start of a server.
    fn all_sandboxes(&self) -> StoreFuture<'_, Vec<SandboxRecord>>;

    /// One page of an owner's sandboxes.
    fn page_sandboxes<'a>(
        &'a self,
        owner: &'a Owner,
        filter: &'a SandboxFilter,
        limit: u32,
        offset: u64,
    ) -> StoreFuture<'a, SandboxPage>;

    /// Takes a key in.
    fn insert_key<'a>(&'a self, key: &'a KeyRecord) -> StoreFuture<'a, ()>;

    /// The key with this hash.
    fn key_by_hash<'a>(&'a self, hash: &'a KeyHash) -> StoreFuture<'a, Option<KeyRecord>>;

    /// All keys, ordered by creation, then id.
    fn all_keys(&self) -> StoreFuture<'_, Vec<KeyRecord>>;

    /// Revokes a key; tells its hash, or nothing when there is no such key. Idempotent.
    fn revoke_key<'a>(&'a self, id: &'a str, at: Timestamp) -> StoreFuture<'a, Option<KeyHash>>;

    /// Fails when the store can't be used.
    fn check(&self) -> StoreFuture<'_, ()>;
}
