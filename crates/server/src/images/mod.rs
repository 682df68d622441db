//! Where the root file systems of sandboxes come from.
//!
//! ```text
//! DIR/images/          0700: layers hold programs that are setuid for whoever maps their owner
//!     host-<version>/  generated layer of the image `host`, one for each state of the host's /etc
//!     layers/<sha256>/ a layer of other images, named after its tar
//!     tmp/             whatever is being made; garbage when a server starts
//! ```
//! A layer appears under its name in one step, complete and on the disk, and is never written
//! again. Sandboxes mount it through their own ids.

mod archive;
mod bundle;
mod digest;
mod dir;
mod error;
mod host;
mod library;
mod name;
mod progress;
mod registry;
pub(crate) mod rest;
mod settings;
#[cfg(test)]
mod tests;
mod tree;
mod unpack;

pub(crate) use self::{
    digest::Digest,
    dir::{ImagesDir, LayerError, at},
    error::ImageError,
    host::{HostLayer, HostLayers},
    library::{Library, layer_path},
    name::{HOST, ImageName},
    settings::{Settings, UsedImage},
    unpack::Counts,
};
