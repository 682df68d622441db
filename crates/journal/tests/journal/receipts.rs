//! Receipts: found for as long as promised, at the same cost however many there are.

use std::{sync::Arc, time::Instant};

use outlive_journal::{
    FileStorage,
    limits::RECEIPTS_MAX,
    receipts::{Receipt, ReceiptError, Receipts},
    sim::{Crash, Random, SimDisk},
};

use crate::common::SECOND;

const DAY: i64 = 24 * 3600 * SECOND;

fn receipt(number: u64) -> Receipt {
    let mut random = Random(number);
    let (high, low) = (random.next_u64(), random.next_u64());
    Receipt {
        id: (u128::from(high) << 64) | u128::from(low),
        digest: number.wrapping_mul(31),
        seq: number,
        at_nanos: i64::try_from(number).unwrap() * SECOND,
    }
}

#[test]
fn receipts_are_found_before_and_after_a_seal_and_an_opening() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    for number in 1..=100 {
        receipts.reserve(SECOND, 1).unwrap();
        receipts.insert(receipt(number));
    }
    assert!(!receipts.is_seal_due(0));
    assert!(receipts.is_seal_due(90));
    receipts.seal(90, SECOND, 1).unwrap();
    let image = disk.image(Crash::PowerLoss { seed: 3 });
    let mut again = Receipts::open(image.storage()).unwrap();
    assert_eq!(again.covered_up_to(), 90);
    for number in 91..=100 {
        again.insert(receipt(number));
    }
    for receipts in [&receipts, &again] {
        for number in 1..=100 {
            assert_eq!(
                receipts.find(receipt(number).id).unwrap(),
                Some(receipt(number))
            );
        }
        assert_eq!(receipts.find(receipt(101).id).unwrap(), None);
    }
}

// A seal waits for the disk; whoever asks for a receipt or brings one doesn't.
#[test]
fn receipts_are_found_and_added_while_others_are_on_their_way_to_the_disk() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    (1..=100).for_each(|number| receipts.insert(receipt(number)));
    let seal = receipts.begin_seal(90).unwrap().unwrap();
    // Nothing was written so far: only `write` touches the disk.
    assert_eq!(receipts.covered_up_to(), 0);
    assert!(receipts.begin_seal(100).unwrap().is_none());
    receipts.reserve(SECOND, 1).unwrap();
    receipts.insert(receipt(101));
    for number in 1..=101 {
        let found = receipts.find(receipt(number).id).unwrap();
        assert_eq!(found, Some(receipt(number)));
    }
    receipts.finish(seal.write(), SECOND, 1).unwrap();
    assert_eq!(
        (receipts.covered_up_to(), receipts.active_count()),
        (90, 11)
    );
    // A write that failed leaves everything as it was, and the next seal takes it up.
    let seal = receipts.begin_seal(101).unwrap().unwrap();
    drop(seal);
    let failed = Err(std::io::ErrorKind::StorageFull.into());
    assert!(receipts.finish(failed, SECOND, 1).is_err());
    receipts.seal(101, SECOND, 1).unwrap();
    assert_eq!(
        (receipts.covered_up_to(), receipts.active_count()),
        (101, 0)
    );
}

#[test]
fn segments_without_inputs_need_no_rescan() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    receipts.seal(5000, SECOND, 1).unwrap();
    assert_eq!(
        Receipts::open(disk.storage()).unwrap().covered_up_to(),
        5000
    );
    receipts.insert(receipt(5001));
    receipts.seal(6000, SECOND, 1).unwrap();
    receipts.seal(9000, SECOND, 1).unwrap();
    let again = Receipts::open(disk.storage()).unwrap();
    assert_eq!(again.covered_up_to(), 9000);
    assert_eq!(again.find(receipt(5001).id).unwrap(), Some(receipt(5001)));
    assert_eq!(disk.files().len(), 2);
}

#[test]
fn many_seals_leave_few_runs_and_lose_nothing() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    for number in 1..=3000 {
        receipts.insert(receipt(number));
        if number % 20 == 0 {
            receipts.seal(number, SECOND, 1).unwrap();
            let runs = disk.files().len();
            assert!(runs <= 9, "{runs} runs");
        }
    }
    assert_eq!(receipts.count(), 3000);
    let again = Receipts::open(disk.storage()).unwrap();
    assert_eq!((again.count(), again.covered_up_to()), (3000, 3000));
    for number in 1..=3000 {
        assert_eq!(
            again.find(receipt(number).id).unwrap(),
            Some(receipt(number))
        );
    }
}

#[test]
fn a_crash_at_every_change_forgets_nothing() {
    let work = |disk: &SimDisk| {
        let Ok(mut receipts) = Receipts::open(disk.storage()) else {
            return 0;
        };
        let mut covered = 0;
        for number in 1..=60 {
            receipts.insert(receipt(number));
            if number % 3 == 0 {
                let sealed = receipts.seal(number - 1, SECOND, 1);
                if sealed.is_err() {
                    return covered;
                }
                covered = receipts.covered_up_to();
            }
        }
        covered
    };
    let whole = SimDisk::new();
    work(&whole);
    let mut crashes = 0;
    for stop in 0..whole.operations() {
        for crash in [
            Crash::Kill,
            Crash::PowerLoss { seed: stop },
            Crash::PowerLoss { seed: stop + 999 },
        ] {
            let disk = SimDisk::new();
            disk.stop_after(stop);
            let covered = work(&disk);
            let image = disk.image(crash);
            let mut receipts = Receipts::open(image.storage()).unwrap();
            assert!(
                receipts.covered_up_to() >= covered,
                "change {stop} {crash:?}"
            );
            for number in receipts.covered_up_to() + 1..=60 {
                receipts.insert(receipt(number));
            }
            for number in 1..=60 {
                let found = receipts.find(receipt(number).id).unwrap();
                assert_eq!(found, Some(receipt(number)), "change {stop} {crash:?}");
            }
            crashes += 1;
        }
    }
    println!("{crashes} crashes of receipts");
}

#[test]
fn the_newest_and_the_youngest_stay_and_the_rest_goes() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    let last = 200_000_u64;
    for number in 1..=last {
        receipts.insert(receipt(number));
        if number % 5000 == 0 {
            // Events are trimmed behind the newest ten thousand.
            receipts
                .seal(
                    number,
                    receipt(number).at_nanos,
                    number.saturating_sub(10_000),
                )
                .unwrap();
        }
    }
    let now = receipt(last).at_nanos;
    for number in (1..=last).step_by(97) {
        let kept = number + 65_536 > last || receipt(number).at_nanos + DAY > now;
        let found = receipts.find(receipt(number).id).unwrap();
        if kept {
            assert_eq!(
                found,
                Some(receipt(number)),
                "{number} of {last} must be kept"
            );
        }
    }
    let count = receipts.count();
    assert!(count < 200_000, "{count} receipts are kept");
    assert!(count >= 86_400, "a day of them");
}

#[test]
fn above_a_million_an_input_is_refused_until_some_may_be_forgotten() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    let count = RECEIPTS_MAX as u64;
    for number in 1..=count {
        receipts.insert(Receipt {
            at_nanos: SECOND,
            ..receipt(number)
        });
        if number % 100_000 == 0 {
            receipts.seal(number, SECOND, 1).unwrap();
        }
    }
    let refused = receipts.reserve(SECOND, count);
    assert!(matches!(
        refused,
        Err(ReceiptError::Full {
            count: RECEIPTS_MAX
        })
    ));
    assert!(
        receipts.find(receipt(1).id).unwrap().is_some(),
        "none is forgotten silently"
    );
    receipts.reserve(2 * DAY, count).unwrap();
    assert_eq!(receipts.count(), 65_536);
    assert!(receipts.find(receipt(count).id).unwrap().is_some());
}

#[test]
fn a_damaged_entry_hides_itself_only() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    for number in 1..=200 {
        receipts.insert(receipt(number));
    }
    receipts.seal(200, SECOND, 1).unwrap();
    let mut files = disk.files();
    files[0].1[64 + 48 * 100 + 3] ^= 0x40;
    let damaged = Receipts::open(SimDisk::with_files(&files).storage()).unwrap();
    let found = (1..=200)
        .filter(|number| damaged.find(receipt(*number).id).unwrap().is_some())
        .count();
    assert_eq!(found, 199);
    files[0].1[20] ^= 1;
    let damaged = Receipts::open(SimDisk::with_files(&files).storage()).unwrap();
    assert_eq!((damaged.damaged_runs(), damaged.covered_up_to()), (1, 0));
}

#[test]
fn hostile_ids_are_found_as_fast() {
    let disk = SimDisk::new();
    let mut receipts = Receipts::open(disk.storage()).unwrap();
    // All in one corner, where a guess by value is always wrong.
    let id = |number: u64| {
        if number == 0 {
            u128::MAX
        } else {
            u128::from(number)
        }
    };
    for number in 0..50_000 {
        receipts.insert(Receipt {
            id: id(number),
            ..receipt(number)
        });
    }
    receipts.seal(50_000, SECOND, 1).unwrap();
    for number in (0..50_000).step_by(371) {
        assert!(receipts.find(id(number)).unwrap().is_some());
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn finding_one_costs_the_same_among_ten_thousands() {
    let directory = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(directory.path()).unwrap();
    let mut receipts = Receipts::open(Arc::clone(&storage)).unwrap();
    let mut figures = Vec::new();
    for number in 1..=100_000_u64 {
        receipts.insert(receipt(number));
        if number % 4096 == 0 {
            receipts.seal(number, SECOND, 1).unwrap();
        }
        if number == 10_000 || number == 100_000 {
            let start = Instant::now();
            for probe in 0..2000 {
                let id = receipt(probe * 7 + 1_000_000).id;
                assert!(receipts.find(id).unwrap().is_none());
            }
            figures.push(start.elapsed().as_nanos() / 2000);
        }
    }
    println!("an unknown id: {figures:?} ns among 10,000 and 100,000");
    assert!(figures[1] < figures[0] * 20 + 50_000, "{figures:?}");
}
