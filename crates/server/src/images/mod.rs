//! Where the root file systems of sandboxes come from.
//!
//! ```text
//! DIR/images/          0700: layers hold programs that are setuid for whoever maps their owner
//!     host-<version>/  generated layer of the image `host`, one for each state of the host's /etc
//!     tmp/             whatever is being made; garbage when a server starts
//! ```
//! A layer appears under its name in one step, complete and on the disk, and is never written
//! again. Sandboxes mount it through their own ids.

mod dir;
mod host;

pub(crate) use self::{
    dir::{ImagesDir, LayerError, at},
    host::{HostLayer, HostLayers},
};
