//! What a file of the copy is besides its contents: its owner, with ids moved from one range of the
//! host to another, its mode, times and attributes.

use std::{
    ffi::CStr,
    os::fd::{AsRawFd as _, OwnedFd},
};

use outlive_api::launch::IdRange;
use rustix::{
    fs::{
        AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
        fgetxattr, flistxattr, fsetxattr, fstat, lgetxattr, utimensat,
    },
    io::Errno,
};

use super::lists::{ACCESS, DEFAULT, List};
use crate::{
    launch::step::{Fail, Step},
    limits::XATTR_BYTES_MAX,
};

/// Length of a file capability that names the user namespace it is good for, and where it does.
const CAPABILITY_V3: (usize, usize) = (24, 20);

/// What copying attributes is called when it fails.
const ATTRIBUTES: &str = "copying attributes";

/// From which range of ids to which.
pub(super) struct Owners {
    ids: Option<(IdRange, IdRange)>,
}

impl Owners {
    pub(super) fn of(ids: Option<(IdRange, IdRange)>) -> Self {
        Self { ids }
    }

    /// Gives a file of the copy its owner and mode.
    fn own(&self, file: &OwnedFd, stat: &Stat) -> Step<()> {
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
        self.counterpart(id).unwrap_or(id)
    }

    /// The id in the copy's range, if it is of the source's.
    fn counterpart(&self, id: u32) -> Option<u32> {
        let Some((from, to)) = self.ids else {
            return Some(id);
        };
        let offset = id.checked_sub(from.first)?;
        (offset < from.count()).then(|| to.first + offset)
    }

    /// Gives a file of the copy its owner, its mode and the attributes that may go along; how many
    /// were left out.
    pub(super) fn liken(&self, from: &OwnedFd, to: &OwnedFd, stat: &Stat) -> Step<u64> {
        let mut names = vec![0; XATTR_BYTES_MAX];
        let length = match flistxattr(from, names.as_mut_slice()) {
            Err(Errno::OPNOTSUPP) => 0,
            listed => listed.step(ATTRIBUTES)?,
        };
        let names = names.get(..length).unwrap_or_default();
        let names = names.split_inclusive(|byte| *byte == 0);
        let names = names.filter_map(|name| CStr::from_bytes_with_nul(name).ok());
        let (of_user, others): (Vec<_>, Vec<_>) =
            names.partition(|name| name.to_bytes().starts_with(b"user."));
        // Before the mode, which may let nobody write them.
        for name in of_user {
            let value = attribute(from, name)?;
            fsetxattr(to, name, &value, XattrFlags::empty()).step(ATTRIBUTES)?;
        }
        self.own(to, stat)?;
        let mut left_out = 0;
        // After owner and mode: a new owner takes capabilities away, a new mode changes access lists.
        for name in others {
            if name == ACCESS || name == DEFAULT {
                left_out += self.copy_list(name, &attribute(from, name)?, to)?;
            } else if name == c"security.capability" {
                let mut value = attribute(from, name)?;
                self.move_capability(&mut value);
                fsetxattr(to, name, &value, XattrFlags::empty()).step(ATTRIBUTES)?;
            } else {
                left_out += 1;
            }
        }
        Ok(left_out)
    }

    /// The same for a pipe, which has nothing but an access list, and is not opened: somebody may
    /// wait for that.
    pub(super) fn liken_pipe(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        to: &OwnedFd,
        stat: &Stat,
    ) -> Step<u64> {
        self.own(to, stat)?;
        let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        path.extend_from_slice(name.to_bytes());
        let mut value = vec![0; XATTR_BYTES_MAX];
        match lgetxattr(path, ACCESS, value.as_mut_slice()) {
            Ok(length) => {
                value.truncate(length);
                self.copy_list(ACCESS, &value, to)
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(0),
            Err(e) => Err(e).step(ATTRIBUTES),
        }
    }

    /// Copies an access list. One that can't be kept is left out, and nobody gets more by that.
    fn copy_list(&self, name: &CStr, value: &[u8], to: &OwnedFd) -> Step<u64> {
        let list = List::read(value);
        let moved = list
            .as_ref()
            .and_then(|list| list.moved(|id| self.counterpart(id)));
        if let Some(moved) = moved {
            match fsetxattr(to, name, &moved, XattrFlags::empty()) {
                Ok(()) => return Ok(0),
                Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
                Err(e) => return Err(e).step(ATTRIBUTES),
            }
        }
        if name == ACCESS {
            let bits = list.map_or(0, |list| list.bits_without());
            let mode = mode(&fstat(to).step(ATTRIBUTES)?);
            let kept = Mode::from_raw_mode(bits | 0o7700);
            fchmod(to, mode & kept).step(ATTRIBUTES)?;
        }
        Ok(1)
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

fn attribute(file: &OwnedFd, name: &CStr) -> Step<Vec<u8>> {
    let mut value = vec![0; XATTR_BYTES_MAX];
    let length = fgetxattr(file, name, value.as_mut_slice()).step(ATTRIBUTES)?;
    value.truncate(length);
    Ok(value)
}

const fn mode(stat: &Stat) -> Mode {
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
