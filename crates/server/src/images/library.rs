//! The images of a server: names, what stands behind them, and who uses it.
//!
//! The store says which images there are; the layers are files beside it. A layer that no image,
//! sandbox or snapshot needs is garbage, whoever left it there, and is swept.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use outlive_api::image::{ImageFormat, PullImage};
use tokio::sync::{OwnedSemaphorePermit, RwLock, RwLockReadGuard, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    archive::Slice,
    bundle::{self, Bundle, Description, Packed, promised},
    digest::Digest,
    dir::{Draft, ImagesDir, at},
    error::ImageError,
    name::ImageName,
    progress::Progress,
    registry::Remote,
    settings::{self, Settings},
    unpack::{Counts, Watch, unpack},
};
use crate::{
    clock,
    limits::IMPORTS_MAX,
    store::{ImageRecord, ImageStore, ImageUser},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Library {
    dir: Arc<ImagesDir>,
    images: Arc<dyn ImageStore>,
    /// Held for reading while a sandbox is made from an image, for writing while one is removed.
    gate: RwLock<()>,
    imports: Arc<Semaphore>,
    pinned: Arc<Pinned>,
    stop: CancellationToken,
}

/// Layers that an import counts on before the store knows of them.
#[derive(Debug, Default)]
struct Pinned(Mutex<BTreeMap<Digest, usize>>);

impl Pinned {
    fn get(&self) -> MutexGuard<'_, BTreeMap<Digest, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pins of one import.
#[derive(Debug)]
struct Pins {
    all: Arc<Pinned>,
    mine: Vec<Digest>,
}

impl Pins {
    fn add(&mut self, layer: Digest) {
        *self.all.get().entry(layer).or_default() += 1;
        self.mine.push(layer);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut all = self.all.get();
        for layer in &self.mine {
            if let Some(count) = all.get_mut(layer) {
                *count -= 1;
                if *count == 0 {
                    all.remove(layer);
                }
            }
        }
    }
}

/// An image and who uses it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Used {
    pub(crate) image: ImageRecord,
    pub(crate) users: Users,
}

/// How many use an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Users {
    pub(crate) sandboxes: u64,
    pub(crate) snapshots: u64,
}

/// What is to be made of layers.
#[derive(Debug)]
struct Parts {
    format: ImageFormat,
    description: Option<Description>,
    /// Lowest first; nothing for a layer that is there.
    layers: Vec<(Option<Digest>, Option<Packed>)>,
}

/// What was made.
#[derive(Debug)]
struct Made {
    digest: Digest,
    layers: Vec<Digest>,
    settings: Settings,
    counts: Counts,
    format: ImageFormat,
}

/// Room for one import.
#[derive(Debug)]
pub(crate) struct Slot {
    draft: Draft,
    _permit: OwnedSemaphorePermit,
}

impl Slot {
    /// A directory that goes with the import.
    pub(crate) fn draft(&self) -> &Path {
        self.draft.path()
    }
}

impl Library {
    /// In this directory and these stores.
    pub(crate) fn new(
        dir: Arc<ImagesDir>,
        images: Arc<dyn ImageStore>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            dir,
            images,
            gate: RwLock::new(()),
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            pinned: Arc::default(),
            stop,
        }
    }

    /// As long as this is held, no image goes.
    pub(crate) async fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// The image of this name.
    pub(crate) async fn find(&self, name: &ImageName) -> Result<Option<ImageRecord>, ImageError> {
        let all = self.images.all_images().await?;
        Ok(all.into_iter().find(|image| image.name == name.as_str()))
    }

    /// All images, by name, and who uses the image `host`.
    pub(crate) async fn list(&self) -> Result<(Users, Vec<Used>), ImageError> {
        let users = self.users().await?;
        let of = |digest: Option<Digest>| users.get(&digest).copied().unwrap_or_default();
        let images = self.images.all_images().await?;
        let used = images
            .into_iter()
            .map(|image| Used {
                users: of(Some(image.digest)),
                image,
            })
            .collect();
        Ok((of(None), used))
    }

    /// Who uses each image; `host` has no digest.
    async fn users(&self) -> Result<BTreeMap<Option<Digest>, Users>, ImageError> {
        let mut users = BTreeMap::<_, Users>::new();
        for user in self.images.image_users().await? {
            let count = users
                .entry(user.image().map(|image| image.digest))
                .or_default();
            match user {
                ImageUser::Sandbox(_) => count.sandboxes += 1,
                ImageUser::Snapshot(_) => count.snapshots += 1,
            }
        }
        Ok(users)
    }

    /// Takes a name away, and what nobody needs with it. A sandbox keeps its image, also while it
    /// is paused, and a snapshot does.
    pub(crate) async fn remove(&self, name: &ImageName) -> Result<(), ImageError> {
        {
            let _alone = self.gate.write().await;
            let images = self.images.all_images().await?;
            let found = images.iter().find(|image| image.name == name.as_str());
            let Some(image) = found else {
                return Err(ImageError::NotFound(name.to_string()));
            };
            let other_names = images
                .iter()
                .any(|other| other.digest == image.digest && other.name != image.name);
            let users = self.users().await?;
            let users = users.get(&Some(image.digest)).copied().unwrap_or_default();
            if users != Users::default() && !other_names {
                return Err(ImageError::InUse {
                    name: name.to_string(),
                    sandboxes: users.sandboxes,
                    snapshots: users.snapshots,
                });
            }
            self.images.remove_image(name.as_str()).await?;
        }
        self.sweep().await
    }

    /// Removes the layers that no image, sandbox or snapshot needs.
    pub(crate) async fn sweep(&self) -> Result<(), ImageError> {
        let _alone = self.gate.write().await;
        let mut needed = BTreeSet::new();
        for image in self.images.all_images().await? {
            needed.extend(image.layers);
        }
        for user in self.images.image_users().await? {
            needed.extend(
                user.image()
                    .into_iter()
                    .flat_map(|used| used.layers.clone()),
            );
        }
        let (dir, pinned) = (Arc::clone(&self.dir), Arc::clone(&self.pinned));
        blocking(move || {
            for (path, layer) in present(&dir)? {
                // Looked at under its lock, so that no import counts on what goes.
                let pins = pinned.get();
                if layer.is_none_or(|layer| !needed.contains(&layer) && !pins.contains_key(&layer))
                {
                    dir.discard(&path)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// Room for an import; refused when as many go on as may.
    pub(crate) fn slot(&self) -> Result<Slot, ImageError> {
        let permit = Arc::clone(&self.imports)
            .try_acquire_owned()
            .map_err(|_full| ImageError::Busy(IMPORTS_MAX))?;
        Ok(Slot {
            draft: self.dir.draft()?,
            _permit: permit,
        })
    }

    /// Makes an image of an archive that lies in `slot` under this path.
    pub(crate) async fn import(
        &self,
        slot: Slot,
        archive: PathBuf,
        name: ImageName,
        format: ImageFormat,
        progress: Progress,
    ) -> Result<Used, ImageError> {
        let cancel = self.stop.child_token();
        let _given_up = cancel.clone().drop_guard();
        let mut pins = self.pins();
        let dir = Arc::clone(&self.dir);
        let (made, _pins) = blocking(move || {
            let file = fs::File::open(&archive).map_err(at("opening", &archive))?;
            let slice = Slice::whole(file).map_err(at("reading", &archive))?;
            let parts = match bundle::open(slice, format, slot.draft(), &cancel)? {
                Bundle::Rootfs(slice) => Parts {
                    format: ImageFormat::Rootfs,
                    description: None,
                    layers: vec![(
                        None,
                        Some(Packed {
                            slice,
                            digest: None,
                        }),
                    )],
                },
                Bundle::Layered(format, description, packed) => Parts {
                    format,
                    layers: description
                        .diff_ids
                        .iter()
                        .copied()
                        .map(Some)
                        .zip(packed.into_iter().map(Some))
                        .collect(),
                    description: Some(*description),
                },
            };
            let watch = Watch {
                cancel: &cancel,
                progress: &progress,
            };
            let made = make(&dir, &slot, parts, &mut pins, &watch)?;
            Ok((made, pins))
        })
        .await?;
        let source = source_of(made.format).to_owned();
        self.take_in(name, source, made).await
    }

    /// Makes an image of one in a registry.
    pub(crate) async fn pull(
        &self,
        slot: Slot,
        asked: PullImage,
        progress: Progress,
    ) -> Result<Used, ImageError> {
        let mut remote = Remote::new(&asked)?;
        let name = match &asked.name {
            Some(name) => ImageName::parse(name)?,
            None => ImageName::parse(&remote.name(&asked.reference).ok_or(ImageError::Name {
                name: asked.reference.clone(),
                why: "a reference by digest needs a name (--name)",
            })?)?,
        };
        let cancel = self.stop.child_token();
        let _given_up = cancel.clone().drop_guard();
        let manifest = tokio::select! {
            manifest = remote.manifest() => manifest?,
            () = cancel.cancelled() => return Err(ImageError::Cancelled),
        };
        let mut pins = self.pins();
        for layer in &manifest.description.diff_ids {
            pins.add(*layer);
        }
        let wanted = |layer: Digest| !self.layer(layer).is_dir();
        let packed = tokio::select! {
            packed = remote.layers(&manifest, wanted, slot.draft(), &progress, &cancel) => packed?,
            () = cancel.cancelled() => return Err(ImageError::Cancelled),
        };
        let description = manifest.description;
        let layers = description.diff_ids.iter().copied().map(Some);
        let parts = Parts {
            format: ImageFormat::Oci,
            layers: layers.zip(packed).collect(),
            description: Some(description),
        };
        let dir = Arc::clone(&self.dir);
        let (made, _pins) = blocking(move || {
            let watch = Watch {
                cancel: &cancel,
                progress: &progress,
            };
            let made = make(&dir, &slot, parts, &mut pins, &watch)?;
            Ok((made, pins))
        })
        .await?;
        self.take_in(name, remote.reference(), made).await
    }

    fn pins(&self) -> Pins {
        Pins {
            all: Arc::clone(&self.pinned),
            mine: Vec::new(),
        }
    }

    fn layer(&self, layer: Digest) -> PathBuf {
        layer_path(&self.dir, layer)
    }

    /// The store knows of the image when this returns; an image that had the name before has it
    /// no longer.
    async fn take_in(
        &self,
        name: ImageName,
        source: String,
        made: Made,
    ) -> Result<Used, ImageError> {
        let image = ImageRecord {
            name: name.to_string(),
            digest: made.digest,
            layers: made.layers,
            settings: made.settings,
            counts: made.counts,
            source,
            created_at: clock::now(),
        };
        self.images.put_image(&image).await?;
        tracing::info!(name = image.name, digest = %image.digest, "an image was taken in");
        if let Err(error) = self.sweep().await {
            // It is tried again with the next import and at the next start.
            tracing::error!(%error, "layers that nobody needs are left");
        }
        let users = self.users().await?;
        Ok(Used {
            users: users.get(&Some(image.digest)).copied().unwrap_or_default(),
            image,
        })
    }
}

/// Where a layer lies.
pub(crate) fn layer_path(dir: &ImagesDir, layer: Digest) -> PathBuf {
    dir.path().join("layers").join(layer.hex())
}

/// The layers that lie there; one without a digest is no layer of ours.
fn present(dir: &ImagesDir) -> Result<Vec<(PathBuf, Option<Digest>)>, ImageError> {
    let layers = dir.path().join("layers");
    let mut found = Vec::new();
    for entry in fs::read_dir(&layers).map_err(at("reading", &layers))? {
        let entry = entry.map_err(at("reading", &layers))?;
        let digest = entry.file_name().to_str().and_then(Digest::from_hex);
        found.push((entry.path(), digest));
    }
    Ok(found)
}

/// Unpacks the layers that are not there yet. Blocks.
fn make(
    dir: &ImagesDir,
    slot: &Slot,
    parts: Parts,
    pins: &mut Pins,
    watch: &Watch<'_>,
) -> Result<Made, ImageError> {
    let mut counts = Counts::default();
    let mut layers = Vec::with_capacity(parts.layers.len());
    for (number, (diff_id, packed)) in parts.layers.into_iter().enumerate() {
        if let Some(known) = diff_id {
            pins.add(known);
            if layer_path(dir, known).is_dir() {
                layers.push(known);
                continue;
            }
        }
        let packed = packed
            .ok_or_else(|| ImageError::Failed("a layer went while it was counted on".to_owned()))?;
        let into = slot.draft().join(format!("layer-{number}"));
        fs::DirBuilder::new()
            .create(&into)
            .map_err(at("making", &into))?;
        let found = unpack(packed.slice, &into, &mut counts, watch)?;
        if parts.description.is_none() && counts.entries == 0 {
            return Err(ImageError::Corrupt {
                what: "the archive".to_owned(),
                reason: "there is nothing in it".to_owned(),
            });
        }
        if let Some(file) = packed.digest {
            promised("a layer", file, found.file)?;
        }
        match diff_id {
            Some(known) => promised("an unpacked layer", known, found.tar)?,
            None => pins.add(found.tar),
        }
        let name = format!("layers/{}", found.tar.hex());
        dir.publish(&into, &name)?;
        layers.push(found.tar);
    }
    let paths: Vec<PathBuf> = layers.iter().map(|layer| layer_path(dir, *layer)).collect();
    let settings = settings::of(
        parts
            .description
            .as_ref()
            .and_then(|description| description.config.config().as_ref()),
        &paths,
    )?;
    let digest = match (&parts.description, layers.first()) {
        (Some(description), _) => description.digest,
        (None, Some(only)) => *only,
        (None, None) => return Err(ImageError::Failed("nothing was made".to_owned())),
    };
    Ok(Made {
        digest,
        layers,
        settings,
        counts,
        format: parts.format,
    })
}

const fn source_of(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Auto | ImageFormat::Rootfs => "rootfs",
        ImageFormat::Oci => "oci",
        ImageFormat::DockerArchive => "docker-archive",
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ImageError::Failed(error.to_string()))?
}
