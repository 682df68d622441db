//! Damaged, torn and missing files: each costs what it held and nothing else.

use std::sync::Arc;

use outlive_journal::{
    Appender, Config, Damage, Durability, Reader, Record, recover_from,
    sim::{Crash, SimDisk},
};

use crate::common::{
    BOOT_B, Journal, OUTPUT, SECOND, check_whole, config, event, kept, read_all, read_range,
    reopen, state_of,
};

type Files = Vec<(String, Vec<u8>)>;

/// Two generations, so two segments; eight records in each.
fn small_journal() -> (Files, Vec<Record>) {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    for generation in 1..=2 {
        for round in 0..4 {
            journal.event(format!("event {generation} {round}").as_bytes());
            journal.output(&vec![b'.'; round * 17 + 1]);
        }
        journal.sync();
        if generation == 1 {
            let next = Config {
                generation: 2,
                ..config()
            };
            journal = Journal::reopen(disk.storage(), next, journal.now);
        }
    }
    (disk.files(), read_all(disk.storage()))
}

fn second() -> Config {
    Config {
        generation: 2,
        ..config()
    }
}

/// Records that are served of what was written, when `upto` was published.
fn lost(files: &Files, written: &[Record]) -> usize {
    let disk = SimDisk::with_files(files);
    let latest = written.len() as u64;
    let mut reader = Reader::on(disk.storage());
    let records = read_range(&mut reader, 0, latest);
    let gaps = check_whole(&records, 1, latest);
    for record in records.iter().filter(|record| record.gap().is_none()) {
        let original = &written[usize::try_from(record.seq).unwrap() - 1];
        assert_eq!(record, original);
    }
    gaps.iter()
        .map(|gap| usize::try_from(gap.to - gap.from + 1).unwrap())
        .sum()
}

// Invariant 5: a damaged byte costs its frame, reported as a gap, wherever it is.
#[test]
fn any_flipped_byte_costs_one_record_at_most() {
    let (files, written) = small_journal();
    assert_eq!(files.len(), 2);
    assert_eq!(written.len(), 16);
    let mut flips = 0;
    let mut costly = 0;
    for index in 0..files.len() {
        for at in 0..files[index].1.len() {
            for mask in [0x01, 0x80, 0xFF] {
                let mut damaged = files.clone();
                damaged[index].1[at] ^= mask;
                let lost = lost(&damaged, &written);
                assert!(lost <= 1, "file {index} byte {at}: {lost} records lost");
                costly += lost;
                check_opening(&damaged, lost, &written);
                flips += 1;
            }
        }
    }
    println!("{flips} flips, {costly} of them cost a record");
    assert!(costly > 500);
}

fn check_opening(files: &Files, lost: usize, written: &[Record]) {
    let disk = SimDisk::with_files(files);
    let recovered = recover_from(&disk).unwrap();
    let mut opened = Appender::open(disk.storage(), second(), 9 * SECOND).unwrap();
    let state = state_of(&opened);
    assert!(opened.appender.last_seq() >= written.len() as u64 - 1);
    if lost == 0 {
        assert_eq!(state, b"event 2 3", "{:?}", opened.damage);
    }
    assert_eq!(recovered.checkpoint, opened.checkpoint);
    let a = &mut opened.appender;
    a.put_checkpoint(9 * SECOND, &state).unwrap();
    let seq = a
        .append(
            9 * SECOND,
            Durability::WithGroup,
            &[event(b"next")],
            b"next",
        )
        .unwrap();
    // The writer may not see that the last frame is gone only in one way: by jumping ahead.
    assert!(
        *seq.start() > written.len() as u64,
        "no number is used again"
    );
    let mut reader = Reader::on(disk.storage());
    let records = read_range(&mut reader, 0, *seq.end());
    let gaps = check_whole(&records, 1, *seq.end());
    assert!(gaps.len() <= 2);
    assert_eq!(records.last().unwrap().payload, b"next".as_slice());
}

// case S28: one bit in the middle of a large segment.
#[test]
fn one_bit_in_a_large_segment_costs_one_of_twenty_thousand() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    for round in 0..20_000_u32 {
        journal.output(format!("{round:100}").as_bytes());
    }
    let mut files = disk.files();
    let middle = files[0].1.len() / 2;
    files[0].1[middle] ^= 4;
    let disk = SimDisk::with_files(&files);
    let mut reader = Reader::on(disk.storage());
    let records = read_range(&mut reader, 0, 20_000);
    let gaps = check_whole(&records, 1, 20_000);
    assert_eq!(gaps.len(), 1);
    assert_eq!(gaps[0].from, gaps[0].to);
    // It is before the place where opening begins to read: found by looking at the rest.
    let opened = reopen(disk.storage(), config(), SECOND);
    assert!(opened.damage.findings.is_empty());
    let looked = opened.unread.unwrap().check().unwrap();
    assert!(looked.findings.contains(&Damage::Lost(gaps[0])));
    assert_eq!(
        opened.appender.last_seq(),
        20_000,
        "no jump: the tail is whole"
    );
    // Another boot can't know what is missing, and reads everything at once.
    let other = Config {
        boot_id: BOOT_B,
        ..config()
    };
    let opened = reopen(disk.storage(), other, SECOND);
    assert!(opened.damage.findings.contains(&Damage::Lost(gaps[0])));
}

#[test]
fn a_tail_cut_at_any_byte_reuses_no_number_after_another_boot() {
    let (files, written) = small_journal();
    let other = Config {
        boot_id: BOOT_B,
        generation: 3,
        ..config()
    };
    for len in 0..files[1].1.len() {
        let mut cut = files.clone();
        cut[1].1.truncate(len);
        let disk = SimDisk::with_files(&cut);
        let mut opened = reopen(disk.storage(), other, 9 * SECOND);
        let seq = opened.appender.append(
            9 * SECOND,
            Durability::WithGroup,
            &[event(b"next")],
            b"next",
        );
        let seq = *seq.unwrap().start();
        assert!(
            seq > written.len() as u64,
            "cut at {len}: {seq} is used again"
        );
        let mut reader = Reader::on(disk.storage());
        let records = read_range(&mut reader, 0, seq);
        check_whole(&records, 1, seq);
        let last = recover_from(&disk).unwrap();
        assert_eq!(last.latest, seq);
    }
}

#[test]
fn a_batch_cut_anywhere_is_gone_as_a_whole_on_the_same_boot() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    journal.event(b"before");
    let before = disk.files()[0].1.len();
    let batch = [event(b"one"), event(b"two"), event(b"three")];
    let a = &mut journal.appender;
    a.append(SECOND, Durability::WithGroup, &batch, b"three")
        .unwrap();
    let whole = disk.files();
    for len in before..whole[0].1.len() {
        let mut cut = whole.clone();
        cut[0].1.truncate(len);
        let opened = reopen(SimDisk::with_files(&cut).storage(), config(), SECOND);
        if opened.appender.last_seq() == 1 {
            assert_eq!(state_of(&opened), b"before", "cut at {len}");
        } else {
            // A cut inside a header is nothing that a kill leaves.
            assert!(
                (len - before.next_multiple_of(32)) % 64 < 32,
                "cut at {len}"
            );
        }
    }
}

fn many_segments() -> (SimDisk, u64) {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(512 * 1024));
    for round in 0..60 {
        journal.event(format!("state {round}").as_bytes());
        journal.output(&[b'x'; 5000]);
    }
    journal.sync();
    (disk, 120)
}

// case S33: the newest segment is gone.
#[test]
fn without_its_newest_segment_a_journal_goes_on_behind_the_lease() {
    let (disk, latest) = many_segments();
    let mut files = disk.files();
    assert!(files.len() >= 4);
    files.pop();
    for boot_id in [config().boot_id, BOOT_B] {
        let disk = SimDisk::with_files(&files);
        let config = Config {
            boot_id,
            ..kept(512 * 1024)
        };
        let mut opened = reopen(disk.storage(), config, SECOND);
        assert!(opened.damage.is_loss());
        let a = &mut opened.appender;
        let next = a
            .append(SECOND, Durability::WithGroup, &[event(b"next")], b"next")
            .unwrap();
        assert!(*next.start() > latest, "{next:?}");
        let mut reader = Reader::on(disk.storage());
        let records = read_range(&mut reader, 0, *next.end());
        let gaps = check_whole(&records, 1, *next.end());
        assert_eq!(gaps.len(), 1);
        assert_eq!(gaps[0].to + 1, *next.start());
    }
}

#[test]
fn without_a_middle_segment_its_range_is_one_gap() {
    let (disk, latest) = many_segments();
    let mut files = disk.files();
    files.remove(1);
    let disk = SimDisk::with_files(&files);
    let mut reader = Reader::on(disk.storage());
    let records = read_range(&mut reader, 0, latest);
    assert_eq!(check_whole(&records, 1, latest).len(), 1);
    let opened = reopen(disk.storage(), kept(512 * 1024), SECOND);
    assert!(
        opened
            .damage
            .findings
            .contains(&Damage::Missing { ordinal: 2 })
    );
    assert_eq!(opened.appender.last_seq(), latest, "the tail is whole");
}

#[test]
fn without_its_oldest_segment_a_journal_begins_later() {
    let (disk, latest) = many_segments();
    let mut files = disk.files();
    files.remove(0);
    let disk = SimDisk::with_files(&files);
    let mut opened = reopen(disk.storage(), kept(512 * 1024), SECOND);
    crate::common::sync(&mut opened.appender);
    let (earliest, last) = opened.appender.window();
    assert!(earliest > 1);
    assert_eq!(last, latest);
    let mut reader = Reader::on(disk.storage());
    assert_eq!(reader.window().unwrap(), (earliest, latest));
    let records = read_range(&mut reader, earliest - 1, latest);
    assert!(check_whole(&records, earliest, latest).is_empty());
    let answer = reader.read_after(0, latest, 10, 10).unwrap_err();
    assert_eq!(crate::common::expired(&answer), Some(earliest));
}

#[test]
fn a_journal_of_which_nothing_can_be_read_still_opens() {
    let (disk, latest) = many_segments();
    let files: Files = disk
        .files()
        .into_iter()
        .map(|(name, bytes)| (name, vec![0xEE; bytes.len()]))
        .collect();
    let disk = SimDisk::with_files(&files);
    let mut opened = reopen(disk.storage(), kept(512 * 1024), SECOND);
    assert!(opened.damage.findings.contains(&Damage::CheckpointLost));
    let a = &mut opened.appender;
    let next = a
        .append(SECOND, Durability::WithGroup, &[event(b"next")], b"next")
        .unwrap();
    assert!(*next.start() > latest);
    let mut reader = Reader::on(disk.storage());
    let records = read_range(&mut reader, 0, *next.end());
    assert_eq!(check_whole(&records, 1, *next.end()).len(), 1);
    assert!(recover_from(&disk).unwrap().latest >= latest);
}

#[test]
fn output_that_looks_like_a_frame_is_not_taken_for_one() {
    // A workload that knows the format writes frames into its output, in front of a damaged one.
    let disk = SimDisk::new();
    let mut forged = Journal::create(disk.storage(), config());
    for _ in 0..40 {
        forged.event(b"forged");
    }
    let image = disk.files()[0].1.clone();
    let disk = SimDisk::new();
    disk.storage().secret().unwrap(); // Another salt.
    let mut journal = Journal::create(Arc::clone(&disk.storage()), config());
    journal.event(b"before");
    let start = disk.files()[0].1.len();
    journal.output(&image);
    journal.event(b"after");
    for at in (start..start + 64).chain([start + 2000]) {
        let mut files = disk.files();
        files[0].1[at] ^= 1;
        let damaged = SimDisk::with_files(&files);
        let mut reader = Reader::on(damaged.storage());
        let records = read_range(&mut reader, 0, 3);
        check_whole(&records, 1, 3);
        for record in &records {
            assert_ne!(record.payload, b"forged".as_slice(), "byte {at}");
        }
    }
}

#[test]
fn a_frame_left_open_is_completed_on_the_same_boot_and_dropped_on_another() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    journal.event(b"state");
    let frame = journal.appender.begin_output(SECOND, OUTPUT, 1, 3).unwrap();
    frame
        .file()
        .write_all_at(b"half a line", &[], frame.offset())
        .unwrap();
    let image = disk.image(Crash::Kill);
    let opened = reopen(image.storage(), config(), SECOND);
    assert_eq!(
        opened.records.last().unwrap().payload,
        b"half a line".as_slice()
    );
    assert_eq!(opened.records.last().unwrap().attempt, 3);
    let bytes = 11;
    assert_eq!(
        opened.damage.findings,
        [Damage::Completed { seq: 2, bytes }]
    );
    assert_eq!(opened.appender.last_seq(), 2);
    assert_eq!(read_all(image.storage()).len(), 2);
    let other = Config {
        boot_id: BOOT_B,
        ..config()
    };
    let image = disk.image(Crash::Kill);
    let opened = reopen(image.storage(), other, SECOND);
    assert!(opened.damage.findings.contains(&Damage::Dropped { bytes }));
    assert!(opened.appender.last_seq() > 65_536);
}
