//! Templates: what a sandbox is made from, by name.
//!
//! They are read from one YAML file when the server starts; a fault in it ends the start, so that
//! it is seen where it was made. `default` is always there: the image `host`, and no settings.
//!
//! ```yaml
//! templates:
//!   python:
//!     image: python:3.13
//!     resources: {memory: 512Mi, cpu: "0.5", pids: 256}
//!     env: {STAGE: test}
//!     user: "1000"
//!     network: {mode: none}
//! ```

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use outlive_api::{network::AskedNetwork, sandbox as wire};
use serde::Deserialize;

use crate::{
    images::{HOST, ImageName},
    limits::{NAME_BYTES_MAX, TEMPLATE_FILE_BYTES_MAX, TEMPLATES_MAX},
    sandboxes::config::{self, ConfigChange},
};

/// The template that is always there.
pub(crate) const DEFAULT: &str = "default";

/// The file of templates can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    /// It can't be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It says something that makes no sense.
    #[error("{}: {message}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// What, and in which template.
        message: String,
    },
}

/// What a template sets.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Template {
    /// Nothing for the image `host`.
    pub(crate) image: Option<ImageName>,
    pub(crate) settings: ConfigChange,
}

/// All templates of a server.
#[derive(Debug, Clone)]
pub(crate) struct Templates(BTreeMap<String, Template>);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    templates: BTreeMap<String, Written>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    image: Option<String>,
    resources: Option<wire::Resources>,
    env: Option<BTreeMap<String, String>>,
    user: Option<String>,
    network: Option<AskedNetwork>,
    ttl: Option<i64>,
    hard_ttl: Option<i64>,
    auto_resume: Option<bool>,
}

impl Default for Templates {
    fn default() -> Self {
        Self(BTreeMap::from([(DEFAULT.to_owned(), Template::default())]))
    }
}

impl Templates {
    /// Reads a file; one that was not named and is not there holds none.
    pub(crate) fn read(named: Option<&Path>, usual: &Path) -> Result<Self, TemplateError> {
        let path = named.unwrap_or(usual);
        let mut bytes = Vec::new();
        let read = fs::File::open(path)
            .and_then(|file| file.take(TEMPLATE_FILE_BYTES_MAX).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(source) => {
                return Err(TemplateError::File {
                    path: path.to_owned(),
                    source,
                });
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(&text).map_err(|message| TemplateError::Text {
            path: path.to_owned(),
            message,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let document: Document = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if document.templates.len() > TEMPLATES_MAX {
            return Err(format!("it holds more than {TEMPLATES_MAX} templates"));
        }
        let mut all = Self::default();
        for (name, written) in document.templates {
            let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
            if !fits {
                return Err(format!(
                    "template {name:?}: a name is made of A-Z a-z 0-9 . _ -"
                ));
            }
            let template = written
                .check()
                .map_err(|error| format!("template {name}: {error}"))?;
            all.0.insert(name, template);
        }
        Ok(all)
    }

    /// The template of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Template> {
        self.0.get(name)
    }
}

impl Written {
    fn check(self) -> Result<Template, String> {
        let image = match self.image.as_deref() {
            None | Some(HOST) => None,
            Some(name) => Some(ImageName::parse(name).map_err(|error| error.to_string())?),
        };
        let asked = wire::SandboxConfig {
            env_vars: self.env,
            resources: self.resources,
            user: self.user,
            network: self.network,
            ttl: self.ttl,
            hard_ttl: self.hard_ttl,
            auto_resume: self.auto_resume,
            ..wire::SandboxConfig::default()
        };
        let settings = config::check(asked).map_err(|error| error.message.into_owned())?;
        Ok(Template { image, settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_says_what_a_sandbox_of_it_is() {
        let text = "templates:\n  python:\n    image: python\n    resources: {memory: 512Mi}\n    \
                    env: {STAGE: test}\n    user: '1000'\n";
        let all = Templates::parse(text).unwrap();
        let python = all.get("python").unwrap();
        assert_eq!(python.image.as_ref().unwrap().as_str(), "python:latest");
        assert_eq!(python.settings.env_vars.as_ref().unwrap()["STAGE"], "test");
        assert_eq!(python.settings.user.as_deref(), Some("1000"));
        assert_eq!(all.get(DEFAULT), Some(&Template::default()));
        assert_eq!(all.get("nothing"), None);
    }

    #[test]
    fn a_fault_in_the_file_is_told_with_the_template_it_is_in() {
        for (text, said) in [
            ("templates:\n  a: {image: 'UPPER'}\n", "template a:"),
            (
                "templates:\n  a: {resources: {memory: much}}\n",
                "template a:",
            ),
            ("templates:\n  'a b': {}\n", "\"a b\""),
            ("templates:\n  a: {imgae: x}\n", "imgae"),
            ("templates: 3\n", ""),
        ] {
            let error = Templates::parse(text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn no_file_is_no_fault_unless_it_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("templates.yaml");
        assert!(Templates::read(None, &path).unwrap().get(DEFAULT).is_some());
        let error = Templates::read(Some(&path), &path).unwrap_err();
        assert!(matches!(error, TemplateError::File { .. }), "{error}");
    }
}
