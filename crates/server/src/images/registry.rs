//! Images from a registry.

mod asking;
#[cfg(test)]
mod tests;

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    net::IpAddr,
    path::Path,
};

use oci_spec::{
    distribution::Reference,
    image::{Descriptor, ImageIndex, ImageManifest},
};
use outlive_api::image::PullImage;
use tokio_util::sync::CancellationToken;

use self::asking::{Asking, Patience};
use super::{
    archive::Slice,
    bundle::{Description, Packed, digest_of, fitting, is_index, none_fits, parse, promised},
    digest::Digest,
    dir::at,
    error::ImageError,
    progress::Progress,
};
use crate::limits::{IMAGE_BYTES_MAX, IMAGE_INDEX_DEPTH_MAX, IMAGE_JSON_BYTES_MAX};

/// An image in a registry, and how to ask for it.
#[derive(Debug)]
pub(crate) struct Remote {
    asking: Asking,
    reference: Reference,
}

/// What a registry says of an image.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) description: Description,
    layers: Vec<Descriptor>,
}

impl Remote {
    /// Prepares to ask; makes no connection yet.
    pub(crate) fn new(asked: &PullImage) -> Result<Self, ImageError> {
        Self::with_patience(asked, Patience::default())
    }

    fn with_patience(asked: &PullImage, patience: Patience) -> Result<Self, ImageError> {
        let bad = |why| ImageError::Name {
            name: asked.reference.clone(),
            why,
        };
        let reference: Reference = asked
            .reference
            .parse()
            .map_err(|_| bad("a reference is registry/repository:tag or …@sha256:digest"))?;
        let login = match (&asked.username, &asked.password) {
            (Some(user), Some(password)) => Some((user.clone(), password.clone())),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(bad("username and password come together"));
            }
        };
        let plain = asked.insecure || is_loopback(reference.resolve_registry());
        Ok(Self {
            asking: Asking::new(&reference, plain, login, patience)?,
            reference,
        })
    }

    /// What the client asked for, written out in full.
    pub(crate) fn reference(&self) -> String {
        self.reference.whole()
    }

    /// The name that the image gets when none is asked for.
    pub(crate) fn name(&self, asked: &str) -> Option<String> {
        self.reference.digest().is_none().then(|| asked.to_owned())
    }

    /// Asks what the image is made of.
    pub(crate) async fn manifest(&mut self) -> Result<Manifest, ImageError> {
        let manifest = self.chosen().await?;
        let digest = digest_of(manifest.config())?;
        let mut config = Vec::new();
        self.blob(manifest.config(), IMAGE_JSON_BYTES_MAX, |bytes| {
            config.extend_from_slice(bytes);
            Ok(())
        })
        .await?;
        promised("the image's configuration", digest, Digest::of(&config))?;
        Ok(Manifest {
            description: Description::read(&config)?.with(manifest.layers().len())?,
            layers: manifest.layers().clone(),
        })
    }

    /// The manifest of the image that runs here; the first, where an index has several.
    async fn chosen(&mut self) -> Result<ImageManifest, ImageError> {
        let mut wanted = match (self.reference.digest(), self.reference.tag()) {
            (Some(digest), _) => digest.to_owned(),
            (None, tag) => tag.unwrap_or("latest").to_owned(),
        };
        for _ in 0..IMAGE_INDEX_DEPTH_MAX {
            let bytes = self.asking.manifest(&wanted).await?;
            if let Some(digest) = Digest::parse(&wanted) {
                promised("the manifest", digest, Digest::of(&bytes))?;
            } else if wanted.contains(':') {
                return Err(ImageError::Unsupported(
                    format!("digest {wanted:?} is no sha256").into(),
                ));
            }
            if !is_index(&bytes)? {
                return parse("a manifest", &bytes);
            }
            let index: ImageIndex = parse("an index", &bytes)?;
            wanted = digest_of(fitting(&index).next().ok_or_else(none_fits)?)?.to_string();
        }
        Err(ImageError::Unsupported("its indexes lead too deep".into()))
    }

    /// Fetches the layers that are wanted into files below `draft`.
    pub(crate) async fn layers(
        &mut self,
        manifest: &Manifest,
        wanted: impl Fn(Digest) -> bool,
        draft: &Path,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<Vec<Option<Packed>>, ImageError> {
        let wanted: Vec<bool> = manifest
            .description
            .diff_ids
            .iter()
            .map(|id| wanted(*id))
            .collect();
        let total = manifest
            .layers
            .iter()
            .zip(&wanted)
            .filter(|(_, wanted)| **wanted)
            .fold(0_u64, |sum, (layer, _)| sum.saturating_add(layer.size()));
        let mut done = 0;
        let mut packed = Vec::with_capacity(wanted.len());
        for (number, (layer, wanted)) in manifest.layers.iter().zip(wanted).enumerate() {
            if !wanted {
                packed.push(None);
                continue;
            }
            let digest = digest_of(layer)?;
            let path = draft.join(format!("blob-{number}"));
            let mut file = create(&path)?;
            self.blob(layer, IMAGE_BYTES_MAX, |bytes| {
                if cancel.is_cancelled() {
                    return Err(ImageError::Cancelled);
                }
                done += bytes.len() as u64;
                progress.pulled(done, total);
                Ok(file.write_all(bytes).map_err(at("writing", &path))?)
            })
            .await?;
            let slice = Slice::whole(file).map_err(at("reading", &path))?;
            packed.push(Some(Packed {
                slice,
                digest: Some(digest),
            }));
        }
        Ok(packed)
    }

    /// Passes a blob on as it comes; never more than was announced.
    async fn blob(
        &mut self,
        descriptor: &Descriptor,
        bytes_max: u64,
        take: impl FnMut(&[u8]) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let announced = descriptor.size();
        if announced > bytes_max {
            return Err(ImageError::TooLarge {
                what: "a part of the image, bytes",
                max: bytes_max,
            });
        }
        let digest = digest_of(descriptor)?;
        self.asking.blob(digest, announced, take).await
    }
}

fn create(path: &Path) -> Result<File, ImageError> {
    Ok(OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(at("making", path))?)
}

/// Whether a registry is on this machine, where nobody listens in between.
fn is_loopback(registry: &str) -> bool {
    let host = registry
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(registry, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
