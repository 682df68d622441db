//! Every sequence of requests, deaths, failures and kills of the server, up to a depth. What an
//! effect needs is checked by [`World::check`] whenever one is about to happen; here is what must
//! hold when things came to rest.

use std::collections::HashSet;

use outlive_core::sandbox::{Desired, Effect, Input, Observed, Policy, Presence, ReleaseWhy};

use super::{Disk, Host, Outcome, Server, World, policy, snapshot};

/// One way to go on.
#[derive(Debug, Clone)]
enum Move {
    /// An input whose first effects end so; those after them work.
    Give(Input, [Outcome; 2]),
    /// The runtime dies and the server sees it.
    Die,
    /// The runtime dies and nobody sees it, because the server is killed too.
    DieUnseen,
    /// The server is killed at rest, and the first effects of the next one end so.
    Kill([Outcome; 2]),
    /// Time passes up to the next deadline, with nobody there.
    Tick(Outcome),
}

const OUTCOMES: [Outcome; 5] = [
    Outcome::Works,
    Outcome::Fails,
    Outcome::WorksUnheard,
    Outcome::KilledBefore,
    Outcome::KilledAfter,
];

fn moves() -> Vec<Move> {
    let requests = [
        Input::Wake,
        Input::Resume,
        Input::Suspend,
        Input::Release(ReleaseWhy::Pause),
        Input::Restore(snapshot()),
        Input::Delete,
        Input::DiskOver,
    ];
    let mut moves = vec![
        Move::Die,
        Move::DieUnseen,
        Move::Give(Input::DiskFits, [Outcome::Works; 2]),
    ];
    for request in requests {
        for first in OUTCOMES {
            for second in OUTCOMES {
                moves.push(Move::Give(request.clone(), [first, second]));
            }
        }
    }
    for first in OUTCOMES {
        moves.push(Move::Tick(first));
        moves.extend(OUTCOMES.map(|second| Move::Kill([first, second])));
    }
    moves
}

#[test]
fn whatever_happens_in_any_order_one_runtime_at_most_lives_and_what_was_asked_for_comes_true() {
    let moves = moves();
    let policy = policy();
    let mut seen = HashSet::new();
    let mut layer = vec![World::running(&policy)];
    let mut walked = 0_u64;
    for _depth in 0..7 {
        let mut next = Vec::new();
        for world in layer {
            for step in &moves {
                walked += 1;
                let mut world = world.clone();
                go(&mut world, &policy, step);
                if world.removed {
                    continue;
                }
                check_rest(&world, step);
                check_comes_to_rest(&world, &policy, step);
                if seen.insert(without_time(&world)) {
                    next.push(world);
                }
            }
        }
        layer = next;
    }
    println!("{walked} steps from {} states", seen.len());
    assert!(seen.len() >= 30, "the walk is too small: {}", seen.len());
    // Deep enough: from every state that can be reached every move was made.
    assert_eq!(layer.len(), 0, "states are left that were not walked from");
}

fn go(world: &mut World, policy: &Policy, step: &Move) {
    match step {
        Move::Give(input, outcomes) => {
            if matches!(input, Input::Restore(_)) {
                world.disk = Disk::Own; // Whatever was restored before, it is asked for again.
            }
            let mut left = outcomes.iter();
            let given = world.give_with(policy, input, &mut |_| {
                left.next().copied().unwrap_or(Outcome::Works)
            });
            if given == Ok(Server::Killed) && !world.removed {
                world.restart(policy);
            }
        }
        Move::Die => {
            if world.host != Host::None {
                world.die(policy);
            }
        }
        Move::DieUnseen => {
            world.host = Host::None;
            world.restart(policy);
        }
        Move::Kill(outcomes) => {
            let mut left = outcomes.iter();
            world.restart_with(policy, &mut |_| {
                left.next().copied().unwrap_or(Outcome::Works)
            });
        }
        Move::Tick(outcome) => {
            let quiet = Some(world.now);
            let Some(due) = world.sandbox.next_deadline(policy, world.now, quiet) else {
                return;
            };
            world.now = world.now.max(due);
            let mut first = Some(*outcome);
            let due = Input::DeadlinePassed { quiet_since: quiet };
            let given = world.give_with(policy, &due, &mut |_: Effect| {
                first.take().unwrap_or(Outcome::Works)
            });
            if given == Ok(Server::Killed) && !world.removed {
                world.restart(policy);
            }
        }
    }
}

/// What is shown is what is there.
fn check_rest(world: &World, step: &Move) {
    let sandbox = &world.sandbox;
    if sandbox.known.presence == Presence::Unknown {
        return;
    }
    let told = format!("after {step:?}: {world:?}");
    match sandbox.observed {
        Observed::Running => assert_eq!(world.host, Host::Running, "{told}"),
        Observed::Frozen => assert_eq!(world.host, Host::Frozen, "{told}"),
        Observed::Released | Observed::Failed => assert_eq!(world.host, Host::None, "{told}"),
        Observed::Starting => assert_eq!(sandbox.known.presence, Presence::Absent, "{told}"),
        Observed::Freezing | Observed::Thawing | Observed::Releasing | Observed::Deleting => {
            panic!("at rest in between, {told}")
        }
    }
    assert_eq!(
        sandbox.known.presence == Presence::Present,
        world.host != Host::None,
        "{told}"
    );
}

/// Without any more faults, what was asked for last is reached, by itself.
fn check_comes_to_rest(world: &World, policy: &Policy, step: &Move) {
    let restores = world.sandbox.restoring.is_some();
    let mut world = world.clone();
    for _ in 0..16 {
        let done = world.removed
            || world.sandbox.is_settled()
            // Nobody can start it: it was tried as often as that makes sense.
            || world.sandbox.observed == Observed::Failed;
        if done {
            let restored = world.removed || !restores || world.disk == Disk::Snapshot;
            assert!(restored, "not restored after {step:?}: {world:?}");
            return;
        }
        // Somebody is attached, so that it does not fall asleep meanwhile.
        assert!(world.tick(policy, None), "stuck after {step:?}: {world:?}");
    }
    panic!("no rest after {step:?}: {world:?}");
}

/// Two worlds that differ in numbers that only grow are the same.
fn without_time(world: &World) -> String {
    let sandbox = &world.sandbox;
    let retries = sandbox.next_deadline(&policy(), world.now, None).is_some();
    let ahead = sandbox.generation.0.saturating_sub(world.started.0);
    assert!(
        sandbox.desired != Desired::Deleted || sandbox.observed == Observed::Deleting,
        "{world:?}"
    );
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {retries} {} {}",
        sandbox.desired,
        sandbox.observed,
        sandbox.why,
        sandbox.known.presence,
        world.host,
        world.disk,
        sandbox.restoring,
        ahead.min(1),
        sandbox.known.disk_full,
    )
}
