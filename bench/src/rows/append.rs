//! The journal itself, without processes and without network.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use outlive_journal::{Appender, Config, Durability, FileStorage, NewRecord, Retention};

use super::{Bench, in_turns, real};
use crate::{
    floor::Sqlite,
    report::{Better, Row, median},
};

const PAYLOAD: [u8; 64] = [b'x'; 64];
/// Any kind of the caller's numbering.
const KIND: u8 = 6;

fn config() -> Config {
    Config {
        retention: Retention {
            bytes_max: 8 << 30,
            age_max: Duration::from_hours(24),
        },
        generation: 1,
        boot_id: [7; 16],
        logical_len: |_, len| u64::from(len) * 4 / 3 + 200,
    }
}

/// 64-byte records: never synced, every hundred, each.
pub(crate) fn frames(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, every, count, raw_bar, sqlite_bar) in [
        ("unsynced", u64::MAX, 200_000, 0.5, 1.0),
        ("synced every 100", 100, 20_000, 0.9, 0.9),
        ("each synced", 1, 400, 0.9, 0.9),
    ] {
        let count = count / bench.shrink;
        let ours = || journal_rate(bench.scratch, count, every);
        let raw = in_turns(bench.rounds, ours, || raw_rate(bench.scratch, count, every))?;
        let sqlite = in_turns(bench.rounds, ours, || {
            sqlite_rate(bench.scratch, count, every)
        })?;
        for ((ours, floor), against, bar) in [
            (raw, "write + fdatasync", raw_bar),
            (sqlite, "SQLite, WAL", sqlite_bar),
        ] {
            rows.push(Row {
                name: format!("append 64 B, {name}"),
                ours,
                floor,
                unit: "1/s",
                against,
                bar,
                better: Better::Higher,
            });
        }
    }
    Ok(rows)
}

fn journal_rate(scratch: &Path, count: u64, every: u64) -> Result<f64> {
    let dir = scratch.join("journal");
    let mut appender = Appender::create(FileStorage::create(&dir)?, config(), 0, b"state")?;
    if let Some(point) = appender.sync_point()? {
        point.sync()?;
        appender.synced(&point);
    }
    let begun = Instant::now();
    for at in 1..=count {
        let record = NewRecord {
            kind: KIND,
            stream: 0,
            attempt: 1,
            payload: &PAYLOAD,
        };
        let time = i64::try_from(at)?;
        appender.append(time, Durability::WithGroup, &[record], b"state")?;
        if at % every == 0
            && let Some(point) = appender.sync_point()?
        {
            point.sync()?;
            appender.synced(&point);
        }
    }
    let rate = real(count) / begun.elapsed().as_secs_f64();
    fs::remove_dir_all(dir)?;
    Ok(rate)
}

fn raw_rate(scratch: &Path, count: u64, every: u64) -> Result<f64> {
    let path = scratch.join("raw");
    let mut file = File::create(&path)?;
    let begun = Instant::now();
    for at in 1..=count {
        file.write_all(&PAYLOAD)?;
        if at % every == 0 {
            file.sync_data()?;
        }
    }
    let rate = real(count) / begun.elapsed().as_secs_f64();
    fs::remove_file(path)?;
    Ok(rate)
}

fn sqlite_rate(scratch: &Path, count: u64, every: u64) -> Result<f64> {
    let mut database = Sqlite::create(&scratch.join("sqlite"))?;
    let begun = Instant::now();
    database.append(&PAYLOAD, count, every)?;
    let rate = real(count) / begun.elapsed().as_secs_f64();
    database.remove()?;
    Ok(rate)
}

/// Opening a journal again after its writer was killed, small and large.
pub(crate) fn reopen(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, bytes) in [("64 MiB", 64_u64 << 20), ("1 GiB", 1 << 30)] {
        for size in [64_u64, 64 << 10] {
            let bytes = if size == 64 { bytes / 16 } else { bytes } / bench.shrink;
            let dir = bench.scratch.join("journal");
            fill(&dir, bytes, size)?;
            let database = bench.scratch.join("sqlite");
            Sqlite::create(&database)?.append(&PAYLOAD, 100_000 / bench.shrink, 1000)?;
            let ours = || -> Result<f64> {
                let begun = Instant::now();
                let opened = Appender::open(FileStorage::open(&dir)?, config(), i64::MAX / 2)?;
                let time = begun.elapsed().as_secs_f64();
                drop(opened);
                Ok(time * 1e3)
            };
            let floor = || -> Result<f64> {
                let begun = Instant::now();
                let opened = Sqlite::open(&database)?;
                opened.count()?;
                Ok(begun.elapsed().as_secs_f64() * 1e3)
            };
            let many = |one: &dyn Fn() -> Result<f64>| -> Result<f64> {
                Ok(median((0..9).map(|_| one()).collect::<Result<_>>()?))
            };
            let (ours, floor) = in_turns(bench.rounds, || many(&ours), || many(&floor))?;
            rows.push(Row {
                name: format!("reopen, {name} in {size}-byte records"),
                ours,
                floor,
                unit: "ms",
                against: "SQLite open",
                bar: 3.0,
                better: Better::Lower,
            });
            fs::remove_dir_all(dir)?;
            Sqlite::open(&database)?.remove()?;
        }
    }
    Ok(rows)
}

fn fill(dir: &Path, bytes: u64, size: u64) -> Result<()> {
    let mut appender = Appender::create(FileStorage::create(dir)?, config(), 0, b"state")?;
    let payload = vec![b'x'; usize::try_from(size)?];
    for at in 0..bytes / size {
        appender.append_output(i64::try_from(at)?, KIND, 0, 1, &payload)?;
    }
    if let Some(point) = appender.sync_point()? {
        point.sync()?;
        appender.synced(&point);
    }
    Ok(())
}
