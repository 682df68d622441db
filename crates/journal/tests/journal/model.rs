//! The journal beside the simplest thing that does the same: a list in memory.

use std::time::Duration;

use outlive_journal::{
    Config, Durability, NewRecord, ReadError, Reader, Retention,
    sim::{Crash, SimDisk},
};
use proptest::{collection::vec, prelude::*};

use crate::common::{EVENT, Journal, OUTPUT, SECOND, config};

#[derive(Debug, Clone)]
enum Step {
    Batch(Vec<u16>),
    Output(u16),
    Splice(u16),
    Cancel(u16),
    Wait(u32),
    Maintain,
    Sync,
    Seal,
    Retain(u32, u32),
    Kill,
    NextGeneration,
    Read(u16, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => vec(0..2000_u16, 1..4).prop_map(Step::Batch),
        4 => (1..9000_u16).prop_map(Step::Output),
        4 => (1..9000_u16).prop_map(Step::Splice),
        1 => (0..9000_u16).prop_map(Step::Cancel),
        2 => (1..90_u32).prop_map(Step::Wait),
        1 => Just(Step::Maintain),
        2 => Just(Step::Sync),
        1 => Just(Step::Seal),
        1 => (1..300_000_u32, 1..200_u32).prop_map(|(bytes, age)| Step::Retain(bytes, age)),
        1 => Just(Step::Kill),
        1 => Just(Step::NextGeneration),
        3 => (0..u16::MAX, 1..20_u8).prop_map(|(at, count)| Step::Read(at, count)),
    ]
}

struct Entry {
    kind: u8,
    payload: Vec<u8>,
    at: i64,
    generation: u64,
}

/// The list, with the same rules.
struct Model {
    entries: Vec<Entry>,
    head: usize,
    retention: Retention,
    last_at: i64,
}

impl Model {
    fn push(&mut self, kind: u8, payload: Vec<u8>, now: i64, generation: u64) {
        let at = now.max(self.last_at);
        self.last_at = at;
        self.entries.push(Entry {
            kind,
            payload,
            at,
            generation,
        });
    }

    fn trim(&mut self, now: i64) {
        let age = i64::try_from(self.retention.age_max.as_nanos()).unwrap();
        while let Some(first) = self.entries.get(self.head) {
            let kept: usize = self.entries[self.head..]
                .iter()
                .map(|e| e.payload.len())
                .sum();
            let newest = self.head + 1 == self.entries.len();
            let over = kept as u64 > self.retention.bytes_max && !newest;
            if first.at + age > now && !over {
                break;
            }
            self.head += 1;
        }
    }
}

fn retention(bytes_max: u32, seconds: u32) -> Retention {
    Retention {
        bytes_max: u64::from(bytes_max),
        age_max: Duration::from_secs(u64::from(seconds)),
    }
}

#[derive(Debug, Clone, Copy)]
enum Cancel {
    Yes,
    No,
}

fn fill(len: u16) -> Vec<u8> {
    vec![u8::try_from(len % 251).unwrap(); usize::from(len)]
}

struct Pair {
    disk: SimDisk,
    journal: Journal,
    config: Config,
    model: Model,
    reader: Reader,
}

impl Pair {
    fn new() -> Self {
        let disk = SimDisk::new();
        let config = Config {
            retention: retention(200_000, 120),
            ..config()
        };
        Self {
            journal: Journal::create(disk.storage(), config),
            model: Model {
                entries: Vec::new(),
                head: 0,
                retention: config.retention,
                last_at: SECOND,
            },
            reader: Reader::on(disk.storage()),
            config,
            disk,
        }
    }

    fn apply(&mut self, step: &Step) {
        let now = self.journal.now;
        let generation = self.config.generation;
        match step {
            Step::Batch(lens) => {
                let payloads: Vec<_> = lens.iter().map(|len| fill(*len)).collect();
                let records: Vec<_> = payloads
                    .iter()
                    .map(|payload| NewRecord {
                        kind: EVENT,
                        stream: 0,
                        attempt: 1,
                        payload,
                    })
                    .collect();
                let a = &mut self.journal.appender;
                a.append(now, Durability::BeforePublish, &records, b"state")
                    .unwrap();
                for payload in payloads {
                    self.model.push(EVENT, payload, now, generation);
                }
                self.model.trim(now);
            }
            Step::Output(len) => {
                let payload = fill(*len);
                self.journal
                    .appender
                    .append_output(now, OUTPUT, 0, 1, &payload)
                    .unwrap();
                self.model.push(OUTPUT, payload, now, generation);
                self.model.trim(now);
            }
            Step::Splice(len) => self.splice(*len, now, Cancel::No),
            Step::Cancel(len) => self.splice(*len, now, Cancel::Yes),
            Step::Wait(seconds) => self.journal.now += i64::from(*seconds) * SECOND,
            Step::Maintain => {
                self.journal.appender.maintain(now).unwrap();
                self.model.trim(now);
            }
            Step::Sync => self.journal.sync(),
            Step::Seal => self.journal.appender.seal(now).unwrap(),
            Step::Retain(bytes, seconds) => {
                let kept = retention(*bytes, *seconds);
                self.journal.appender.set_retention(now, kept).unwrap();
                (self.config.retention, self.model.retention) = (kept, kept);
                self.model.trim(now);
            }
            Step::Kill => self.reopen(now),
            Step::NextGeneration => {
                self.config.generation += 1;
                self.reopen(now);
            }
            Step::Read(at, count) => self.compare(usize::from(*at), usize::from(*count)),
        }
    }

    fn reopen(&mut self, now: i64) {
        self.disk = self.disk.image(Crash::Kill);
        self.journal = Journal::reopen(self.disk.storage(), self.config, now);
        self.journal.appender.maintain(now).unwrap();
        self.model.trim(now);
        self.reader = Reader::on(self.disk.storage());
    }

    fn splice(&mut self, len: u16, now: i64, cancel: Cancel) {
        let payload = fill(len);
        let frame = self
            .journal
            .appender
            .begin_output(now, OUTPUT, 0, 1)
            .unwrap();
        frame
            .file()
            .write_all_at(&payload, &[], frame.offset())
            .unwrap();
        match cancel {
            Cancel::Yes => frame.cancel().unwrap(),
            Cancel::No => {
                frame.commit(u32::from(len)).unwrap();
                self.model
                    .push(OUTPUT, payload, now, self.config.generation);
                self.model.trim(now.max(self.model.last_at));
            }
        }
    }

    fn compare(&mut self, at: usize, count: usize) {
        self.journal.sync();
        let latest = self.model.entries.len();
        let window = (self.model.head as u64 + 1, latest as u64);
        assert_eq!(self.journal.appender.window(), window);
        let after = if latest == 0 { 0 } else { at % (latest + 1) };
        let upto = latest as u64;
        let answer = self
            .reader
            .read_after(after as u64, upto, usize::MAX, count);
        let records = match answer {
            Ok(records) => records,
            Err(ReadError::Expired { earliest }) => {
                assert!(after < self.model.head, "{after} isn't before the head");
                assert!(earliest <= window.0);
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let whole = count.min(latest - after);
        if after < self.model.head {
            // A file that the reader held open; the next one was trimmed. What it read is right, and
            // the next call is told so.
            assert!((1..=whole).contains(&records.len()));
        } else {
            assert_eq!(records.len(), whole);
        }
        for (record, index) in records.iter().zip(after..) {
            let entry = &self.model.entries[index];
            assert_eq!(record.seq, index as u64 + 1);
            assert_eq!(record.at_nanos, entry.at);
            assert_eq!(
                (record.kind, record.generation),
                (entry.kind, entry.generation)
            );
            assert!(record.payload == entry.payload);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_journal_is_a_list_with_a_moving_head(steps in vec(step(), 1..120)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.apply(step);
        }
        pair.compare(0, 1);
        pair.compare(pair.model.head, usize::MAX);
    }
}
