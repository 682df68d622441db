//! What the journal's tests share.

use std::{sync::Arc, time::Duration};

use outlive_journal::{
    Appender, Config, Durability, FileStorage, Gap, NewRecord, Opened, ReadError, Reader, Record,
    Retention, sim::SimDisk, storage::Storage,
};

pub(crate) const OUTPUT: u8 = 6;
pub(crate) const EVENT: u8 = 1;
pub(crate) const SECOND: i64 = 1_000_000_000;
pub(crate) const BOOT_A: [u8; 16] = [0xA; 16];
pub(crate) const BOOT_B: [u8; 16] = [0xB; 16];

pub(crate) fn config() -> Config {
    Config {
        retention: Retention {
            bytes_max: 64 << 20,
            age_max: Duration::from_hours(24),
        },
        generation: 1,
        boot_id: BOOT_A,
        logical_len: |_, len| u64::from(len),
    }
}

pub(crate) fn kept(bytes_max: u64) -> Config {
    Config {
        retention: Retention {
            bytes_max,
            ..config().retention
        },
        ..config()
    }
}

pub(crate) fn event(payload: &[u8]) -> NewRecord<'_> {
    NewRecord {
        kind: EVENT,
        stream: 0,
        attempt: 1,
        payload,
    }
}

/// A journal under test, with the state that its records make: the count of events.
pub(crate) struct Journal {
    pub(crate) appender: Appender,
    pub(crate) now: i64,
}

impl Journal {
    pub(crate) fn create(storage: Arc<dyn Storage>, config: Config) -> Self {
        let mut appender = Appender::create(storage, config, SECOND, b"state 0").unwrap();
        sync(&mut appender);
        Self {
            appender,
            now: SECOND,
        }
    }

    pub(crate) fn reopen(storage: Arc<dyn Storage>, config: Config, now: i64) -> Self {
        let Opened { appender, .. } = reopen(storage, config, now);
        Self { appender, now }
    }

    /// One class B event.
    pub(crate) fn event(&mut self, payload: &[u8]) -> u64 {
        self.now += 1000;
        let range = self
            .appender
            .append(self.now, Durability::WithGroup, &[event(payload)], payload)
            .unwrap();
        *range.end()
    }

    /// Output by the copy path.
    pub(crate) fn output(&mut self, bytes: &[u8]) -> u64 {
        self.now += 1000;
        let done = self.appender.append_output(self.now, OUTPUT, 0, 1, bytes);
        done.unwrap().seq
    }

    pub(crate) fn sync(&mut self) {
        sync(&mut self.appender);
    }
}

/// Opens and hands the checkpoint over, as a driver does.
pub(crate) fn reopen(storage: Arc<dyn Storage>, config: Config, now: i64) -> Opened {
    let mut opened = Appender::open(storage, config, now).unwrap();
    let state = state_of(&opened);
    opened.appender.put_checkpoint(now, &state).unwrap();
    opened
}

/// The state that checkpoint and records make: the payload of the last event.
pub(crate) fn state_of(opened: &Opened) -> Vec<u8> {
    let last = opened.records.iter().rfind(|record| record.kind == EVENT);
    last.map_or_else(
        || opened.checkpoint.clone(),
        |record| record.payload.to_vec(),
    )
}

pub(crate) fn sync(appender: &mut Appender) {
    if let Some(point) = appender.sync_point().unwrap() {
        point.sync().unwrap();
        appender.synced(&point);
    }
    if let Some(garbage) = appender.take_garbage() {
        garbage.remove().unwrap();
    }
}

pub(crate) fn read_all(storage: Arc<dyn Storage>) -> Vec<Record> {
    let mut reader = Reader::on(storage);
    let (earliest, latest) = reader.window().unwrap();
    read_range(&mut reader, earliest - 1, latest)
}

pub(crate) fn read_range(reader: &mut Reader, after: u64, upto: u64) -> Vec<Record> {
    let mut records = Vec::new();
    let mut after = after;
    while after < upto {
        let page = reader.read_after(after, upto, 64 * 1024, 1000).unwrap();
        let Some(last) = page.last() else { break };
        after = last.seq;
        records.extend(page);
    }
    records
}

/// Every number exactly once, gaps counted; returns the gaps.
pub(crate) fn check_whole(records: &[Record], earliest: u64, latest: u64) -> Vec<Gap> {
    let mut next = earliest;
    let mut gaps = Vec::new();
    for record in records {
        if let Some(gap) = record.gap() {
            assert!(gap.from <= next, "gap {gap:?} leaves a hole after {next}");
            gaps.push(gap);
            next = gap.to + 1;
        } else {
            assert_eq!(record.seq, next);
            next += 1;
        }
    }
    assert_eq!(next, latest + 1, "everything up to {latest} is served");
    gaps
}

pub(crate) fn expired(error: &ReadError) -> Option<u64> {
    match error {
        ReadError::Expired { earliest } => Some(*earliest),
        _ => None,
    }
}

/// One suite for both storages: runs a test on the simulated disk and on a real one.
pub(crate) fn on_both(test: fn(Arc<dyn Storage>)) {
    test(SimDisk::new().storage());
    let separate = SimDisk::new();
    separate.separate_names();
    test(separate.storage());
    let directory = tempfile::tempdir().unwrap();
    test(FileStorage::create(&directory.path().join("journal")).unwrap());
}
