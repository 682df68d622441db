//! No space, and a disk that turns read-only: nothing is lost, and it goes on.

use std::{process::Command, sync::Arc};

use outlive_journal::{
    AppendError, Durability, FileStorage, Reader, Retention, sim::SimDisk, storage::Storage,
};

use crate::common::{
    Journal, OUTPUT, SECOND, check_whole, config, event, kept, read_all, read_range, reopen,
    state_of,
};

#[test]
fn a_full_disk_takes_nothing_and_goes_on_when_there_is_space() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    disk.set_capacity(Some(256 * 1024));
    let mut written = 0;
    loop {
        match journal
            .appender
            .append_output(journal.now, OUTPUT, 0, 1, &[b'x'; 9000])
        {
            Ok(done) => written = done.seq,
            Err(AppendError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let size = disk.files()[0].1.len();
    assert!(written >= 20);
    // Again and again it is refused, and nothing of it stays.
    for _ in 0..10 {
        let refused = journal
            .appender
            .append_output(journal.now, OUTPUT, 0, 1, &[b'x'; 9000]);
        assert!(matches!(refused, Err(AppendError::Full)));
        let batch = [event(&[0; 5000]), event(&[0; 5000])];
        let refused = journal
            .appender
            .append(2, Durability::BeforePublish, &batch, b"bad");
        assert!(matches!(refused, Err(AppendError::Full)));
    }
    assert_eq!(disk.files()[0].1.len(), size);
    assert_eq!(journal.appender.published(), written);
    // A frame that can't be filled is cancelled or cut short by its owner.
    let mut frames = 0;
    while let Ok(frame) = journal.appender.begin_output(journal.now, OUTPUT, 0, 1) {
        let came = frame
            .file()
            .write_all_at(&[b's'; 5000], &[], frame.offset());
        frames += 1;
        if came.is_err() {
            drop(frame); // What came is kept: it left the pipe.
            break;
        }
        frame.commit(5000).unwrap();
    }
    disk.set_capacity(Some(1 << 20));
    let next = journal.event(b"space again");
    let records = read_all(disk.storage());
    assert!(check_whole(&records, 1, next).is_empty());
    let bytes: usize = records
        .iter()
        .filter(|record| record.payload.starts_with(b"s") && record.kind == OUTPUT)
        .map(|record| record.payload.len())
        .sum();
    assert!(
        frames > 0 && bytes % 5000 < 4096,
        "{bytes} of {frames} frames"
    );
    let opened = reopen(disk.storage(), config(), SECOND);
    assert!(opened.damage.is_empty(), "{:?}", opened.damage);
    assert_eq!(state_of(&opened), b"space again");
}

#[test]
fn a_roll_without_space_stays_in_the_old_segment() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(512 * 1024));
    let mut last = 0;
    // A new segment needs three pages for its checkpoints; the old one can grow by one.
    journal.appender.put_checkpoint(SECOND, &[7; 4000]).unwrap();
    disk.set_capacity(Some(72 * 1024));
    while let Ok(done) = journal
        .appender
        .append_output(SECOND, OUTPUT, 0, 1, &[b'x'; 1000])
    {
        last = done.seq;
    }
    assert_eq!(
        disk.files().len(),
        1,
        "a segment that has no room is not left behind"
    );
    assert!(last > 62, "the old one took more than its target");
    disk.set_capacity(None);
    for _ in 0..200 {
        last = journal.output(&[b'x'; 1000]);
    }
    assert!(disk.files().len() > 2);
    assert!(check_whole(&read_all(disk.storage()), 1, last).is_empty());
}

/// On real files: the kernel refuses what goes beyond the size limit of a process, as it refuses
/// what goes beyond a quota. The limit is set for a second run of this test alone.
#[test]
fn a_file_that_may_not_grow_is_a_full_disk() {
    if let Ok(path) = std::env::var("OUTLIVE_TEST_FULL") {
        fill_as_child(std::path::Path::new(&path));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "trap '' XFSZ; ulimit -f 200; exec \"$0\" --exact --nocapture \
        full::a_file_that_may_not_grow_is_a_full_disk";
    #[expect(
        clippy::disallowed_methods,
        reason = "the limit has to be another process's"
    )]
    let child = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("OUTLIVE_TEST_FULL", directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    assert!(said.contains("full, then whole"), "{said}");
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn fill_as_child(path: &std::path::Path) {
    let storage = FileStorage::open(path).unwrap();
    let mut journal = Journal::create(Arc::clone(&storage), config());
    let mut last = 0;
    loop {
        match journal
            .appender
            .append_output(SECOND, OUTPUT, 0, 1, &[b'x'; 1000])
        {
            Ok(done) => last = done.seq,
            Err(AppendError::Full) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let small = journal
        .appender
        .append_output(SECOND, OUTPUT, 0, 1, b"small");
    if let Ok(done) = small {
        last = done.seq;
    }
    let mut journal = Journal::reopen(Arc::clone(&storage), config(), SECOND);
    assert_eq!(journal.appender.last_seq(), last);
    journal.sync();
    assert!(check_whole(&read_all(storage), 1, last).is_empty());
    assert!(last > 50);
    println!("full, then whole");
}

// case S29: the disk turns read-only while appending; reads go on, and so does the numbering.
#[test]
fn a_disk_that_turns_read_only_keeps_what_was_written() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    for _ in 0..10 {
        journal.event(b"kept");
    }
    disk.set_read_only(true);
    for _ in 0..3 {
        let refused = journal.appender.append_output(SECOND, OUTPUT, 0, 1, b"x");
        assert!(matches!(refused, Err(AppendError::Broken(_))));
    }
    let mut reader = Reader::on(disk.storage());
    assert_eq!(read_range(&mut reader, 0, 10).len(), 10);
    assert_eq!(journal.appender.window(), (1, 10));
    disk.set_read_only(false);
    let refused = journal.appender.append_output(SECOND, OUTPUT, 0, 1, b"x");
    assert!(
        matches!(refused, Err(AppendError::Broken(_))),
        "it stays latched until reopened"
    );
    drop(journal);
    let mut journal = Journal::reopen(disk.storage(), config(), SECOND);
    assert_eq!(journal.event(b"goes on"), 11);
    assert!(check_whole(&read_all(disk.storage()), 1, 11).is_empty());
}

#[test]
fn retention_makes_room_on_a_full_disk() {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), kept(512 * 1024));
    disk.set_capacity(Some(700 * 1024));
    for _ in 0..5000 {
        journal.output(&[b'x'; 1000]);
        if journal.appender.last_seq().is_multiple_of(20) {
            journal.sync();
        }
    }
    assert_eq!(journal.appender.last_seq(), 5000, "it never was full");
    let smaller = Retention {
        bytes_max: 64 * 1024,
        ..config().retention
    };
    journal
        .appender
        .set_retention(journal.now, smaller)
        .unwrap();
    journal.sync();
    let storage: Arc<dyn Storage> = disk.storage();
    assert!(storage.list().unwrap().len() <= 3);
}
