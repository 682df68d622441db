//! Readers: which records come after which cursor.

use std::sync::Arc;

use crate::common::{Journal, SECOND, check_whole, config, kept, on_both, read_range};
use outlive_journal::{ReadError, Reader, sim::SimDisk};

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
