//! Which server, which key: flags, then the environment, then the profile, then a server of this
//! machine.
//!
//! ```text
//! URL    --url    OUTLIVE_URL    profile   DATA/endpoint      (DATA: the local server's folder)
//! token  --token  OUTLIVE_TOKEN  profile   DATA/admin.token   only for the URL in DATA/endpoint
//! ```
//! The local admin key is never sent to any other address.

use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use tokio::time::{sleep, timeout};

use crate::{
    args::{Format, Global},
    error::{Failure, Result},
    limits::{FILE_BYTES_MAX, START_LOOK_EVERY, START_WAIT_MAX},
};

/// The profile file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileFile {
    /// Name of the profile that is used when none is asked for.
    #[serde(default)]
    pub current: Option<String>,
    /// The profiles by name.
    #[serde(default)]
    pub profiles: BTreeMap<String, Profile>,
}

/// One server and how to talk to it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Base URL.
    #[serde(default)]
    pub url: Option<String>,
    /// API key.
    #[serde(default)]
    pub token: Option<String>,
    /// Output format when no flag says one.
    #[serde(default)]
    pub output: Option<Format>,
}

/// What a command needs to know to talk to a server.
#[derive(Clone)]
pub struct Settings {
    /// Base URL without a trailing slash.
    pub url: String,
    /// API key.
    pub token: Option<String>,
    /// How to print.
    pub format: Format,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of every log.
        f.debug_struct("Settings")
            .field("url", &self.url)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("format", &self.format)
            .finish()
    }
}

/// Finds the server, the key and the format. One of this machine that was started a moment ago is
/// waited for.
pub async fn resolve(global: &Global) -> Result<Settings> {
    let starting = async {
        loop {
            match look(global) {
                Err(failure) if failure.code == NO_SERVER => sleep(START_LOOK_EVERY).await,
                found => return found,
            }
        }
    };
    match timeout(START_WAIT_MAX, starting).await {
        Ok(found) => found,
        Err(_elapsed) => look(global),
    }
}

fn look(global: &Global) -> Result<Settings> {
    let profile = profile(global)?;
    let data = default_data_dir();
    let local = data
        .as_deref()
        .and_then(|dir| LocalServer::read(dir).transpose())
        .transpose()?;

    let local_url = local.as_ref().map(|server| server.url.clone());
    let url = global
        .url
        .clone()
        .or(profile.url)
        .or_else(|| local_url.clone());
    let Some(url) = url else {
        return Err(no_server(data.as_deref()));
    };
    let url = url.trim_end_matches('/').to_owned();
    check_url(&url)?;
    let token = global.token.clone().or(profile.token).or_else(|| {
        local
            .filter(|_| local_url.as_deref() == Some(url.as_str()))
            .and_then(|server| server.token)
    });
    if let Some(token) = &token {
        check_token(token)?;
    }
    let format = global.format().or(profile.output).unwrap_or(Format::Table);
    Ok(Settings { url, token, format })
}

fn check_url(url: &str) -> Result<()> {
    let read = reqwest::Url::parse(url).ok();
    if read.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
        return Ok(());
    }
    Err(Failure::usage(format!("{url:?} is no server's address"))
        .with_next("give --url, OUTLIVE_URL or the profile's url as in http://127.0.0.1:8080"))
}

/// What can't be sent is never shown either.
fn check_token(token: &str) -> Result<()> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(
        Failure::usage("the key holds a space, a line break or another character that no key has")
            .with_next("give --token, OUTLIVE_TOKEN or the profile's token the key alone"),
    )
}

const NO_SERVER: &str = "no_server";

fn no_server(data: Option<&Path>) -> Failure {
    let looked = data.map_or_else(String::new, |dir| {
        format!(", and {} holds none", dir.display())
    });
    Failure::new(NO_SERVER, format!("no server is named{looked}")).with_next(
        "start one with `outlive serve`, or name one with --url, OUTLIVE_URL or a profile",
    )
}

/// The folder of a server of this machine: `OUTLIVE_DATA`, else the default of `outlive serve`.
pub fn default_data_dir() -> Option<PathBuf> {
    if let Some(dir) = env::var_os("OUTLIVE_DATA").filter(|dir| !dir.is_empty()) {
        return Some(dir.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/outlive".into());
    }
    base_dir("XDG_DATA_HOME", ".local/share").map(|base| base.join("outlive"))
}

fn base_dir(variable: &str, below_home: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute())
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(below_home)))
}

/// A server of this machine, as its folder tells.
#[derive(Debug)]
pub struct LocalServer {
    /// Base URL.
    pub url: String,
    /// The admin key, when we may read it.
    pub token: Option<String>,
}

impl LocalServer {
    /// Reads `DIR/endpoint` and `DIR/admin.token`; `None` when there is no server.
    pub fn read(dir: &Path) -> Result<Option<Self>> {
        let Some(url) = read_small(&dir.join("endpoint"))? else {
            return Ok(None);
        };
        let token = read_small(&dir.join("admin.token"))?;
        Ok(Some(Self {
            url: url.trim().trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()),
        }))
    }
}

/// A small file's text; `None` when it is missing or another user's.
fn read_small(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(Failure::file("read", path, &error)),
    }
}

fn profile(global: &Global) -> Result<Profile> {
    let path = match &global.config {
        Some(path) => path.clone(),
        None => match base_dir("XDG_CONFIG_HOME", ".config") {
            Some(base) => base.join("outlive/config.yaml"),
            None => return no_profile(global, None),
        },
    };
    if !path.exists() && global.config.is_none() {
        return no_profile(global, Some(&path));
    }
    let text = read_bounded(&path)?;
    let file: ProfileFile = serde_saphyr::from_str(&text).map_err(|error| {
        Failure::new("profile", format!("{}: {error}", path.display()))
            .with_next("docs/guides/cli.md shows a profile file")
    })?;
    let Some(name) = global.profile.as_ref().or(file.current.as_ref()) else {
        return Ok(Profile::default());
    };
    file.profiles.get(name).cloned().ok_or_else(|| {
        let known: Vec<&str> = file.profiles.keys().map(String::as_str).collect();
        Failure::new(
            "profile",
            format!("{} has no profile `{name}`", path.display()),
        )
        .with_next(format!("profiles there: {}", known.join(", ")))
    })
}

fn no_profile(global: &Global, path: Option<&Path>) -> Result<Profile> {
    match &global.profile {
        None => Ok(Profile::default()),
        Some(name) => {
            let place = path.map_or_else(
                || "a profile file".to_owned(),
                |path| path.display().to_string(),
            );
            Err(Failure::new(
                "profile",
                format!("profile `{name}`: {place} does not exist"),
            )
            .with_next("docs/guides/cli.md shows a profile file"))
        }
    }
}

/// A file's text, when it is not absurdly large; `-` is the standard input.
pub fn read_bounded(path: &Path) -> Result<String> {
    use io::Read;
    let fail = |error: &io::Error| Failure::file("read", path, error);
    let mut text = String::new();
    let read = if path == Path::new("-") {
        io::stdin()
            .lock()
            .take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
    } else {
        fs::File::open(path)
            .map_err(|error| fail(&error))?
            .take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut text)
    };
    let length = read.map_err(|error| fail(&error))?;
    if length as u64 > FILE_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{} is larger than 8 MiB",
            path.display()
        )));
    }
    Ok(text)
}
