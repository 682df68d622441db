//! SQLite as it is at its best: its C interface, one prepared statement, WAL.
#![expect(
    unsafe_code,
    reason = "the C interface of the peer, without a wrapper that would cost it time"
)]

use std::{
    ffi::{CStr, CString, c_int},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr,
};

use anyhow::{Result, bail, ensure};
use libsqlite3_sys as ffi;

/// A database with one table of blobs.
pub(crate) struct Sqlite {
    handle: *mut ffi::sqlite3,
    path: PathBuf,
}

impl Sqlite {
    /// Makes it.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let database = Self::open(path)?;
        database.run(c"PRAGMA journal_mode = WAL")?;
        database.run(c"CREATE TABLE records (seq INTEGER PRIMARY KEY, data BLOB)")?;
        Ok(database)
    }

    /// Opens it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        let mut handle = ptr::null_mut();
        // SAFETY: the name ends with NUL and the handle's place is ours.
        let code = unsafe { ffi::sqlite3_open(name.as_ptr(), &raw mut handle) };
        let database = Self {
            handle,
            path: path.to_owned(),
        };
        database.check(code)?;
        database.run(c"PRAGMA synchronous = FULL")?;
        Ok(database)
    }

    fn check(&self, code: c_int) -> Result<()> {
        ensure!(
            matches!(code, ffi::SQLITE_OK | ffi::SQLITE_ROW | ffi::SQLITE_DONE),
            "SQLite says {code} of {}",
            self.path.display()
        );
        Ok(())
    }

    fn run(&self, text: &CStr) -> Result<()> {
        // SAFETY: the handle is open, the text ends with NUL, no callback is given.
        let code = unsafe {
            ffi::sqlite3_exec(
                self.handle,
                text.as_ptr(),
                None,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        self.check(code)
    }

    fn prepare(&self, text: &CStr) -> Result<*mut ffi::sqlite3_stmt> {
        let mut statement = ptr::null_mut();
        // SAFETY: the handle is open, the text ends with NUL and the statement's place is ours.
        let code = unsafe {
            ffi::sqlite3_prepare_v2(
                self.handle,
                text.as_ptr(),
                -1,
                &raw mut statement,
                ptr::null_mut(),
            )
        };
        self.check(code)?;
        Ok(statement)
    }

    /// Appends `count` blobs and commits after each `every`; never syncs when that is larger.
    pub(crate) fn append(&mut self, data: &[u8], count: u64, every: u64) -> Result<()> {
        if every > count {
            self.run(c"PRAGMA synchronous = OFF")?;
        }
        let every = every.min(100_000);
        let insert = self.prepare(c"INSERT INTO records (data) VALUES (?)")?;
        for at in 0..count {
            if at % every == 0 {
                self.run(c"BEGIN")?;
            }
            // SAFETY: the statement is prepared and the data lives until the step is over.
            let bound = unsafe {
                ffi::sqlite3_bind_blob(
                    insert,
                    1,
                    data.as_ptr().cast(),
                    c_int::try_from(data.len())?,
                    None,
                )
            };
            self.check(bound)?;
            // SAFETY: the statement is prepared and bound.
            let stepped = unsafe { ffi::sqlite3_step(insert) };
            self.check(stepped)?;
            // SAFETY: the statement is prepared.
            let reset = unsafe { ffi::sqlite3_reset(insert) };
            self.check(reset)?;
            if (at + 1) % every == 0 || at + 1 == count {
                self.run(c"COMMIT")?;
            }
        }
        // SAFETY: the statement is prepared and not used again.
        let ended = unsafe { ffi::sqlite3_finalize(insert) };
        self.check(ended)
    }

    /// Reads the newest number: the first thing that a reopened log is asked.
    pub(crate) fn count(&self) -> Result<i64> {
        let newest = self.prepare(c"SELECT max(seq) FROM records")?;
        // SAFETY: the statement is prepared.
        let code = unsafe { ffi::sqlite3_step(newest) };
        if code != ffi::SQLITE_ROW {
            bail!("SQLite says {code} and no row");
        }
        // SAFETY: the statement has a row with one column.
        let count = unsafe { ffi::sqlite3_column_int64(newest, 0) };
        // SAFETY: the statement is prepared and not used again.
        let ended = unsafe { ffi::sqlite3_finalize(newest) };
        self.check(ended)?;
        Ok(count)
    }

    /// Removes its files.
    pub(crate) fn remove(self) -> Result<()> {
        let path = self.path.clone();
        drop(self);
        for ending in ["", "-wal", "-shm"] {
            let mut name = path.clone().into_os_string();
            name.push(ending);
            match fs::remove_file(&name) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // Never made.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is not used after this; closing a null one does nothing.
        let code = unsafe { ffi::sqlite3_close(self.handle) };
        debug_assert_eq!(code, ffi::SQLITE_OK, "a statement was left open");
    }
}
