//! Files that are kept to be removed: a file system that holds a number of files and no more has
//! no room for another, however many bytes are free.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::limits::{RESERVE_FILES, RESERVE_STEP_FILES};

/// See the module. They are empty, and named by numbers from 0 on.
#[derive(Debug)]
pub(super) struct Spares {
    folder: PathBuf,
    count: u64,
}

impl Spares {
    /// What a server before left of them.
    pub(super) fn taken_up(folder: PathBuf) -> io::Result<Self> {
        let mut count = 0;
        while count < RESERVE_FILES && fs::exists(path(&folder, count))? {
            count += 1;
        }
        Ok(Self { folder, count })
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    /// Removes one step of them; `false`: there are none left.
    pub(super) fn give_up(&mut self) -> io::Result<bool> {
        let before = self.count;
        self.shrink_to(before.saturating_sub(RESERVE_STEP_FILES))?;
        Ok(self.count < before)
    }

    fn shrink_to(&mut self, count: u64) -> io::Result<()> {
        while self.count > count {
            remove(&path(&self.folder, self.count - 1))?;
            self.count -= 1;
        }
        Ok(())
    }

    /// Adds one step, or nothing where there is no room for all of it.
    pub(super) fn take_step(&mut self) -> io::Result<()> {
        let before = self.count;
        let taken = self.take_all(before + RESERVE_STEP_FILES);
        if taken.is_err() {
            self.shrink_to(before)?;
        }
        taken
    }

    fn take_all(&mut self, count: u64) -> io::Result<()> {
        let mut folder = DirBuilder::new();
        folder.mode(0o700).recursive(true).create(&self.folder)?;
        while self.count < count {
            let mut file = OpenOptions::new();
            file.write(true).create(true).mode(0o600);
            file.truncate(true)
                .open(path(&self.folder, self.count))
                .map(drop)?;
            self.count += 1;
        }
        Ok(())
    }
}

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(number.to_string())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
