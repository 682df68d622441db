//! Whom a process runs as, as it is asked for: numbers, or names that the sandbox knows.

use std::fmt;

use minicbor::{Decode, Encode};

use super::raw::SpecProblem;
use crate::limits;

/// A user, and a group where it isn't the user's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Encode, Decode)]
pub struct User {
    /// The user.
    #[n(0)]
    pub user: Who,
    /// The group, with no others beside it; without one the user's own, and those that name the
    /// user as a member.
    #[n(1)]
    pub group: Option<Who>,
}

/// A user or a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Encode, Decode)]
pub enum Who {
    /// By number, below [`limits::IDS_MAX`].
    #[n(0)]
    Id(#[n(0)] u32),
    /// By name; who that is the sandbox's `/etc/passwd` and `/etc/group` say.
    #[n(1)]
    Name(#[n(0)] String),
}

impl User {
    /// The workload's own root.
    pub const ROOT: Self = Self {
        user: Who::Id(0),
        group: None,
    };

    /// Reads `uid`, `uid:gid`, `name` or `name:group`.
    pub fn parse(text: &str) -> Result<Self, SpecProblem> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        Ok(Self {
            user: Who::parse(user)?,
            group: group.map(Who::parse).transpose()?,
        })
    }
}

impl Who {
    fn parse(text: &str) -> Result<Self, SpecProblem> {
        let fits = !text.is_empty() && text.len() <= limits::USER_BYTES_MAX;
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if !fits || text.starts_with('-') || !text.bytes().all(known) {
            return Err(SpecProblem::NoUser);
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Name(text.to_owned()));
        }
        match text.parse() {
            Ok(id) if id < limits::IDS_MAX => Ok(Self::Id(id)),
            Ok(_) | Err(_) => Err(SpecProblem::NoUser),
        }
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{}:{group}", self.user),
            None => self.user.fmt(f),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_or_names_and_are_written_as_they_are_read() {
        for text in ["0", "1000:100", "www-data", "user:_ssh", "a.b:65535"] {
            assert_eq!(User::parse(text).unwrap().to_string(), text);
        }
        for bad in [
            "",
            ":",
            "a:",
            ":1",
            "65536",
            "1:2:3",
            "-x",
            "a b",
            "röm",
            "0x1/",
            "99999999999",
        ] {
            assert_eq!(User::parse(bad), Err(SpecProblem::NoUser), "{bad}");
        }
    }
}
