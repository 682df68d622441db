//! What a journal gives that is opened again: its checkpoint, and what came after.

use std::sync::Arc;

use crate::common::{
    BOOT_B, Journal, SECOND, check_whole, config, event, on_both, read_all, reopen, state_of,
};
use outlive_journal::{
    AppendError, Appender, Config, Durability, OpenError, ReadError, Reader,
    limits::RESUME_SPACING_BYTES, recover_from, sim::SimDisk,
};

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
