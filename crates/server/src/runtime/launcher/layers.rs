//! What the root of a launched sandbox is made of, and which versions of the image `host` are still
//! used.

use std::{collections::BTreeSet, fs, io, path::PathBuf, sync::Arc};

use outlive_api::launch::{Image, LaunchConfig, LaunchFailure, RuntimeKind};

use super::{LauncherRuntime, blocking, program::launcher_works, told::path_text};
use crate::{
    agents::keeper::Keeper,
    images::{HostLayer, LayerError, at, layer_path},
    runtime::{Places, RuntimeError, Start},
};

impl LauncherRuntime {
    /// What the root is made of, and the layer of the image `host` while a launch counts on it.
    pub(super) async fn image(
        &self,
        start: &Start<'_>,
        kind: RuntimeKind,
    ) -> Result<(Image, Option<Arc<HostLayer>>), RuntimeError> {
        match (kind, &start.config.image) {
            (RuntimeKind::Namespace, None) => {
                let layer = self.host_layer().await?;
                let image = Image::Host {
                    layer: path_text(layer.path())?,
                };
                Ok((image, Some(layer)))
            }
            (RuntimeKind::Namespace, Some(image)) => {
                let layers = image
                    .layers
                    .iter()
                    .rev()
                    .map(|layer| path_text(&layer_path(self.host.images(), *layer)))
                    .collect::<Result<_, _>>()?;
                Ok((Image::Layers(layers), None))
            }
            (RuntimeKind::Process | RuntimeKind::TwoUid, None) => {
                let layer = String::new();
                Ok((Image::Host { layer }, None))
            }
            (kind, Some(image)) => Err(RuntimeError::Limits(format!(
                "runtime `{}` shows the host's own files: it can't show image {}",
                kind.name(),
                image.name
            ))),
        }
    }

    async fn host_layer(&self) -> Result<Arc<HostLayer>, RuntimeError> {
        let host = Arc::clone(&self.host);
        match blocking(move || host.current()).await? {
            // Such a host lacks what this runtime needs.
            Err(error @ LayerError::NotMerged { .. }) => Err(LaunchFailure {
                step: "making the image `host`".to_owned(),
                message: error.to_string(),
                unsupported: true,
            }
            .into()),
            made => Ok(made?),
        }
    }

    /// Removes versions of the image `host` that no runtime uses any more.
    pub(super) async fn sweep_layers(&self) {
        if !self.host.may_be_swept() {
            return;
        }
        let (host, places) = (Arc::clone(&self.host), self.places.clone());
        match blocking(move || host.sweep(|| layers_in_use(&places))).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "old layers are left"),
            Err(error) => tracing::error!(%error, "old layers are left"),
        }
    }
}

/// The layers of the image `host` that a runtime has mounted or may be mounting.
fn layers_in_use(places: &Places) -> Result<BTreeSet<PathBuf>, LayerError> {
    let mut used = BTreeSet::new();
    for place in places.all().map_err(at("reading", places.root()))? {
        let kept = place.launch_config();
        let message = match fs::read(&kept) {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(at("reading", &kept)(error)),
        };
        let Ok(LaunchConfig {
            image: Image::Host { layer },
            ..
        }) = minicbor::decode(&message)
        else {
            continue;
        };
        // What can't be looked at is taken to live.
        let gone = launcher_works(&place).is_ok_and(|works| !works)
            && Keeper::find(&place.state()).is_ok_and(|keeper| keeper.is_none());
        if !gone {
            used.insert(PathBuf::from(layer));
        }
    }
    Ok(used)
}
