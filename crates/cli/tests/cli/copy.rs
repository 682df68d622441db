//! `outlive sandbox cp` against the real server.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use crate::{real::Server, support::Done};

impl Server {
    async fn copy(&self, source: &str, destination: &str) -> Done {
        let args = ["sandbox", "cp", "--json", source, destination];
        self.outlive.args(args).await
    }

    fn at(&self, path: &Path) -> String {
        format!("{}:{}", self.sandbox, path.display())
    }
}

/// Names that a script would trip over.
const NAMES: [&str; 5] = ["plain", "two words", "new\nline", "-rf", "é☕'\"$(id)"];

fn tree(at: &Path) {
    fs::create_dir_all(at.join("inner/empty")).unwrap();
    for (number, name) in NAMES.iter().enumerate() {
        let bytes: Vec<u8> = (0..=250).cycle().take(1000 * number).collect();
        fs::write(at.join("inner").join(name), bytes).unwrap();
    }
    let script = at.join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(at.join("x".repeat(150)), "long").unwrap();
    symlink("script", at.join("link")).unwrap();
    fs::set_permissions(at.join("inner"), fs::Permissions::from_mode(0o555)).unwrap();
}

fn same(one: &Path, other: &Path) {
    for name in NAMES {
        let (one, other) = (one.join("inner").join(name), other.join("inner").join(name));
        assert!(
            fs::read(one).unwrap() == fs::read(other).unwrap(),
            "{name:?}"
        );
    }
    for name in ["script", "inner", "inner/empty"] {
        let mode = |at: &Path| fs::metadata(at.join(name)).unwrap().permissions().mode();
        assert_eq!(mode(one), mode(other), "{name}");
    }
    assert_eq!(
        fs::read_link(other.join("link")).unwrap(),
        Path::new("script")
    );
    assert!(other.join("x".repeat(150)).exists());
}

// The sandboxes of these tests see the files of this machine, so both sides can be looked at.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_comes_back_as_it_was() {
    let server = Server::start().await;
    let place = tempfile::tempdir().unwrap();
    let (here, there) = (place.path().join("here"), place.path().join("there"));
    tree(&here);
    fs::create_dir(&there).unwrap();
    // Into a directory that is there, under its own name.
    let done = server
        .copy(here.to_str().unwrap(), &server.at(&there))
        .await
        .expect(0);
    assert_eq!(done.json()["files"], 8);
    same(&here, &there.join("here"));
    // Under a new name.
    let renamed = place.path().join("new name");
    server
        .copy(&server.at(&there.join("here")), renamed.to_str().unwrap())
        .await
        .expect(0);
    same(&here, &renamed);
    // What is in it, into a directory that is there.
    let back = place.path().join("back");
    fs::create_dir(&back).unwrap();
    let content = format!("{}/.", server.at(&there.join("here")));
    server
        .copy(&content, back.to_str().unwrap())
        .await
        .expect(0);
    same(&here, &back);
    server.end().await;
}

// Much more than the journal of the copy would keep, if nobody asked for it piece by piece.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_is_whole_in_both_directions() {
    let server = Server::start().await;
    let place = tempfile::tempdir().unwrap();
    let here = place.path().join("large");
    let bytes: Vec<u8> = (0..=250).cycle().take(60_000_000).collect();
    fs::write(&here, &bytes).unwrap();
    let there = place.path().join("there");
    server
        .copy(here.to_str().unwrap(), &server.at(&there))
        .await
        .expect(0);
    assert!(
        fs::read(&there).unwrap() == bytes,
        "it is another on its way in"
    );
    let back = place.path().join("back");
    let done = server
        .copy(&server.at(&there), back.to_str().unwrap())
        .await
        .expect(0);
    assert_eq!(done.json()["bytes"], bytes.len());
    assert!(
        fs::read(&back).unwrap() == bytes,
        "it is another on its way out"
    );
    let contexts = format!("sandbox run {} --alias sh true", server.sandbox);
    server.outlive.run(&contexts).await.expect(0);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_copied_is_said() {
    let server = Server::start().await;
    let place = tempfile::tempdir().unwrap();
    let nowhere = place.path().join("no where");
    let file = place.path().join("file");
    fs::write(&file, "x").unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for (source, destination, words) in [
        (text(&nowhere), server.at(place.path()), "No such file"),
        (
            server.at(&nowhere),
            text(place.path()),
            "no such file in the sandbox",
        ),
        (
            text(&file),
            server.at(&nowhere.join("x")),
            "no such directory in the sandbox",
        ),
        (
            text(place.path()),
            server.at(&file),
            "no directory in the sandbox",
        ),
        (server.at(&file), text(&nowhere.join("x")), "No such file"),
        (text(&file), text(&nowhere), "must be in a sandbox"),
        (
            server.at(&file),
            server.at(&nowhere),
            "must be a local path",
        ),
    ] {
        let done = server.copy(&source, &destination).await;
        assert_ne!(done.code(), 0, "{source} {destination}");
        assert!(done.stderr.contains(words), "{words}: {}", done.stderr);
    }
    server.end().await;
}
