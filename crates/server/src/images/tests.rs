//! Images of every kind, from those that are as they should be to those that want out.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use outlive_api::image::ImageFormat;
use outlive_core::{
    id::{Generation, SandboxId, SnapshotId},
    sandbox::{Desired, Observed, Sandbox, Stored},
    time::Timestamp,
};
use serde_json::{Value, json};
use tokio_tar::{EntryType, Header};
use tokio_util::sync::CancellationToken;

use super::{
    Digest, ImageError, ImageName, ImagesDir, Library, UsedImage, layer_path,
    library::{Used, Users},
    progress::Progress,
};
use crate::{
    sandboxes::config::SandboxConfig,
    store::{
        Inserted, Owner, SandboxRecord, SnapshotRecord, SnapshotState, SnapshotStore as _, Store,
        sqlite::SqliteStore,
    },
};

/// A tar that says whatever it is told to.
#[derive(Clone, Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn entry(mut self, kind: EntryType, name: &[u8], link: &str, data: &[u8]) -> Self {
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

    fn file(self, name: &str, text: &str) -> Self {
        self.entry(EntryType::Regular, name.as_bytes(), "", text.as_bytes())
    }

    fn dir(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name.as_bytes(), "", b"")
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name.as_bytes(), target, b"")
    }

    fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name.as_bytes(), target, b"")
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The configuration of an image of these layers.
fn config(layers: &[&[u8]], config: &Value) -> Vec<u8> {
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
fn layout(layers: &[&[u8]], settings: &Value, break_layer: bool) -> Vec<u8> {
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

/// A library in a directory of its own.
struct Shelf {
    dir: tempfile::TempDir,
    images: Arc<ImagesDir>,
    store: Arc<SqliteStore>,
    library: Library,
}

impl Shelf {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("outlive.db")).await;
        Self::open(dir, Arc::new(store.unwrap())).await
    }

    async fn open(dir: tempfile::TempDir, store: Arc<SqliteStore>) -> Self {
        let images = Arc::new(ImagesDir::open(dir.path()).unwrap());
        let library = Library::new(
            Arc::clone(&images),
            Arc::<SqliteStore>::clone(&store),
            CancellationToken::new(),
        );
        library.sweep().await.unwrap();
        Self {
            dir,
            images,
            store,
            library,
        }
    }

    async fn import(&self, name: &str, bytes: &[u8]) -> Result<Used, ImageError> {
        let slot = self.library.slot().unwrap();
        let archive = slot.draft().join("upload");
        fs::write(&archive, bytes).unwrap();
        let name = ImageName::parse(name).unwrap();
        let (progress, _stages) = Progress::new();
        self.library
            .import(slot, archive, name, ImageFormat::Auto, progress)
            .await
    }

    /// Layers that lie there.
    fn layers(&self) -> BTreeSet<String> {
        fs::read_dir(self.images.path().join("layers"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Nothing of an import is left.
    fn assert_clean(&self, story: &str) {
        assert_eq!(self.layers(), BTreeSet::new(), "{story}");
        let drafts = fs::read_dir(self.images.path().join("tmp")).unwrap();
        assert_eq!(drafts.count(), 0, "{story}");
    }

    fn only_layer(&self, used: &Used) -> PathBuf {
        assert_eq!(used.image.layers.len(), 1);
        layer_path(&self.images, used.image.layers[0])
    }

    async fn sandbox(&self, used: &Used) -> SandboxRecord {
        let at = Timestamp::from_unix_nanos(1);
        let record = SandboxRecord {
            id: SandboxId::from_bits(7),
            owner: Owner::parse("team").unwrap(),
            template: "default".to_owned(),
            config: SandboxConfig {
                image: Some(UsedImage::from(used.image.clone())),
                ..SandboxConfig::default()
            },
            state: Sandbox::remembered(Stored {
                desired: Desired::Released,
                observed: Observed::Released,
                why: None,
                generation: Generation::FIRST,
                claimed_at: at,
                expires_at: None,
                hard_expires_at: None,
                holds: Vec::new(),
                restoring: None,
            }),
            slot: 7,
            isolation: None,
            created_at: at,
            updated_at: at,
        };
        let inserted = self.store.insert_sandbox(&record, 10).await.unwrap();
        assert_eq!(inserted, Inserted::Yes);
        record
    }
}

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
        ("gzip of nonsense", gzip(&[7; 4096])),
    ];
    for (story, bytes) in stories {
        let error = shelf.import("damaged", &bytes).await.unwrap_err();
        assert!(
            matches!(error, ImageError::Corrupt { .. }),
            "{story}: {error}"
        );
        shelf.assert_clean(story);
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
