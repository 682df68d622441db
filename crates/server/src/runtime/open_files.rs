//! What a sandbox's processes hold open on its disk that has no name there any more.
//!
//! Looked at are the keeper's descendants that have other mounts than the keeper, that is, those
//! inside; of them what is open or mapped, lies on an overlay and has no link: only a file of the
//! sandbox's own layer ever has none. Not seen is what is on its way from one process to another
//! through a socket. Processes come and go meanwhile; what can't be looked at is not counted.

use std::{
    collections::HashSet,
    ffi::OsString,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::usage::{BLOCK_BYTES, Usage};
use crate::limits::{
    OPEN_FILES_LOOKED_AT_MAX, OPEN_FILES_MAPS_BYTES_MAX, OPEN_FILES_PROCESSES_MAX,
};

/// `f_type` of an overlay.
const OVERLAY: u64 = 0x794c_7630;

/// Counts what the descendants of a keeper hold.
pub(super) fn held_open(keeper: i32) -> Usage {
    let mut count = Count {
        usage: Usage::default(),
        seen: HashSet::new(),
        looks_left: OPEN_FILES_LOOKED_AT_MAX,
    };
    let outside = mounts_of(keeper);
    for process in descendants(keeper) {
        let mounts = mounts_of(process);
        if mounts.is_some() && mounts != outside {
            count.look_at(process);
        }
    }
    count.usage
}

struct Count {
    usage: Usage,
    /// One file may be open many times.
    seen: HashSet<(u64, u64)>,
    looks_left: u32,
}

impl Count {
    fn look_at(&mut self, process: i32) {
        let of = PathBuf::from(format!("/proc/{process}"));
        for open in names(&of.join("fd")) {
            self.count(&of.join("fd").join(open));
        }
        let Ok(maps) = File::open(of.join("maps")) else {
            return;
        };
        let maps = BufReader::new(maps.take(OPEN_FILES_MAPS_BYTES_MAX));
        for line in maps.split(b'\n').map_while(Result::ok) {
            if let Some(range) = deleted_range(&line) {
                self.count(&of.join("map_files").join(range));
            }
        }
    }

    fn count(&mut self, link: &Path) {
        let Some(left) = self.looks_left.checked_sub(1) else {
            return;
        };
        self.looks_left = left;
        let Ok(file) = fs::metadata(link) else { return };
        if file.nlink() > 0 || !lies_on_overlay(link) || !self.seen.insert((file.dev(), file.ino()))
        {
            return;
        }
        self.usage.entries += 1;
        self.usage.bytes += file.blocks().saturating_mul(BLOCK_BYTES);
    }
}

fn lies_on_overlay(link: &Path) -> bool {
    rustix::fs::statfs(link).is_ok_and(|disk| u64::try_from(disk.f_type) == Ok(OVERLAY))
}

/// What `map_files` calls a mapping of a file without a name.
fn deleted_range(line: &[u8]) -> Option<String> {
    let named = line.strip_suffix(b" (deleted)")?;
    let range = named.split(|byte| *byte == b' ').next()?;
    let (from, to) = str::from_utf8(range).ok()?.split_once('-')?;
    let short = |text: &str| text.trim_start_matches('0').to_owned();
    Some(format!("{}-{}", short(from), short(to)))
}

/// Every process below this one, as far as it can be seen.
fn descendants(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        next += 1;
        for thread in names(Path::new(&format!("/proc/{process}/task"))) {
            let children = Path::new("/proc")
                .join(process.to_string())
                .join("task")
                .join(thread)
                .join("children");
            let Ok(children) = fs::read_to_string(children) else {
                continue;
            };
            let children = children.split_ascii_whitespace();
            found.extend(children.filter_map(|child| child.parse::<i32>().ok()));
        }
        found.truncate(OPEN_FILES_PROCESSES_MAX);
    }
    found
}

/// Which mounts a process sees, as a name to compare.
fn mounts_of(process: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

fn names(directory: &Path) -> impl Iterator<Item = OsString> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_found_by_its_range() {
        let line = b"7f1c00000000-7f1c00100000 rw-s 00000000 00:27 12     /tmp/x (deleted)";
        let range = deleted_range(line);
        assert_eq!(range.as_deref(), Some("7f1c00000000-7f1c00100000"));
        let low = b"00400000-00401000 r--p 00000000 00:27 12     /x (deleted)";
        assert_eq!(deleted_range(low).as_deref(), Some("400000-401000"));
        assert_eq!(
            deleted_range(b"7f1c00000000-7f1c00100000 rw-s 00000000 00:27 12 /tmp/x"),
            None
        );
    }

    #[test]
    fn a_process_of_ours_is_found_below_us() {
        #[expect(clippy::disallowed_methods, reason = "a test's own process")]
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = |id: u32| i32::try_from(id).unwrap();
        let found = descendants(pid(std::process::id()));
        assert!(found.contains(&pid(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
        // The mounts are ours: nothing is counted.
        assert_eq!(held_open(pid(std::process::id())), Usage::default());
    }
}
