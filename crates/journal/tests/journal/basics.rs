//! What a journal promises while nothing goes wrong: records, frames, syncs, segments.

use std::sync::Arc;

use crate::common::{
    EVENT, Journal, OUTPUT, SECOND, check_whole, config, event, kept, on_both, read_all,
    read_range, sync,
};
use outlive_journal::{
    AppendError, Appender, Durability, FileStorage, Reader, replace_file, sim::SimDisk,
};

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
