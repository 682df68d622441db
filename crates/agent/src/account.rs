//! Who attempts run as, read from the sandbox's own `/etc/passwd`: no names are resolved.

use std::{
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

use crate::{limits::PASSWD_BYTES_MAX, log};

/// What a program expects to find about its user in the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Login name; the number where there is none.
    pub name: String,
    /// Home directory; `/` where there is none.
    pub home: String,
}

impl Account {
    /// Looks a user up below this root, or on the host.
    ///
    /// The file is the workload's: whatever it made of it, the supervisor starts.
    pub(crate) fn find(root: Option<&OwnedFd>, uid: u32) -> Self {
        let text = passwd(root).unwrap_or_else(|error| {
            log::warn(format_args!("/etc/passwd can't be read: {error}"));
            String::new()
        });
        let account = Self::parse(&text, uid);
        if is_directory(root, &account.home) {
            return account;
        }
        // As at a login: who has no home is at home in the root.
        Self {
            home: "/".to_owned(),
            ..account
        }
    }

    fn parse(passwd: &str, uid: u32) -> Self {
        passwd
            .lines()
            .find_map(|line| {
                let fields: Vec<&str> = line.split(':').collect();
                let [name, _, id, _, _, home, ..] = fields.as_slice() else {
                    return None;
                };
                (id.parse() == Ok(uid)).then(|| Self {
                    name: (*name).to_owned(),
                    home: (*home).to_owned(),
                })
            })
            .unwrap_or_else(|| Self {
                name: uid.to_string(),
                home: "/".to_owned(),
            })
    }
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

/// The file's text; empty when there is none. Its links stay below the root.
fn passwd(root: Option<&OwnedFd>) -> io::Result<String> {
    let (root, path, resolve) = match root {
        Some(root) => (root.as_fd(), "etc/passwd", ResolveFlags::IN_ROOT),
        None => (CWD, "/etc/passwd", ResolveFlags::empty()),
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

    #[test]
    fn a_user_has_the_name_and_home_that_its_line_says() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nuser:x:1000:1000:,,:/home/user:/bin/sh\n";
        let user = Account::parse(passwd, 1000);
        assert_eq!(
            (user.name.as_str(), user.home.as_str()),
            ("user", "/home/user")
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_as_good_as_none() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let passwd = root.path().join("etc/passwd");
        let look = || {
            let root = OwnedFd::from(std::fs::File::open(root.path()).unwrap());
            Account::find(Some(&root), 7)
        };
        std::os::unix::fs::symlink("passwd", &passwd).unwrap();
        assert_eq!(look().home, "/");
        std::fs::remove_file(&passwd).unwrap();
        std::fs::create_dir(&passwd).unwrap();
        assert_eq!(look().name, "7");
    }

    #[test]
    fn a_user_whose_home_is_missing_is_at_home_in_the_root() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let line = "nobody:x:7:7:nobody:/nonexistent:/bin/sh\n";
        std::fs::write(root.path().join("etc/passwd"), line).unwrap();
        let look = || {
            let root = OwnedFd::from(std::fs::File::open(root.path()).unwrap());
            Account::find(Some(&root), 7)
        };
        assert_eq!(
            (look().name.as_str(), look().home.as_str()),
            ("nobody", "/")
        );
        std::fs::create_dir(root.path().join("nonexistent")).unwrap();
        assert_eq!(look().home, "/nonexistent");
    }

    #[test]
    fn a_user_without_a_line_has_a_number_and_the_root() {
        let user = Account::parse("", 4711);
        assert_eq!((user.name.as_str(), user.home.as_str()), ("4711", "/"));
    }
}
