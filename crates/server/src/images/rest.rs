//! Images over HTTP: `/v1/images`. Everybody may look; images belong to the server, so only
//! admins take them in and remove them.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Extension, Router,
    body::Body,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::{delete, post},
};
use futures_util::StreamExt as _;
use outlive_api::{
    error::{ApiError, ErrorCode},
    image::{Image, ImageFormat, ImageLine, ImageList, PullImage, RemovedImage},
    time as wire_time,
};
use tokio::{
    io::{AsyncWriteExt as _, BufWriter},
    sync::watch,
    time::timeout,
};

use super::{
    Library,
    dir::at,
    error::ImageError,
    library::{Slot, Used},
    name::{HOST, ImageName},
    progress::{Progress, Stage},
    unpack::Counts,
};
use crate::{
    auth::admins_only,
    http::{
        extract::{GatewayBody, PathId, Query},
        lines,
        reply::{Data, Failure, ok},
    },
    limits::{BODY_STALL_MAX, IMAGE_BYTES_MAX},
    sessions::Caller,
};

/// The routes, to be mounted at `/v1/images`.
pub(crate) fn router() -> Router<Arc<Library>> {
    Router::new()
        .route("/", post(import).get(list))
        .route("/pull", post(pull))
        .route("/{*name}", delete(remove))
        .layer(DefaultBodyLimit::disable())
}

async fn list(State(library): State<Arc<Library>>) -> Result<Data<ImageList>, Failure> {
    let (on_host, used) = library.list().await.map_err(|error| refused(&error))?;
    let host = Image {
        name: HOST.to_owned(),
        digest: None,
        layers: 1,
        size_bytes: 0,
        sandboxes: on_host.sandboxes,
        snapshots: on_host.snapshots,
        source: HOST.to_owned(),
        created_at: None,
        left_out: Vec::new(),
    };
    let images = std::iter::once(host).chain(used.into_iter().map(shown));
    Ok(ok(ImageList {
        images: images.collect(),
    }))
}

async fn import(
    State(library): State<Arc<Library>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Query,
    body: Body,
) -> Result<Response, Failure> {
    admins_only(&caller, "only admins may take images in and remove them")?;
    let name = query.get("name").unwrap_or_default();
    let name = ImageName::parse(name).map_err(|error| refused(&error))?;
    let format = format(query.get("format"))?;
    let slot = library.slot().map_err(|error| refused(&error))?;
    let archive = receive(&slot, body)
        .await
        .map_err(|error| refused(&error))?;
    let (progress, stages) = Progress::new();
    let work = async move { library.import(slot, archive, name, format, progress).await };
    answer(&headers, Box::pin(work), stages).await
}

async fn pull(
    State(library): State<Arc<Library>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    GatewayBody(asked): GatewayBody<PullImage>,
) -> Result<Response, Failure> {
    admins_only(&caller, "only admins may take images in and remove them")?;
    let slot = library.slot().map_err(|error| refused(&error))?;
    let (progress, stages) = Progress::new();
    let work = async move { library.pull(slot, asked, progress).await };
    answer(&headers, Box::pin(work), stages).await
}

async fn remove(
    State(library): State<Arc<Library>>,
    Extension(caller): Extension<Caller>,
    PathId(name): PathId,
) -> Result<Data<RemovedImage>, Failure> {
    admins_only(&caller, "only admins may take images in and remove them")?;
    let name = ImageName::parse(&name).map_err(|error| refused(&error))?;
    library
        .remove(&name)
        .await
        .map_err(|error| refused(&error))?;
    tracing::info!(%name, by = %caller.key_id, "an image was removed");
    Ok(ok(RemovedImage {
        name: name.to_string(),
        deleted: true,
    }))
}

fn format(text: Option<&str>) -> Result<ImageFormat, ApiError> {
    match text {
        None | Some("" | "auto") => Ok(ImageFormat::Auto),
        Some("rootfs") => Ok(ImageFormat::Rootfs),
        Some("oci") => Ok(ImageFormat::Oci),
        Some("docker-archive") => Ok(ImageFormat::DockerArchive),
        Some(_) => Err(ApiError::bad_request(
            "format must be auto, rootfs, oci or docker-archive",
        )),
    }
}

/// Writes the upload down: descriptions may stand at its end.
async fn receive(slot: &Slot, body: Body) -> Result<PathBuf, ImageError> {
    let path = slot.draft().join("upload");
    let file = tokio::fs::File::create(&path)
        .await
        .map_err(at("making", &path))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let mut came = 0_u64;
    let mut data = body.into_data_stream();
    loop {
        let next = timeout(BODY_STALL_MAX, data.next())
            .await
            .map_err(|_elapsed| ImageError::Cancelled)?;
        let Some(bytes) = next else { break };
        let bytes = bytes.map_err(|error| ImageError::Corrupt {
            what: "the upload".to_owned(),
            reason: error.to_string(),
        })?;
        came += bytes.len() as u64;
        if came > IMAGE_BYTES_MAX {
            return Err(ImageError::TooLarge {
                what: "the upload, bytes",
                max: IMAGE_BYTES_MAX,
            });
        }
        file.write_all(&bytes).await.map_err(at("writing", &path))?;
    }
    file.flush().await.map_err(at("writing", &path))?;
    Ok(path)
}

type Work = lines::Work<Result<Used, ImageError>>;

/// The image, or its making line by line for those who ask for that. Work whose client leaves is
/// given up.
async fn answer(
    headers: &HeaderMap,
    work: Work,
    stages: watch::Receiver<Stage>,
) -> Result<Response, Failure> {
    if lines::are_wanted(headers) {
        return Ok(lines::answer(work, stages, progress_line, last_line));
    }
    let used = work.await.map_err(|error| refused(&error))?;
    Ok(Data(StatusCode::CREATED, shown(used)).into_response())
}

fn progress_line(stage: &Stage) -> ImageLine {
    ImageLine::Progress {
        step: stage.step,
        bytes: stage.bytes,
        bytes_total: stage.bytes_total,
        files: stage.files,
    }
}

fn last_line(done: Result<Used, ImageError>) -> ImageLine {
    match done {
        Ok(used) => ImageLine::Done { image: shown(used) },
        Err(error) => ImageLine::Error {
            error: told(&error).envelope().error,
        },
    }
}

fn shown(used: Used) -> Image {
    let image = used.image;
    Image {
        name: image.name,
        digest: Some(image.digest.to_string()),
        layers: image.layers.len() as u64,
        size_bytes: image.counts.bytes,
        sandboxes: used.users.sandboxes,
        snapshots: used.users.snapshots,
        source: image.source,
        created_at: Some(wire_time::text(image.created_at)),
        left_out: left_out(&image.counts),
    }
}

fn left_out(counts: &Counts) -> Vec<String> {
    [
        (counts.devices_skipped, "device nodes were left out"),
        (counts.xattrs_dropped, "extended attributes were left out"),
        (
            counts.ids_unknown,
            "owners have ids that no sandbox has: nobody owns these",
        ),
        (
            counts.owners_dropped,
            "owners were left out: the server is not root",
        ),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect()
}

fn told(error: &ImageError) -> ApiError {
    let answer = ApiError::from(error);
    if answer.code == ErrorCode::InternalError {
        tracing::error!(%error, "an image call failed");
    }
    answer
}

fn refused(error: &ImageError) -> Failure {
    told(error).into()
}
