//! A crash after every single change of the disk: killed, torn, or without power.
//!
//! A script of random steps runs until the disk stops; then the disk comes back as the crash
//! left it and the journal is opened. What must hold is said in `check_kill` and
//! `check_power_loss`. Numbers of crashes are printed.

use std::collections::BTreeMap;

use outlive_journal::{
    AppendError, Appender, Config, Durability, NewRecord, OpenError, Reader, Record,
    sim::{Crash, Random, SimDisk},
};

use crate::common::{
    BOOT_B, EVENT, OUTPUT, SECOND, check_whole, config, kept, read_range, reopen, state_of,
};

/// What the outside knows of a journal.
#[derive(Debug, Default, Clone)]
struct World {
    /// Everything whose append returned.
    written: BTreeMap<u64, Vec<u8>>,
    /// The newest event of it: the state.
    state: Vec<u8>,
    /// Highest number that a reader was ever allowed to see.
    seen: u64,
    /// Class A records whose sync returned.
    acknowledged: Vec<u64>,
    unsynced: Vec<u64>,
    /// Retention may have removed what is before.
    earliest: u64,
    counter: u64,
}

struct Script {
    random: Random,
    now: i64,
}

impl Script {
    fn step(&mut self, a: &mut Appender, world: &mut World) -> Result<(), AppendError> {
        self.now += i64::try_from(self.random.below(1_000_000)).unwrap();
        match self.random.below(16) {
            0..4 => self.batch(a, world)?,
            4..8 => self.output(a, world)?,
            8..11 => self.splice(a, world)?,
            11..14 => sync_in_world(a, world)?,
            14 => {
                a.maintain(self.now)?;
            }
            _ => match self.random.below(3) {
                0 => a.seal(self.now)?,
                1 => {
                    let state = world.state.clone();
                    a.put_checkpoint(self.now, &state)?;
                }
                _ => {
                    if let Some(garbage) = a.take_garbage() {
                        // The files may go at any time; a failure only leaves them there.
                        if let Err(error) = garbage.remove() {
                            return Err(AppendError::Broken(std::sync::Arc::new(error)));
                        }
                    }
                }
            },
        }
        world.note(a);
        Ok(())
    }

    fn payload(&mut self, world: &mut World, len_max: u64) -> Vec<u8> {
        world.counter += 1;
        let mut payload = format!("{:08}:", world.counter).into_bytes();
        let len = self.random.below(len_max);
        payload.resize(payload.len() + usize::try_from(len).unwrap(), b'#');
        payload
    }

    fn batch(&mut self, a: &mut Appender, world: &mut World) -> Result<(), AppendError> {
        let count = 1 + self.random.below(3);
        let payloads: Vec<_> = (0..count).map(|_| self.payload(world, 3000)).collect();
        let records: Vec<_> = payloads
            .iter()
            .map(|payload| NewRecord {
                kind: EVENT,
                stream: 0,
                attempt: 1,
                payload,
            })
            .collect();
        let durability = if self.random.below(2) == 0 {
            Durability::BeforePublish
        } else {
            Durability::WithGroup
        };
        let state = payloads.last().unwrap().clone();
        let range = a.append(self.now, durability, &records, &state)?;
        if durability == Durability::BeforePublish {
            world.unsynced.extend(range.clone());
        }
        world.state = state;
        for (seq, payload) in range.zip(payloads) {
            assert!(
                world.written.insert(seq, payload).is_none(),
                "{seq} is used twice"
            );
        }
        Ok(())
    }

    fn output(&mut self, a: &mut Appender, world: &mut World) -> Result<(), AppendError> {
        let payload = self.payload(world, 20_000);
        let done = a.append_output(self.now, OUTPUT, 1, 1, &payload)?;
        assert!(world.written.insert(done.seq, payload).is_none());
        Ok(())
    }

    fn splice(&mut self, a: &mut Appender, world: &mut World) -> Result<(), AppendError> {
        let payload = self.payload(world, 9000);
        let cancel = self.random.below(4) == 0;
        let frame = a.begin_output(self.now, OUTPUT, 0, 1)?;
        let written = frame.file().write_all_at(&payload, &[], frame.offset());
        if cancel {
            return frame.cancel();
        }
        if written.is_err() {
            drop(frame);
            return Err(AppendError::Full); // The disk has stopped.
        }
        let done = frame.commit(u32::try_from(payload.len()).unwrap())?;
        assert!(world.written.insert(done.seq, payload).is_none());
        Ok(())
    }
}

fn sync_in_world(a: &mut Appender, world: &mut World) -> Result<(), AppendError> {
    let Some(point) = a.sync_point()? else {
        return Ok(());
    };
    if let Err(error) = point.sync() {
        a.sync_failed(error);
        return a.sync_point().map(|_| ());
    }
    a.synced(&point);
    world.acknowledged.extend(
        world
            .unsynced
            .extract_if(.., |seq| *seq <= point.up_to_seq()),
    );
    Ok(())
}

impl World {
    fn note(&mut self, a: &Appender) {
        let (earliest, latest) = a.window();
        self.seen = self.seen.max(latest);
        self.earliest = self.earliest.max(earliest);
    }
}

/// Runs a script until it ends or the disk stops. `world` may come from before.
fn run(disk: &SimDisk, mut a: Appender, world: &mut World, seed: u64, steps: u32, now: i64) {
    let mut script = Script {
        random: Random(seed),
        now,
    };
    for _ in 0..steps {
        match script.step(&mut a, world) {
            Ok(()) => {}
            Err(AppendError::Broken(_) | AppendError::Full) => return,
            Err(error) => panic!("{error} at change {}", disk.operations()),
        }
    }
}

fn start(disk: &SimDisk, config: Config, world: &mut World, seed: u64, steps: u32) {
    world.earliest = 1;
    if let Ok(a) = Appender::create(disk.storage(), config, SECOND, b"") {
        run(disk, a, world, seed, steps, SECOND);
    }
}

fn served(disk: &SimDisk, earliest: u64, latest: u64) -> Vec<Record> {
    let mut reader = Reader::on(disk.storage());
    read_range(&mut reader, earliest - 1, latest)
}

/// A kill loses nothing that was written and skips no number.
fn check_kill(disk: &SimDisk, config: Config, world: &mut World, seed: u64) -> Option<Appender> {
    let last = world.written.keys().next_back().copied().unwrap_or(0);
    let Ok(mut opened) = Appender::open(disk.storage(), config, SECOND) else {
        assert_eq!(last, 0, "seed {seed}: a journal with records opens");
        return None;
    };
    assert!(!opened.damage.is_loss(), "seed {seed}: {:?}", opened.damage);
    let state = state_of(&opened);
    let mut a = opened.appender;
    let reached = a.last_seq();
    assert!(
        reached >= last,
        "seed {seed}: {last} was written, {reached} is there"
    );
    assert!(
        reached <= last + 3,
        "seed {seed}: one batch or frame more at most"
    );
    if reached == last {
        assert_eq!(state, world.state, "seed {seed}");
    }
    a.put_checkpoint(SECOND, &state).unwrap();
    let (earliest, _) = a.window();
    let earliest = earliest.max(world.earliest);
    let records = served(disk, earliest, reached);
    assert!(
        check_whole(&records, earliest, reached).is_empty(),
        "seed {seed}"
    );
    check_contents(&records, world, seed);
    opened.records.clear();
    // What the interrupted call wrote counts now.
    for record in records.iter().filter(|record| record.seq > last) {
        world.written.insert(record.seq, record.payload.to_vec());
    }
    world.state = state;
    world.unsynced.clear();
    Some(a)
}

/// A power loss loses no acknowledged class A record and uses no seen number again.
fn check_power_loss(
    disk: &SimDisk,
    config: Config,
    world: &mut World,
    seed: u64,
) -> Option<Appender> {
    if let Err(error) = Appender::open(disk.image(Crash::Kill).storage(), config, SECOND) {
        assert!(matches!(error, OpenError::Empty), "seed {seed}: {error}");
        assert_eq!(world.seen, 0, "seed {seed}: it never was");
        return None;
    }
    let opened = reopen(disk.storage(), config, SECOND);
    let a = opened.appender;
    let last = a.last_seq();
    assert!(
        last >= world.seen,
        "seed {seed}: {} was seen, {last} goes on",
        world.seen
    );
    let (head, _) = a.window();
    let earliest = head.max(world.earliest);
    let records = served(disk, earliest, last);
    check_whole(&records, earliest, last);
    check_contents(&records, world, seed);
    for seq in &world.acknowledged {
        if *seq < earliest {
            continue; // Retention.
        }
        let there = records.iter().any(|r| r.seq == *seq && r.gap().is_none());
        assert!(
            there,
            "seed {seed}: acknowledged {seq} is lost\n{:?}",
            opened.damage
        );
    }
    world.written = records
        .iter()
        .filter(|record| record.gap().is_none())
        .map(|record| (record.seq, record.payload.to_vec()))
        .collect();
    world.unsynced.clear();
    Some(a)
}

fn check_contents(records: &[Record], world: &World, seed: u64) {
    for record in records {
        if record.gap().is_none()
            && let Some(payload) = world.written.get(&record.seq)
        {
            assert!(
                record.payload == *payload,
                "seed {seed}: {} changed",
                record.seq
            );
        }
    }
}

const STEPS: u32 = 60;

/// Seeds to run, six unless `OUTLIVE_CRASH_SEEDS` asks for more.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("OUTLIVE_CRASH_SEEDS").map_or(6, |count| count.parse().unwrap());
    0..count
}

fn configs() -> [Config; 2] {
    [config(), kept(96 * 1024)]
}

#[test]
fn a_kill_after_every_change_loses_nothing() {
    let mut crashes = 0;
    for seed in seeds() {
        let config = configs()[usize::try_from(seed % 2).unwrap()];
        let whole = SimDisk::new();
        start(&whole, config, &mut World::default(), seed, STEPS);
        for stop in 1..whole.operations() {
            for tear in [false, true] {
                let disk = SimDisk::new();
                if tear {
                    disk.tear_after(stop);
                } else {
                    disk.stop_after(stop);
                }
                let mut world = World::default();
                start(&disk, config, &mut world, seed, STEPS);
                let image = disk.image(Crash::Kill);
                let id = seed * 1_000_000 + stop;
                if let Some(a) = check_kill(&image, config, &mut world, id) {
                    run(&image, a, &mut world, seed + 77, 15, 2 * SECOND);
                    check_kill(&image.image(Crash::Kill), config, &mut world, id);
                }
                crashes += 1;
            }
        }
    }
    println!("{crashes} kills");
    assert!(crashes > 1000);
}

// case S26: after a power cut, at every point, no number that was seen comes again.
#[test]
fn a_power_cut_after_every_change_loses_no_promise() {
    let mut crashes = 0;
    for seed in seeds() {
        let config = configs()[usize::try_from(seed % 2).unwrap()];
        let whole = SimDisk::new();
        start(&whole, config, &mut World::default(), seed, STEPS);
        for stop in 1..whole.operations() {
            for luck in 0..4 {
                let disk = SimDisk::new();
                if seed % 3 == 2 {
                    disk.separate_names();
                }
                disk.stop_after(stop);
                let mut world = World::default();
                start(&disk, config, &mut world, seed, STEPS);
                let id = (seed * 1_000_000 + stop) * 10 + luck;
                let image = disk.image(Crash::PowerLoss { seed: id });
                let other = Config {
                    boot_id: BOOT_B,
                    generation: 2,
                    ..config
                };
                crashes += 1;
                let Some(a) = check_power_loss(&image, other, &mut world, id) else {
                    continue;
                };
                // Once more, some steps after the first.
                let more = image.operations() + 1 + luck * 7;
                image.stop_after(more);
                run(&image, a, &mut world, seed + 99, 20, 2 * SECOND);
                let again = image.image(Crash::PowerLoss { seed: id + 5 });
                let third = Config {
                    boot_id: [0xC; 16],
                    generation: 3,
                    ..config
                };
                check_power_loss(&again, third, &mut world, id);
                crashes += 1;
            }
        }
    }
    println!("{crashes} power cuts");
    assert!(crashes > 1000);
}

#[test]
fn a_failed_sync_stops_the_appender() {
    let disk = SimDisk::new();
    let mut a = Appender::create(disk.storage(), config(), 1, b"").unwrap();
    disk.fail_syncs();
    let point = a.sync_point().unwrap().unwrap();
    a.sync_failed(point.sync().unwrap_err());
    let refused = a.append_output(2, OUTPUT, 0, 1, b"x");
    assert!(matches!(refused, Err(AppendError::Broken(_))));
    assert_eq!(a.published(), 0);
}
