//! Images of every kind, from those that are as they should be to those that want out.

mod archive;
mod kept;
mod refused;
mod unpacked;

use std::{collections::BTreeSet, fs, path::PathBuf, sync::Arc};

use outlive_api::image::ImageFormat;
use outlive_core::{
    id::{Generation, SandboxId},
    sandbox::{Desired, Observed, Sandbox, Stored},
    time::Timestamp,
};
use tokio_util::sync::CancellationToken;

use super::{
    ImageError, ImageName, ImagesDir, Library, UsedImage, layer_path, library::Used,
    progress::Progress,
};
use crate::{
    sandboxes::config::SandboxConfig,
    store::{Inserted, Owner, SandboxRecord, Store, sqlite::SqliteStore},
};

/// A library in a directory of its own.
struct Shelf {
    dir: tempfile::TempDir,
    images: Arc<ImagesDir>,
    store: Arc<SqliteStore>,
    library: Library,
}

impl Shelf {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("outlive.db")).await;
        Self::open(dir, Arc::new(store.unwrap())).await
    }

    async fn open(dir: tempfile::TempDir, store: Arc<SqliteStore>) -> Self {
        let images = Arc::new(ImagesDir::open(dir.path()).unwrap());
        let library = Library::new(
            Arc::clone(&images),
            Arc::<SqliteStore>::clone(&store),
            CancellationToken::new(),
        );
        library.sweep().await.unwrap();
        Self {
            dir,
            images,
            store,
            library,
        }
    }

    async fn import(&self, name: &str, bytes: &[u8]) -> Result<Used, ImageError> {
        let slot = self.library.slot().unwrap();
        let archive = slot.draft().join("upload");
        fs::write(&archive, bytes).unwrap();
        let name = ImageName::parse(name).unwrap();
        let (progress, _stages) = Progress::new();
        self.library
            .import(slot, archive, name, ImageFormat::Auto, progress)
            .await
    }

    /// Layers that lie there.
    fn layers(&self) -> BTreeSet<String> {
        fs::read_dir(self.images.path().join("layers"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Nothing of an import is left.
    fn assert_clean(&self, story: &str) {
        assert_eq!(self.layers(), BTreeSet::new(), "{story}");
        let drafts = fs::read_dir(self.images.path().join("tmp")).unwrap();
        assert_eq!(drafts.count(), 0, "{story}");
    }

    fn only_layer(&self, used: &Used) -> PathBuf {
        assert_eq!(used.image.layers.len(), 1);
        layer_path(&self.images, used.image.layers[0])
    }

    async fn sandbox(&self, used: &Used) -> SandboxRecord {
        let at = Timestamp::from_unix_nanos(1);
        let record = SandboxRecord {
            id: SandboxId::from_bits(7),
            owner: Owner::parse("team").unwrap(),
            template: "default".to_owned(),
            config: SandboxConfig {
                image: Some(UsedImage::from(used.image.clone())),
                ..SandboxConfig::default()
            },
            state: Sandbox::remembered(Stored {
                desired: Desired::Released,
                observed: Observed::Released,
                why: None,
                generation: Generation::FIRST,
                claimed_at: at,
                expires_at: None,
                hard_expires_at: None,
                holds: Vec::new(),
                restoring: None,
            }),
            slot: 7,
            isolation: None,
            created_at: at,
            updated_at: at,
        };
        let inserted = self.store.insert_sandbox(&record, 10).await.unwrap();
        assert_eq!(inserted, Inserted::Yes);
        record
    }
}
