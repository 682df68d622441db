//! What a file of the copy is besides its contents: its owner, with ids moved from one range of the
//! host to another, its mode, times and attributes.

use std::{ffi::CStr, os::fd::OwnedFd};

use outlive_api::launch::IdRange;
use rustix::{
    fs::{
        AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, chownat, fchmod, fchown, fgetxattr,
        flistxattr, fsetxattr, utimensat,
    },
    io::Errno,
};

use crate::{
    launch::step::{Fail, Step},
    limits::XATTR_BYTES_MAX,
};

/// Length of a file capability that names the user namespace it is good for, and where it does.
const CAPABILITY_V3: (usize, usize) = (24, 20);

/// From which range of ids to which.
pub(super) struct Owners {
    ids: Option<(IdRange, IdRange)>,
}

impl Owners {
    pub(super) fn of(ids: Option<(IdRange, IdRange)>) -> Self {
        Self { ids }
    }

    /// Gives a file of the copy its owner and mode.
    pub(super) fn own(&self, file: &OwnedFd, stat: &Stat) -> Step<()> {
        let (uid, gid) = self.owner(stat);
        fchown(file, uid, gid).step("giving a file away")?;
        // After the owner: a change of owner takes set-user-id away.
        fchmod(file, mode(stat)).step("setting a mode")
    }

    /// Gives a name that can't be opened its owner and times.
    pub(super) fn own_name(&self, dir: &OwnedFd, name: &CStr, stat: &Stat) -> Step<()> {
        let (uid, gid) = self.owner(stat);
        chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).step("giving a file away")?;
        utimensat(dir, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW).step("setting times")
    }

    pub(super) fn owner(&self, stat: &Stat) -> (Option<Uid>, Option<Gid>) {
        (
            Some(Uid::from_raw(self.moved(stat.st_uid))),
            Some(Gid::from_raw(self.moved(stat.st_gid))),
        )
    }

    /// The id in the copy's range; one that is not of the source's stays.
    fn moved(&self, id: u32) -> u32 {
        let Some((from, to)) = self.ids else {
            return id;
        };
        match id.checked_sub(from.first) {
            Some(offset) if offset < from.count() => to.first + offset,
            Some(_) | None => id,
        }
    }

    /// Copies the attributes that may go along; how many were left out.
    pub(super) fn copy_xattrs(&self, from: &OwnedFd, to: &OwnedFd) -> Step<u64> {
        let step = "copying attributes";
        let mut names = vec![0; XATTR_BYTES_MAX];
        let length = match flistxattr(from, names.as_mut_slice()) {
            Ok(length) => length,
            Err(Errno::OPNOTSUPP) => return Ok(0),
            Err(e) => return Err(e).step(step),
        };
        let names = names.get(..length).unwrap_or_default();
        let mut left_out = 0;
        for name in names.split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else {
                continue;
            };
            let is_user = name.to_bytes().starts_with(b"user.");
            if !is_user && name != c"security.capability" {
                left_out += 1;
                continue;
            }
            let mut value = vec![0; XATTR_BYTES_MAX];
            let length = fgetxattr(from, name, value.as_mut_slice()).step(step)?;
            value.truncate(length);
            if !is_user {
                self.move_capability(&mut value);
            }
            fsetxattr(to, name, &value, rustix::fs::XattrFlags::empty()).step(step)?;
        }
        Ok(left_out)
    }

    /// A file capability is good in one user namespace: in the copy's, by its own root.
    fn move_capability(&self, value: &mut [u8]) {
        let (length, at) = CAPABILITY_V3;
        if value.len() != length {
            return;
        }
        let Some(Ok(root)) = value.get(at..length).map(<[u8; 4]>::try_from) else {
            return;
        };
        let moved = self.moved(u32::from_le_bytes(root)).to_le_bytes();
        if let Some(place) = value.get_mut(at..length) {
            place.copy_from_slice(&moved);
        }
    }
}

pub(super) const fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

pub(super) fn times(stat: &Stat) -> Timestamps {
    let time = |seconds: i64, nanos: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanos).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32) -> IdRange {
        IdRange {
            first,
            of_namespace: None,
        }
    }

    #[test]
    fn ids_move_with_the_range_and_others_stay() {
        let owners = Owners::of(Some((range(1000), range(200_000))));
        assert_eq!(owners.moved(999), 999);
        assert_eq!(owners.moved(1000), 200_000);
        assert_eq!(owners.moved(1000 + 65_536), 200_000 + 65_536);
        assert_eq!(owners.moved(1000 + 65_537), 1000 + 65_537);
        let mut capability = [0_u8; 24];
        capability[20..].copy_from_slice(&1001_u32.to_le_bytes());
        owners.move_capability(&mut capability);
        assert_eq!(capability[20..], 200_001_u32.to_le_bytes());
    }
}
