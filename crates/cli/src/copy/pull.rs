//! Out of a sandbox.

use std::{ffi::OsString, fs, os::unix::ffi::OsStrExt, path::Path};

use super::{Done, Remote, Running, name_of, progress::Progress, refused, split, unpack::Unpacker};
use crate::{
    attach::input::{End, body, random_id},
    client::Call,
    error::{Failure, Result},
    event::Ending,
    follow::{Follow, Step},
    limits::{COPY_PATIENCE, COPY_PIECES_MAX, COPY_WORDS_BYTES_MAX},
};

/// Says what it is, and how large, in KiB.
const LOOK: &str = r#"
cd -- "$1" || exit 1
if [ ! -e "./$2" ] && [ ! -L "./$2" ]; then echo "$2: no such file in the sandbox" >&2; exit 1; fi
if [ -L "./$2" ] || [ -f "./$2" ]; then echo file
elif [ -d "./$2" ]; then echo directory
else echo "$2: no file, directory or link" >&2; exit 1; fi
du -sk "./$2" 2>/dev/null; exit 0"#;

/// Packs, and passes on a piece for each line that comes; then it says so with a byte of its own
/// on standard error. A piece is some bytes, none at the end.
const PACK: &str = r#"
cd -- "$1" || exit 1
exec 3<&0 4>&1
status=$( { { tar -cf - "./$2"; echo $? >&5; } | {
  while IFS= read -r _ <&3; do
    said=$(dd bs=65536 count=64 2>&1 >&4) || { echo "$said" >&2; break; }
    printf '\001' >&2
    case $said in 0+0*) break ;; esac
  done
}; } 5>&1 )
exit "$status""#;

/// What says that a piece was passed on.
const PASSED: u8 = 1;

/// Copies a file or directory of the sandbox to a local path.
pub(super) async fn pull(
    remote: &Remote<'_>,
    source: &str,
    destination: &Path,
    quiet: bool,
) -> Result<Done> {
    let (above, name) = split(source);
    let inside = name.unwrap_or(".");
    let found = remote.ask(LOOK, &[&above, inside]).await?;
    let mut found = found.split_whitespace();
    // A name that ends in `/` is that of a directory, which a file doesn't become.
    let is_directory = found.next() == Some("directory");
    if destination.as_os_str().as_bytes().ends_with(b"/") && !is_directory && !destination.is_dir()
    {
        let message = format!("{} is no directory", destination.display());
        return Err(Failure::new("copy_failed", message));
    }
    let (root, name) = place(name, destination)?;
    let top = if inside == "." { "" } else { inside };
    let unpacker = Unpacker::new(&root, top.as_bytes(), name)?;
    let total = found
        .next()
        .and_then(|kib| kib.parse::<u64>().ok())
        .map(|kib| kib * 1024);
    let progress = Progress::new(total, quiet);
    let receive = async |running: &Running| receive(remote, running, unpacker, progress).await;
    remote.beside(PACK, &[&above, inside], receive).await
}

/// The directory to unpack into, and the name that the copy gets there.
fn place(name: Option<&str>, destination: &Path) -> Result<(std::path::PathBuf, Option<OsString>)> {
    if destination.is_dir() {
        return Ok((destination.to_owned(), name.map(OsString::from)));
    }
    let above = match destination.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => Path::new("/"),
    };
    let renamed = name_of(destination);
    if let Err(error) = fs::metadata(above) {
        return Err(Failure::file("write to", above, &error));
    }
    match renamed {
        Some(renamed) => Ok((above.to_owned(), Some(renamed.to_owned()))),
        None => Err(Failure::usage("the destination has no name")),
    }
}

async fn receive(
    remote: &Remote<'_>,
    running: &Running,
    mut unpacker: Unpacker,
    mut progress: Progress,
) -> Result<Done> {
    let mut follow = Follow::new(
        &remote.context.client,
        &running.session,
        Some(0),
        Some(COPY_PATIENCE),
    );
    let mut asked = Asked::new(remote, running)?;
    asked.more(COPY_PIECES_MAX).await?;
    let mut words = Vec::new();
    loop {
        let event = match follow.next().await? {
            Step::Deleted => return Err(Failure::new("copy_failed", "the copy was ended there")),
            Step::Event(event, _) => event,
        };
        if event.kind == "journal.gap" {
            return Err(Failure::new(
                "copy_failed",
                "a part of the copy was lost on the way",
            ));
        }
        match (event.bytes()?, event.stream.as_deref()) {
            (Some(bytes), Some("stderr")) => {
                let passed = bytes.split(|byte| *byte == PASSED).count() - 1;
                words.extend(bytes.into_iter().filter(|byte| *byte != PASSED));
                words.truncate(COPY_WORDS_BYTES_MAX);
                asked.more(passed).await?;
            }
            (Some(bytes), _) => {
                unpacker.push(&bytes)?;
                progress.at(unpacker.done.bytes);
            }
            (None, _) => {}
        }
        match (event.kind.as_str(), event.ending()) {
            ("attempt.exited", Some(Ending::Code(0))) => return unpacker.finish(),
            ("attempt.exited", _) => return Err(refused(&String::from_utf8_lossy(&words))),
            _ => {}
        }
    }
}

/// Asks for pieces.
struct Asked<'a> {
    remote: &'a Remote<'a>,
    path: String,
    prefix: String,
    count: u64,
}

impl<'a> Asked<'a> {
    fn new(remote: &'a Remote<'a>, running: &Running) -> Result<Self> {
        Ok(Self {
            remote,
            path: format!("{}/inputs", running.session),
            prefix: random_id("cp-")?,
            count: 0,
        })
    }

    async fn more(&mut self, pieces: usize) -> Result<()> {
        if pieces == 0 {
            return Ok(());
        }
        self.count += 1;
        let id = format!("{}-{}", self.prefix, self.count);
        let body = body(&id, None, &b"\n".repeat(pieces), End::Open);
        let call = Call::post(&self.path).body(&body).repeatable();
        match self.remote.context.client.call(call).await {
            Ok(_) => Ok(()),
            // It has passed everything on.
            Err(failure) if matches!(failure.status, Some(404 | 409)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
