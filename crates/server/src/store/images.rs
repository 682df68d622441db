//! The images that a server has, by name.

use outlive_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqliteRow;

use super::{
    StoreError, StoreFuture,
    sqlite::{Columns, SqliteStore},
};
use crate::{
    images::{Counts, Digest, Settings, UsedImage},
    sandboxes::config::SandboxConfig,
};

/// One image.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ImageRecord {
    /// `name:tag`.
    pub(crate) name: String,
    pub(crate) digest: Digest,
    /// Lowest first.
    pub(crate) layers: Vec<Digest>,
    pub(crate) settings: Settings,
    pub(crate) counts: Counts,
    /// Where it came from.
    pub(crate) source: String,
    pub(crate) created_at: Timestamp,
}

/// Who needs an image, which is `host` where none is named.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ImageUser {
    /// A sandbox, awake or not.
    Sandbox(Option<UsedImage>),
    /// A snapshot, ready or not.
    Snapshot(Option<UsedImage>),
}

impl ImageUser {
    /// What it needs.
    pub(crate) const fn image(&self) -> Option<&UsedImage> {
        match self {
            Self::Sandbox(image) | Self::Snapshot(image) => image.as_ref(),
        }
    }
}

/// What is kept as text.
#[derive(Debug, Serialize, Deserialize)]
struct Details {
    layers: Vec<Digest>,
    settings: Settings,
    counts: Counts,
    source: String,
}

/// The part of a store that knows images.
pub(crate) trait ImageStore: std::fmt::Debug + Send + Sync {
    /// Gives a name to an image; one that had it has it no longer. Durable when it returns.
    fn put_image<'a>(&'a self, image: &'a ImageRecord) -> StoreFuture<'a, ()>;

    /// All of them, by name.
    fn all_images(&self) -> StoreFuture<'_, Vec<ImageRecord>>;

    /// Everybody who needs an image, as of one instant: who takes over from another is in the
    /// store before the other leaves it.
    fn image_users(&self) -> StoreFuture<'_, Vec<ImageUser>>;

    /// Takes a name away. Idempotent.
    fn remove_image<'a>(&'a self, name: &'a str) -> StoreFuture<'a, ()>;
}

impl ImageStore for SqliteStore {
    fn put_image<'a>(&'a self, image: &'a ImageRecord) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let put = async {
                let details = Details {
                    layers: image.layers.clone(),
                    settings: image.settings.clone(),
                    counts: image.counts,
                    source: image.source.clone(),
                };
                sqlx::query(
                    "INSERT INTO images (name, digest, details, created_at) VALUES (?, ?, ?, ?) \
                 ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, \
                 details = excluded.details, created_at = excluded.created_at",
                )
                .bind(&image.name)
                .bind(image.digest.to_string())
                .bind(serde_json::to_string(&details)?)
                .bind(image.created_at.unix_nanos())
                .execute(self.pool())
                .await?;
                Ok(())
            };
            put.await.map_err(|error| self.named(error))
        })
    }

    fn all_images(&self) -> StoreFuture<'_, Vec<ImageRecord>> {
        Box::pin(async move {
            let rows =
                sqlx::query("SELECT name, digest, details, created_at FROM images ORDER BY name")
                    .fetch_all(self.pool())
                    .await?;
            rows.iter().map(image).collect()
        })
    }

    fn image_users(&self) -> StoreFuture<'_, Vec<ImageUser>> {
        Box::pin(async move {
            let rows = sqlx::query(
                "SELECT id, config, NULL AS image FROM sandboxes \
                 UNION ALL SELECT id, NULL AS config, image FROM snapshots",
            )
            .fetch_all(self.pool())
            .await?;
            rows.iter().map(user).collect()
        })
    }

    fn remove_image<'a>(&'a self, name: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(self.insist(move || async move {
            sqlx::query("DELETE FROM images WHERE name = ?")
                .bind(name)
                .execute(self.pool())
                .await?;
            Ok(())
        }))
    }
}

fn user(row: &SqliteRow) -> Result<ImageUser, StoreError> {
    let row = Columns::of(row, "id")?;
    let config = row.read_some("config", |text| SandboxConfig::from_text(text).ok())?;
    if let Some(config) = config {
        return Ok(ImageUser::Sandbox(config.image));
    }
    let image = row.read_some("image", |text| serde_json::from_str(text).ok())?;
    Ok(ImageUser::Snapshot(image))
}

fn image(row: &SqliteRow) -> Result<ImageRecord, StoreError> {
    let row = Columns::of(row, "name")?;
    let details: Details = row.read("details", |text| serde_json::from_str(text).ok())?;
    Ok(ImageRecord {
        name: row.get("name")?,
        digest: row.read("digest", Digest::parse)?,
        layers: details.layers,
        settings: details.settings,
        counts: details.counts,
        source: details.source,
        created_at: row.time("created_at")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_image_is_found_as_it_was_written_and_a_name_moves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outlive.db");
        let mut one = ImageRecord {
            name: "b:latest".to_owned(),
            digest: Digest::of(b"one"),
            layers: vec![Digest::of(b"low"), Digest::of(b"high")],
            settings: Settings::default(),
            counts: Counts {
                entries: 3,
                ..Counts::default()
            },
            source: "oci".to_owned(),
            created_at: Timestamp::from_unix_nanos(1_700_000_000_123_456_789),
        };
        let mut other = one.clone();
        other.name = "a:latest".to_owned();
        let store = SqliteStore::open(&path).await.unwrap();
        store.put_image(&one).await.unwrap();
        store.put_image(&other).await.unwrap();
        one.digest = Digest::of(b"two");
        store.put_image(&one).await.unwrap();
        let store = SqliteStore::open(&path).await.unwrap();
        assert_eq!(
            store.all_images().await.unwrap(),
            [other.clone(), one.clone()]
        );
        store.remove_image(&one.name).await.unwrap();
        store.remove_image(&one.name).await.unwrap();
        assert_eq!(store.all_images().await.unwrap(), [other]);
    }
}
