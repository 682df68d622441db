//! A reader asked for anything: any position, any bound, beside a writer.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use outlive_journal::{Appender, Config, ReadError, Reader, Retention, sim::SimDisk};

fuzz_target!(|data: &[u8]| {
    let config = Config {
        retention: Retention {
            bytes_max: 1 << 17,
            age_max: Duration::from_secs(3600),
        },
        generation: 1,
        boot_id: [1; 16],
        logical_len: |_, len| u64::from(len),
    };
    let disk = SimDisk::new();
    let mut a = Appender::create(disk.storage(), config, 1, b"state").expect("created");
    let mut reader = Reader::on(disk.storage());
    for step in data.chunks_exact(4) {
        let [kind, x, y, z] = *step else { continue };
        let number = u64::from(x) * 65_536 + u64::from(y) * 256 + u64::from(z);
        match kind % 4 {
            0 => {
                a.append_output(1, 6, 0, 1, &vec![z; usize::from(x) * 40 + 1])
                    .expect("appended");
            }
            1 => {
                if let Some(point) = a.sync_point().expect("in order") {
                    point.sync().expect("synced");
                    a.synced(&point);
                }
                if let Some(garbage) = a.take_garbage() {
                    garbage.remove().expect("removed");
                }
            }
            _ => {
                let latest = a.published();
                let after = if kind % 4 == 2 {
                    number % (latest + 2)
                } else {
                    number << 40
                };
                let count = usize::from(z) + 1;
                match reader.read_after(after, latest, number as usize, count) {
                    Ok(records) => {
                        assert!(records.len() <= count);
                        for (record, seq) in records.iter().zip(after + 1..) {
                            assert_eq!(record.seq, seq);
                            assert!(record.gap().is_none());
                        }
                        assert_eq!(records.is_empty(), after == latest);
                    }
                    Err(ReadError::Expired { earliest }) => assert!(after + 1 < earliest),
                    Err(ReadError::Ahead { latest: last }) => assert!(after > last),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
});
