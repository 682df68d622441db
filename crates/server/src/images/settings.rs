//! What an image says about the programs that run in it: variables, user, working directory.
//! What it would run by itself is not asked: sessions name their commands.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use oci_spec::image::Config;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{digest::Digest, dir::at, error::ImageError};
use crate::{
    limits::{ENV_BYTES_MAX, IMAGE_JSON_BYTES_MAX},
    store::ImageRecord,
};

/// A user and a group, as the image counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Below the variables of a sandbox.
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Unless a sandbox names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<Ids>,
    /// Unless a session names another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cwd: Option<String>,
}

/// The image of a sandbox, as it was when the sandbox was made: another image under the same name
/// changes nothing for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsedImage {
    pub(crate) name: String,
    pub(crate) digest: Digest,
    /// Lowest first.
    pub(crate) layers: Vec<Digest>,
    pub(crate) settings: Settings,
}

impl From<ImageRecord> for UsedImage {
    fn from(image: ImageRecord) -> Self {
        Self {
            name: image.name,
            digest: image.digest,
            layers: image.layers,
            settings: image.settings,
        }
    }
}

/// Reads a configuration; names are looked up in the layers, lowest first.
pub(crate) fn of(config: Option<&Config>, layers: &[PathBuf]) -> Result<Settings, ImageError> {
    let Some(config) = config else {
        return Ok(Settings::default());
    };
    let env: BTreeMap<String, String> = config
        .env()
        .iter()
        .flatten()
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    if env
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum::<usize>()
        > ENV_BYTES_MAX
    {
        return Err(ImageError::TooLarge {
            what: "the variables of the image, bytes",
            max: ENV_BYTES_MAX as u64,
        });
    }
    let user = match config.user().as_deref() {
        None | Some("") => None,
        Some(user) => Some(ids(user, layers)?),
    };
    let cwd = match config.working_dir() {
        Some(dir) if dir.starts_with('/') && dir != "/" && is_dir(dir, layers)? => {
            Some(dir.clone())
        }
        Some(_) | None => None,
    };
    Ok(Settings { env, user, cwd })
}

/// `user` or `user:group`, numbers or names of the image.
fn ids(text: &str, layers: &[PathBuf]) -> Result<Ids, ImageError> {
    let (user, group) = text
        .split_once(':')
        .map_or((text, None), |(user, group)| (user, Some(group)));
    let users = lines(layers, "etc/passwd")?;
    let unknown = || {
        ImageError::Unsupported(format!("it runs as {text:?}, which is no user of its own").into())
    };
    let fields = |line: &String| -> Option<(String, u32, u32)> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        Some((name, uid, fields.next()?.parse().ok()?))
    };
    let entry = users
        .iter()
        .filter_map(fields)
        .find(|(name, uid, _)| name == user || uid.to_string() == user);
    let (uid, own_group) = match (entry, user.parse::<u32>()) {
        (Some((_, uid, gid)), _) => (uid, gid),
        (None, Ok(uid)) => (uid, 0),
        (None, Err(_)) => return Err(unknown()),
    };
    let gid = match group {
        None | Some("") => own_group,
        Some(group) => match group.parse::<u32>() {
            Ok(gid) => gid,
            Err(_) => lines(layers, "etc/group")?
                .iter()
                .find_map(|line| {
                    let mut fields = line.split(':');
                    (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
                })
                .ok_or_else(unknown)?,
        },
    };
    if uid >= 65_536 || gid >= 65_536 {
        return Err(unknown());
    }
    Ok(Ids { uid, gid })
}

/// The lines of a file as the image shows it: that of the topmost layer that has it.
fn lines(layers: &[PathBuf], name: &str) -> Result<Vec<String>, ImageError> {
    for layer in layers.iter().rev() {
        let Some(file) = inside(layer, name, OFlags::RDONLY | OFlags::NONBLOCK)? else {
            continue;
        };
        let mut text = Vec::new();
        File::from(file)
            .take(IMAGE_JSON_BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(at("reading", &layer.join(name)))?;
        let text = String::from_utf8_lossy(&text);
        return Ok(text.lines().map(str::to_owned).collect());
    }
    Ok(Vec::new())
}

fn is_dir(dir: &str, layers: &[PathBuf]) -> Result<bool, ImageError> {
    let dir = dir.trim_start_matches('/');
    for layer in layers {
        if inside(layer, dir, OFlags::PATH | OFlags::DIRECTORY)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens a name of a layer. Links are followed as if the layer were the root; one that leads
/// nowhere there is as good as none.
fn inside(layer: &Path, name: &str, flags: OFlags) -> Result<Option<OwnedFd>, ImageError> {
    let failed = |error: Errno| at("opening", &layer.join(name))(io::Error::from(error));
    let root = openat(
        CWD,
        layer,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(failed)?;
    let opened = openat2(
        &root,
        name,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV,
    );
    match opened {
        Ok(fd) => Ok(Some(fd)),
        // Not there, a whiteout, or a link into another layer.
        Err(
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::NODEV | Errno::ACCESS,
        ) => Ok(None),
        Err(error) => Err(failed(error).into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn users_are_those_of_the_image() {
        let layer = tempfile::tempdir().unwrap();
        fs::create_dir(layer.path().join("etc")).unwrap();
        let passwd = "root:x:0:0:r:/root:/bin/sh\napp:x:1001:1002:a:/app:/bin/sh\n";
        fs::write(layer.path().join("etc/passwd"), passwd).unwrap();
        fs::write(layer.path().join("etc/group"), "staff:x:50:\n").unwrap();
        let layers = [layer.path().to_owned()];
        for (text, uid, gid) in [
            ("app", 1001, 1002),
            ("1001", 1001, 1002),
            ("app:staff", 1001, 50),
            ("7:9", 7, 9),
            ("7", 7, 0),
        ] {
            assert_eq!(ids(text, &layers).unwrap(), Ids { uid, gid }, "{text}");
        }
        for text in ["nobody-here", "app:nobody", "70000", "4294967296"] {
            assert!(ids(text, &layers).is_err(), "{text}");
        }
    }

    #[test]
    fn a_link_of_the_image_is_not_followed_out_of_it() {
        let layer = tempfile::tempdir().unwrap();
        fs::create_dir(layer.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", layer.path().join("etc/group")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", layer.path().join("etc/passwd")).unwrap();
        let layers = [layer.path().to_owned()];
        assert_eq!(lines(&layers, "etc/passwd").unwrap(), Vec::<String>::new());
        assert_eq!(lines(&layers, "etc/group").unwrap(), Vec::<String>::new());
    }
}
