//! Stories of single sandboxes.

use std::time::Duration;

use outlive_core::{
    id::Generation,
    sandbox::{
        AutoResume, Desired, Effect, Hold, Input, Observed, Policy, Refusal, ReleaseWhy, Sandbox,
    },
    time::Timestamp,
};

use super::{Disk, Host, Outcome, World, policy, snapshot};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn suspend_and_wake_keep_the_generation_pause_and_resume_do_not() {
    let policy = policy();
    let mut world = World::running(&policy);
    world.give(&policy, &Input::Suspend).unwrap();
    assert_eq!(world.host, Host::Frozen);
    assert_eq!(world.sandbox.observed, Observed::Frozen);
    world.give(&policy, &Input::Suspend).unwrap();
    world.give(&policy, &Input::Wake).unwrap();
    assert_eq!(world.sandbox.generation, Generation::FIRST);
    world
        .give(&policy, &Input::Release(ReleaseWhy::Pause))
        .unwrap();
    assert_eq!(world.host, Host::None);
    // A released sandbox sleeps deeper than a suspend asks for.
    world.give(&policy, &Input::Suspend).unwrap();
    world.give(&policy, &Input::Wake).unwrap();
    assert_eq!(world.sandbox.generation, Generation(2));
}

#[test]
fn without_auto_resume_a_call_thaws_but_does_not_replace() {
    let policy = Policy {
        auto_resume: AutoResume::No,
        ..policy()
    };
    let mut world = World::running(&policy);
    world.give(&policy, &Input::Suspend).unwrap();
    world.give(&policy, &Input::Wake).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Running);
    world
        .give(&policy, &Input::Release(ReleaseWhy::Pause))
        .unwrap();
    assert_eq!(world.give(&policy, &Input::Wake), Err(Refusal::Paused));
    world.give(&policy, &Input::Resume).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Running);
}

#[test]
fn a_frozen_sandbox_that_is_paused_is_released() {
    let policy = policy();
    let mut world = World::running(&policy);
    world.give(&policy, &Input::Suspend).unwrap();
    world
        .give(&policy, &Input::Release(ReleaseWhy::Pause))
        .unwrap();
    assert_eq!(world.host, Host::None);
    assert_eq!(world.sandbox.why, Some(ReleaseWhy::Pause));
}

#[test]
fn a_runtime_lost_while_frozen_waits_for_somebody_who_needs_it() {
    let policy = policy();
    let mut world = World::running(&policy);
    world.give(&policy, &Input::Suspend).unwrap();
    world.die(&policy);
    assert_eq!(world.sandbox.desired, Desired::Released);
    assert_eq!(world.sandbox.why, Some(ReleaseWhy::RuntimeLost));
    world.give(&policy, &Input::Wake).unwrap();
    assert_eq!(world.sandbox.generation, Generation(2));
    assert_eq!(world.sandbox.why, None);
}

#[test]
fn a_workload_that_does_not_stand_still_goes_on() {
    let policy = policy();
    let mut world = World::running(&policy);
    let mut first = Some(Outcome::Fails);
    world
        .give_with(&policy, &Input::Suspend, &mut |_| {
            first.take().unwrap_or(Outcome::Works)
        })
        .unwrap();
    assert_eq!(world.sandbox.observed, Observed::Running);
    assert_eq!(world.host, Host::Running);
}

#[test]
fn nobody_there_for_long_enough_and_it_sleeps_unless_it_is_held() {
    let policy = policy();
    let mut world = World::running(&policy);
    let begun = world.now;
    let asleep = world
        .sandbox
        .sleeps_at(&policy, begun, Some(begun))
        .unwrap();
    assert_eq!(asleep, begun + seconds(900));
    // While somebody is attached there is no such time.
    assert_eq!(world.sandbox.sleeps_at(&policy, begun, None), None);
    let hold = Hold {
        id: "hold-1".to_owned(),
        owner: "ci".to_owned(),
        since: begun,
        expires_at: begun + seconds(3600),
    };
    world.give(&policy, &Input::Hold(hold)).unwrap();
    let asleep = world
        .sandbox
        .sleeps_at(&policy, begun, Some(begun))
        .unwrap();
    assert_eq!(asleep, begun + seconds(3600 + 900));
    let dropped = Input::DropHold("hold-1".to_owned());
    world.give(&policy, &dropped).unwrap();
    assert_eq!(world.give(&policy, &dropped), Err(Refusal::NoHold));
    assert!(world.tick(&policy, Some(begun)));
    assert_eq!(world.now, begun + seconds(900));
    assert_eq!(world.sandbox.observed, Observed::Frozen);
}

#[test]
fn a_wake_gives_it_the_whole_idle_time_again() {
    let policy = policy();
    let mut world = World::running(&policy);
    let begun = world.now;
    assert!(world.tick(&policy, Some(begun)));
    world.now = world.now + seconds(5000);
    world.give(&policy, &Input::Wake).unwrap();
    let asleep = world.sandbox.sleeps_at(&policy, world.now, Some(begun));
    assert_eq!(asleep, Some(world.now + seconds(900)));
}

#[test]
fn deadlines_count_while_it_is_frozen() {
    let policy = Policy {
        ttl: Some(seconds(60)),
        hard_ttl: Some(seconds(600)),
        ..policy()
    };
    let mut world = World::running(&policy);
    let begun = world.now;
    world.give(&policy, &Input::Suspend).unwrap();
    assert!(world.tick(&policy, None));
    assert_eq!(world.now, begun + seconds(60));
    assert_eq!(world.sandbox.why, Some(ReleaseWhy::Ttl));
    assert!(world.tick(&policy, None));
    assert_eq!(world.now, begun + seconds(600));
    assert!(world.removed);
}

#[test]
fn a_sandbox_whose_time_ran_out_gets_it_anew_with_its_resume() {
    let policy = Policy {
        ttl: Some(seconds(60)),
        ..policy()
    };
    let mut world = World::running(&policy);
    assert!(world.tick(&policy, None));
    assert_eq!(world.sandbox.observed, Observed::Released);
    world.now = world.now + seconds(1000);
    world.give(&policy, &Input::Resume).unwrap();
    assert_eq!(world.sandbox.expires_at, Some(world.now + seconds(60)));
    // A thaw is no resume: its deadline stays.
    let due = world.sandbox.expires_at;
    world.give(&policy, &Input::Suspend).unwrap();
    world.now = world.now + seconds(10);
    world.give(&policy, &Input::Resume).unwrap();
    assert_eq!(world.sandbox.expires_at, due);
    world
        .give(&policy, &Input::Refresh(Some(seconds(7))))
        .unwrap();
    assert_eq!(world.sandbox.expires_at, Some(world.now + seconds(7)));
}

#[test]
fn runtimes_that_die_young_are_replaced_later_each_time() {
    let policy = policy();
    let mut world = World::running(&policy);
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let died = world.now;
        world.die(&policy);
        if world.sandbox.observed != Observed::Running {
            assert!(world.tick(&policy, None));
        }
        pauses.push(world.now.since(died));
    }
    assert_eq!(pauses[0], Duration::ZERO);
    assert!(pauses.windows(2).all(|two| two[0] <= two[1]), "{pauses:?}");
    assert!(pauses[5] > seconds(1), "{pauses:?}");
    // One that lived is replaced at once.
    world.now = world.now + seconds(3600);
    world.die(&policy);
    assert_eq!(world.sandbox.observed, Observed::Running);
}

#[test]
fn as_many_holds_as_may_be_and_those_that_ended_do_not_count() {
    let policy = policy();
    let mut world = World::running(&policy);
    let hold = |number: usize, at: Timestamp| {
        Input::Hold(Hold {
            id: format!("hold-{number}"),
            owner: "ci".to_owned(),
            since: at,
            expires_at: at + seconds(60),
        })
    };
    for number in 0..64 {
        world.give(&policy, &hold(number, world.now)).unwrap();
    }
    let refused = world.give(&policy, &hold(64, world.now));
    assert_eq!(refused, Err(Refusal::TooManyHolds(64)));
    world.now = world.now + seconds(61);
    world.give(&policy, &hold(65, world.now)).unwrap();
    assert_eq!(world.sandbox.holds.len(), 1);
}

#[test]
fn a_restore_puts_the_disk_back_and_what_ran_runs_again() {
    let policy = policy();
    let mut world = World::running(&policy);
    world.give(&policy, &Input::Restore(snapshot())).unwrap();
    assert_eq!((world.host, world.disk), (Host::Running, Disk::Snapshot));
    assert_eq!(world.sandbox.generation, Generation(2));
    assert!(world.sandbox.is_settled());
    // What rests is not started for it, and what stands still has no processes to go back to.
    for rest in [Input::Suspend, Input::Release(ReleaseWhy::Pause)] {
        let mut world = World::running(&policy);
        world.give(&policy, &rest).unwrap();
        world.give(&policy, &Input::Restore(snapshot())).unwrap();
        assert_eq!((world.host, world.disk), (Host::None, Disk::Snapshot));
        assert_eq!(world.sandbox.why, Some(ReleaseWhy::Pause));
        assert!(world.sandbox.is_settled());
        world.give(&policy, &Input::Wake).unwrap();
        assert_eq!(world.sandbox.generation, Generation(2));
    }
}

#[test]
fn a_restore_that_can_t_be_done_leaves_the_disk_and_one_that_is_unsure_begins_again() {
    let policy = policy();
    let restore = |world: &mut World, outcome| {
        let mut left = Some(outcome);
        let mut outcome_of = |effect| match effect {
            Effect::Restore => left.take().unwrap_or(Outcome::Works),
            _ => Outcome::Works,
        };
        let restore = Input::Restore(snapshot());
        world.give_with(&policy, &restore, &mut outcome_of).unwrap();
    };
    let mut world = World::running(&policy);
    restore(&mut world, Outcome::Fails);
    assert_eq!((world.host, world.disk), (Host::Running, Disk::Own));
    assert_eq!(world.sandbox.generation, Generation(2));

    let mut world = World::running(&policy);
    restore(&mut world, Outcome::WorksUnheard);
    assert_eq!(world.host, Host::None);
    assert_eq!(world.sandbox.restoring, Some(snapshot()));
    // Nothing is started on it, but deadlines hold and calls finish it.
    assert!(world.tick(&policy, None));
    assert!(world.sandbox.is_settled());
    assert_eq!((world.host, world.disk), (Host::Running, Disk::Snapshot));

    let mut world = World::running(&policy);
    restore(&mut world, Outcome::KilledAfter);
    world.restart(&policy);
    assert!(world.sandbox.is_settled());
    assert_eq!((world.host, world.disk), (Host::Running, Disk::Snapshot));
}

#[test]
fn a_restore_gives_way_to_a_pause_and_to_the_end_of_its_time() {
    let policy = Policy {
        hard_ttl: Some(seconds(600)),
        ..policy()
    };
    let half_restored = || {
        let mut world = World::running(&policy);
        let mut outcome_of = |effect| match effect {
            Effect::Restore => Outcome::WorksUnheard,
            _ => Outcome::Works,
        };
        let restore = Input::Restore(snapshot());
        world.give_with(&policy, &restore, &mut outcome_of).unwrap();
        world
    };
    let mut world = half_restored();
    let pause = Input::Release(ReleaseWhy::Pause);
    world.give(&policy, &pause).unwrap();
    assert_eq!((world.host, world.disk), (Host::None, Disk::Snapshot));
    assert!(world.sandbox.is_settled());

    let mut world = half_restored();
    world.now = world.now + seconds(601);
    assert!(world.tick(&policy, None));
    assert!(world.removed);
}

#[test]
fn what_a_store_keeps_is_enough_for_the_next_server() {
    let policy = policy();
    let mut world = World::running(&policy);
    world.give(&policy, &Input::Suspend).unwrap();
    let before = world.sandbox.clone();
    world.restart(&policy);
    assert_eq!(world.sandbox.observed, before.observed);
    assert_eq!(world.sandbox.generation, before.generation);
    // One made from a fork has a disk and nothing else yet.
    let fork = Sandbox::create_released(world.now, &policy);
    assert_eq!(
        (fork.desired, fork.observed),
        (Desired::Released, Observed::Released)
    );
    assert_eq!(
        fork.next_deadline(&policy, world.now, Some(world.now)),
        None
    );
}

#[test]
fn a_freeze_that_was_not_answered_and_happens_late_is_undone() {
    let policy = policy();
    let mut world = World::running(&policy);
    let nobody_answers = &mut |_| Outcome::Fails;
    world
        .give_with(&policy, &Input::Suspend, nobody_answers)
        .unwrap();
    assert_eq!(world.sandbox.observed, Observed::Thawing);
    // What a supervisor said when it was greeted is from before.
    let answered = Input::Answered {
        generation: world.started,
        frozen: false,
    };
    let decision = world.sandbox.decide(&policy, world.now, &answered).unwrap();
    assert_eq!(decision.effect, Some(Effect::Thaw));
    // The same after one that was for a copy, and is none of the sandbox's own.
    let mut world = World::running(&policy);
    let decision = world.sandbox.decide(&policy, world.now, &Input::NotThawed);
    world.sandbox = decision.unwrap().next;
    let decision = world.sandbox.decide(&policy, world.now, &answered).unwrap();
    assert_eq!(decision.effect, Some(Effect::Thaw));
}

#[test]
fn a_full_disk_stops_it_and_a_resume_gives_it_a_while_to_make_room() {
    let policy = policy();
    let mut world = World::running(&policy);
    world.give(&policy, &Input::DiskOver).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Frozen);
    assert_eq!(world.give(&policy, &Input::Wake), Err(Refusal::DiskFull));
    // Whoever resumes it has a while, and calls get through meanwhile.
    world.give(&policy, &Input::Resume).unwrap();
    let begun = world.now;
    world.now = begun + seconds(59);
    world.give(&policy, &Input::DiskOver).unwrap();
    world.give(&policy, &Input::Wake).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Running);
    world.now = begun + seconds(60);
    world.give(&policy, &Input::DiskOver).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Frozen);
    // Once there is room, it is as if nothing had been.
    world.give(&policy, &Input::DiskFits).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Frozen);
    world.give(&policy, &Input::Wake).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Running);
}

#[test]
fn a_full_disk_lets_a_released_sandbox_be_resumed_and_removed() {
    let policy = policy();
    let mut world = World::running(&policy);
    world.give(&policy, &Input::DiskOver).unwrap();
    let release = Input::Release(ReleaseWhy::Pause);
    world.give(&policy, &release).unwrap();
    assert_eq!(world.give(&policy, &Input::Wake), Err(Refusal::DiskFull));
    world.give(&policy, &Input::Resume).unwrap();
    assert_eq!(world.sandbox.observed, Observed::Running);
    world.give(&policy, &Input::Delete).unwrap();
    assert!(world.removed);
}
