//! One suite for both storages: what a journal promises while nothing goes wrong.

use std::{sync::Arc, time::Duration};

use crate::common::{
    BOOT_B, EVENT, Journal, OUTPUT, SECOND, check_whole, config, event, expired, kept, read_all,
    read_range, reopen, state_of, sync,
};
use outlive_journal::{
    AppendError, Appender, Config, Durability, FileStorage, OpenError, ReadError, Reader,
    Retention, limits::RESUME_SPACING_BYTES, recover_from, replace_file, sim::SimDisk,
    storage::Storage,
};

/// Runs a test on the simulated disk and on a real one.
fn on_both(test: fn(Arc<dyn Storage>)) {
    test(SimDisk::new().storage());
    let separate = SimDisk::new();
    separate.separate_names();
    test(separate.storage());
    let directory = tempfile::tempdir().unwrap();
    test(FileStorage::create(&directory.path().join("journal")).unwrap());
}

#[test]
fn records_come_back_as_they_were_written() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), config());
        assert_eq!(journal.event(b"created"), 1);
        assert_eq!(journal.output(b"hello\n"), 2);
        assert_eq!(journal.event(b"exited"), 3);
        let records = read_all(storage);
        let seen: Vec<_> = records
            .iter()
            .map(|r| (r.seq, r.kind, &*r.payload))
            .collect();
        let wanted: [(u64, u8, &[u8]); 3] = [
            (1, EVENT, b"created"),
            (2, OUTPUT, b"hello\n"),
            (3, EVENT, b"exited"),
        ];
        assert_eq!(seen, wanted);
        assert_eq!(records[1].generation, 1);
        assert_eq!(records[1].at_nanos, SECOND + 2000);
    });
}

#[test]
fn a_record_of_class_a_is_published_by_its_sync() {
    on_both(|storage| {
        let mut journal = Journal::create(storage, config());
        let a = &mut journal.appender;
        a.append(2, Durability::WithGroup, &[event(b"b")], b"")
            .unwrap();
        assert_eq!(a.published(), 1, "class B is published at once");
        a.append(3, Durability::BeforePublish, &[event(b"a")], b"")
            .unwrap();
        a.append(4, Durability::WithGroup, &[event(b"b")], b"")
            .unwrap();
        assert_eq!(
            a.published(),
            1,
            "nothing passes a class A record that isn't on disk"
        );
        let point = a.sync_point().unwrap().unwrap();
        a.append(5, Durability::BeforePublish, &[event(b"a")], b"")
            .unwrap();
        point.sync().unwrap();
        a.synced(&point);
        assert_eq!(a.published(), 3, "a later one still waits");
        sync(a);
        assert_eq!(a.published(), 4);
        assert!(a.sync_point().unwrap().is_none(), "nothing is left to sync");
    });
}

#[test]
fn nothing_is_published_before_the_first_sync() {
    let disk = SimDisk::new();
    let mut a = Appender::create(disk.storage(), config(), 1, b"").unwrap();
    a.append(2, Durability::WithGroup, &[event(b"x")], b"")
        .unwrap();
    assert_eq!((a.published(), a.window()), (0, (1, 0)));
    sync(&mut a);
    assert_eq!(a.window(), (1, 1));
}

#[test]
fn a_session_life_takes_three_syncs() {
    let disk = SimDisk::new();
    let mut a = Appender::create(disk.storage(), config(), 1, b"s").unwrap();
    let batch = [event(b"created"), event(b"starting")];
    a.append(2, Durability::BeforePublish, &batch, b"s")
        .unwrap();
    sync(&mut a);
    a.append(
        3,
        Durability::WithGroup,
        &[event(b"started"), event(b"ready")],
        b"s",
    )
    .unwrap();
    a.append_output(4, OUTPUT, 0, 1, b"hi\n").unwrap();
    a.append(5, Durability::BeforePublish, &[event(b"exited")], b"s")
        .unwrap();
    sync(&mut a);
    a.append(6, Durability::BeforePublish, &[event(b"deleted")], b"s")
        .unwrap();
    sync(&mut a);
    assert_eq!(a.published(), 7);
    assert_eq!(disk.syncs(), 3);
}

#[test]
fn a_spliced_frame_is_readable_once_it_is_committed() {
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(directory.path()).unwrap();
    let mut journal = Journal::create(Arc::clone(&storage), config());
    let mut reader = Reader::on(Arc::clone(&storage));
    let (from, into) = rustix::pipe::pipe().unwrap();
    rustix::io::write(&into, b"through the kernel").unwrap();
    let frame = journal.appender.begin_output(5, OUTPUT, 1, 7).unwrap();
    let mut offset = frame.offset();
    let flags = rustix::pipe::SpliceFlags::empty();
    let fd = frame.fd().unwrap();
    let moved = rustix::pipe::splice(&from, None, fd, Some(&mut offset), 4096, flags).unwrap();
    assert!(reader.read_after(0, u64::MAX, 100, 100).unwrap().is_empty());
    let done = frame.commit(u32::try_from(moved).unwrap()).unwrap();
    let mut back = [0; 10];
    assert_eq!(done.read_at(&mut back, 8).unwrap(), 10);
    assert_eq!(&back, b"the kernel");
    let records = reader.read_after(0, u64::MAX, 100, 100).unwrap();
    assert_eq!(&*records[0].payload, b"through the kernel");
    assert_eq!((records[0].stream, records[0].attempt), (1, 7));
}

#[test]
fn a_cancelled_frame_leaves_nothing_and_a_dropped_one_keeps_its_bytes() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), config());
        let frame = journal.appender.begin_output(5, OUTPUT, 0, 1).unwrap();
        frame
            .file()
            .write_all_at(b"lost", &[], frame.offset())
            .unwrap();
        frame.cancel().unwrap();
        let frame = journal.appender.begin_output(6, OUTPUT, 0, 1).unwrap();
        frame
            .file()
            .write_all_at(b"kept", &[], frame.offset())
            .unwrap();
        drop(frame);
        assert_eq!(journal.event(b"after"), 2);
        let records = read_all(storage);
        let seen: Vec<_> = records.iter().map(|r| &*r.payload).collect();
        assert_eq!(seen, [b"kept".as_slice(), b"after"]);
    });
}

#[test]
fn a_frame_ends_where_its_commit_says() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    let frame = journal.appender.begin_output(5, OUTPUT, 0, 1).unwrap();
    frame
        .file()
        .write_all_at(b"12345678", &[], frame.offset())
        .unwrap();
    assert_eq!(frame.commit(5).unwrap().len, 5);
    journal.event(b"x");
    assert_eq!(&*read_all(disk.storage())[0].payload, b"12345");
}

#[test]
fn opening_gives_the_checkpoint_and_what_came_after() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), config());
        for round in 0..200 {
            journal.event(format!("state {round}").as_bytes());
            journal.output(&[b'x'; 1000]);
        }
        journal.sync();
        let now = journal.now;
        drop(journal);
        let opened = reopen(Arc::clone(&storage), config(), now);
        assert_eq!(state_of(&opened), b"state 199");
        assert!(opened.damage.is_empty(), "{:?}", opened.damage);
        assert_eq!(opened.appender.last_seq(), 400);
        let recovered = recover_from(&*storage).unwrap();
        assert_eq!((recovered.earliest, recovered.latest), (1, 400));
    });
}

#[test]
fn small_segments_roll_and_lose_nothing() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), kept(512 * 1024));
        let mut reader = Reader::on(Arc::clone(&storage));
        let mut followed = Vec::new();
        for round in 0..200_u32 {
            journal.event(&round.to_le_bytes());
            journal.output(&vec![b'x'; 1500]);
            if round % 7 == 0 {
                let after = 2 * u64::from(round) + 2;
                let from = followed
                    .last()
                    .map_or(0, |r: &outlive_journal::Record| r.seq);
                followed.extend(read_range(&mut reader, from, after));
            }
        }
        journal.sync();
        let from = followed.last().unwrap().seq;
        followed.extend(read_range(&mut reader, from, 400));
        assert!(check_whole(&followed, 1, 400).is_empty());
        assert!(storage.list().unwrap().len() >= 4);
    });
}

#[test]
fn a_new_generation_begins_a_segment_and_keeps_the_numbers() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), config());
        journal.event(b"one");
        journal.appender.seal(journal.now).unwrap();
        journal.sync();
        let next = Config {
            generation: 2,
            ..config()
        };
        let mut opened = Appender::open(Arc::clone(&storage), next, 9 * SECOND).unwrap();
        assert!(opened.records.is_empty(), "a seal leaves nothing to apply");
        assert_eq!(opened.checkpoint, b"one");
        let appended =
            opened
                .appender
                .append(9 * SECOND, Durability::WithGroup, &[event(b"two")], b"two");
        assert_eq!(appended.unwrap(), 2..=2);
        let records = read_all(storage);
        assert_eq!(
            records.iter().map(|r| r.generation).collect::<Vec<_>>(),
            [1, 2]
        );
    });
}

#[test]
fn a_driver_that_forgets_the_checkpoint_is_told() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    journal.event(b"one");
    let next = Config {
        generation: 2,
        ..config()
    };
    let mut opened = Appender::open(disk.storage(), next, SECOND).unwrap();
    let refused = opened
        .appender
        .append(SECOND, Durability::WithGroup, &[event(b"x")], b"");
    assert!(matches!(refused, Err(AppendError::CheckpointNeeded)));
    opened.appender.put_checkpoint(SECOND, b"one").unwrap();
    let taken = opened
        .appender
        .append(SECOND, Durability::WithGroup, &[event(b"x")], b"");
    assert_eq!(taken.unwrap(), 2..=2);
}

#[test]
fn a_sealed_journal_goes_on_without_a_jump_on_another_boot() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    journal.event(b"one");
    journal.appender.seal(journal.now).unwrap();
    journal.sync();
    let other = Config {
        boot_id: BOOT_B,
        generation: 2,
        ..config()
    };
    let image = disk.image(outlive_journal::sim::Crash::PowerLoss { seed: 1 });
    let opened = reopen(image.storage(), other, SECOND);
    assert_eq!(opened.appender.last_seq(), 1);
    assert_eq!(opened.appender.published(), 1);
}

// case A10, case S27: a cursor from the future is an error, not silence and not a replay.
#[test]
fn a_cursor_ahead_of_the_journal_is_refused() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), config());
        journal.event(b"one");
        for upto in [1, u64::MAX] {
            for after in [1001, i64::MAX.unsigned_abs(), u64::MAX - 1] {
                let mut reader = Reader::on(Arc::clone(&storage));
                let answer = reader.read_after(after, upto, 100, 100);
                assert!(
                    matches!(answer, Err(ReadError::Ahead { latest: 1 })),
                    "{after} {answer:?}"
                );
            }
        }
        let mut reader = Reader::on(storage);
        assert!(reader.read_after(1, 1, 100, 100).unwrap().is_empty());
    });
}

// case A9, case S40: what is retained is the true tail, within the limit and never nothing.
#[test]
fn retention_by_bytes_keeps_the_tail() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), kept(1 << 20));
        for round in 0..10_000_u32 {
            let mut line = vec![b'.'; 1020];
            line.extend_from_slice(&round.to_le_bytes());
            journal.output(&line);
            if round % 100 == 0 {
                journal.sync();
            }
        }
        journal.sync();
        let (earliest, latest) = journal.appender.window();
        assert_eq!((earliest, latest), (10_000 - 1024 + 1, 10_000));
        assert_eq!(journal.appender.retained_bytes(), 1 << 20);
        journal.appender.maintain(journal.now).unwrap();
        let mut reader = Reader::on(Arc::clone(&storage));
        assert_eq!(reader.window().unwrap(), (earliest, latest));
        let answer = reader.read_after(1, latest, 1000, 1000);
        assert_eq!(expired(&answer.unwrap_err()), Some(earliest));
        let records = read_range(&mut reader, earliest - 1, latest);
        assert!(check_whole(&records, earliest, latest).is_empty());
        for record in &records {
            let number = u32::try_from(record.seq).unwrap() - 1;
            assert!(record.payload.ends_with(&number.to_le_bytes()));
        }
        let on_disk: usize = storage.list().unwrap().len();
        assert!(on_disk <= 11, "{on_disk} files for 8 segments");
        // The next opening knows the same window.
        let now = journal.now;
        drop(journal);
        let mut again = Journal::reopen(storage, kept(1 << 20), now);
        again.sync();
        assert_eq!(again.appender.window(), (earliest, latest));
    });
}

#[test]
fn the_newest_record_stays_even_when_it_is_too_large() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(1000));
    for _ in 0..3 {
        journal.output(&[0; 5000]);
    }
    assert_eq!(journal.appender.window(), (3, 3));
}

// case S32: a retention that is larger than the content removes nothing.
#[test]
fn a_retention_above_the_content_removes_nothing() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), kept(1 << 20));
        for _ in 0..100 {
            journal.output(&[b'x'; 1000]);
        }
        journal.sync();
        let retention = Retention {
            bytes_max: 1 << 30,
            age_max: Duration::from_secs(1 << 30),
        };
        journal
            .appender
            .set_retention(journal.now, retention)
            .unwrap();
        journal.appender.maintain(journal.now).unwrap();
        journal.sync();
        assert_eq!(journal.appender.window(), (1, 100));
        assert_eq!(read_all(storage).len(), 100);
        let smaller = Retention {
            bytes_max: 10_000,
            ..retention
        };
        journal
            .appender
            .set_retention(journal.now, smaller)
            .unwrap();
        assert_eq!(
            journal.appender.window(),
            (91, 100),
            "a smaller one applies at once"
        );
    });
}

// case G7, case S30: everything is trimmed by age, the files go, and the numbers go on.
#[test]
fn age_removes_everything_and_the_numbers_stay() {
    on_both(|storage| {
        let mut journal = Journal::create(Arc::clone(&storage), config());
        for _ in 0..50 {
            journal.output(b"a secret that must not stay");
        }
        journal.sync();
        let later = journal.now + 86_400 * SECOND;
        drop(journal);
        // Killed, restarted, and the age has come.
        let mut journal = Journal::reopen(Arc::clone(&storage), config(), later);
        assert_eq!(journal.appender.maintain(later).unwrap(), None);
        journal.sync();
        assert_eq!(journal.appender.window(), (51, 50));
        let names = storage.list().unwrap();
        assert_eq!(names.len(), 1, "{names:?}");
        for name in names {
            let file = storage
                .open(&name, outlive_journal::storage::Access::Read)
                .unwrap();
            let mut bytes = vec![0; 1 << 20];
            let count = file.read_at(&mut bytes, 0).unwrap();
            let found = bytes[..count].windows(6).any(|w| w == b"secret");
            assert!(!found, "the bytes are gone from the disk");
        }
        drop(journal);
        let mut journal = Journal::reopen(Arc::clone(&storage), config(), later);
        journal.sync();
        assert_eq!(journal.appender.window(), (51, 50));
        assert_eq!(Reader::on(storage).window().unwrap(), (51, 50));
        assert_eq!(journal.event(b"next"), 51);
    });
}

#[test]
fn age_is_due_when_it_says() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    journal.output(b"x");
    journal.sync();
    let written = journal.now;
    let mut now = written;
    let mut calls = 0;
    while let Some(due) = journal.appender.maintain(now).unwrap() {
        assert!(due > now, "time goes on");
        now = due;
        journal.sync();
        calls += 1;
    }
    assert_eq!(now, written + 86_400 * SECOND, "not before, not after");
    assert!(calls <= 4, "{calls} calls");
}

// case S35: a clock that was set back changes nothing; times never go back.
#[test]
fn a_clock_set_back_does_not_hide_new_records() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    journal.event(b"before");
    let mut reader = Reader::on(disk.storage());
    assert_eq!(read_range(&mut reader, 0, 1).len(), 1);
    journal.now -= 3600 * SECOND;
    journal.event(b"after");
    let records = read_range(&mut reader, 1, 2);
    assert_eq!(&*records[0].payload, b"after");
    assert_eq!(records[0].at_nanos, SECOND + 1000);
}

// case S36: pages of every size after every number join without a hole.
#[test]
fn pages_join_wherever_they_are_cut() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(1 << 19));
    for round in 0..300_u32 {
        journal.output(&vec![b'x'; usize::try_from(round % 700).unwrap() + 1]);
    }
    let mut reader = Reader::on(disk.storage());
    for after in 0..300 {
        for (bytes, count) in [(0, 1), (1, 1), (1000, 100), (1 << 20, 3)] {
            let page = reader.read_after(after, 300, bytes, count).unwrap();
            let last = page.last().unwrap().seq;
            assert!(check_whole(&page, after + 1, last).is_empty());
            assert!(page.len() <= count);
        }
    }
}

#[test]
fn a_position_deep_in_a_large_segment_is_found_by_the_index() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    for round in 0..20_000_u32 {
        journal.output(format!("{round:150}").as_bytes());
    }
    for after in [0, 1, 777, 9_999, 19_998, 19_999] {
        let mut reader = Reader::on(disk.storage());
        let page = reader.read_after(after, 20_000, 1, 1).unwrap();
        assert_eq!(page[0].seq, after + 1);
        assert_eq!(&*page[0].payload, format!("{after:150}").as_bytes());
    }
}

#[test]
fn wrong_batches_are_refused_and_leave_nothing() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    let a = &mut journal.appender;
    let mut reserved = event(b"x");
    reserved.kind = 0xF0;
    let refused = a.append(2, Durability::WithGroup, &[event(b"x"), reserved], b"");
    assert!(matches!(refused, Err(AppendError::ReservedKind(0xF0))));
    let refused = a.append(2, Durability::WithGroup, &[], b"");
    assert!(matches!(refused, Err(AppendError::BatchSize(0))));
    let long = vec![0; 1 << 24];
    let refused = a.append(2, Durability::WithGroup, &[event(&long)], b"");
    assert!(matches!(refused, Err(AppendError::TooLong(_))));
    let refused = a.append(2, Durability::WithGroup, &[event(b"x")], &long);
    assert!(matches!(refused, Err(AppendError::TooLong(_))));
    assert_eq!(a.last_seq(), 0);
    let largest = vec![7; (1 << 24) - 1];
    journal.event(&largest);
    assert_eq!(&*read_all(disk.storage())[0].payload, &*largest);
}

#[test]
fn a_lease_is_renewed_long_before_it_ends() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(1 << 20));
    let batch = vec![event(b""); 4096];
    for round in 1..=100_u64 {
        let a = &mut journal.appender;
        a.append(2, Durability::WithGroup, &batch, b"").unwrap();
        sync(a);
        assert_eq!(
            a.published(),
            round * 4096,
            "publishing never waits for a lease"
        );
    }
}

#[test]
fn an_empty_directory_is_no_journal() {
    let disk = SimDisk::new();
    let opened = Appender::open(disk.storage(), config(), 1);
    assert!(matches!(opened, Err(OpenError::Empty)));
    assert!(matches!(recover_from(&disk), Err(OpenError::Empty)));
    assert!(matches!(
        Reader::on(disk.storage()).window(),
        Err(ReadError::Empty)
    ));
}

#[test]
fn a_file_is_replaced_in_one_step() {
    on_both(|storage| {
        replace_file(&*storage, "owner", b"first").unwrap();
        replace_file(&*storage, "owner", b"second").unwrap();
        let file = storage
            .open("owner", outlive_journal::storage::Access::Read)
            .unwrap();
        let mut bytes = [0; 16];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 6);
        assert_eq!(storage.list().unwrap(), ["owner"]);
    });
}

/// A segment of 2 MiB of small records behind one event.
fn long_segment() -> SimDisk {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    journal.event(b"state 1");
    for round in 0..20_000_u32 {
        journal.output(format!("{round:64}").as_bytes());
    }
    journal.sync();
    disk
}

// Reopening took as long as its last segment was full: 3 ms for 4 MiB of records of 64 bytes.
#[test]
fn opening_reads_the_end_of_a_long_segment_only() {
    let disk = long_segment();
    let opened = reopen(disk.storage(), config(), SECOND);
    let frame_bytes = 96;
    assert!(opened.records.len() as u64 <= RESUME_SPACING_BYTES / frame_bytes + 1);
    assert!(!opened.records.is_empty());
    assert_eq!(opened.appender.last_seq(), 20_001);
    assert_eq!(state_of(&opened), b"state 1");
    assert!(opened.damage.findings.is_empty());
    assert!(opened.unread.unwrap().check().unwrap().findings.is_empty());
    // All of it is served, and what comes next continues it.
    let mut journal = Journal {
        appender: opened.appender,
        now: 2 * SECOND,
    };
    journal.output(b"next");
    journal.sync();
    let records = read_all(disk.storage());
    assert!(check_whole(&records, 1, 20_002).is_empty());
    // The logical bytes are those of a walk over everything.
    let whole: u64 = records.iter().map(|it| it.payload.len() as u64).sum();
    assert_eq!(journal.appender.retained_bytes(), whole);
    // Another boot reads from the beginning, and comes to the same.
    let other = Config {
        boot_id: BOOT_B,
        ..config()
    };
    let opened = reopen(disk.storage(), other, SECOND);
    assert!(opened.unread.is_none());
    assert_eq!(opened.records.len(), 20_001);
    let gap_over_the_lease = 16;
    assert_eq!(opened.appender.retained_bytes(), whole + gap_over_the_lease);
}

#[test]
fn a_place_to_begin_that_does_not_hold_is_passed_over() {
    // The slot itself, then the lease that it names, then the checkpoint behind that.
    for damage in 0..3 {
        let disk = long_segment();
        let mut files = disk.files();
        let bytes = &mut files[0].1;
        let named = u64::from_le_bytes(bytes[304..312].try_into().unwrap());
        let named = usize::try_from(named).unwrap();
        bytes[[290, named + 8, named + 32 + 8][damage]] ^= 1;
        let disk = SimDisk::with_files(&files);
        let opened = reopen(disk.storage(), config(), SECOND);
        assert!(opened.unread.is_none());
        assert_eq!(opened.appender.last_seq(), 20_001);
        assert_eq!(state_of(&opened), b"state 1");
    }
}
