//! `outlive sandbox cp` against the real server.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::Child;

use crate::{
    real::Server,
    support::{Done, Fake, Outlive, PATIENCE, Reply, finish},
};

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
            text(Path::new("/dev/null")),
            server.at(place.path()),
            "no file, directory or link",
        ),
        (
            server.at(Path::new("/dev/null")),
            text(place.path()),
            "no file, directory or link",
        ),
        (text(&file), server.at(&nowhere.join("")), "is no directory"),
        (server.at(&file), text(&nowhere.join("")), "is no directory"),
        (server.at(&file), "-".to_owned(), "copies no streams"),
        ("-".to_owned(), server.at(&nowhere), "copies no streams"),
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
    let args = [
        "sandbox",
        "cp",
        &server.at(&file),
        &text(&place.path().join("one")),
    ];
    let done = server.outlive.args(args).await.expect(0);
    assert_eq!(done.text(), "Copied 1 file, 1 byte\n");
    server.end().await;
}

/// So much that a copy is in its midst for as long as a test wants; it takes no room.
fn endless(at: &Path) {
    fs::File::create(at).unwrap().set_len(1 << 40).unwrap();
}

/// The processes that work in a directory.
fn workers(place: &Path) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let there = processes.filter(|process| {
        fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(place))
    });
    there
        .filter_map(|process| Pid::from_raw(process.file_name().to_str()?.parse().ok()?))
        .collect()
}

async fn until(words: &str, mut holds: impl FnMut() -> bool) {
    let met = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let met = tokio::time::timeout(PATIENCE, met).await;
    met.unwrap_or_else(|_| panic!("never: {words}"));
}

/// Whether this process has a file of that directory open, with or without a name.
fn writes_in(child: &Child, directory: &Path) -> bool {
    let open = fs::read_dir(format!("/proc/{}/fd", child.id().unwrap())).unwrap();
    open.flatten().any(|fd| {
        let file = fs::read_link(fd.path());
        file.is_ok_and(|file| file.parent() == Some(directory))
    })
}

/// What there is in a directory, apart from `target`.
fn beside(target: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(target.parent().unwrap()).unwrap().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path != target).collect()
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

// Ctrl-C in the midst of a copy left a stump under the final name, whatever had been there, and the
// processes of the copy in the sandbox.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_breaks_off_leaves_what_was_there() {
    let server = Server::start().await;
    let folder = tempfile::tempdir().unwrap();
    let place = fs::canonicalize(folder.path()).unwrap();
    let (from, to) = (place.join("from"), place.join("to"));
    let (source, target) = (from.join("file"), to.join("file"));
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    endless(&source);
    fs::write(&target, "good").unwrap();
    let (inward, outward) = (
        [source.to_str().unwrap().to_owned(), server.at(&target)],
        [server.at(&source), target.to_str().unwrap().to_owned()],
    );
    for [one, other] in [&inward, &outward] {
        let args = ["sandbox", "cp", one.as_str(), other.as_str()];
        let child = server.outlive.command(args).spawn().unwrap();
        until("the copy has begun", || {
            let begun = writes_in(&child, &to) || !beside(&target).is_empty();
            begun && !workers(&place).is_empty()
        })
        .await;
        signal(&child, Signal::INT);
        let done = finish(child).await.expect(130);
        assert!(done.stderr.contains("was broken off"), "{done:?}");
        assert_eq!(fs::read_to_string(&target).unwrap(), "good");
        assert_eq!(beside(&target), Vec::<PathBuf>::new());
        assert_eq!(workers(&place), []);
    }
    // A client that is killed can't tell. Its sandbox's side is told for it, later.
    for [one, other] in [&inward, &outward] {
        let args = ["sandbox", "cp", one.as_str(), other.as_str()];
        let mut child = server.outlive.command(args).spawn().unwrap();
        until("the copy has begun", || {
            writes_in(&child, &to) || !beside(&target).is_empty()
        })
        .await;
        child.kill().await.unwrap();
        // Who is just being started is missed by one look.
        until("they are gone", || {
            let there = workers(&place);
            for pid in &there {
                match kill_process(*pid, Signal::TERM) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(errno) => panic!("{errno}"),
                }
            }
            there.is_empty()
        })
        .await;
        assert_eq!(beside(&target), Vec::<PathBuf>::new());
        assert_eq!(fs::read_to_string(&target).unwrap(), "good");
    }
    server.end().await;
}

// A signal between the start of tar and the note of its pid missed tar: it stayed for as long as its
// input was open.
#[tokio::test(flavor = "multi_thread")]
async fn unpacking_that_is_told_to_go_leaves_no_process_at_any_moment() {
    let outlive = Outlive::new("http://127.0.0.1:1");
    let folder = tempfile::tempdir().unwrap();
    let place = fs::canonicalize(folder.path()).unwrap();
    let script = include_str!("../../src/copy/unpack.sh");
    for round in 0..500 {
        let stage = format!(".stage-{round}");
        let mut command = outlive.program("sh");
        command
            .args(["-c", script, "sh", place.to_str().unwrap(), &stage, "one"])
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        while !place.join(&stage).exists() {
            std::hint::spin_loop();
        }
        for _ in 0..round * 100 {
            std::hint::spin_loop();
        }
        signal(&child, Signal::TERM);
        let done = finish(child).await;
        assert_eq!(done.status.code(), Some(143), "{round}: {done:?}");
        until("tar is gone", || workers(&place).is_empty()).await;
        assert_eq!(beside(&place.join("none")), Vec::<PathBuf>::new());
        drop(input);
    }
}

// Whoever is killed says nothing any more, so a copy in a sandbox ends when it hears nothing.
#[tokio::test]
async fn a_copy_in_a_sandbox_does_not_wait_for_ever() {
    let fake = Fake::start(|request, _| match request.method.as_str() {
        "DELETE" => Reply::ok(200, json!({"deleted": true})),
        "POST" if request.json()["wait_until_done"] == true => Reply::ok(
            201,
            json!({"id": "ctx-1", "exit_code": 0, "stdout": "nothing\n"}),
        ),
        _ => Reply::error(400, "create_failed", "no", json!({})),
    })
    .await;
    let outlive = Outlive::new(&fake.url);
    let file = outlive.home().join("file");
    fs::write(&file, "x").unwrap();
    let args = ["sandbox", "cp", file.to_str().unwrap(), "sbx-1:/file"];
    outlive.args(args).await.expect(1);
    let asked = fake.seen().pop().unwrap().json();
    assert!(
        asked["idle_timeout_sec"].as_u64().is_some_and(|it| it > 0),
        "{asked}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_fills_one_that_is_there() {
    let server = Server::start().await;
    let place = tempfile::tempdir().unwrap();
    let (here, there) = (place.path().join("here"), place.path().join("there"));
    tree(&here);
    // Some of it is there, some is there as something else, and some is only there.
    let old = there.join("here");
    fs::create_dir_all(old.join("inner/empty/of")).unwrap();
    fs::write(old.join("script"), "old").unwrap();
    fs::write(old.join("other"), "other").unwrap();
    symlink(&there, old.join("inner/plain")).unwrap();
    fs::write(old.join("link"), "no link").unwrap();
    let there_too = server.at(&there);
    server
        .copy(here.to_str().unwrap(), &there_too)
        .await
        .expect(0);
    same(&here, &old);
    assert_eq!(fs::read_to_string(old.join("other")).unwrap(), "other");
    assert!(old.join("inner/empty/of").is_dir());
    assert_eq!(beside(&old), Vec::<PathBuf>::new());
    let modified = |at: &Path| fs::metadata(at.join("inner")).unwrap().modified().unwrap();
    let whole = |at: &Path| {
        modified(at)
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs()
    };
    assert_eq!(whole(&here), whole(&old));
    // A directory is never lost for a file.
    let file = place.path().join("inner");
    fs::write(&file, "x").unwrap();
    let done = server.copy(file.to_str().unwrap(), &server.at(&old)).await;
    assert!(done.expect(1).stderr.contains("is in the way"));
    assert!(old.join("inner/empty/of").is_dir());
    server.end().await;
}
