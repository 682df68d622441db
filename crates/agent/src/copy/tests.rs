//! Stories of copies: what a copy is, and what is refused.

use std::{
    fs,
    os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
};

use outlive_api::launch::IdRange;

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

/// Entries of tag, what is allowed, and id, as the kernel takes them.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, allowed, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(allowed.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// The owner may do everything, one other user reads and writes, and a group reads; the owner's group
/// may nothing.
fn shared_with(user: u32, group: u32) -> Vec<u8> {
    let nobody = u32::MAX;
    list(&[
        (0x01, 7, nobody),
        (0x02, 6, user),
        (0x04, 0, nobody),
        (0x08, 4, group),
        (0x10, 6, nobody),
        (0x20, 0, nobody),
    ])
}

fn list_of(path: &Path, name: &CStr) -> Option<Vec<u8>> {
    let mut value = vec![0; 1024];
    let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(length);
    Some(value)
}

/// Copies a file, a directory and a pipe with this list, between ranges of our own making.
fn copy_shared(value: &[u8]) -> (tempfile::TempDir, Copied) {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = from.path().join("files");
    fs::create_dir_all(disk.join("dir")).unwrap();
    fs::write(disk.join("file"), "words").unwrap();
    mknodat(CWD, disk.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let set = |name: &str, attribute: &CStr| {
        let none = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(disk.join(name), attribute, value, none).unwrap();
    };
    for name in ["dir", "file", "pipe"] {
        set(name, lists::ACCESS);
    }
    set("dir", lists::DEFAULT);
    fs::write(disk.join("dir/new"), "").unwrap();
    let range = |first| IdRange {
        first,
        of_namespace: None,
    };
    let config = CopyConfig {
        ids: Some((range(5_000_000), range(6_000_000))),
        ..config(from.path(), to.path())
    };
    match super::copy(&config, |_: &CopyNews| Ok(())).unwrap() {
        CopyNews::Done(copied) => (to, copied),
        other => panic!("{other:?}"),
    }
}

// The copy had the mask as what its group may do, and no list: the group could read and write.
#[test]
fn access_lists_go_along_and_name_the_users_of_the_copy() {
    let (to, copied) = copy_shared(&shared_with(5_002_000, 5_003_000));
    let disk = to.path().join("files");
    let expected = Some(shared_with(6_002_000, 6_003_000));
    for name in ["dir", "file", "pipe"] {
        let path = disk.join(name);
        assert_eq!(list_of(&path, lists::ACCESS), expected, "{name}");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o760, "{name}");
    }
    assert_eq!(list_of(&disk.join("dir"), lists::DEFAULT), expected);
    assert!(list_of(&disk.join("dir/new"), lists::ACCESS).is_some());
    assert_eq!(copied.left_out, 0);
}

#[test]
fn a_copy_without_its_access_list_gives_nobody_more() {
    // Somebody of the host's, who is nobody in the copy.
    let (to, copied) = copy_shared(&shared_with(2000, 5_003_000));
    let disk = to.path().join("files");
    for name in ["dir", "file", "pipe"] {
        let path = disk.join(name);
        assert_eq!(list_of(&path, lists::ACCESS), None, "{name}");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
    // Those three, the list of new files, and that of one.
    assert_eq!(copied.left_out, 5);

    let nobody = u32::MAX;
    let refused = list(&[
        (0x01, 7, nobody),
        (0x02, 0, 2000),
        (0x04, 4, nobody),
        (0x10, 6, nobody),
        (0x20, 4, nobody),
    ]);
    let (to, _) = copy_shared(&refused);
    let file = fs::metadata(to.path().join("files/file")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o700);
}
