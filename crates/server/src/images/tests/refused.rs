//! Archives that want out, damaged ones, and those that are not what they say.

use std::fs;

use serde_json::json;
use tokio_tar::EntryType;

use super::{
    Shelf,
    archive::{Tar, arch, config, gzip, layout, zstd},
};
use crate::images::{Digest, ImageError};

/// Archives that want to reach this directory, or anything else outside.
fn hostile(away: &str) -> Vec<(&'static str, Tar)> {
    let planted = || Tar::default().symlink("evil", away);
    let upwards = Tar::default()
        .dir("a")
        .symlink("a/up", "../../../../outside");
    vec![
        (
            "an absolute name",
            Tar::default().file("/outside/file", "x"),
        ),
        (
            "a name that leads upwards",
            Tar::default().file("a/../../outside/file", "x"),
        ),
        (
            "a write through a planted link",
            planted().file("evil/file", "x"),
        ),
        (
            "a directory below a planted link",
            planted().dir("evil/dir"),
        ),
        (
            "a link below a planted link",
            planted().symlink("evil/link", "x"),
        ),
        (
            "a write through a link upwards",
            upwards.file("a/up/file", "x"),
        ),
        (
            "a whiteout through a planted link",
            planted().file("evil/.wh.secret", ""),
        ),
        (
            "an opaque mark through a planted link",
            planted().file("evil/.wh..wh..opq", ""),
        ),
        (
            "a whiteout of the parent",
            Tar::default().file("a/.wh...", ""),
        ),
        ("a whiteout of nothing", Tar::default().file("a/.wh.", "")),
        (
            "a hard link upwards",
            Tar::default().hard_link("file", "../outside/secret"),
        ),
        (
            "a hard link to a file of the host",
            Tar::default().hard_link("file", &format!("{away}/secret")),
        ),
        (
            "a hard link through a planted link",
            planted().hard_link("file", "evil/secret"),
        ),
        (
            "a file below a file",
            Tar::default().file("a", "x").file("a/b", "x"),
        ),
        (
            "a sparse file",
            Tar::default().entry(EntryType::GNUSparse, b"sparse", "", b""),
        ),
    ]
}

#[tokio::test]
async fn an_archive_that_wants_out_is_refused_and_leaves_nothing() {
    let shelf = Shelf::new().await;
    let outside = shelf.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "kept").unwrap();
    for (story, tar) in hostile(outside.to_str().unwrap()) {
        // A file before it, so that there is something to take back.
        let bytes = Tar::default().file("first", "x").0;
        let bytes = Tar([bytes, tar.0].concat()).end();
        let error = shelf.import("evil", &bytes).await.unwrap_err();
        assert!(
            matches!(error, ImageError::Hostile { .. }),
            "{story}: {error}"
        );
        shelf.assert_clean(story);
    }
    let kept: Vec<_> = fs::read_dir(&outside).unwrap().collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), "kept");
    assert_eq!(shelf.library.list().await.unwrap().1, []);
}

#[tokio::test]
async fn damaged_bytes_are_told_as_such_and_leave_nothing() {
    let shelf = Shelf::new().await;
    let mut text = String::new();
    for number in 0..20_000_u32 {
        text.push_str(&number.to_string());
    }
    let good = Tar::default().dir("etc").file("etc/long", &text).end();
    let cut = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
    let flipped = |mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x55;
        bytes
    };
    let stories = [
        ("a cut tar", cut(&good)),
        ("a cut gzip", cut(&gzip(&good))),
        ("a cut zstd", cut(&zstd(&good))),
        ("a flipped byte in gzip", flipped(gzip(&good))),
        ("a flipped byte in zstd", flipped(zstd(&good))),
        ("nothing", Vec::new()),
        ("no archive", vec![b'x'; 4096]),
        ("no text either", vec![0x1b; 4096]),
        ("gzip of nonsense", gzip(&[7; 4096])),
    ];
    for (story, bytes) in stories {
        let error = shelf.import("damaged", &bytes).await.unwrap_err();
        assert!(
            matches!(error, ImageError::Corrupt { .. }),
            "{story}: {error}"
        );
        let quotes = |char: char| char.is_control() || char == char::REPLACEMENT_CHARACTER;
        assert!(!error.to_string().contains(quotes), "{story}: {error}");
        shelf.assert_clean(story);
    }
}

// A `.tar.xz` was called damaged, with some of its bytes.
#[tokio::test]
async fn a_packing_that_is_not_taken_is_called_by_its_name() {
    let shelf = Shelf::new().await;
    for (name, start) in [("xz", &b"\xfd7zXZ\0"[..]), ("bzip2", b"BZh91AY&SY")] {
        let bytes = [start, &[0; 600]].concat();
        let error = shelf.import("packed", &bytes).await.unwrap_err();
        assert!(matches!(error, ImageError::Unsupported(_)), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        shelf.assert_clean(name);
    }
}

#[tokio::test]
async fn a_description_without_end_is_cut_short() {
    let shelf = Shelf::new().await;
    let name = vec![b'n'; 3 << 20];
    let bytes = Tar::default()
        .entry(EntryType::GNULongName, b"././@LongLink", "", &name)
        .file("short", "x")
        .end();
    let error = shelf.import("bomb", &gzip(&bytes)).await.unwrap_err();
    assert!(matches!(error, ImageError::TooLarge { .. }), "{error}");
    shelf.assert_clean("a name of three megabytes");
}

#[tokio::test]
async fn a_layer_that_is_not_what_its_name_says_is_refused() {
    let shelf = Shelf::new().await;
    let layer = Tar::default().file("a", "x").end();
    let bytes = layout(&[&layer], &json!({}), true);
    let error = shelf.import("liar", &bytes).await.unwrap_err();
    assert!(matches!(error, ImageError::Digest { .. }), "{error}");
    shelf.assert_clean("a wrong digest");
}

#[tokio::test]
async fn an_image_of_another_machine_is_refused() {
    let shelf = Shelf::new().await;
    let layer = Tar::default().file("a", "x").end();
    let text = String::from_utf8(config(&[&layer], &json!({}))).unwrap();
    let foreign = text.replace(arch(), "s390x");
    let manifest = json!([{"Config": "c.json", "RepoTags": [], "Layers": ["l.tar"]}]);
    let hex = Digest::of(foreign.as_bytes()).hex();
    let manifest = manifest
        .to_string()
        .replace("c.json", &format!("{hex}.json"));
    let manifest = manifest.replace("l.tar", &format!("{hex}/layer.tar"));
    let bytes = Tar::default()
        .file(&format!("{hex}.json"), &foreign)
        .entry(
            EntryType::Regular,
            format!("{hex}/layer.tar").as_bytes(),
            "",
            &layer,
        )
        .file("manifest.json", &manifest)
        .end();
    let error = shelf.import("foreign", &bytes).await.unwrap_err();
    assert!(matches!(error, ImageError::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("s390x"), "{error}");
    shelf.assert_clean("another machine");
}
