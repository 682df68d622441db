//! How far an import is: the newest state for whoever looks, without anybody waiting.

use outlive_api::image::ImageStep;
use tokio::sync::watch;

use super::unpack::Counts;

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) step: ImageStep,
    pub(crate) bytes: u64,
    pub(crate) bytes_total: Option<u64>,
    pub(crate) files: u64,
}

/// Told by the import, seen by the client.
#[derive(Debug)]
pub(crate) struct Progress(watch::Sender<Stage>);

impl Progress {
    /// And the end at which it is seen.
    pub(crate) fn new() -> (Self, watch::Receiver<Stage>) {
        let (sender, receiver) = watch::channel(Stage {
            step: ImageStep::Receiving,
            bytes: 0,
            bytes_total: None,
            files: 0,
        });
        (Self(sender), receiver)
    }

    /// So many bytes of so many came from a registry.
    pub(crate) fn pulled(&self, bytes: u64, total: u64) {
        self.0.send_replace(Stage {
            step: ImageStep::Pulling,
            bytes,
            bytes_total: Some(total),
            files: 0,
        });
    }

    /// So much was written.
    pub(crate) fn unpacked(&self, counts: &Counts) {
        self.0.send_replace(Stage {
            step: ImageStep::Unpacking,
            bytes: counts.bytes,
            bytes_total: None,
            files: counts.entries,
        });
    }
}
