//! Readers beside a writer: across seals, beside trimming, against a splicing pump.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use outlive_journal::{FileStorage, ReadError, Reader, Record, sim::SimDisk};

use crate::common::{Journal, OUTPUT, check_whole, config, expired, kept, read_range};

// case S37, case S39: a follower sees every number once, across 50 seals and more.
#[test]
fn a_follower_misses_nothing_across_fifty_seals() {
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(directory.path()).unwrap();
    let journal = Journal::create(Arc::clone(&storage), kept(512 * 1024));
    let journal = Arc::new(Mutex::new(journal));
    // Retention must not get in the way here: everything is kept, in small segments.
    let all = outlive_journal::Retention {
        bytes_max: 512 * 1024,
        ..config().retention
    };
    assert_eq!(all.segment_bytes_target(), 64 * 1024);
    let tail = Arc::new(AtomicU64::new(0));
    let writer = {
        let (journal, tail) = (Arc::clone(&journal), Arc::clone(&tail));
        thread::spawn(move || {
            for round in 0..4000_u32 {
                let mut journal = journal.lock().unwrap();
                journal.output(&vec![b'x'; 900 + usize::try_from(round % 200).unwrap()]);
                if round % 50 == 0 {
                    journal.sync();
                }
                tail.store(journal.appender.published(), Ordering::Release);
            }
        })
    };
    let mut reader = Reader::open(directory.path()).unwrap();
    let mut after = 0;
    let mut seen = 0_u64;
    let mut skipped = 0;
    while after < 4000 {
        match reader.read_after(
            after,
            tail.load(Ordering::Acquire).max(after),
            1 << 20,
            1000,
        ) {
            Ok(records) => {
                let Some(last) = records.last().map(|record| record.seq) else {
                    thread::yield_now();
                    continue;
                };
                assert!(check_whole(&records, after + 1, last).is_empty());
                seen += records.len() as u64;
                after = last;
            }
            Err(error) => {
                let earliest = expired(&error).unwrap();
                skipped += earliest - 1 - after;
                after = earliest - 1;
            }
        }
    }
    writer.join().unwrap();
    assert_eq!(seen + skipped, 4000);
    let ordinals = storage.list().unwrap().into_iter().max().unwrap();
    assert!(ordinals.as_str() > "000000000050", "{ordinals}");
}

// case S37 without trimming: the follower reads each record exactly once, and at its own pace.
#[test]
fn every_record_is_followed_exactly_once() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(512 * 1024));
    let mut reader = Reader::on(disk.storage());
    let mut after = 0;
    for round in 1..=6000_u64 {
        journal.output(&[b'y'; 800]);
        if round % 50 == 0 {
            journal.sync();
        }
        if round % 3 == 0 {
            let records = read_range(&mut reader, after, journal.appender.published());
            let last = records.last().map_or(after, |record| record.seq);
            assert!(check_whole(&records, after + 1, last).is_empty());
            after = last;
        }
    }
    assert_eq!(after, 6000);
}

// case S38: bursts of 800 lines with small segments, a hundred times.
#[test]
fn bursts_across_rotations_are_complete() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(512 * 1024));
    let mut reader = Reader::on(disk.storage());
    let mut after = 0;
    for burst in 0..100_u32 {
        for line in 0..800_u32 {
            journal.output(format!("{burst} {line}\n").as_bytes());
        }
        journal.sync();
        let records = read_range(&mut reader, after, journal.appender.published());
        assert_eq!(records.len(), 800);
        for (line, record) in records.iter().enumerate() {
            assert_eq!(record.payload, format!("{burst} {line}\n").as_bytes());
        }
        after += 800;
    }
}

// case S34: a slow reader at the head while the writer trims: records or expired, never more.
#[test]
fn a_reader_behind_retention_gets_records_or_expired() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(512 * 1024));
    let mut slow = Reader::on(disk.storage());
    let mut after = 0;
    let mut expiries = 0;
    for round in 0..4000_u32 {
        let mut line = vec![b'.'; 2000];
        line.extend_from_slice(&round.to_le_bytes());
        journal.output(&line);
        if round % 20 == 0 {
            journal.sync();
        }
        if round % 10 != 0 {
            continue;
        }
        // One record in ten rounds: it falls behind for good.
        match slow.read_after(after, journal.appender.published(), 1, 1) {
            Ok(records) => {
                for record in &records {
                    assert!(record.gap().is_none(), "nothing is lost, it is trimmed");
                    let number = u32::try_from(record.seq - 1).unwrap();
                    assert!(record.payload.ends_with(&number.to_le_bytes()));
                    after = record.seq;
                }
            }
            Err(error) => {
                let earliest = expired(&error).unwrap();
                assert!(earliest > after + 1);
                after = earliest - 1;
                expiries += 1;
            }
        }
    }
    assert!(expiries >= 2, "{expiries}");
}

/// What a pump does: splices what a pipe holds into a frame.
fn pump(journal: &mut Journal, from: &std::io::PipeReader, stream: u8) -> u64 {
    journal.now += 1000;
    let frame = journal
        .appender
        .begin_output(journal.now, OUTPUT, stream, 1)
        .unwrap();
    let mut offset = frame.offset();
    let flags = rustix::pipe::SpliceFlags::NONBLOCK;
    let fd = frame.fd().unwrap();
    match rustix::pipe::splice(from, None, fd, Some(&mut offset), 256 * 1024, flags) {
        Ok(0) | Err(rustix::io::Errno::AGAIN) => {
            frame.cancel().unwrap();
            0
        }
        Ok(count) => u64::from(frame.commit(u32::try_from(count).unwrap()).unwrap().len),
        Err(errno) => panic!("{errno}"),
    }
}

/// Checks a stream of numbered lines without keeping it.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
    next: u64,
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line = std::str::from_utf8(&self.rest[..end]).unwrap();
            assert_eq!(
                line.trim_start_matches('#').parse::<u64>().unwrap(),
                self.next
            );
            self.next += 1;
            self.rest.drain(..=end);
        }
    }
}

// case S41: two flooding streams, segments of 64 KiB, and readers that watch the open frames.
#[test]
fn readers_beside_a_splicing_pump_see_whole_frames_only() {
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(directory.path()).unwrap();
    let mut journal = Journal::create(storage, kept(512 * 1024));
    let retention = outlive_journal::Retention {
        bytes_max: 1 << 40,
        ..config().retention
    };
    journal.appender.set_retention(1, retention).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let lines = 60_000_u64;
    let mut pipes = Vec::new();
    let mut writers = Vec::new();
    for stream in 0..2_u8 {
        let (from, mut into) = std::io::pipe().unwrap();
        pipes.push(from);
        writers.push(thread::spawn(move || {
            for line in 0..lines {
                let pad = usize::try_from(line % 60).unwrap();
                writeln!(into, "{}{line}", "#".repeat(pad * usize::from(stream + 1))).unwrap();
            }
        }));
    }
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (path, done) = (directory.path().to_path_buf(), Arc::clone(&done));
            thread::spawn(move || follow_both(&path, &done))
        })
        .collect();
    let mut open = [true, true];
    while open != [false, false] {
        for stream in 0..2 {
            let moved = pump(&mut journal, &pipes[stream], u8::try_from(stream).unwrap());
            if moved == 0 && writers[stream].is_finished() {
                // It is finished: what is in the pipe now is all there will be.
                open[stream] =
                    pump(&mut journal, &pipes[stream], u8::try_from(stream).unwrap()) > 0;
            }
        }
    }
    done.store(true, Ordering::Release);
    for reader in readers {
        let (records, seen) = reader.join().unwrap();
        assert_eq!(seen, [lines, lines], "{records} records");
    }
    for (writer, mut pipe) in writers.into_iter().zip(pipes) {
        writer.join().unwrap();
        assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
    }
}

/// Reads without a published tail, straight beside the writer.
fn follow_both(path: &std::path::Path, done: &AtomicBool) -> (u64, [u64; 2]) {
    let mut reader = Reader::open(path).unwrap();
    let mut lines = [Lines::default(), Lines::default()];
    let mut after = 0;
    loop {
        let last_look = done.load(Ordering::Acquire);
        let records = match reader.read_after(after, u64::MAX, 1 << 20, 1000) {
            Ok(records) => records,
            Err(ReadError::Ahead { .. }) => panic!("it follows"),
            Err(error) => panic!("{error}"),
        };
        for record in &records {
            assert_eq!(record.seq, after + 1, "{record:?}");
            assert!(record.gap().is_none(), "{record:?}");
            after = record.seq;
            lines[usize::from(record.stream)].take(&record.payload);
        }
        if last_look && records.is_empty() {
            return (after, [lines[0].next, lines[1].next]);
        }
    }
}

/// The same from another process: this test runs itself again as the reader.
#[test]
fn another_process_follows_and_ends_with_the_same_bytes() {
    if let Ok(path) = std::env::var("OUTLIVE_TEST_FOLLOW") {
        follow_as_child(std::path::Path::new(&path));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(directory.path()).unwrap();
    let mut journal = Journal::create(storage, kept(8 << 20));
    #[expect(
        clippy::disallowed_methods,
        reason = "the reader has to be another process"
    )]
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "follow::another_process_follows_and_ends_with_the_same_bytes",
        ])
        .arg("--nocapture")
        .env("OUTLIVE_TEST_FOLLOW", directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    for round in 0..3000_u32 {
        journal.event(&round.to_le_bytes());
        journal.output(&vec![u8::try_from(round % 251).unwrap(); 700]);
    }
    journal.event(b"end");
    journal.sync();
    let mut said = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(said.contains("followed 6001"), "{said}");
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn follow_as_child(path: &std::path::Path) {
    let mut reader = Reader::open(path).unwrap();
    let mut after = 0;
    loop {
        let records: Vec<Record> = reader.read_after(after, u64::MAX, 1 << 20, 1000).unwrap();
        for record in &records {
            assert_eq!(record.seq, after + 1);
            assert!(record.gap().is_none());
            after = record.seq;
            if record.payload == b"end".as_slice() {
                println!("followed {after}");
                return;
            }
        }
        thread::yield_now();
    }
}
