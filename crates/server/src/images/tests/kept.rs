//! How long layers and images stay.

use std::{collections::BTreeSet, fs, path::Path};

use outlive_core::id::SnapshotId;
use serde_json::json;

use super::{
    Shelf,
    archive::{Tar, gzip, layout},
};
use crate::{
    images::{Digest, ImageError, ImageName, layer_path, library::Users},
    store::{SandboxRecord, SnapshotRecord, SnapshotState, SnapshotStore as _, Store},
};

#[tokio::test]
async fn layers_are_kept_once_and_go_when_no_image_needs_them() {
    let shelf = Shelf::new().await;
    let base = Tar::default().file("base", "x").end();
    let one = Tar::default().file("one", "x").end();
    let two = Tar::default().file("two", "x").end();
    let first = layout(&[&base, &one], &json!({"Env": ["A=1", "B=2"]}), false);
    let second = layout(&[&base, &two], &json!({}), false);
    let used = shelf.import("first:1", &first).await.unwrap();
    assert_eq!(used.image.settings.env["B"], "2");
    shelf.import("second", &gzip(&second)).await.unwrap();
    assert_eq!(shelf.layers().len(), 3);
    shelf
        .library
        .remove(&ImageName::parse("first:1").unwrap())
        .await
        .unwrap();
    assert_eq!(
        shelf.layers(),
        BTreeSet::from([Digest::of(&base).hex(), Digest::of(&two).hex()])
    );
    let again = shelf
        .library
        .remove(&ImageName::parse("first:1").unwrap())
        .await;
    assert!(matches!(again, Err(ImageError::NotFound(_))));
    shelf
        .library
        .remove(&ImageName::parse("second").unwrap())
        .await
        .unwrap();
    shelf.assert_clean("no image is left");
}

fn snapshot_of(sandbox: &SandboxRecord) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId::from_bits(1),
        owner: sandbox.owner.clone(),
        name: None,
        description: None,
        sandbox: sandbox.id.clone(),
        template: sandbox.template.clone(),
        image: sandbox.config.image.clone(),
        slot: sandbox.slot,
        state: SnapshotState::Making,
        files: 0,
        bytes: 0,
        created_at: sandbox.created_at,
        expires_at: None,
    }
}

#[tokio::test]
async fn an_image_that_snapshots_need_is_not_removed() {
    let shelf = Shelf::new().await;
    let used = shelf
        .import("app", &Tar::default().file("a", "x").end())
        .await
        .unwrap();
    let record = shelf.sandbox(&used).await;
    let snapshot = snapshot_of(&record);
    shelf.store.insert_snapshot(&snapshot, 1).await.unwrap();
    shelf.store.remove_sandbox(&record.id).await.unwrap();
    let name = ImageName::parse("app").unwrap();
    let error = shelf.library.remove(&name).await.unwrap_err();
    let in_use = matches!(
        error,
        ImageError::InUse {
            sandboxes: 0,
            snapshots: 1,
            ..
        }
    );
    assert!(in_use, "{error}");
    let (_, images) = shelf.library.list().await.unwrap();
    assert_eq!(images[0].users.snapshots, 1);
    shelf.store.remove_snapshot(&snapshot.id).await.unwrap();
    shelf.library.remove(&name).await.unwrap();
    shelf.assert_clean("no snapshot needs it");
}

#[tokio::test]
async fn an_image_stays_while_a_sandbox_has_it_also_a_paused_one() {
    let shelf = Shelf::new().await;
    let bytes = Tar::default().file("a", "x").end();
    let used = shelf.import("app", &bytes).await.unwrap();
    let record = shelf.sandbox(&used).await;
    let name = ImageName::parse("app").unwrap();
    let error = shelf.library.remove(&name).await.unwrap_err();
    assert!(
        matches!(error, ImageError::InUse { sandboxes: 1, .. }),
        "{error}"
    );
    // Another image under the same name changes nothing for the sandbox.
    let other = Tar::default().file("b", "x").end();
    let next = shelf.import("app", &other).await.unwrap();
    assert_eq!(next.users, Users::default());
    assert_eq!(shelf.layers().len(), 2);
    // A snapshot of the sandbox takes over.
    let snapshot = snapshot_of(&record);
    shelf.store.insert_snapshot(&snapshot, 1).await.unwrap();
    shelf.store.remove_sandbox(&record.id).await.unwrap();
    shelf.library.sweep().await.unwrap();
    assert_eq!(shelf.layers().len(), 2);
    shelf.store.remove_snapshot(&snapshot.id).await.unwrap();
    shelf.library.remove(&name).await.unwrap();
    shelf.assert_clean("nobody needs either");
}

#[tokio::test]
async fn what_a_killed_server_left_is_swept_at_the_next_start() {
    let shelf = Shelf::new().await;
    let bytes = Tar::default().file("a", "x").end();
    let used = shelf.import("kept", &bytes).await.unwrap();
    // Killed between the layer's name and the store.
    let orphan = layer_path(&shelf.images, Digest::of(b"orphan"));
    fs::create_dir(&orphan).unwrap();
    fs::write(orphan.join("file"), "x").unwrap();
    fs::create_dir(shelf.images.path().join("tmp/half")).unwrap();
    let Shelf { dir, store, .. } = shelf;
    let next = Shelf::open(dir, store).await;
    assert_eq!(next.layers(), BTreeSet::from([used.image.layers[0].hex()]));
    assert_eq!(
        fs::read_dir(next.images.path().join("tmp"))
            .unwrap()
            .count(),
        0
    );
    assert!(Path::new(&next.only_layer(&used)).join("a").is_file());
}
