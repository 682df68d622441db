//! How records lie in rows, and are read from them.

use outlive_api::launch::IsolationTier;
use outlive_core::{
    id::{Generation, SandboxId, SnapshotId},
    sandbox::{Desired, Hold, Observed, ReleaseWhy, Sandbox, Stored},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use sqlx::{Decode, Row as _, Sqlite, Type, sqlite::SqliteRow};

use crate::{
    sandboxes::config::SandboxConfig,
    store::{KeyHash, KeyRecord, Owner, SandboxRecord, StoreError, role_from_word},
};

/// A row, and whose it is: what is unreadable in it is told with that name.
pub(in crate::store) struct Columns<'r> {
    row: &'r SqliteRow,
    id: String,
}

impl<'r> Columns<'r> {
    /// Those of a row that `name` tells from the others.
    pub(in crate::store) fn of(row: &'r SqliteRow, name: &str) -> Result<Self, StoreError> {
        let id = row.try_get(name)?;
        Ok(Self { row, id })
    }

    fn bad(&self, column: &'static str) -> StoreError {
        StoreError::BadRow {
            id: self.id.clone(),
            column,
        }
    }

    /// As the database has it.
    pub(in crate::store) fn get<T>(&self, column: &str) -> Result<T, StoreError>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite>,
    {
        Ok(self.row.try_get(column)?)
    }

    /// A text that says what `read` makes of it.
    pub(in crate::store) fn read<T>(
        &self,
        column: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, StoreError> {
        read(self.get(column)?).ok_or_else(|| self.bad(column))
    }

    /// The same, where there may be none.
    pub(in crate::store) fn read_some<T>(
        &self,
        column: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let text: Option<&str> = self.get(column)?;
        text.map(|text| read(text).ok_or_else(|| self.bad(column)))
            .transpose()
    }

    /// A number within its bounds.
    pub(in crate::store) fn count<T: TryFrom<i64>>(
        &self,
        column: &'static str,
    ) -> Result<T, StoreError> {
        T::try_from(self.get(column)?).map_err(|_| self.bad(column))
    }

    /// A moment.
    pub(in crate::store) fn time(&self, column: &str) -> Result<Timestamp, StoreError> {
        self.get(column).map(Timestamp::from_unix_nanos)
    }

    /// The same, where there may be none.
    pub(in crate::store) fn time_some(
        &self,
        column: &str,
    ) -> Result<Option<Timestamp>, StoreError> {
        let nanos: Option<i64> = self.get(column)?;
        Ok(nanos.map(Timestamp::from_unix_nanos))
    }
}

pub(super) fn sandbox(row: &SqliteRow) -> Result<SandboxRecord, StoreError> {
    let row = Columns::of(row, "id")?;
    Ok(SandboxRecord {
        id: row.read("id", |text| SandboxId::parse(text).ok())?,
        owner: row.read("owner", Owner::parse)?,
        template: row.get("template")?,
        config: row.read("config", |text| SandboxConfig::from_text(text).ok())?,
        state: state(&row)?,
        slot: row.count("slot")?,
        isolation: row.read_some("isolation", IsolationTier::from_name)?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

/// As the last server left it: what only a server in memory knows is unknown.
fn state(row: &Columns<'_>) -> Result<Sandbox, StoreError> {
    Ok(Sandbox::remembered(Stored {
        desired: row.read("desired", Desired::from_word)?,
        observed: row.read("observed", Observed::from_word)?,
        why: row.read_some("why", ReleaseWhy::from_word)?,
        generation: Generation(row.count("generation")?),
        claimed_at: row.time("claimed_at")?,
        expires_at: row.time_some("expires_at")?,
        hard_expires_at: row.time_some("hard_expires_at")?,
        holds: row.read("holds", |text| holds_of(text).ok())?,
        restoring: row.read_some("restoring", |text| SnapshotId::parse(text).ok())?,
    }))
}

pub(super) fn key(row: &SqliteRow) -> Result<KeyRecord, StoreError> {
    let row = Columns::of(row, "id")?;
    Ok(KeyRecord {
        id: row.get("id")?,
        hash: hash(&row)?,
        owner: row.read("owner", Owner::parse)?,
        role: row.read("role", role_from_word)?,
        name: row.get("name")?,
        created_at: row.time("created_at")?,
        expires_at: row.time_some("expires_at")?,
        revoked_at: row.time_some("revoked_at")?,
    })
}

/// Of a key.
pub(super) fn hash(row: &Columns<'_>) -> Result<KeyHash, StoreError> {
    let bytes: &[u8] = row.get("hash")?;
    bytes.try_into().map_err(|_| row.bad("hash"))
}

/// A hold as the store writes it; times in nanoseconds since 1970.
#[derive(Debug, Serialize, Deserialize)]
struct StoredHold {
    id: String,
    owner: String,
    since: i64,
    expires_at: i64,
}

pub(super) fn holds_text(holds: &[Hold]) -> Result<String, serde_json::Error> {
    let stored = holds.iter().map(|hold| StoredHold {
        id: hold.id.clone(),
        owner: hold.owner.clone(),
        since: hold.since.unix_nanos(),
        expires_at: hold.expires_at.unix_nanos(),
    });
    serde_json::to_string(&stored.collect::<Vec<_>>())
}

fn holds_of(text: &str) -> Result<Vec<Hold>, serde_json::Error> {
    let stored: Vec<StoredHold> = serde_json::from_str(text)?;
    let holds = stored.into_iter().map(|hold| Hold {
        id: hold.id,
        owner: hold.owner,
        since: Timestamp::from_unix_nanos(hold.since),
        expires_at: Timestamp::from_unix_nanos(hold.expires_at),
    });
    Ok(holds.collect())
}

/// SQLite has signed numbers only; ours never come near the border.
pub(in crate::store) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
