//! Archives for the stories: tars that say whatever they are told to, layouts, packed or not.

use std::io::Write as _;

use serde_json::{Value, json};
use tokio_tar::{EntryType, Header};

use crate::images::Digest;

/// A tar that says whatever it is told to.
#[derive(Clone, Default)]
pub(super) struct Tar(pub(super) Vec<u8>);

impl Tar {
    pub(super) fn entry(mut self, kind: EntryType, name: &[u8], link: &str, data: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        let bytes = header.as_mut_bytes();
        bytes[..name.len()].copy_from_slice(name);
        if kind == EntryType::GNUSparse {
            let real_size = format!("{:011o}", data.len());
            bytes[483..494].copy_from_slice(real_size.as_bytes());
        }
        bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, name: &str, text: &str) -> Self {
        self.entry(EntryType::Regular, name.as_bytes(), "", text.as_bytes())
    }

    pub(super) fn dir(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name.as_bytes(), "", b"")
    }

    pub(super) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name.as_bytes(), target, b"")
    }

    pub(super) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name.as_bytes(), target, b"")
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The configuration of an image of these layers.
pub(super) fn config(layers: &[&[u8]], config: &Value) -> Vec<u8> {
    let ids: Vec<String> = layers
        .iter()
        .map(|tar| Digest::of(tar).to_string())
        .collect();
    let value = json!({
        "architecture": arch(), "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": ids},
    });
    value.to_string().into_bytes()
}

/// An OCI layout as a tar: layers gzipped, lowest first.
pub(super) fn layout(layers: &[&[u8]], settings: &Value, break_layer: bool) -> Vec<u8> {
    let mut tar = Tar::default().file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    let blob = |tar: Tar, bytes: &[u8]| {
        let digest = Digest::of(bytes);
        let name = format!("blobs/sha256/{}", digest.hex());
        let described = json!({"digest": digest.to_string(), "size": bytes.len()});
        (
            tar.entry(EntryType::Regular, name.as_bytes(), "", bytes),
            described,
        )
    };
    let mut described = Vec::new();
    for layer in layers {
        let packed = gzip(layer);
        let (next, mut descriptor) = blob(tar, &packed);
        tar = next;
        descriptor["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
        if break_layer {
            // The blob under this name is another than the name says.
            let other = Digest::of(b"something else");
            let name = format!("blobs/sha256/{}", other.hex());
            tar = tar.entry(EntryType::Regular, name.as_bytes(), "", &packed);
            descriptor["digest"] = other.to_string().into();
        }
        described.push(descriptor);
    }
    let (tar, mut of_config) = blob(tar, &config(layers, settings));
    of_config["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": of_config, "layers": described,
    });
    let (tar, mut descriptor) = blob(tar, manifest.to_string().as_bytes());
    descriptor["mediaType"] = "application/vnd.oci.image.manifest.v1+json".into();
    let index = json!({"schemaVersion": 2, "manifests": [descriptor]});
    tar.file("index.json", &index.to_string()).end()
}
