//! The store in one SQLite file: the embedded default, for one server.
//!
//! Write-ahead log with full syncs: an intent that was answered survives a power loss.
//!
//! Sandboxes have one writing connection that doesn't sync. What it wrote survives a kill of this
//! server at once, and a power loss after a sync of the log, which several share:
//!
//! ```text
//!   write ─► log (pages of the kernel) ─► sync, one for all that were written before it
//! ```
//! That SQLite itself syncs the log before it moves it into the file, and starts it anew only
//! afterwards, is what makes this enough.
//!
//! The index of the log is in the memory of this server ([`ONE_PROCESS`]), not in a file that all
//! connections map: on a full disk that copies on write, a store into such a mapping is the end of
//! the process.

mod log;
#[cfg(test)]
mod plans;
mod rows;

use std::{
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use outlive_api::launch::IsolationTier;
use outlive_core::{
    id::{SandboxId, SnapshotId},
    sandbox::ReleaseWhy,
    time::Timestamp,
};
use sqlx::{
    ConnectOptions, QueryBuilder, Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::Mutex;

pub(super) use self::rows::{Columns, number};
use self::{
    log::Log,
    rows::{hash, holds_text, key, sandbox},
};
use super::{
    Inserted, KeyHash, KeyRecord, Owner, SandboxFilter, SandboxPage, SandboxRecord, Store,
    StoreError, StoreFuture, role_word,
};
use crate::reserve::Reserve;

const CONNECTIONS_MAX: u32 = 4;
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);

/// SQLite's way to files that only one process opens, with as many connections as it likes.
const ONE_PROCESS: &str = "unix-excl";

const SANDBOX_COLUMNS: &str = "id, owner, template, config, desired, observed, why, generation, \
     slot, created_at, updated_at, claimed_at, expires_at, hard_expires_at, holds, restoring, isolation";

/// See the module.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    pool: SqlitePool,
    /// The one connection that writes sandboxes. No pool has it: a pool wakes two threads more for
    /// each write, to ask whether a file is still there.
    sandboxes: Mutex<SqliteConnection>,
    log: Log,
    /// For what must be written on a full disk, too.
    reserve: Option<Arc<Reserve>>,
}

impl SqliteStore {
    /// Opens the file, makes it when there is none, and brings its tables up to date.
    pub(crate) async fn open(path: &Path) -> Result<Self, StoreError> {
        make_private(path).map_err(sqlx::Error::Io)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .vfs(ONE_PROCESS)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(BUSY_WAIT_MAX)
            .disable_statement_logging();
        let pool = connections(options.clone()).await?;
        sqlx::migrate!("./migrations/sqlite").run(&pool).await?;
        let unsynced = options.synchronous(SqliteSynchronous::Normal);
        Ok(Self {
            pool,
            sandboxes: Mutex::new(unsynced.connect().await?),
            log: Log::of(path),
            reserve: None,
        })
    }

    /// Opens it on a disk that may be full, with room for what frees space.
    pub(crate) async fn open_on(path: &Path, reserve: Arc<Reserve>) -> Result<Self, StoreError> {
        loop {
            match Self::open(path).await {
                Err(error) if (error.is_full() || reserve.lacks_files()) && reserve.give_up() => {}
                opened => return Ok(opened?.with_reserve(reserve)),
            }
        }
    }

    fn with_reserve(mut self, reserve: Arc<Reserve>) -> Self {
        if reserve.admit().is_ok()
            && let Err(error) = self.log.take_blocks()
        {
            tracing::debug!(%error, "the store's log grows as it is written");
        }
        self.reserve = Some(reserve);
        self
    }

    /// Writes what frees space: on a full disk again, with what the reserve gives, as long as it
    /// gives any.
    pub(super) async fn insist<T, F>(&self, write: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        loop {
            match write().await {
                Err(error)
                    if error.is_full() && self.reserve.as_ref().is_some_and(|it| it.give_up()) => {}
                done => return done.map_err(|error| self.named(error)),
            }
        }
    }

    /// An error that says which disk is full.
    pub(super) fn named(&self, error: StoreError) -> StoreError {
        match &self.reserve {
            Some(reserve) if error.is_full() => reserve.full().into(),
            _ => error,
        }
    }

    /// For the other parts of the store.
    pub(super) const fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    async fn insert(&self, record: &SandboxRecord, owned_max: u32) -> Result<Inserted, StoreError> {
        // One statement, so that the count and the row are one step: two creations at the same
        // moment can't both take the last place.
        let done = sqlx::query(
            "INSERT INTO sandboxes (id, owner, template, config, desired, observed, why, \
             generation, slot, created_at, updated_at, claimed_at, expires_at, hard_expires_at, \
             holds, isolation) \
             SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? \
             WHERE (SELECT count(*) FROM sandboxes WHERE owner = ?) < ?",
        )
        .bind(record.id.as_str())
        .bind(record.owner.as_str())
        .bind(&record.template)
        .bind(record.config.to_text()?)
        .bind(record.state.desired.word())
        .bind(record.state.observed.word())
        .bind(record.state.why.map(ReleaseWhy::word))
        .bind(number(record.state.generation.0))
        .bind(i64::from(record.slot))
        .bind(record.created_at.unix_nanos())
        .bind(record.updated_at.unix_nanos())
        .bind(record.state.claimed_at.unix_nanos())
        .bind(record.state.expires_at.map(Timestamp::unix_nanos))
        .bind(record.state.hard_expires_at.map(Timestamp::unix_nanos))
        .bind(holds_text(&record.state.holds)?)
        .bind(record.isolation.map(IsolationTier::name))
        .bind(record.owner.as_str())
        .bind(i64::from(owned_max))
        .execute(&mut *self.sandboxes.lock().await)
        .await;
        match done {
            Ok(done) if done.rows_affected() == 1 => Ok(Inserted::Yes),
            Ok(_) => Ok(Inserted::OverQuota),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                Ok(Inserted::Collision)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn sync(&self) -> Result<(), StoreError> {
        Ok(self.log.sync().await.map_err(sqlx::Error::Io)?)
    }

    async fn note(&self, record: &SandboxRecord) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE sandboxes SET config = ?, desired = ?, observed = ?, why = ?, generation = ?, \
             updated_at = ?, claimed_at = ?, expires_at = ?, hard_expires_at = ?, holds = ?, \
             restoring = ?, isolation = ? \
             WHERE id = ?",
        )
        .bind(record.config.to_text()?)
        .bind(record.state.desired.word())
        .bind(record.state.observed.word())
        .bind(record.state.why.map(ReleaseWhy::word))
        .bind(number(record.state.generation.0))
        .bind(record.updated_at.unix_nanos())
        .bind(record.state.claimed_at.unix_nanos())
        .bind(record.state.expires_at.map(Timestamp::unix_nanos))
        .bind(record.state.hard_expires_at.map(Timestamp::unix_nanos))
        .bind(holds_text(&record.state.holds)?)
        .bind(record.state.restoring.as_ref().map(SnapshotId::as_str))
        .bind(record.isolation.map(IsolationTier::name))
        .bind(record.id.as_str())
        .execute(&mut *self.sandboxes.lock().await)
        .await?;
        Ok(())
    }

    async fn page(
        &self,
        owner: &Owner,
        filter: &SandboxFilter,
        limit: u32,
        offset: u64,
    ) -> Result<SandboxPage, StoreError> {
        // One read transaction: the count and the page are of one moment.
        let mut tx = self.pool.begin().await?;
        let mut count = count_of(owner, filter);
        let total: i64 = count.build_query_scalar().fetch_one(&mut *tx).await?;
        let mut rows = page_of(owner, filter, limit, offset);
        let rows = rows.build().fetch_all(&mut *tx).await?;
        tx.commit().await?;
        Ok(SandboxPage {
            records: rows.iter().map(sandbox).collect::<Result<_, _>>()?,
            total: u64::try_from(total).unwrap_or(0),
        })
    }

    async fn put_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO api_keys (id, hash, owner, role, name, created_at, expires_at, revoked_at) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&key.id)
        .bind(key.hash.as_slice())
        .bind(key.owner.as_str())
        .bind(role_word(key.role))
        .bind(&key.name)
        .bind(key.created_at.unix_nanos())
        .bind(key.expires_at.map(Timestamp::unix_nanos))
        .bind(key.revoked_at.map(Timestamp::unix_nanos))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    async fn revoke(&self, id: &str, at: Timestamp) -> Result<Option<KeyHash>, StoreError> {
        let row = sqlx::query(
            "UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? RETURNING id, hash",
        )
        .bind(at.unix_nanos())
        .bind(id)
        .fetch_optional(&self.pool)
        .await?;
        row.map(|row| hash(&Columns::of(&row, "id")?)).transpose()
    }
}

impl Store for SqliteStore {
    fn insert_sandbox<'a>(
        &'a self,
        record: &'a SandboxRecord,
        owned_max: u32,
    ) -> StoreFuture<'a, Inserted> {
        Box::pin(async move {
            let inserted = self.insert(record, owned_max).await;
            inserted.map_err(|error| self.named(error))
        })
    }

    fn note_sandbox<'a>(&'a self, record: &'a SandboxRecord) -> StoreFuture<'a, ()> {
        Box::pin(self.insist(|| self.note(record)))
    }

    fn sync_sandboxes(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.insist(|| self.sync()))
    }

    fn remove_sandbox<'a>(&'a self, id: &'a SandboxId) -> StoreFuture<'a, ()> {
        Box::pin(self.insist(move || async move {
            sqlx::query("DELETE FROM sandboxes WHERE id = ?")
                .bind(id.as_str())
                .execute(&mut *self.sandboxes.lock().await)
                .await?;
            self.sync().await
        }))
    }

    fn all_sandboxes(&self) -> StoreFuture<'_, Vec<SandboxRecord>> {
        Box::pin(async move {
            let mut query = QueryBuilder::<Sqlite>::new("SELECT ");
            query
                .push(SANDBOX_COLUMNS)
                .push(" FROM sandboxes ORDER BY created_at, id");
            let rows = query.build().fetch_all(&self.pool).await?;
            rows.iter().map(sandbox).collect()
        })
    }

    fn page_sandboxes<'a>(
        &'a self,
        owner: &'a Owner,
        filter: &'a SandboxFilter,
        limit: u32,
        offset: u64,
    ) -> StoreFuture<'a, SandboxPage> {
        Box::pin(self.page(owner, filter, limit, offset))
    }

    fn insert_key<'a>(&'a self, key: &'a KeyRecord) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let put = self.put_key(key).await;
            put.map_err(|error| self.named(error))
        })
    }

    fn key_by_hash<'a>(&'a self, hash: &'a KeyHash) -> StoreFuture<'a, Option<KeyRecord>> {
        Box::pin(async move {
            let row = sqlx::query("SELECT * FROM api_keys WHERE hash = ?")
                .bind(hash.as_slice())
                .fetch_optional(&self.pool)
                .await?;
            row.as_ref().map(key).transpose()
        })
    }

    fn all_keys(&self) -> StoreFuture<'_, Vec<KeyRecord>> {
        Box::pin(async move {
            let rows = sqlx::query("SELECT * FROM api_keys ORDER BY created_at, id")
                .fetch_all(&self.pool)
                .await?;
            rows.iter().map(key).collect()
        })
    }

    fn revoke_key<'a>(&'a self, id: &'a str, at: Timestamp) -> StoreFuture<'a, Option<KeyHash>> {
        Box::pin(self.insist(move || self.revoke(id, at)))
    }

    fn check(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            sqlx::query("SELECT 1").execute(&self.pool).await?;
            Ok(())
        })
    }
}

fn count_of(owner: &Owner, filter: &SandboxFilter) -> QueryBuilder<Sqlite> {
    let mut count = QueryBuilder::new("SELECT count(*) FROM sandboxes");
    conditions(&mut count, owner, filter);
    count
}

fn page_of(owner: &Owner, filter: &SandboxFilter, limit: u32, offset: u64) -> QueryBuilder<Sqlite> {
    let mut rows = QueryBuilder::new("SELECT ");
    rows.push(SANDBOX_COLUMNS).push(" FROM sandboxes");
    conditions(&mut rows, owner, filter);
    rows.push(" ORDER BY created_at, id LIMIT ")
        .push_bind(i64::from(limit))
        .push(" OFFSET ")
        .push_bind(number(offset));
    rows
}

fn conditions(query: &mut QueryBuilder<Sqlite>, owner: &Owner, filter: &SandboxFilter) {
    query
        .push(" WHERE owner = ")
        .push_bind(owner.as_str().to_owned());
    if !filter.observed.is_empty() {
        query.push(" AND observed IN (");
        let mut list = query.separated(", ");
        for observed in &filter.observed {
            list.push_bind(observed.word());
        }
        query.push(")");
    }
    if let Some(template) = &filter.template {
        query.push(" AND template = ").push_bind(template.clone());
    }
    if !filter.hidden.is_empty() {
        query.push(" AND id NOT IN (");
        let mut list = query.separated(", ");
        for id in &filter.hidden {
            list.push_bind(id.as_str().to_owned());
        }
        query.push(")");
    }
}

async fn connections(options: SqliteConnectOptions) -> Result<SqlitePool, sqlx::Error> {
    SqlitePoolOptions::new()
        .max_connections(CONNECTIONS_MAX)
        .min_connections(1)
        .acquire_timeout(BUSY_WAIT_MAX)
        // A connection to a file doesn't break while nobody uses it.
        .test_before_acquire(false)
        .connect_with(options)
        .await
}

/// Environment variables of sandboxes are in there: nobody else reads the file. SQLite makes the
/// files beside it with the same rights.
fn make_private(path: &Path) -> io::Result<()> {
    // One that is there already is not opened: closing it would drop SQLite's locks on it.
    match OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
    {
        Ok(_empty) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    for suffix in ["", "-wal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        match fs::set_permissions(Path::new(&name), Permissions::from_mode(0o600)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_file_of_the_store_is_mapped() {
        // On a full btrfs the server died of SIGBUS on a plain GET: the index was such a file.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outlive.db");
        let store = SqliteStore::open(&path).await.unwrap();
        assert_eq!(store.all_sandboxes().await.unwrap(), []);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let here = dir.path().to_str().unwrap();
        assert!(!maps.contains(here), "{maps}");
        assert!(!dir.path().join("outlive.db-shm").exists());
    }

    #[tokio::test]
    async fn a_log_with_all_its_blocks_is_read_by_the_server_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let open = async |dir: &Path| {
            let reserve = Arc::new(Reserve::keep(dir));
            let path = dir.join("outlive.db");
            SqliteStore::open_on(&path, reserve).await.unwrap()
        };
        let store = open(dir.path()).await;
        for number in 1..40 {
            let record = crate::store::suite::record(number, "acme", 1);
            store.insert_sandbox(&record, 100).await.unwrap();
            // As the kill leaves it: the log is neither moved nor removed.
            let left = tempfile::tempdir().unwrap();
            for name in ["outlive.db", "outlive.db-wal"] {
                fs::copy(dir.path().join(name), left.path().join(name)).unwrap();
            }
            let next = open(left.path()).await;
            let (known, found) = (store.all_sandboxes(), next.all_sandboxes());
            assert_eq!(known.await.unwrap(), found.await.unwrap());
        }
    }

    #[tokio::test]
    async fn the_store_is_for_the_server_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outlive.db");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let _store = SqliteStore::open(&path).await.unwrap();
        for entry in fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{entry:?}");
        }
    }

    #[tokio::test]
    async fn sqlite_keeps_the_promises_of_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outlive.db");
        crate::store::suite::run(|| async { SqliteStore::open(&path).await.unwrap() }).await;
    }
}
