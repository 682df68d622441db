//! Names of images: `name:tag`, in the form in which registries write them.

use std::fmt;

use super::error::ImageError;
use crate::limits::{IMAGE_NAME_BYTES_MAX, IMAGE_TAG_BYTES_MAX};

/// The image that is always there.
pub(crate) const HOST: &str = "host";
/// The tag of a name that has none.
const TAG: &str = "latest";

/// A checked name, with its tag. Never that of the image `host`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ImageName(String);

impl ImageName {
    /// Reads `name[:tag]`.
    pub(crate) fn parse(text: &str) -> Result<Self, ImageError> {
        let bad = |why| ImageError::Name {
            name: text.chars().take(IMAGE_NAME_BYTES_MAX).collect(),
            why,
        };
        if text.len() > IMAGE_NAME_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        if text.contains('@') {
            return Err(bad("a digest is no name"));
        }
        // A colon before a slash is that of a registry's port.
        let (name, tag) = match text.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            Some(_) | None => (text, TAG),
        };
        if name == HOST {
            return Err(bad("host is the image that is always there"));
        }
        if name == "pull" {
            return Err(bad("pull is a word of the API"));
        }
        let part = |part: &str| {
            let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
            let mut bytes = part.bytes();
            edge(part.bytes().next())
                && edge(part.bytes().next_back())
                && bytes.all(|b| {
                    b.is_ascii_lowercase()
                        || b.is_ascii_digit()
                        || matches!(b, b'.' | b'_' | b'-' | b':')
                })
        };
        if !name.split('/').all(part) {
            return Err(bad(
                "it is made of a-z 0-9 . _ - and /, and begins with a letter or digit",
            ));
        }
        let tag_fits = (1..=IMAGE_TAG_BYTES_MAX).contains(&tag.len())
            && !tag.starts_with(['.', '-'])
            && tag
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if !tag_fits {
            return Err(bad("its tag is made of A-Z a-z 0-9 . _ -"));
        }
        Ok(Self(format!("{name}:{tag}")))
    }

    /// With its tag.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_as_registries_write_it() {
        for (text, name) in [
            ("python", "python:latest"),
            ("python:3.13-slim", "python:3.13-slim"),
            ("127.0.0.1:5000/team/app", "127.0.0.1:5000/team/app:latest"),
            (
                "registry.example/team/app_1:V2",
                "registry.example/team/app_1:V2",
            ),
        ] {
            assert_eq!(ImageName::parse(text).unwrap().as_str(), name);
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_rule() {
        for text in [
            "",
            ":",
            "a:",
            "pull",
            "host",
            "host:1",
            "Upper",
            "../up",
            "/abs",
            "a//b",
            "a/",
            "a b",
            "a:b c",
            "-a",
            "a@sha256:00",
            &"a".repeat(500),
            &format!("a:{}", "t".repeat(200)),
        ] {
            assert!(
                matches!(ImageName::parse(text), Err(ImageError::Name { .. })),
                "{text}"
            );
        }
    }
}
