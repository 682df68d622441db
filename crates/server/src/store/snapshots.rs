//! The snapshots that a server has.

use outlive_core::{
    id::{SandboxId, SnapshotId},
    time::Timestamp,
};
use sqlx::{QueryBuilder, Sqlite, sqlite::SqliteRow};

use super::{
    Owner, StoreError, StoreFuture,
    sqlite::{Columns, SqliteStore, number},
};
use crate::images::UsedImage;

const COLUMNS: &str = "id, owner, name, description, sandbox, template, image, slot, state, files, \
     bytes, created_at, expires_at";

/// A condition on the time.
pub(super) const EXPIRED: &str = " AND expires_at <= ";
/// Of all that expire later, the first.
pub(super) const NEXT_EXPIRY: &str = "SELECT min(expires_at) FROM snapshots WHERE expires_at > ?";

/// How far a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SnapshotState {
    /// Its files are being copied: nobody sees it yet.
    Making,
    /// It may be used.
    Ready,
    /// It is being removed: nobody sees it any more.
    Deleting,
}

impl SnapshotState {
    const ALL: [Self; 3] = [Self::Making, Self::Ready, Self::Deleting];

    const fn word(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// One snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SnapshotRecord {
    pub(crate) id: SnapshotId,
    pub(crate) owner: Owner,
    /// Unique among its owner's.
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// Whose files they were.
    pub(crate) sandbox: SandboxId,
    pub(crate) template: String,
    /// What its files lie over; nothing for the image `host`.
    pub(crate) image: Option<UsedImage>,
    /// Names the range of host ids that its files belong to.
    pub(crate) slot: u16,
    pub(crate) state: SnapshotState,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
}

impl SnapshotRecord {
    /// Whether its time has come: it is gone for everybody, whenever its files are removed.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

/// Whether a snapshot was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SnapshotInserted {
    /// It was.
    Yes,
    /// The owner has as many as allowed.
    OverQuota,
    /// The owner has another of this name.
    NameTaken,
    /// Its id is another's: try others.
    Collision,
}

/// The part of a store that knows snapshots.
pub(crate) trait SnapshotStore: std::fmt::Debug + Send + Sync {
    /// Takes a snapshot in unless its owner already has `owned_max`; atomic.
    fn insert_snapshot<'a>(
        &'a self,
        record: &'a SnapshotRecord,
        owned_max: u32,
    ) -> StoreFuture<'a, SnapshotInserted>;

    /// Writes its state and its size anew. Durable when it returns.
    fn update_snapshot<'a>(&'a self, record: &'a SnapshotRecord) -> StoreFuture<'a, ()>;

    /// Forgets a snapshot. Idempotent.
    fn remove_snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, ()>;

    /// One snapshot, whatever its state.
    fn snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, Option<SnapshotRecord>>;

    /// All snapshots of everybody, whatever their state, ordered by creation, then id.
    fn all_snapshots(&self) -> StoreFuture<'_, Vec<SnapshotRecord>>;

    /// Those whose time has come, ordered by creation, then id.
    fn expired_snapshots(&self, now: Timestamp) -> StoreFuture<'_, Vec<SnapshotRecord>>;

    /// When the next of the others expires.
    fn next_expiry(&self, now: Timestamp) -> StoreFuture<'_, Option<Timestamp>>;

    /// An owner's snapshots that may be used, ordered by creation, then id; of one sandbox or of
    /// all.
    fn snapshots_of<'a>(
        &'a self,
        owner: &'a Owner,
        sandbox: Option<&'a SandboxId>,
    ) -> StoreFuture<'a, Vec<SnapshotRecord>>;
}

impl SqliteStore {
    async fn take_in(
        &self,
        record: &SnapshotRecord,
        owned_max: u32,
    ) -> Result<SnapshotInserted, StoreError> {
        // One statement, so that the count and the row are one step.
        let done = sqlx::query(
            "INSERT INTO snapshots (id, owner, name, description, sandbox, template, image, slot, \
             state, files, bytes, created_at, expires_at) \
             SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? \
             WHERE (SELECT count(*) FROM snapshots WHERE owner = ?) < ?",
        )
        .bind(record.id.as_str())
        .bind(record.owner.as_str())
        .bind(record.name.as_deref())
        .bind(record.description.as_deref())
        .bind(record.sandbox.as_str())
        .bind(&record.template)
        .bind(
            record
                .image
                .as_ref()
                .map(serde_json::to_string)
                .transpose()?,
        )
        .bind(i64::from(record.slot))
        .bind(record.state.word())
        .bind(number(record.files))
        .bind(number(record.bytes))
        .bind(record.created_at.unix_nanos())
        .bind(record.expires_at.map(Timestamp::unix_nanos))
        .bind(record.owner.as_str())
        .bind(i64::from(owned_max))
        .execute(self.pool())
        .await;
        match done {
            Ok(done) if done.rows_affected() == 1 => Ok(SnapshotInserted::Yes),
            Ok(_) => Ok(SnapshotInserted::OverQuota),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                let same_name = sqlx::query("SELECT 1 FROM snapshots WHERE owner = ? AND name = ?")
                    .bind(record.owner.as_str())
                    .bind(record.name.as_deref())
                    .fetch_optional(self.pool())
                    .await?;
                Ok(match same_name {
                    Some(_) => SnapshotInserted::NameTaken,
                    None => SnapshotInserted::Collision,
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn select(
        &self,
        conditions: impl FnOnce(&mut QueryBuilder<Sqlite>),
    ) -> Result<Vec<SnapshotRecord>, StoreError> {
        let mut query = QueryBuilder::new("SELECT ");
        query.push(COLUMNS).push(" FROM snapshots WHERE true");
        conditions(&mut query);
        query.push(" ORDER BY created_at, id");
        let rows = query.build().fetch_all(self.pool()).await?;
        rows.iter().map(snapshot).collect()
    }
}

impl SnapshotStore for SqliteStore {
    fn insert_snapshot<'a>(
        &'a self,
        record: &'a SnapshotRecord,
        owned_max: u32,
    ) -> StoreFuture<'a, SnapshotInserted> {
        Box::pin(async move {
            let inserted = self.take_in(record, owned_max).await;
            inserted.map_err(|error| self.named(error))
        })
    }

    fn update_snapshot<'a>(&'a self, record: &'a SnapshotRecord) -> StoreFuture<'a, ()> {
        Box::pin(self.insist(move || async move {
            sqlx::query("UPDATE snapshots SET state = ?, files = ?, bytes = ? WHERE id = ?")
                .bind(record.state.word())
                .bind(number(record.files))
                .bind(number(record.bytes))
                .bind(record.id.as_str())
                .execute(self.pool())
                .await?;
            Ok(())
        }))
    }

    fn remove_snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, ()> {
        Box::pin(self.insist(move || async move {
            sqlx::query("DELETE FROM snapshots WHERE id = ?")
                .bind(id.as_str())
                .execute(self.pool())
                .await?;
            Ok(())
        }))
    }

    fn snapshot<'a>(&'a self, id: &'a SnapshotId) -> StoreFuture<'a, Option<SnapshotRecord>> {
        Box::pin(async move {
            let found = self.select(|query| {
                query.push(" AND id = ").push_bind(id.as_str().to_owned());
            });
            Ok(found.await?.pop())
        })
    }

    fn all_snapshots(&self) -> StoreFuture<'_, Vec<SnapshotRecord>> {
        Box::pin(self.select(|_| {}))
    }

    fn expired_snapshots(&self, now: Timestamp) -> StoreFuture<'_, Vec<SnapshotRecord>> {
        Box::pin(self.select(move |query| {
            query.push(EXPIRED).push_bind(now.unix_nanos());
        }))
    }

    fn next_expiry(&self, now: Timestamp) -> StoreFuture<'_, Option<Timestamp>> {
        Box::pin(async move {
            let next: Option<i64> = sqlx::query_scalar(NEXT_EXPIRY)
                .bind(now.unix_nanos())
                .fetch_one(self.pool())
                .await?;
            Ok(next.map(Timestamp::from_unix_nanos))
        })
    }

    fn snapshots_of<'a>(
        &'a self,
        owner: &'a Owner,
        sandbox: Option<&'a SandboxId>,
    ) -> StoreFuture<'a, Vec<SnapshotRecord>> {
        Box::pin(self.select(move |query| {
            query
                .push(" AND state = ")
                .push_bind(SnapshotState::Ready.word())
                .push(" AND owner = ")
                .push_bind(owner.as_str().to_owned());
            if let Some(sandbox) = sandbox {
                query
                    .push(" AND sandbox = ")
                    .push_bind(sandbox.as_str().to_owned());
            }
        }))
    }
}

fn snapshot(row: &SqliteRow) -> Result<SnapshotRecord, StoreError> {
    let row = Columns::of(row, "id")?;
    Ok(SnapshotRecord {
        id: row.read("id", |text| SnapshotId::parse(text).ok())?,
        owner: row.read("owner", Owner::parse)?,
        name: row.get("name")?,
        description: row.get("description")?,
        sandbox: row.read("sandbox", |text| SandboxId::parse(text).ok())?,
        template: row.get("template")?,
        image: row.read_some("image", |text| serde_json::from_str(text).ok())?,
        slot: row.count("slot")?,
        state: row.read("state", SnapshotState::from_word)?,
        files: row.count("files")?,
        bytes: row.count("bytes")?,
        created_at: row.time("created_at")?,
        expires_at: row.time_some("expires_at")?,
    })
}
