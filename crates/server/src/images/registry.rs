//! Images from a registry.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    net::IpAddr,
    path::Path,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol},
    errors::{DigestError, OciDistributionError},
    manifest::OciDescriptor,
    secrets::RegistryAuth,
};
use outlive_api::image::PullImage;
use tokio_util::sync::CancellationToken;

use super::{
    archive::Slice,
    bundle::{Description, Packed, promised},
    digest::Digest,
    dir::at,
    error::ImageError,
    progress::Progress,
};
use crate::limits::{
    IMAGE_BYTES_MAX, IMAGE_JSON_BYTES_MAX, REGISTRY_CONNECT_MAX, REGISTRY_SILENCE_MAX,
};

/// An image in a registry, and how to ask for it.
pub(crate) struct Remote {
    client: Client,
    reference: Reference,
    auth: RegistryAuth,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Remote").field(&self.reference).finish()
    }
}

/// What a registry says of an image.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) description: Description,
    layers: Vec<OciDescriptor>,
}

impl Remote {
    /// Prepares to ask; makes no connection yet.
    pub(crate) fn new(asked: &PullImage) -> Result<Self, ImageError> {
        let bad = |why| ImageError::Name {
            name: asked.reference.clone(),
            why,
        };
        let reference: Reference = asked
            .reference
            .parse()
            .map_err(|_| bad("a reference is registry/repository:tag or …@sha256:digest"))?;
        let auth = match (&asked.username, &asked.password) {
            (Some(user), Some(password)) => RegistryAuth::Basic(user.clone(), password.clone()),
            (None, None) => RegistryAuth::Anonymous,
            (Some(_), None) | (None, Some(_)) => {
                return Err(bad("username and password come together"));
            }
        };
        let plain = asked.insecure || is_loopback(reference.resolve_registry());
        let config = ClientConfig {
            protocol: if plain {
                ClientProtocol::HttpsExcept(vec![reference.resolve_registry().to_owned()])
            } else {
                ClientProtocol::Https
            },
            connect_timeout: Some(REGISTRY_CONNECT_MAX),
            read_timeout: Some(REGISTRY_SILENCE_MAX),
            user_agent: concat!("outlive/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        if rustls::crypto::CryptoProvider::get_default().is_none()
            && rustls::crypto::ring::default_provider()
                .install_default()
                .is_err()
        {
            tracing::trace!("another thread chose how to encrypt");
        }
        let client = Client::try_from(config)
            .map_err(|error| ImageError::Failed(format!("no client for registries: {error}")))?;
        Ok(Self {
            client,
            reference,
            auth,
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
    pub(crate) async fn manifest(&self) -> Result<Manifest, ImageError> {
        let pulled = self
            .client
            .pull_image_manifest(&self.reference, &self.auth)
            .await;
        let (manifest, _digest) = pulled.map_err(|error| self.failed(&error))?;
        let digest = known(&manifest.config.digest)?;
        let mut config = Vec::new();
        self.blob(&manifest.config, IMAGE_JSON_BYTES_MAX, |bytes| {
            config.extend_from_slice(bytes);
            Ok(())
        })
        .await?;
        promised("the image's configuration", digest, Digest::of(&config))?;
        Ok(Manifest {
            description: Description::read(&config)?.with(manifest.layers.len())?,
            layers: manifest.layers,
        })
    }

    /// Fetches the layers that are wanted into files below `draft`.
    pub(crate) async fn layers(
        &self,
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
            .map(|(layer, _)| u64::try_from(layer.size).unwrap_or(0))
            .sum();
        let mut done = 0;
        let mut packed = Vec::with_capacity(wanted.len());
        for (number, (layer, wanted)) in manifest.layers.iter().zip(wanted).enumerate() {
            if !wanted {
                packed.push(None);
                continue;
            }
            let digest = known(&layer.digest)?;
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
        &self,
        descriptor: &OciDescriptor,
        bytes_max: u64,
        mut take: impl FnMut(&Bytes) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let announced = u64::try_from(descriptor.size).unwrap_or(u64::MAX);
        if announced > bytes_max {
            return Err(ImageError::TooLarge {
                what: "a part of the image, bytes",
                max: bytes_max,
            });
        }
        let blob = self
            .client
            .pull_blob_stream(&self.reference, descriptor)
            .await;
        let mut stream = blob.map_err(|error| self.failed(&error))?.stream;
        let mut came = 0_u64;
        while let Some(bytes) = stream.next().await {
            let bytes = bytes.map_err(|error| {
                // A digest that does not fit comes as an error at the stream's end.
                let message = innermost(&error);
                let broken = error.downcast::<DigestError>().is_ok();
                self.said(&message, !broken)
            })?;
            came += bytes.len() as u64;
            if came > announced {
                return Err(self.said("it sends more than it announced", false));
            }
            take(&bytes)?;
        }
        Ok(())
    }

    fn failed(&self, error: &OciDistributionError) -> ImageError {
        let passing = match error {
            OciDistributionError::RequestError(_) | OciDistributionError::IoError(_) => true,
            OciDistributionError::ServerError { code, .. } => *code >= 500,
            _ => false,
        };
        let message = match error {
            OciDistributionError::AuthenticationFailure(_)
            | OciDistributionError::UnauthorizedError { .. } => {
                "it wants another user name or password".to_owned()
            }
            OciDistributionError::ImageManifestNotFoundError(_) => {
                format!("it has no {}", self.reference.repository())
            }
            other => innermost(other),
        };
        self.said(&message, passing)
    }

    fn said(&self, message: &str, passing: bool) -> ImageError {
        ImageError::Registry {
            registry: self.reference.resolve_registry().to_owned(),
            message: format!("{}: {message}", self.reference),
            passing,
        }
    }
}

/// The text of what lies behind an error.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

fn known(digest: &str) -> Result<Digest, ImageError> {
    Digest::parse(digest)
        .ok_or_else(|| ImageError::Unsupported(format!("digest {digest:?} is no sha256").into()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_asked_without_tls() {
        for near in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:5000",
            "[::1]:5000",
        ] {
            assert!(is_loopback(near), "{near}");
        }
        for far in [
            "docker.io",
            "localhost.example",
            "10.0.0.1:5000",
            "[fe80::1]:5000",
        ] {
            assert!(!is_loopback(far), "{far}");
        }
    }
}
