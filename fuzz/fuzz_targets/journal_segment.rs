//! One segment of any bytes, alone in its directory: it opens, and numbers go forward.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use outlive_journal::{
    Appender, Config, Durability, NewRecord, OpenError, Reader, Retention, recover_from,
    sim::SimDisk,
};

fn config(boot: u8) -> Config {
    Config {
        retention: Retention {
            bytes_max: 1 << 20,
            age_max: Duration::from_secs(3600),
        },
        generation: 1,
        boot_id: [boot; 16],
        logical_len: |_, len| u64::from(len),
    }
}

fuzz_target!(|data: &[u8]| {
    let name = "000000000001-00000000000000000001.seg".to_owned();
    let disk = SimDisk::with_files(&[(name, data.to_vec())]);
    match recover_from(&disk) {
        Ok(recovered) => assert!(recovered.earliest <= recovered.latest + 1),
        Err(OpenError::Empty) => {}
        Err(error) => panic!("{error}"),
    }
    for boot in [0xA, 0xB] {
        let disk = disk.image(outlive_journal::sim::Crash::Kill);
        let mut opened = match Appender::open(disk.storage(), config(boot), 1) {
            Ok(opened) => opened,
            Err(OpenError::Empty) => return,
            Err(error) => panic!("{error}"),
        };
        let a = &mut opened.appender;
        let before = a.last_seq();
        a.put_checkpoint(1, b"state").expect("a checkpoint is taken");
        let record = NewRecord {
            kind: 1,
            stream: 0,
            attempt: 0,
            payload: b"next",
        };
        let range = a
            .append(1, Durability::WithGroup, &[record], b"after")
            .expect("a record is taken");
        assert_eq!(*range.start(), before + 1);
        let mut reader = Reader::on(disk.storage());
        let records = reader
            .read_after(before, before + 1, 1000, 10)
            .expect("it is served");
        assert_eq!(records[0].payload, b"next".as_slice());
    }
});
