//! A directory that a script of damage was applied to: everything opens, nothing panics.
//!
//! The bytes choose what is done to a good journal of several segments: flip, cut, remove,
//! repeat, rename.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use outlive_journal::{
    Appender, Config, OpenError, Reader, Retention, receipts::{Receipt, Receipts},
    recover_from, sim::SimDisk,
};

fn config() -> Config {
    Config {
        retention: Retention {
            bytes_max: 1 << 16,
            age_max: Duration::from_secs(3600),
        },
        generation: 1,
        boot_id: [1; 16],
        logical_len: |_, len| u64::from(len),
    }
}

fn good() -> Vec<(String, Vec<u8>)> {
    let disk = SimDisk::new();
    let mut a = Appender::create(disk.storage(), config(), 1, b"state").expect("created");
    for round in 0..40 {
        a.append_output(2, 6, 0, 1, &[b'x'; 5000]).expect("appended");
        if round % 10 == 0 {
            a.seal(2).expect("sealed");
        }
    }
    let mut receipts = Receipts::open(disk.storage()).expect("opened");
    for seq in 1..20 {
        receipts.insert(Receipt {
            id: u128::from(seq) << 90,
            digest: seq,
            seq,
            at_nanos: 1,
        });
    }
    receipts.seal(20, 1, 1).expect("sealed");
    disk.files()
}

fuzz_target!(|data: &[u8]| {
    let mut files = good();
    for step in data.chunks_exact(5) {
        let [kind, which, low, high, value] = *step else {
            continue;
        };
        if files.is_empty() {
            break;
        }
        let index = usize::from(which) % files.len();
        let at = usize::from(low) * 256 + usize::from(high);
        let len = files[index].1.len();
        match kind % 5 {
            0 if len > 0 => files[index].1[at % len] ^= value,
            1 => files[index].1.truncate(at % (len + 1)),
            2 => {
                files.remove(index);
            }
            3 => files[index].1.extend_from_slice(&vec![value; at % 5000]),
            _ => files[index].0 = format!("{:012}-{:020}.seg", value, at),
        }
    }
    let disk = SimDisk::with_files(&files);
    match recover_from(&disk) {
        Ok(recovered) => assert!(recovered.earliest <= recovered.latest + 1),
        Err(OpenError::Empty) => {}
        Err(error) => panic!("{error}"),
    }
    let mut reader = Reader::on(disk.storage());
    if let Ok((earliest, latest)) = reader.window() {
        let mut after = earliest - 1;
        while after < latest {
            match reader.read_after(after, latest, 1 << 16, 100) {
                Ok(records) => {
                    let last = records.last().expect("it goes on to the tail").seq;
                    assert!(last > after);
                    after = last;
                }
                Err(_) => break,
            }
        }
    }
    if let Ok(mut opened) = Appender::open(disk.storage(), config(), 3) {
        opened.appender.put_checkpoint(3, b"state").expect("taken");
        opened.appender.maintain(3).expect("maintained");
    }
    if let Ok(receipts) = Receipts::open(disk.storage()) {
        receipts.find(5 << 90).expect("searched");
    }
});
