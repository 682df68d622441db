//! What a new sandbox is made of: a template, what the request says differently, and an image.

use std::sync::Arc;

use outlive_api::{
    error::{ApiError, ErrorCode},
    sandbox as wire,
};
use tokio::sync::RwLockReadGuard;

use crate::{
    images::{HOST, ImageError, ImageName, Library, UsedImage},
    sandboxes::config::{SandboxConfig, check},
    templates::Templates,
};

/// Templates and images.
#[derive(Debug)]
pub(crate) struct Catalog {
    library: Arc<Library>,
    templates: Templates,
}

/// Who says which image a sandbox is made from.
#[derive(Debug)]
pub(crate) enum Below {
    /// The request, else the template.
    Chosen,
    /// The snapshot whose files it gets.
    Snapshot(Option<UsedImage>),
}

impl Catalog {
    /// Of these.
    pub(crate) const fn new(library: Arc<Library>, templates: Templates) -> Self {
        Self { library, templates }
    }

    /// The images.
    pub(crate) fn library(&self) -> Arc<Library> {
        Arc::clone(&self.library)
    }

    /// Held from the look at an image until the store knows of the sandbox that uses it.
    pub(crate) async fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.library.hold().await
    }

    /// The configuration of a sandbox of this template; the request's words count more.
    pub(crate) async fn config(
        &self,
        template: &str,
        mut asked: wire::SandboxConfig,
        below: Below,
    ) -> Result<SandboxConfig, ApiError> {
        let found = self.templates.get(template);
        let found =
            found.ok_or_else(|| ApiError::new(ErrorCode::NotFound, "template not found"))?;
        let own_image = asked.image.take();
        let mut config = SandboxConfig::default();
        check(asked)?
            .over(found.settings.clone())
            .apply(&mut config);
        config.image = match below {
            Below::Chosen => self.chosen(template, own_image.as_deref()).await?,
            Below::Snapshot(_) if own_image.is_some() => {
                return Err(ApiError::bad_request(
                    "a sandbox with the files of a snapshot has its image; leave image out",
                ));
            }
            Below::Snapshot(image) => image,
        };
        Ok(config)
    }

    async fn chosen(
        &self,
        template: &str,
        own_image: Option<&str>,
    ) -> Result<Option<UsedImage>, ApiError> {
        let of_template = self
            .templates
            .get(template)
            .and_then(|found| found.image.as_ref());
        Ok(match own_image {
            Some(HOST) => None,
            Some(name) => {
                let name = ImageName::parse(name).map_err(|error| ApiError::from(&error))?;
                let image = self.image(&name).await?;
                Some(image.ok_or_else(|| ApiError::from(&ImageError::NotFound(name.to_string())))?)
            }
            None => match of_template {
                None => None,
                Some(name) => Some(self.image(name).await?.ok_or_else(|| {
                    ApiError::new(
                        ErrorCode::TemplateNotReady,
                        format!(
                            "template {template} needs image {name}, which is not here yet; \
                             `outlive image pull` or `outlive image import` brings it"
                        ),
                    )
                })?),
            },
        })
    }

    async fn image(&self, name: &ImageName) -> Result<Option<UsedImage>, ApiError> {
        let found = self.library.find(name).await.map_err(|error| {
            tracing::error!(%error, "images can't be looked up");
            ApiError::from(&error)
        })?;
        Ok(found.map(UsedImage::from))
    }
}
