//! Stories of copies: what a copy is, and what is refused.

use std::{
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use super::*;

fn config(from: &Path, to: &Path) -> CopyConfig {
    CopyConfig {
        from: from.to_str().unwrap().to_owned(),
        to: to.to_str().unwrap().to_owned(),
        ids: None,
        counted: false,
    }
}

fn copy(from: &Path, to: &Path) -> Step<Copied> {
    match super::copy(&config(from, to), |_: &CopyNews| Ok(())).unwrap() {
        CopyNews::Done(copied) => Ok(copied),
        CopyNews::Failed(failure) => Err(failure),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_copy_has_every_kind_of_file_as_it_was() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = from.path().join("files");
    fs::create_dir_all(disk.join("deep/er")).unwrap();
    fs::write(disk.join("deep/er/text"), "words").unwrap();
    fs::set_permissions(
        disk.join("deep/er/text"),
        fs::Permissions::from_mode(0o4751),
    )
    .unwrap();
    fs::hard_link(disk.join("deep/er/text"), disk.join("again")).unwrap();
    symlink("/etc/shadow", disk.join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(disk.join("socket")).unwrap();
    let sparse = fs::File::create(disk.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(b"end", (1 << 30) - 3).unwrap();
    let before = fs::metadata(disk.join("deep")).unwrap().modified().unwrap();

    let copied = copy(from.path(), to.path()).unwrap();
    let disk = to.path().join("files");
    assert_eq!(
        fs::read_to_string(disk.join("deep/er/text")).unwrap(),
        "words"
    );
    let text = fs::metadata(disk.join("deep/er/text")).unwrap();
    assert_eq!(text.permissions().mode() & 0o7777, 0o4751);
    assert_eq!(text.ino(), fs::metadata(disk.join("again")).unwrap().ino());
    assert_eq!(
        fs::read_link(disk.join("link")).unwrap(),
        Path::new("/etc/shadow")
    );
    let sparse = fs::metadata(disk.join("sparse")).unwrap();
    assert_eq!(sparse.len(), 1 << 30);
    assert!(sparse.blocks() < 1 << 12, "{} blocks", sparse.blocks());
    assert_eq!(
        fs::metadata(disk.join("deep")).unwrap().modified().unwrap(),
        before
    );
    assert!(!disk.join("socket").exists());
    assert_eq!((copied.files, copied.left_out), (3, 1));
}

#[test]
fn nothing_but_the_disk_is_copied() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in ["state/sessions/ses-1", "work/root", "upper/root"] {
        fs::create_dir_all(from.path().join(dir)).unwrap();
    }
    fs::write(from.path().join("launch.cbor"), "x").unwrap();
    copy(from.path(), to.path()).unwrap();
    let names: Vec<_> = fs::read_dir(to.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["upper"]);
}

#[test]
fn a_copy_that_is_there_already_is_not_mixed_with_another() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("files")).unwrap();
    fs::create_dir(to.path().join("files")).unwrap();
    copy(from.path(), to.path()).unwrap_err();
}
