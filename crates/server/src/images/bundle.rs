//! Archives that hold an image: a tar of a root file system, an OCI image layout, or what
//! `docker save` writes. Told apart by what is in them.
//!
//! Nothing of a layout is unpacked: its blobs are read where they lie in the archive.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use futures_util::StreamExt as _;
use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, Os};
use outlive_api::image::ImageFormat;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio_tar::{Archive, EntryType};
use tokio_util::sync::CancellationToken;

use super::{
    archive::{Compression, Plain, Slice},
    digest::Digest,
    dir::at,
    error::ImageError,
    unpack::block_on,
};
use crate::limits::{
    BUNDLE_ENTRIES_MAX, BUNDLE_LINKS_MAX, IMAGE_BYTES_MAX, IMAGE_INDEX_DEPTH_MAX,
    IMAGE_JSON_BYTES_MAX, IMAGE_LAYERS_MAX,
};

/// What an archive turned out to be.
#[derive(Debug)]
pub(crate) enum Bundle {
    /// One layer, which is all there is.
    Rootfs(Slice),
    /// Layers and their description.
    Layered(ImageFormat, Box<Description>, Vec<Packed>),
}

/// An image's own description.
#[derive(Debug)]
pub(crate) struct Description {
    /// Of its configuration: the identity of the image.
    pub(crate) digest: Digest,
    pub(crate) config: ImageConfiguration,
    /// Digests of the layers' plain tars, lowest first.
    pub(crate) diff_ids: Vec<Digest>,
}

/// A layer in an archive.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) slice: Slice,
    /// Of its bytes, when that was promised.
    pub(crate) digest: Option<Digest>,
}

/// An entry of `manifest.json`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    layers: Vec<String>,
}

/// Where a file of the archive lies.
#[derive(Debug)]
enum Entry {
    File { offset: u64, length: u64 },
    Link { target: String },
}

type Entries = BTreeMap<String, Entry>;

/// Finds out what an archive holds. Blocks; may write a plain copy of it below `draft`.
pub(crate) fn open(
    archive: Slice,
    asked: ImageFormat,
    draft: &Path,
    cancel: &CancellationToken,
) -> Result<Bundle, ImageError> {
    if asked == ImageFormat::Rootfs {
        return Ok(Bundle::Rootfs(archive));
    }
    let compression = archive
        .compression()
        .map_err(|error| ImageError::corrupt("the archive", &error))?;
    let Some(entries) = index(&archive, asked, cancel)? else {
        return Ok(Bundle::Rootfs(archive));
    };
    let layout = entries.contains_key("index.json") && entries.contains_key("oci-layout");
    let docker = entries.contains_key("manifest.json");
    let format = match asked {
        ImageFormat::Auto | ImageFormat::Oci if layout => ImageFormat::Oci,
        ImageFormat::Auto | ImageFormat::DockerArchive if docker => ImageFormat::DockerArchive,
        ImageFormat::Auto | ImageFormat::Rootfs => return Ok(Bundle::Rootfs(archive)),
        ImageFormat::Oci => return Err(missing("oci-layout and index.json")),
        ImageFormat::DockerArchive => return Err(missing("manifest.json")),
    };
    let plain = match compression {
        Compression::None => archive,
        _ => decompress(archive, draft)?,
    };
    let bundle = Reader { plain, entries };
    let (description, layers) = match format {
        ImageFormat::Oci => bundle.oci()?,
        _ => bundle.docker()?,
    };
    Ok(Bundle::Layered(format, Box::new(description), layers))
}

/// Lists the archive; nothing as soon as an entry shows that it is no layout.
fn index(
    archive: &Slice,
    asked: ImageFormat,
    cancel: &CancellationToken,
) -> Result<Option<Entries>, ImageError> {
    let plain = Plain::open(archive.clone(), IMAGE_BYTES_MAX)?;
    block_on(async {
        let mut found = Entries::new();
        let mut tar = Archive::new(plain.clone());
        let damaged = |error: io::Error| plain.failure("the archive", &error);
        let mut entries = tar.entries().map_err(damaged)?;
        let mut buffer = vec![0; 128 << 10];
        loop {
            if cancel.is_cancelled() {
                return Err(ImageError::Cancelled);
            }
            plain.expect_header();
            let Some(entry) = entries.next().await else {
                return Ok(Some(found));
            };
            let mut entry = entry.map_err(damaged)?;
            plain.expect_data();
            let name = String::from_utf8_lossy(&entry.path_bytes().map_err(damaged)?)
                .trim_start_matches("./")
                .trim_end_matches('/')
                .to_owned();
            if asked == ImageFormat::Auto && !belongs_to_layout(&name) {
                return Ok(None);
            }
            if found.len() >= BUNDLE_ENTRIES_MAX {
                return Err(ImageError::TooLarge {
                    what: "the number of files in the archive",
                    max: BUNDLE_ENTRIES_MAX as u64,
                });
            }
            match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => {
                    let offset = entry.raw_file_position();
                    let length = entry.effective_size();
                    found.insert(name, Entry::File { offset, length });
                }
                EntryType::Symlink | EntryType::Link => {
                    let target = entry.link_name_bytes().map_err(damaged)?;
                    let target = String::from_utf8_lossy(&target.unwrap_or_default()).into_owned();
                    found.insert(name, Entry::Link { target });
                }
                _ => {}
            }
            while entry.read(&mut buffer).await.map_err(damaged)? > 0 {
                if cancel.is_cancelled() {
                    return Err(ImageError::Cancelled);
                }
            }
        }
    })
}

/// Names that archives of images are made of; everything else is a file of a root.
fn belongs_to_layout(name: &str) -> bool {
    let (first, rest) = name
        .split_once('/')
        .map_or((name, None), |(first, rest)| (first, Some(rest)));
    let hashed = |text: &str| Digest::from_hex(text).is_some();
    match first {
        "" | "." | "oci-layout" | "index.json" | "manifest.json" | "repositories" => rest.is_none(),
        "blobs" => true,
        other if hashed(other) => true,
        other => {
            let stem = other
                .strip_suffix(".json")
                .or_else(|| other.strip_suffix(".tar"));
            rest.is_none() && stem.is_some_and(hashed)
        }
    }
}

fn decompress(archive: Slice, draft: &Path) -> Result<Slice, ImageError> {
    let path = draft.join("plain");
    let mut plain = Plain::open(archive, IMAGE_BYTES_MAX)?;
    let mut file = File::create(&path).map_err(at("making", &path))?;
    let mut buffer = vec![0; 128 << 10];
    loop {
        match io::Read::read(&mut plain, &mut buffer) {
            Ok(0) => break,
            Ok(n) => file
                .write_all(buffer.get(..n).unwrap_or_default())
                .map_err(at("writing", &path))?,
            Err(error) => return Err(plain.failure("the archive", &error)),
        }
    }
    let file = File::open(&path).map_err(at("opening", &path))?;
    fs::remove_file(&path).map_err(at("removing", &path))?;
    Ok(Slice::whole(file).map_err(at("reading", &path))?)
}

fn missing(what: &str) -> ImageError {
    ImageError::Corrupt {
        what: "the archive".to_owned(),
        reason: format!("it holds no {what}"),
    }
}

struct Reader {
    plain: Slice,
    entries: Entries,
}

impl Reader {
    fn slice(&self, name: &str) -> Result<Slice, ImageError> {
        let mut name = name.trim_start_matches("./").to_owned();
        for _ in 0..BUNDLE_LINKS_MAX {
            match self.entries.get(&name) {
                Some(Entry::File { offset, length }) => {
                    return self.plain.part(*offset, *length).ok_or_else(|| {
                        let early = io::ErrorKind::UnexpectedEof.into();
                        ImageError::corrupt("the archive", &early)
                    });
                }
                Some(Entry::Link { target }) => name = beside(&name, target),
                None => break,
            }
        }
        Err(missing(&format!("{name:?}")))
    }

    fn json<T: serde::de::DeserializeOwned>(&self, name: &str) -> Result<T, ImageError> {
        parse(name, &self.slice(name)?.read_small(IMAGE_JSON_BYTES_MAX)?)
    }

    /// A small blob that is what its name says.
    fn described(&self, descriptor: &Descriptor) -> Result<Vec<u8>, ImageError> {
        let digest = digest_of(descriptor)?;
        let bytes = self
            .slice(&blob(digest))?
            .read_small(IMAGE_JSON_BYTES_MAX)?;
        promised("a description in the archive", digest, Digest::of(&bytes))?;
        Ok(bytes)
    }

    fn oci(&self) -> Result<(Description, Vec<Packed>), ImageError> {
        let mut index: ImageIndex = self.json("index.json")?;
        for _ in 0..IMAGE_INDEX_DEPTH_MAX {
            let descriptor = choose(&index)?;
            let bytes = self.described(&descriptor)?;
            if is_index(&bytes)? {
                index = parse("an index", &bytes)?;
                continue;
            }
            let manifest: ImageManifest = parse("a manifest", &bytes)?;
            let config = self.described(manifest.config())?;
            let description = Description::read(&config)?;
            let layers = manifest
                .layers()
                .iter()
                .map(|layer| {
                    let digest = digest_of(layer)?;
                    Ok(Packed {
                        slice: self.slice(&blob(digest))?,
                        digest: Some(digest),
                    })
                })
                .collect::<Result<Vec<_>, ImageError>>()?;
            return Ok((description.with(layers.len())?, layers));
        }
        Err(ImageError::Unsupported("its indexes lead too deep".into()))
    }

    fn docker(&self) -> Result<(Description, Vec<Packed>), ImageError> {
        let images: Vec<DockerImage> = self.json("manifest.json")?;
        let image = match images.as_slice() {
            [image] => image,
            [] => return Err(missing("image")),
            _ => {
                return Err(ImageError::Unsupported(
                    "the archive holds several images; save them one by one".into(),
                ));
            }
        };
        let config = self
            .slice(&image.config)?
            .read_small(IMAGE_JSON_BYTES_MAX)?;
        let description = Description::read(&config)?.with(image.layers.len())?;
        let layers = image
            .layers
            .iter()
            .map(|name| {
                Ok(Packed {
                    slice: self.slice(name)?,
                    digest: None,
                })
            })
            .collect::<Result<Vec<_>, ImageError>>()?;
        Ok((description, layers))
    }
}

impl Description {
    /// Reads a configuration; an image of another machine is refused.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ImageError> {
        let config: ImageConfiguration = parse("the image's configuration", bytes)?;
        if *config.os() != Os::Linux || *config.architecture() != Arch::default() {
            return Err(ImageError::Unsupported(
                format!(
                    "it is made for {}/{}, this machine is linux/{}",
                    config.os(),
                    config.architecture(),
                    Arch::default()
                )
                .into(),
            ));
        }
        let diff_ids = config
            .rootfs()
            .diff_ids()
            .iter()
            .map(|id| {
                Digest::parse(id)
                    .ok_or_else(|| ImageError::Unsupported(format!("layer id {id:?}").into()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            digest: Digest::of(bytes),
            config,
            diff_ids,
        })
    }

    /// Checks that there are as many layers as it says.
    pub(crate) fn with(self, layers: usize) -> Result<Self, ImageError> {
        if layers > IMAGE_LAYERS_MAX {
            return Err(ImageError::TooLarge {
                what: "the number of layers of the image",
                max: IMAGE_LAYERS_MAX as u64,
            });
        }
        if layers != self.diff_ids.len() || layers == 0 {
            return Err(ImageError::Corrupt {
                what: "the image".to_owned(),
                reason: format!(
                    "its configuration names {} layers, its manifest {layers}",
                    self.diff_ids.len()
                ),
            });
        }
        Ok(self)
    }
}

/// The image of an index that runs here.
fn choose(index: &ImageIndex) -> Result<Descriptor, ImageError> {
    let mut fit = fitting(index);
    match (fit.next(), fit.next()) {
        (Some(one), None) => Ok(one.clone()),
        (Some(_), Some(_)) => Err(ImageError::Unsupported(
            "the layout holds several images for this machine; export them one by one".into(),
        )),
        (None, _) => Err(none_fits()),
    }
}

/// The images of an index that run here.
pub(super) fn fitting(index: &ImageIndex) -> impl Iterator<Item = &Descriptor> {
    index.manifests().iter().filter(|one| {
        one.platform().as_ref().is_none_or(|platform| {
            *platform.os() == Os::Linux && *platform.architecture() == Arch::default()
        })
    })
}

/// An index without an image that runs here.
pub(super) fn none_fits() -> ImageError {
    ImageError::Unsupported(format!("it holds no image for linux/{}", Arch::default()).into())
}

/// Both look alike; only an index lists manifests.
pub(super) fn is_index(bytes: &[u8]) -> Result<bool, ImageError> {
    let value: serde_json::Value = parse("a manifest", bytes)?;
    Ok(value.get("manifests").is_some())
}

/// The digest of a descriptor, which must be one that we can compute.
pub(crate) fn digest_of(descriptor: &Descriptor) -> Result<Digest, ImageError> {
    let text = descriptor.digest().to_string();
    Digest::parse(&text)
        .ok_or_else(|| ImageError::Unsupported(format!("digest {text:?} is no sha256").into()))
}

/// Compares what came with what was promised.
pub(crate) fn promised(
    what: &'static str,
    expected: Digest,
    actual: Digest,
) -> Result<(), ImageError> {
    if expected == actual {
        return Ok(());
    }
    Err(ImageError::Digest {
        what,
        expected,
        actual,
    })
}

fn blob(digest: Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Where a link leads, as text: both lie in one archive.
fn beside(name: &str, target: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    parts.join("/")
}

/// Reads a description.
pub(super) fn parse<T: serde::de::DeserializeOwned>(
    what: &str,
    bytes: &[u8],
) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::Corrupt {
        what: what.to_owned(),
        reason: error.to_string(),
    })
}
