//! Where a story holds what a fake is about to do.

use tokio::sync::watch;

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    /// So many are in it right now.
    inside: watch::Sender<u32>,
    is_open: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn open() -> Self {
        Self {
            inside: watch::Sender::new(0),
            is_open: watch::Sender::new(true),
        }
    }

    /// Whoever comes stops here, until all are let go.
    pub(crate) fn hold(&self) {
        self.is_open.send_replace(false);
    }

    pub(crate) fn let_go(&self) {
        self.is_open.send_replace(true);
    }

    /// Returns once somebody is in it.
    pub(crate) async fn entered(&self) {
        let mut inside = self.inside.subscribe();
        inside.wait_for(|count| *count > 0).await.unwrap();
    }

    /// Returns once nobody is.
    pub(crate) async fn left(&self) {
        let mut inside = self.inside.subscribe();
        inside.wait_for(|count| *count == 0).await.unwrap();
    }

    /// Goes through, or gives up on the way.
    pub(super) async fn pass(&self) {
        let _inside = Inside::enter(&self.inside);
        let mut is_open = self.is_open.subscribe();
        is_open.wait_for(|open| *open).await.unwrap();
    }
}

struct Inside<'g>(&'g watch::Sender<u32>);

impl<'g> Inside<'g> {
    fn enter(inside: &'g watch::Sender<u32>) -> Self {
        inside.send_modify(|count| *count += 1);
        Self(inside)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
