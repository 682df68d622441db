//! Under which ids sandboxes and their images lie on the host.
//!
//! Root of the machine has ids enough for every sandbox to have its own, and shows layers of images
//! through them. Root of a user namespace (`outlive serve` of an ordinary user, or a pod that has
//! one) has a few, which all sandboxes share, and layers lie under the very ids that they show.

use std::{fs, sync::OnceLock};

use outlive_api::launch::IdRange;

/// What all sandboxes share, if they do.
pub(crate) fn shared() -> Option<IdRange> {
    static SHARED: OnceLock<Option<IdRange>> = OnceLock::new();
    *SHARED.get_or_init(|| {
        fs::read_to_string("/proc/self/uid_map")
            .inspect_err(|error| tracing::error!(%error, "/proc/self/uid_map can't be read"))
            .ok()
            .and_then(|map| IdRange::of_uid_map(&map))
    })
}

/// Those of the sandbox in this slot.
pub(crate) fn of_slot(slot: u16) -> Option<IdRange> {
    shared().or_else(|| IdRange::of_slot(slot))
}

/// Under which id the files of an image lie that this id inside owns.
pub(crate) fn on_disk(inside: u32) -> u32 {
    shared().map_or(inside, |ids| ids.workload().saturating_add(inside))
}
