//! How records lie in rows, and are read from them.

use outlive_api::launch::IsolationTier;
use outlive_core::{
    id::{Generation, SandboxId, SnapshotId},
    sandbox::{Desired, Hold, Observed, ReleaseWhy, Sandbox, Stored},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use sqlx::{Row as _, sqlite::SqliteRow};

use crate::{
    sandboxes::config::SandboxConfig,
    store::{KeyHash, KeyRecord, Owner, SandboxRecord, StoreError, role_from_word},
};

pub(super) fn sandbox(row: &SqliteRow) -> Result<SandboxRecord, StoreError> {
    let id: String = row.try_get("id")?;
    let bad = |column| StoreError::BadRow {
        id: id.clone(),
        column,
    };
    let text = |column| row.try_get::<String, _>(column);
    let moment = |column| {
        row.try_get::<i64, _>(column)
            .map(Timestamp::from_unix_nanos)
    };
    let slot: i64 = row.try_get("slot")?;
    let isolation: Option<String> = row.try_get("isolation")?;
    Ok(SandboxRecord {
        id: SandboxId::parse(&id).map_err(|_| bad("id"))?,
        owner: Owner::parse(&text("owner")?).ok_or_else(|| bad("owner"))?,
        template: text("template")?,
        config: SandboxConfig::from_text(&text("config")?).map_err(|_| bad("config"))?,
        state: state(&id, row)?,
        slot: u16::try_from(slot).map_err(|_| bad("slot"))?,
        isolation: isolation
            .map(|name| IsolationTier::from_name(&name).ok_or_else(|| bad("isolation")))
            .transpose()?,
        created_at: moment("created_at")?,
        updated_at: moment("updated_at")?,
    })
}

/// As the last server left it: what only a server in memory knows is unknown.
fn state(id: &str, row: &SqliteRow) -> Result<Sandbox, StoreError> {
    let bad = |column| StoreError::BadRow {
        id: id.to_owned(),
        column,
    };
    let text = |column| row.try_get::<String, _>(column);
    let time = |column| {
        row.try_get::<Option<i64>, _>(column)
            .map(|nanos| nanos.map(Timestamp::from_unix_nanos))
    };
    let why: Option<String> = row.try_get("why")?;
    let restoring: Option<String> = row.try_get("restoring")?;
    let generation: i64 = row.try_get("generation")?;
    let claimed_at: i64 = row.try_get("claimed_at")?;
    Ok(Sandbox::remembered(Stored {
        desired: Desired::from_word(&text("desired")?).ok_or_else(|| bad("desired"))?,
        observed: Observed::from_word(&text("observed")?).ok_or_else(|| bad("observed"))?,
        why: why
            .map(|word| ReleaseWhy::from_word(&word).ok_or_else(|| bad("why")))
            .transpose()?,
        generation: Generation(u64::try_from(generation).map_err(|_| bad("generation"))?),
        claimed_at: Timestamp::from_unix_nanos(claimed_at),
        expires_at: time("expires_at")?,
        hard_expires_at: time("hard_expires_at")?,
        holds: holds_of(&text("holds")?).map_err(|_| bad("holds"))?,
        restoring: restoring
            .map(|id| SnapshotId::parse(&id).map_err(|_| bad("restoring")))
            .transpose()?,
    }))
}

pub(super) fn key(row: &SqliteRow) -> Result<KeyRecord, StoreError> {
    let id: String = row.try_get("id")?;
    let bad = |column| StoreError::BadRow {
        id: id.clone(),
        column,
    };
    let time = |column| {
        row.try_get::<Option<i64>, _>(column)
            .map(|nanos| nanos.map(Timestamp::from_unix_nanos))
    };
    let created_at: i64 = row.try_get("created_at")?;
    let owner: String = row.try_get("owner")?;
    let role: String = row.try_get("role")?;
    Ok(KeyRecord {
        hash: hash(&id, row)?,
        owner: Owner::parse(&owner).ok_or_else(|| bad("owner"))?,
        role: role_from_word(&role).ok_or_else(|| bad("role"))?,
        name: row.try_get("name")?,
        created_at: Timestamp::from_unix_nanos(created_at),
        expires_at: time("expires_at")?,
        revoked_at: time("revoked_at")?,
        id,
    })
}

pub(super) fn hash(id: &str, row: &SqliteRow) -> Result<KeyHash, StoreError> {
    let bytes: Vec<u8> = row.try_get("hash")?;
    bytes.try_into().map_err(|_| StoreError::BadRow {
        id: id.to_owned(),
        column: "hash",
    })
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
