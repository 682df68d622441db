//! Into a sandbox.

use std::{ffi::OsStr, fs, path::Path};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{Done, Remote, Running, name_of, pack, progress::Progress, refused, split};
use crate::{
    attach::input::{Sender, random_id},
    error::{Failure, Result},
    event::Ending,
    follow::{Follow, Step},
    limits::{COPY_PATIENCE, COPY_WORDS_BYTES_MAX, STDIN_CHUNKS_MAX},
};

/// Says what the destination is: a directory, something else, or nothing in a directory that is.
const LOOK: &str = r#"
if [ -d "$1" ]; then echo directory; exit; fi
if [ -e "$1" ] || [ -L "$1" ]; then echo other; exit; fi
if [ -d "$2" ]; then echo nothing; exit; fi
echo "$2: no such directory in the sandbox" >&2; exit 1"#;

/// Unpacks its input beside the destination, and moves it there when it is whole.
const UNPACK: &str = include_str!("unpack.sh");

/// Copies a local file or directory to a path of the sandbox.
pub(super) async fn push(
    remote: &Remote<'_>,
    source: &Path,
    destination: &str,
    quiet: bool,
) -> Result<Done> {
    let metadata = fs::symlink_metadata(source);
    let metadata = metadata.map_err(|error| Failure::file("read", source, &error))?;
    let kind = metadata.file_type();
    if !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
        let message = format!("{} is no file, directory or link", source.display());
        return Err(Failure::new("copy_failed", message));
    }
    let name = name_of(source);
    let (above, renamed) = split(destination);
    let whole = match renamed {
        Some(renamed) => format!("{}/{renamed}", above.trim_end_matches('/')),
        None => above.clone(),
    };
    let found = remote.ask(LOOK, &[&whole, &above]).await?;
    let (directory, name) = match (found.trim(), name, renamed) {
        ("directory", name, _) => (whole.as_str(), name),
        ("other", _, _) if metadata.is_dir() => return Err(no_directory(destination)),
        // A name that ends in `/` is that of a directory, which a file doesn't become.
        _ if destination.ends_with('/') && !metadata.is_dir() => {
            return Err(no_directory(destination));
        }
        ("other" | "nothing", _, Some(renamed)) => (above.as_str(), Some(OsStr::new(renamed))),
        _ => return Err(refused(&found)),
    };
    let progress = Progress::new(Some(pack::size_of(source)), quiet);
    let stage = random_id(".outlive-cp-")?;
    let count = if metadata.is_dir() { "many" } else { "one" };
    let arguments = [directory, &stage, count];
    let send = async |running: &Running| send(remote, running, source, name, progress).await;
    remote.beside(UNPACK, &arguments, send).await
}

fn no_directory(destination: &str) -> Failure {
    let message = format!("{destination} is no directory in the sandbox");
    Failure::new("copy_failed", message)
}

async fn send(
    remote: &Remote<'_>,
    running: &Running,
    source: &Path,
    name: Option<&OsStr>,
    mut progress: Progress,
) -> Result<Done> {
    let client = &remote.context.client;
    let (out, mut packed) = mpsc::channel(STDIN_CHUNKS_MAX);
    let packer = pack::Packer::new(out);
    let (source, name) = (source.to_owned(), name.map(OsStr::to_owned));
    let packing = tokio::task::spawn_blocking(move || packer.pack(&source, name.as_deref()));
    let sender = Sender::new(client, &running.session, &running.view)?;
    let (passed, pieces) = mpsc::channel::<Bytes>(1);
    let counting = async move {
        let mut bytes = 0;
        while let Some(piece) = packed.recv().await {
            bytes += piece.len() as u64;
            progress.at(bytes);
            if passed.send(piece).await.is_err() {
                break;
            }
        }
    };
    // When packing fails the archive ends without what says that it is whole.
    let sending = async { tokio::join!(counting, sender.forward(pieces)).1 };
    let sent = tokio::try_join!(sending, end(remote, running));
    // Whatever failed took nothing more from the packer, which ends for that.
    let packed = packing
        .await
        .map_err(|error| Failure::new("internal", error.to_string()))?;
    let done = packed?;
    sent.map(|_| done)
}

/// Waits for the end of the sandbox's side; its last words are the reason when it fails.
async fn end(remote: &Remote<'_>, running: &Running) -> Result<()> {
    let mut follow = Follow::new(
        &remote.context.client,
        &running.session,
        Some(0),
        Some(COPY_PATIENCE),
    );
    let mut words = Vec::new();
    loop {
        let event = match follow.next().await? {
            Step::Deleted => return Err(Failure::new("copy_failed", "the copy was ended there")),
            Step::Event(event, _) => event,
        };
        if event.stream.as_deref() == Some("stderr")
            && let Some(bytes) = event.bytes()?
            && words.len() < COPY_WORDS_BYTES_MAX
        {
            words.extend(bytes);
        }
        match (event.kind.as_str(), event.ending()) {
            ("attempt.exited", Some(Ending::Code(0))) => return Ok(()),
            ("attempt.exited", _) => return Err(refused(&String::from_utf8_lossy(&words))),
            _ => {}
        }
    }
}
