//! What is kept, by bytes and by age, and what goes.

use std::{sync::Arc, time::Duration};

use crate::common::{
    Journal, SECOND, check_whole, config, expired, kept, on_both, read_all, read_range,
};
use outlive_journal::{Reader, Retention, sim::SimDisk};

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
