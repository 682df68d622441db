//! Disks that are copied, and disks that are put back.
//!
//! The copier is a process of its own (`outlive-agent copy`). It is not killed with us: once
//! nobody reads what it says it ends by itself, and the next server waits for it before it
//! touches what it made.
//!
//! ```text
//!   restore:  snapshot ─ copy ─► restore.draft ─ rename ─► restored-<snapshot> ─ part by part ─► disk
//! ```
//! Up to the first rename the disk is what it was. After it the copy is whole and stays until
//! every part of it took the place of the old one, whoever carries that out.

use std::{
    convert::Infallible,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use outlive_api::launch::{Copied, CopyConfig, CopyNews, RuntimeKind};
use outlive_journal::sync_directory;
use tokio::{io::AsyncReadExt as _, process::Child};
use tokio_util::sync::CancellationToken;

use super::{
    super::{Disk, Place, Progress, Restore, RestoreError, RuntimeError, Whose, usage::usage},
    LauncherRuntime, blocking, encoded, file, launcher_failed, locked_log, path_text,
    program::Program,
    remove::remove,
    tell,
};
use crate::{ids, limits::LAUNCH_ANSWER_BYTES_MAX};

/// What of a copy takes whose place: the same part, and what overlayfs keeps beside it. A disk that
/// its file system counts takes the place of one that is measured, and the other way round.
const PARTS: [(&str, &[&str]); 3] = [
    ("upper", &["work", "disk", "upper"]),
    ("disk", &["work", "upper", "disk"]),
    ("files", &["files"]),
];

impl LauncherRuntime {
    pub(super) async fn copy_disk(
        &self,
        from: Disk<'_>,
        to: Disk<'_>,
        progress: &Progress,
        give_up: &CancellationToken,
    ) -> Result<Copied, RuntimeError> {
        let place = self.places.of_disk(to.whose);
        let log = locked_log(&place)?;
        let counted = match to.whose {
            Whose::Sandbox(_) => self.counts(),
            Whose::Snapshot(_) => false, // Nobody writes to it.
        };
        let to = (place.dir(), to.slot, counted);
        self.copy_into(from, to, log, progress, give_up).await
    }

    pub(super) async fn restore_disk(
        &self,
        restore: Restore<'_>,
        progress: &Progress,
        give_up: &CancellationToken,
    ) -> Result<Copied, RestoreError> {
        let (sandbox, slot) = restore.sandbox;
        let (snapshot, snapshot_slot) = restore.snapshot;
        let place = self.places.of(sandbox);
        let whole = place.restored(snapshot);
        // A copier of a server before works on the draft.
        let log = locked_log(&place).map_err(RestoreError::Unsure)?;
        let copied = if finish_earlier(&self.agent, &place, &whole).await? {
            Copied::default()
        } else {
            let from = Disk {
                whose: Whose::Snapshot(snapshot),
                slot: snapshot_slot,
            };
            let draft = place.draft();
            let copying = async {
                new_draft(&self.agent, &draft).await?;
                let copied = self
                    .copy_into(from, (&draft, slot, self.counts()), log, progress, give_up)
                    .await?;
                publish(&draft, &whole)?;
                Ok(copied)
            };
            match copying.await {
                Ok(copied) => copied,
                Err(error) => {
                    if let Err(left) = remove(&self.agent, draft).await {
                        tracing::error!(%sandbox, error = %left, "half a copy is left until the next restore");
                    }
                    return Err(RestoreError::Untouched(error));
                }
            }
        };
        swap(&self.agent, &place, whole)
            .await
            .map_err(RestoreError::Unsure)?;
        Ok(copied)
    }

    /// Whether a copy that will be written to is made so that its file system counts it.
    fn counts(&self) -> bool {
        self.kind() == RuntimeKind::Namespace && self.quotas.are_on()
    }

    async fn copy_into(
        &self,
        from: Disk<'_>,
        (to, slot, counted): (&Path, u16, bool),
        log: fs::File,
        progress: &Progress,
        give_up: &CancellationToken,
    ) -> Result<Copied, RuntimeError> {
        let config = CopyConfig {
            from: path_text(self.places.of_disk(from.whose).dir())?,
            to: path_text(to)?,
            ids: match self.kind() {
                RuntimeKind::Namespace | RuntimeKind::TwoUid => {
                    ids::of_slot(from.slot).zip(ids::of_slot(slot))
                }
                RuntimeKind::Process => None,
            },
            counted,
        };
        let message = encoded(&config)?;
        let mut child = self
            .agent
            .spawn("copy", &log)
            .map_err(|error| RuntimeError::Launcher {
                message: error.to_string(),
            })?;
        let measuring = async {
            if progress.lacks_total() {
                self.measure(from, progress).await;
            }
            std::future::pending::<Infallible>().await
        };
        let copied = tokio::select! {
            copied = copy_news(&mut child, &message, progress) => copied,
            () = give_up.cancelled() => {
                end(&mut child).await;
                return Err(RuntimeError::GivenUp);
            }
            never = measuring => match never {},
        };
        let copied = match copied {
            Ok(news) => news,
            Err(error) => return Err(launcher_failed(&error.to_string(), &log)),
        };
        match copied {
            Some(CopyNews::Done(copied)) => Ok(copied),
            Some(CopyNews::Failed(failure)) => Err(RuntimeError::Copy(failure)),
            Some(CopyNews::TooDeep(message)) => Err(RuntimeError::TooDeep { message }),
            Some(CopyNews::Progress(_)) | None => {
                Err(launcher_failed("a copy ended without a word", &log))
            }
        }
    }

    /// Tells how much there is to copy. A copy of which that isn't known is none the worse.
    async fn measure(&self, from: Disk<'_>, progress: &Progress) {
        let disk = self.places.of_disk(from.whose).disk();
        match blocking(move || usage(&disk, u64::MAX)).await {
            Ok(Ok(usage)) => progress.learn_total(usage.bytes),
            Ok(Err(error)) => tracing::debug!(%error, "a disk that is copied was not measured"),
            Err(error) => tracing::debug!(%error, "a disk that is copied was not measured"),
        }
    }
}

/// Finishes what a restore before left whole; tells whether it was this one.
async fn finish_earlier(agent: &Program, place: &Place, ours: &Path) -> Result<bool, RestoreError> {
    let left = place
        .all_restored()
        .map_err(file("reading", place.dir()))
        .map_err(RestoreError::Unsure)?;
    let mut is_whole = false;
    for whole in left {
        if whole == ours {
            is_whole = true;
        } else {
            swap(agent, place, whole)
                .await
                .map_err(RestoreError::Unsure)?;
        }
    }
    Ok(is_whole)
}

/// An empty draft, whatever was left of another.
async fn new_draft(agent: &Program, draft: &Path) -> Result<(), RuntimeError> {
    remove(agent, draft.to_owned()).await?;
    DirBuilder::new()
        .mode(0o700)
        .create(draft)
        .map_err(file("making", draft))
}

/// The copier brought everything in it to the disk.
fn publish(draft: &Path, whole: &Path) -> Result<(), RuntimeError> {
    rename(draft, whole)
        .and_then(|()| sync_parent(whole))
        .map_err(file("naming", whole))
}

/// Every part of the copy takes the place of the old one. May be begun again at any point.
async fn swap(agent: &Program, place: &Place, whole: PathBuf) -> Result<(), RuntimeError> {
    let dir = place.dir();
    for (part, places) in PARTS {
        let (new, old) = (whole.join(part), dir.join(part));
        match fs::symlink_metadata(&new) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // It is there.
            Err(error) => return Err(file("looking at", &new)(error)),
        }
        for gone in places {
            remove(agent, dir.join(gone)).await?;
        }
        rename(&new, &old).map_err(file("naming", &old))?;
    }
    sync_directory(dir).map_err(file("syncing", dir))?;
    remove(agent, whole).await
}

#[expect(
    clippy::disallowed_methods,
    reason = "replace_file is for files; the callers sync what needs to last"
)]
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

/// It is gone afterwards, and with it its lock on the log.
async fn end(copier: &mut Child) {
    if let Err(error) = copier.kill().await {
        tracing::warn!(%error, "a copier can't be ended; it ends once it has something to say");
    }
}

/// Follows a copy up to the last thing it says.
async fn copy_news(
    child: &mut Child,
    message: &[u8],
    progress: &Progress,
) -> io::Result<Option<CopyNews>> {
    tell(child, message).await?;
    let Some(mut stdout) = child.stdout.take() else {
        return Ok(None);
    };
    let mut last = None;
    loop {
        let length = match stdout.read_u32_le().await {
            Ok(length) => length as usize,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        };
        if length > LAUNCH_ANSWER_BYTES_MAX {
            return Err(io::Error::other("a copier says more than it may"));
        }
        let mut body = vec![0; length];
        stdout.read_exact(&mut body).await?;
        let news: CopyNews = minicbor::decode(&body).map_err(io::Error::other)?;
        if let CopyNews::Progress(copied) = &news {
            progress.reached(copied.clone());
        }
        last = Some(news);
    }
    let status = child.wait().await?;
    if !status.success() {
        return Err(io::Error::other(format!("it ended with {status}")));
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use outlive_core::id::{SandboxId, SnapshotId};

    use super::{super::super::Places, *};

    /// It has nothing to do where no file system counts.
    fn agent() -> Program {
        Program::new(PathBuf::from("/no/such/agent"))
    }

    /// A sandbox's directory whose disk says `old`, with a whole copy that says `new`.
    fn half_restored() -> (tempfile::TempDir, Place, PathBuf) {
        let data = tempfile::tempdir().unwrap();
        let place = Places::new(data.path()).of(&SandboxId::from_bits(1));
        let whole = place.restored(&SnapshotId::from_bits(2));
        for (dir, text) in [(place.dir().to_owned(), "old"), (whole.clone(), "new")] {
            fs::create_dir_all(dir.join("upper/root")).unwrap();
            fs::write(dir.join("upper/root/text"), text).unwrap();
        }
        fs::create_dir_all(place.dir().join("work/root")).unwrap();
        fs::create_dir_all(place.dir().join("state/sessions")).unwrap();
        (data, place, whole)
    }

    fn assert_restored(place: &Place) {
        let text = fs::read_to_string(place.dir().join("upper/root/text")).unwrap();
        assert_eq!(text, "new");
        assert_eq!(place.all_restored().unwrap(), Vec::<PathBuf>::new());
        assert!(
            !place.dir().join("work").exists(),
            "it belonged to the old disk"
        );
        assert!(place.journals().is_dir(), "journals stay");
    }

    #[tokio::test]
    async fn a_restore_that_was_cut_off_anywhere_is_finished() {
        type Cut = fn(&Path, &Path);
        let cuts: [Cut; 4] = [
            |_dir, _whole| {},
            |dir, _whole| fs::remove_dir_all(dir.join("work")).unwrap(),
            |dir, _whole| fs::remove_dir_all(dir.join("upper")).unwrap(),
            |dir, whole| {
                fs::remove_dir_all(dir.join("work")).unwrap();
                fs::remove_dir_all(dir.join("upper")).unwrap();
                rename(&whole.join("upper"), &dir.join("upper")).unwrap();
            },
        ];
        for cut in cuts {
            let (_data, place, whole) = half_restored();
            cut(place.dir(), &whole);
            assert!(finish_earlier(&agent(), &place, &whole).await.unwrap());
            swap(&agent(), &place, whole).await.unwrap();
            assert_restored(&place);
        }
    }

    #[tokio::test]
    async fn a_disk_that_is_counted_and_one_that_is_not_take_each_others_place() {
        let (_data, place, whole) = half_restored();
        let counted = whole.join("disk");
        fs::create_dir(&counted).unwrap();
        rename(&whole.join("upper"), &counted.join("upper")).unwrap();
        swap(&agent(), &place, whole.clone()).await.unwrap();
        let text = || fs::read_to_string(place.disk().join("root/text")).unwrap();
        assert!(place.disk().starts_with(place.counted()));
        assert!(!place.dir().join("upper").exists() && !place.dir().join("work").exists());
        assert_eq!(text(), "new");
        fs::create_dir_all(whole.join("upper/root")).unwrap();
        fs::write(whole.join("upper/root/text"), "newer").unwrap();
        swap(&agent(), &place, whole).await.unwrap();
        assert!(!place.counted().exists());
        assert_eq!(text(), "newer");
    }

    #[tokio::test]
    async fn a_restore_to_another_snapshot_finishes_the_one_before_it() {
        let (_data, place, _whole) = half_restored();
        let other = place.restored(&SnapshotId::from_bits(3));
        assert!(!finish_earlier(&agent(), &place, &other).await.unwrap());
        assert_restored(&place);
    }

    #[tokio::test]
    async fn a_draft_begins_empty() {
        let (_data, place, _whole) = half_restored();
        let draft = place.draft();
        fs::create_dir_all(draft.join("upper")).unwrap();
        new_draft(&agent(), &draft).await.unwrap();
        assert_eq!(fs::read_dir(&draft).unwrap().count(), 0);
    }
}
