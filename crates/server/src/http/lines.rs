//! Long calls that are followed line by line: `Accept: application/x-ndjson`.
//!
//! Progress is the newest state for whoever looks, a few times a second; nobody waits for a slow
//! reader. The last line is the answer.

use std::{convert::Infallible, pin::Pin};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use futures_util::stream;
use serde::Serialize;
use tokio::{sync::watch, time::sleep};

use crate::limits::PROGRESS_INTERVAL;

const LINES: &str = "application/x-ndjson";

/// Work whose end is awaited.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Whether a client wants to follow.
pub(crate) fn are_wanted(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains(LINES))
}

/// Work that goes on, and how it is told.
struct Going<T, P, F, G> {
    work: Work<T>,
    stages: watch::Receiver<P>,
    progress: F,
    last: G,
}

/// The work line by line. It is given up when the client leaves.
pub(crate) fn answer<T, P, L>(
    work: Work<T>,
    stages: watch::Receiver<P>,
    progress: impl Fn(&P) -> L + Send + 'static,
    last: impl FnOnce(T) -> L + Send + 'static,
) -> Response
where
    T: Send + 'static,
    P: Send + Sync + 'static,
    L: Serialize + Send + 'static,
{
    let begun = Some(Going {
        work,
        stages,
        progress,
        last,
    });
    let lines = stream::unfold(begun, async |going| {
        let (line, going) = next(going?).await;
        Some((Ok::<_, Infallible>(text(&line)), going))
    });
    let mut response = Response::new(Body::from_stream(lines));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(LINES));
    response
}

async fn next<T, P, L, F, G>(mut going: Going<T, P, F, G>) -> (L, Option<Going<T, P, F, G>>)
where
    F: Fn(&P) -> L,
    G: FnOnce(T) -> L,
{
    let stages = &mut going.stages;
    let step = async {
        // The sender goes with the work, which then answers by itself.
        if stages.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        sleep(PROGRESS_INTERVAL).await;
    };
    let done = tokio::select! {
        biased;
        done = &mut going.work => Some(done),
        () = step => None,
    };
    if let Some(done) = done {
        return ((going.last)(done), None);
    }
    let line = (going.progress)(&going.stages.borrow_and_update());
    (line, Some(going))
}

fn text(line: &impl Serialize) -> Bytes {
    let mut bytes = serde_json::to_vec(line).unwrap_or_default(); // Numbers and text have a form.
    bytes.push(b'\n');
    bytes.into()
}
