//! Who attempts run as, read from the sandbox's own `/etc/passwd` and `/etc/group`.
//!
//! The files are the workload's: whatever it made of them, the supervisor goes on. Nothing else is
//! asked: no name service, no library that would.

use std::{
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
};

use outlive_core::spec::{User, Who};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::{
    limits::{GROUPS_MAX, PASSWD_BYTES_MAX},
    log,
};

/// Ids of a process inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// A user of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Ids.
    pub credentials: Credentials,
    /// Login name; the number where there is none.
    pub name: String,
    /// Home directory; `/` where there is none.
    pub home: String,
}

/// A name that the sandbox doesn't know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownName {
    /// It is no user's.
    #[error("user {0} is not in the sandbox's /etc/passwd; use a number, or add it")]
    User(String),
    /// It is no group's.
    #[error("group {0} is not in the sandbox's /etc/group; use a number, or add it")]
    Group(String),
}

/// A line of `/etc/passwd`.
struct Entry<'l> {
    name: &'l str,
    uid: u32,
    gid: u32,
    home: &'l str,
}

impl Account {
    /// Looks a user up below this root, or on the host.
    pub fn find(root: Option<&OwnedFd>, wanted: &User) -> Result<Self, UnknownName> {
        let passwd = text_of(root, "/etc/passwd");
        let group = text_of(root, "/etc/group");
        let account = Self::parse(&passwd, &group, wanted)?;
        if is_directory(root, &account.home) {
            return Ok(account);
        }
        // As at a login: who has no home is at home in the root.
        Ok(Self {
            home: "/".to_owned(),
            ..account
        })
    }

    fn parse(passwd: &str, group: &str, wanted: &User) -> Result<Self, UnknownName> {
        let entry = passwd
            .lines()
            .filter_map(Entry::parse)
            .find(|entry| match &wanted.user {
                Who::Id(uid) => entry.uid == *uid,
                Who::Name(name) => entry.name == name,
            });
        let uid = match (&wanted.user, &entry) {
            (_, Some(entry)) => entry.uid,
            (Who::Id(uid), None) => *uid,
            (Who::Name(name), None) => return Err(UnknownName::User(name.clone())),
        };
        let name = entry.as_ref().map(|entry| entry.name);
        let (gid, groups) = match &wanted.group {
            Some(Who::Id(gid)) => (*gid, Vec::new()),
            Some(Who::Name(wanted)) => {
                let found = groups(group).find(|(name, _, _)| name == wanted);
                let (_, gid, _) = found.ok_or_else(|| UnknownName::Group(wanted.clone()))?;
                (gid, Vec::new())
            }
            None => {
                let own = entry.as_ref().map_or(uid, |entry| entry.gid);
                let further = groups(group).filter(|(_, gid, members)| {
                    *gid != own && name.is_some_and(|name| members.split(',').any(|m| m == name))
                });
                (
                    own,
                    further.map(|(_, gid, _)| gid).take(GROUPS_MAX).collect(),
                )
            }
        };
        Ok(Self {
            credentials: Credentials { uid, gid, groups },
            name: name.map_or_else(|| uid.to_string(), str::to_owned),
            home: entry.map_or("/", |entry| entry.home).to_owned(),
        })
    }
}

impl<'l> Entry<'l> {
    fn parse(line: &'l str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
            return None;
        };
        Some(Self {
            name,
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
            home,
        })
    }
}

/// Names, ids and members of `/etc/group`.
fn groups(text: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, gid, members, ..] = fields.as_slice() else {
            return None;
        };
        Some((*name, gid.parse().ok()?, *members))
    })
}

/// Whether the path is a directory below the root, or on the host.
fn is_directory(root: Option<&OwnedFd>, path: &str) -> bool {
    let (root, resolve) = match root {
        Some(root) => (root.as_fd(), ResolveFlags::IN_ROOT),
        None => (CWD, ResolveFlags::empty()),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(root, path, flags, Mode::empty(), resolve).is_ok()
}

/// The file's text; one that can't be read is as good as none.
fn text_of(root: Option<&OwnedFd>, path: &str) -> String {
    read(root, path).unwrap_or_else(|error| {
        log::warn(format_args!("{path} can't be read: {error}"));
        String::new()
    })
}

/// The file's text; empty when there is none. Its links stay below the root.
fn read(root: Option<&OwnedFd>, path: &str) -> io::Result<String> {
    let (root, resolve) = match root {
        Some(root) => (root.as_fd(), ResolveFlags::IN_ROOT),
        None => (CWD, ResolveFlags::empty()),
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(file) => std::fs::File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(String::new()),
        Err(e) => return Err(e.into()),
    };
    let mut text = Vec::new();
    file.take(PASSWD_BYTES_MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\nuser:x:1000:100:,,:/home/user:/bin/sh\n";
    const GROUP: &str =
        "root:x:0:\nusers:x:100:user\nbroken\naudio:x:29:root,user\nssh:x:70:other\n";

    fn parse(wanted: &str) -> Result<Account, UnknownName> {
        Account::parse(PASSWD, GROUP, &User::parse(wanted).unwrap())
    }

    fn ids(wanted: &str) -> (u32, u32, Vec<u32>) {
        let Credentials { uid, gid, groups } = parse(wanted).unwrap().credentials;
        (uid, gid, groups)
    }

    #[test]
    fn a_user_has_what_its_lines_say() {
        for wanted in ["user", "1000"] {
            let user = parse(wanted).unwrap();
            let told = (user.name.as_str(), user.home.as_str());
            assert_eq!(told, ("user", "/home/user"));
            assert_eq!(ids(wanted), (1000, 100, vec![29]));
        }
        assert_eq!(ids("root"), (0, 0, vec![29]));
    }

    #[test]
    fn a_group_that_was_asked_for_is_the_only_one() {
        assert_eq!(ids("user:ssh"), (1000, 70, vec![]));
        assert_eq!(ids("user:7"), (1000, 7, vec![]));
        assert_eq!(ids("4711:audio"), (4711, 29, vec![]));
    }

    #[test]
    fn a_name_without_a_line_is_nobody() {
        assert_eq!(parse("who"), Err(UnknownName::User("who".to_owned())));
        let group = parse("user:who");
        assert_eq!(group, Err(UnknownName::Group("who".to_owned())));
    }

    #[test]
    fn a_number_without_a_line_has_a_number_and_the_root() {
        let user = parse("4711").unwrap();
        assert_eq!((user.name.as_str(), user.home.as_str()), ("4711", "/"));
        assert_eq!(ids("4711"), (4711, 4711, vec![]));
    }

    fn find(root: &std::path::Path, uid: &str) -> Account {
        let root = OwnedFd::from(std::fs::File::open(root).unwrap());
        Account::find(Some(&root), &User::parse(uid).unwrap()).unwrap()
    }

    #[test]
    fn a_file_that_cannot_be_read_is_as_good_as_none() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let passwd = root.path().join("etc/passwd");
        std::os::unix::fs::symlink("passwd", &passwd).unwrap();
        assert_eq!(find(root.path(), "7").home, "/");
        std::fs::remove_file(&passwd).unwrap();
        std::fs::create_dir(&passwd).unwrap();
        assert_eq!(find(root.path(), "7").name, "7");
    }

    #[test]
    fn a_user_whose_home_is_missing_is_at_home_in_the_root() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let line = "nobody:x:7:7:nobody:/nonexistent:/bin/sh\n";
        std::fs::write(root.path().join("etc/passwd"), line).unwrap();
        let nobody = find(root.path(), "7");
        let told = (nobody.name.as_str(), nobody.home.as_str());
        assert_eq!(told, ("nobody", "/"));
        std::fs::create_dir(root.path().join("nonexistent")).unwrap();
        assert_eq!(find(root.path(), "7").home, "/nonexistent");
    }
}
