//! A copy as the program that it is, with limits of its own.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test")]

use std::{
    fs::File,
    io::Write as _,
    os::fd::AsFd as _,
    path::Path,
    process::{Command, Stdio},
};

use outlive_api::launch::{CopyConfig, CopyNews};
use rustix::fs::{Mode, OFlags, mkdirat, openat};

/// Deeper than any copy follows.
const DEPTH: usize = 500;

/// What a copy says last under this limit of open files.
#[expect(clippy::disallowed_methods, reason = "test")]
fn last_word(limit: &str, config: &CopyConfig) -> CopyNews {
    let mut copying = Command::new("sh")
        .args(["-c", &format!("{limit} && exec \"$0\" copy")])
        .arg(env!("CARGO_BIN_EXE_outlive-agent"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = minicbor::to_vec(config).unwrap();
    copying.stdin.take().unwrap().write_all(&bytes).unwrap();
    let done = copying.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", done.status);
    let mut rest = done.stdout.as_slice();
    let mut last = None;
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (body, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        last = Some(minicbor::decode(body).unwrap());
        rest = after;
    }
    last.unwrap()
}

fn nest(disk: &Path) {
    let mut dir = File::open(disk).unwrap();
    for name in std::iter::once("files").chain(std::iter::repeat_n("d", DEPTH)) {
        mkdirat(&dir, name, Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        dir = openat(dir.as_fd(), name, flags, Mode::empty())
            .unwrap()
            .into();
    }
}

// Where only 1024 files may be open, it was told as a fault of the machine.
#[test]
fn directories_nested_for_ever_are_refused_in_words_whatever_may_be_open() {
    let from = tempfile::tempdir().unwrap();
    nest(from.path());
    for limit in [
        "ulimit -S -n $(ulimit -H -n)",
        "ulimit -n 1024",
        "ulimit -n 64",
    ] {
        let to = tempfile::tempdir().unwrap();
        let config = CopyConfig {
            from: from.path().to_str().unwrap().to_owned(),
            to: to.path().to_str().unwrap().to_owned(),
            ids: None,
            counted: false,
        };
        let told = last_word(limit, &config);
        let CopyNews::TooDeep(message) = told else {
            panic!("{told:?}");
        };
        assert!(message.contains("nested deeper"), "{message}");
        assert!(message.len() < 400, "{message}");
    }
}
