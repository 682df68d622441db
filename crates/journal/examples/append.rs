//! How fast a journal takes records, beside raw writes to a file on the same disk.
//!
//! `cargo run --release -p outlive-journal --example append [DIR]`
#![expect(clippy::print_stdout, reason = "it prints figures")]
#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::{
    error::Error,
    fs::File,
    hint::black_box,
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use outlive_journal::{Appender, Config, Durability, FileStorage, NewRecord, Reader, Retention};

type Outcome = Result<(), Box<dyn Error>>;

fn config(bytes_max: u64) -> Config {
    Config {
        retention: Retention {
            bytes_max,
            age_max: Duration::from_hours(24),
        },
        generation: 1,
        boot_id: [1; 16],
        logical_len: |_, len| u64::from(len),
    }
}

fn journal(path: &Path, bytes_max: u64) -> Result<Appender, Box<dyn Error>> {
    if path.exists() {
        std::fs::remove_dir_all(path)?;
    }
    let storage = FileStorage::create(path)?;
    let mut appender = Appender::create(storage, config(bytes_max), 1, &[0; 600])?;
    sync(&mut appender)?;
    Ok(appender)
}

fn sync(appender: &mut Appender) -> Outcome {
    if let Some(point) = appender.sync_point()? {
        point.sync()?;
        appender.synced(&point);
    }
    if let Some(garbage) = appender.take_garbage() {
        garbage.remove()?;
    }
    Ok(())
}

fn report(name: &str, count: u32, bytes: usize, took: Duration) {
    let nanos = took.as_nanos() / u128::from(count);
    let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
    let megabytes = f64::from(count) * bytes / took.as_secs_f64() / 1e6;
    println!("{name:<44} {nanos:>9} ns each {megabytes:>9.1} MB/s");
}

fn raw(path: &Path, count: u32, bytes: usize, synced_every: Option<u32>) -> Outcome {
    let file = File::create(path)?;
    let payload = vec![b'x'; bytes];
    let start = Instant::now();
    for round in 0..count {
        file.write_all_at(&payload, u64::from(round) * bytes as u64)?;
        if synced_every.is_some_and(|every| round % every == 0) {
            file.sync_data()?;
        }
    }
    report(
        &format!("raw write {bytes} B, sync {synced_every:?}"),
        count,
        bytes,
        start.elapsed(),
    );
    Ok(())
}

fn append(path: &Path, count: u32, bytes: usize, kept: u64, synced_every: Option<u32>) -> Outcome {
    let mut appender = journal(path, kept)?;
    let payload = vec![b'x'; bytes];
    let record = NewRecord {
        kind: 1,
        stream: 0,
        attempt: 1,
        payload: &payload,
    };
    let start = Instant::now();
    for round in 0..count {
        appender.append(2, Durability::WithGroup, &[record], &payload)?;
        if synced_every.is_some_and(|every| round % every == 0) {
            sync(&mut appender)?;
        }
    }
    let name = format!(
        "append {bytes} B, sync {synced_every:?}, keep {} MiB",
        kept >> 20
    );
    report(&name, count, bytes, start.elapsed());
    Ok(())
}

fn splice(path: &Path, count: u32, bytes: usize, kept: u64) -> Outcome {
    let mut appender = journal(path, kept)?;
    let (from, mut into) = std::io::pipe()?;
    let payload = vec![b'x'; bytes];
    let mut took = Duration::ZERO;
    for round in 0..count {
        into.write_all(&payload)?;
        let start = Instant::now();
        let frame = appender.begin_output(2, 6, 0, 1)?;
        let mut offset = frame.offset();
        let Some(fd) = frame.fd() else {
            return Err("no descriptor".into());
        };
        let flags = rustix::pipe::SpliceFlags::empty();
        let count = rustix::pipe::splice(&from, None, fd, Some(&mut offset), bytes, flags)?;
        frame.commit(u32::try_from(count)?)?;
        took += start.elapsed();
        if round % 1000 == 0 {
            sync(&mut appender)?;
        }
    }
    report(
        &format!("splice {bytes} B, keep {} MiB", kept >> 20),
        count,
        bytes,
        took,
    );
    Ok(())
}

fn reopen(path: &Path, megabytes: u32, bytes: usize) -> Outcome {
    let mut appender = journal(path, 8 << 30)?;
    let payload = vec![b'x'; bytes];
    let count = (megabytes << 20) / u32::try_from(bytes)?;
    for _ in 0..count {
        appender.append_output(2, 6, 0, 1, &payload)?;
    }
    drop(appender);
    let start = Instant::now();
    let opened = Appender::open(FileStorage::open(path)?, config(8 << 30), 3)?;
    let took = start.elapsed();
    let (last, records) = (opened.appender.last_seq(), opened.records.len());
    println!("reopen {megabytes} MiB of {bytes} B: {took:?}, {records} records of {last}");
    let start = Instant::now();
    let page = Reader::open(path)?.read_after(last - 1, last, 1 << 20, 10)?;
    println!("resume near its end: {:?}", start.elapsed());
    black_box((page, opened));
    let start = Instant::now();
    let mut reader = Reader::open(path)?;
    let mut after = 0;
    while after < last {
        after = reader
            .read_after(after, last, 1 << 20, 10_000)?
            .last()
            .map_or(last, |record| record.seq);
    }
    report("read all", count, bytes, start.elapsed());
    Ok(())
}

fn main() -> Outcome {
    let directory = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let path = directory.join(format!("outlive-append-{}", std::process::id()));
    let file = path.with_extension("raw");
    for (count, every) in [(200_000, None), (20_000, Some(100)), (300, Some(1))] {
        raw(&file, count, 64, every)?;
        append(&path, count, 64, 1 << 30, every)?;
    }
    append(&path, 200_000, 64, 1 << 20, None)?;
    raw(&file, 20_000, 65_536, None)?;
    splice(&path, 20_000, 65_536, 8 << 30)?;
    splice(&path, 20_000, 65_536, 16 << 20)?;
    splice(&path, 100_000, 4096, 8 << 30)?;
    for (megabytes, bytes) in [(64, 64), (64, 4096), (1024, 4096)] {
        reopen(&path, megabytes, bytes)?;
    }
    std::fs::remove_file(file)?;
    std::fs::remove_dir_all(path)?;
    Ok(())
}
