//! What the entries of an archive become in a layer.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
};

use serde_json::json;
use tokio_tar::EntryType;

use super::{
    Shelf,
    archive::{Tar, gzip, layout, zstd},
};
use crate::images::layer_path;

#[tokio::test]
async fn an_entry_that_comes_twice_counts_as_the_last_one_says() {
    let shelf = Shelf::new().await;
    let away = shelf.dir.path().join("away");
    fs::write(&away, "kept").unwrap();
    let bytes = Tar::default()
        .file("file", "one")
        .file("file", "two")
        .symlink("link", away.to_str().unwrap())
        .file("link", "a file now")
        .dir("dir")
        .file("dir/below", "x")
        .file("dir", "a file now")
        .file("./dotted", "x")
        .hard_link("same", "/file")
        .end();
    let used = shelf.import("twice", &bytes).await.unwrap();
    let layer = shelf.only_layer(&used);
    let read = |name: &str| fs::read_to_string(layer.join(name)).unwrap();
    assert_eq!(read("file"), "two");
    assert_eq!(read("same"), "two");
    assert_eq!(read("link"), "a file now");
    assert_eq!(read("dir"), "a file now");
    assert_eq!(read("dotted"), "x");
    assert_eq!(fs::read_to_string(&away).unwrap(), "kept");
}

#[tokio::test]
async fn devices_stay_out_and_are_counted() {
    let shelf = Shelf::new().await;
    let bytes = Tar::default()
        .entry(EntryType::Char, b"null", "", b"")
        .entry(EntryType::Block, b"sda", "", b"")
        .entry(EntryType::Fifo, b"pipe", "", b"")
        .file("file", "x")
        .end();
    for bytes in [zstd(&bytes), gzip(&bytes), bytes] {
        let used = shelf.import("devices", &bytes).await.unwrap();
        assert_eq!(used.image.counts.devices_skipped, 2);
        let layer = shelf.only_layer(&used);
        assert!(!layer.join("null").exists() && !layer.join("sda").exists());
        assert!(
            fs::metadata(layer.join("pipe"))
                .unwrap()
                .file_type()
                .is_fifo()
        );
        // However it is packed, it is the same image.
        assert_eq!(used.image.digest, used.image.layers[0]);
        assert_eq!(shelf.layers().len(), 1);
    }
}

#[tokio::test]
async fn deleted_files_become_what_overlayfs_takes_for_deleted() {
    let shelf = Shelf::new().await;
    let low = Tar::default()
        .dir("a")
        .file("a/gone", "x")
        .file("kept", "x")
        .end();
    let high = Tar::default()
        .dir("a")
        .file("a/.wh.gone", "")
        .dir("b")
        .file("b/.wh..wh..opq", "")
        .file("b/.wh..wh.plnk", "")
        // A directory that was deleted and made anew shows nothing of the old one.
        .file(".wh.c", "")
        .dir("c")
        .file("c/new", "x")
        .end();
    let bytes = layout(&[&low, &high], &json!({}), false);
    let used = shelf.import("two", &bytes).await.unwrap();
    let top = layer_path(&shelf.images, used.image.layers[1]);
    let gone = fs::symlink_metadata(top.join("a/gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    for dir in ["b", "c"] {
        let mut value = [0; 8];
        let n = rustix::fs::getxattr(top.join(dir), "user.overlay.opaque", &mut value).unwrap();
        assert_eq!(&value[..n], b"y", "{dir}");
    }
    assert_eq!(fs::read_dir(top.join("b")).unwrap().count(), 0);
}
