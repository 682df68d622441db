//! Journals that older builds wrote: read for ever.
//!
//! `tests/fixtures/v1` was written once by `write_the_fixture` below and never changes. It holds
//! two segments of two generations, a batch, output, a seal, a frame left open, and receipts.

use std::{fs, path::Path};

use outlive_journal::{
    Config, Damage, FORMAT_VERSION, Reader,
    receipts::{Receipt, Receipts},
    recover_from,
    sim::SimDisk,
};

use crate::common::{
    Journal, OUTPUT, SECOND, check_whole, config, event, read_range, reopen, state_of,
};

fn fixture() -> SimDisk {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let mut files = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        files.push((name, fs::read(entry.path()).unwrap()));
    }
    SimDisk::with_files(&files)
}

fn second() -> Config {
    Config {
        generation: 2,
        ..config()
    }
}

const RECEIPT: Receipt = Receipt {
    id: 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10,
    digest: 99,
    seq: 3,
    at_nanos: 5 * SECOND,
};

fn write_the_fixture() -> SimDisk {
    let disk = SimDisk::new();
    let mut journal = Journal::create(disk.storage(), config());
    let batch = [event(b"created"), event(b"starting")];
    let a = &mut journal.appender;
    a.append(
        SECOND,
        outlive_journal::Durability::BeforePublish,
        &batch,
        b"starting",
    )
    .unwrap();
    journal.event(b"input");
    journal.output(b"hello from version one\n");
    journal.appender.seal(journal.now).unwrap();
    journal.sync();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    receipts.insert(RECEIPT);
    receipts.seal(4, SECOND, 1).unwrap();
    let mut journal = Journal::reopen(disk.storage(), second(), journal.now);
    journal.event(b"second generation");
    journal.sync();
    let frame = journal
        .appender
        .begin_output(journal.now, OUTPUT, 1, 2)
        .unwrap();
    frame
        .file()
        .write_all_at(b"left open", &[], frame.offset())
        .unwrap();
    disk
}

#[test]
fn a_journal_of_version_one_is_read_for_ever() {
    let disk = fixture();
    let mut reader = Reader::on(disk.storage());
    assert_eq!(reader.window().unwrap(), (1, 5));
    let records = read_range(&mut reader, 0, 5);
    assert!(check_whole(&records, 1, 5).is_empty());
    let payloads: Vec<_> = records.iter().map(|record| &*record.payload).collect();
    let wanted: [&[u8]; 5] = [
        b"created",
        b"starting",
        b"input",
        b"hello from version one\n",
        b"second generation",
    ];
    assert_eq!(payloads, wanted);
    assert_eq!(recover_from(&disk).unwrap().generation, 2);
    let opened = reopen(disk.storage(), second(), 9 * SECOND);
    assert_eq!(state_of(&opened), b"second generation");
    assert_eq!(
        opened.damage.findings,
        [Damage::Completed { seq: 6, bytes: 9 }]
    );
    let receipts = Receipts::open(disk.storage()).unwrap();
    assert_eq!(receipts.covered_up_to(), 4);
    assert_eq!(receipts.find(RECEIPT.id).unwrap(), Some(RECEIPT));
}

#[test]
fn this_build_still_writes_what_the_fixture_says() {
    assert_eq!(
        FORMAT_VERSION, 1,
        "a new version needs a fixture of its own"
    );
    let disk = write_the_fixture();
    if let Ok(path) = std::env::var("OUTLIVE_WRITE_FIXTURE") {
        fs::create_dir_all(&path).unwrap();
        for (name, bytes) in disk.files() {
            fs::write(Path::new(&path).join(name), bytes).unwrap();
        }
    }
    assert_eq!(disk.files(), fixture().files());
}
