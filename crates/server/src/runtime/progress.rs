//! How far a copy is, for whoever wants to see it.

use outlive_api::launch::Copied;
use tokio::sync::watch;

/// A copy that goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Copying {
    /// So far; all of it once it is done.
    pub(crate) copied: Copied,
    /// How many bytes there are to copy, as soon as that is known.
    pub(crate) bytes_total: Option<u64>,
}

/// The end that copies.
#[derive(Debug)]
pub(crate) struct Progress(watch::Sender<Copying>);

impl Progress {
    /// Of a copy of so many bytes, when that is known, and where it is seen.
    pub(crate) fn new(bytes_total: Option<u64>) -> (Self, watch::Receiver<Copying>) {
        let (sender, seen) = watch::channel(Copying {
            bytes_total,
            ..Copying::default()
        });
        (Self(sender), seen)
    }

    /// Seen by nobody.
    pub(crate) fn unseen() -> Self {
        Self::new(None).0
    }

    /// So much is copied.
    pub(crate) fn reached(&self, copied: Copied) {
        self.0.send_modify(|copying| copying.copied = copied);
    }

    /// Whether nobody said yet how much there is to copy.
    pub(super) fn lacks_total(&self) -> bool {
        self.0.borrow().bytes_total.is_none()
    }

    /// There is so much to copy.
    pub(super) fn learn_total(&self, bytes: u64) {
        self.0
            .send_modify(|copying| copying.bytes_total = Some(bytes));
    }

    /// Another place where it is seen.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Copying> {
        self.0.subscribe()
    }
}
