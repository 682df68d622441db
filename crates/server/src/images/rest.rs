//! Images over HTTP: `/v1/images`. Everybody may look; images belong to the server, so only
//! admins take them in and remove them.

use std::{convert::Infallible, path::PathBuf, pin::Pin, sync::Arc};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::{delete, post},
};
use futures_util::{StreamExt as _, stream};
use outlive_api::{
    error::{ApiError, ErrorCode},
    image::{Image, ImageFormat, ImageLine, ImageList, PullImage, RemovedImage},
    time as wire_time,
};
use tokio::{
    io::{AsyncWriteExt as _, BufWriter},
    sync::watch,
    time::{sleep, timeout},
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
        reply::{Data, Failure, ok},
    },
    limits::{BODY_STALL_MAX, IMAGE_BYTES_MAX, PROGRESS_INTERVAL},
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
        sandboxes: on_host,
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
        Some(_) => Err(ApiError::new(
            ErrorCode::BadRequest,
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

type Work = Pin<Box<dyn Future<Output = Result<Used, ImageError>> + Send>>;

/// The image, or its making line by line for those who ask for that. Work whose client leaves is
/// given up.
async fn answer(
    headers: &HeaderMap,
    work: Work,
    stages: watch::Receiver<Stage>,
) -> Result<Response, Failure> {
    const LINES: &str = "application/x-ndjson";
    let follows = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains(LINES));
    if !follows {
        let used = work.await.map_err(|error| refused(&error))?;
        return Ok(Data(StatusCode::CREATED, shown(used)).into_response());
    }
    let lines = stream::unfold(Some((work, stages)), async |going| {
        let (mut work, mut stages) = going?;
        let step = async {
            // The sender goes with the work, which then answers by itself.
            if stages.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            sleep(PROGRESS_INTERVAL).await;
        };
        let (line, going) = tokio::select! {
            biased;
            done = &mut work => (last_line(done), None),
            () = step => {
                let stage = *stages.borrow_and_update();
                (progress_line(stage), Some((work, stages)))
            }
        };
        Some((Ok::<_, Infallible>(text(&line)), going))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(LINES));
    Ok(response)
}

fn progress_line(stage: Stage) -> ImageLine {
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

fn text(line: &ImageLine) -> Bytes {
    let mut bytes = serde_json::to_vec(line).unwrap_or_default(); // Numbers and text have a form.
    bytes.push(b'\n');
    bytes.into()
}

fn shown(used: Used) -> Image {
    let image = used.image;
    Image {
        name: image.name,
        digest: Some(image.digest.to_string()),
        layers: image.layers.len() as u64,
        size_bytes: image.counts.bytes,
        sandboxes: used.sandboxes,
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
