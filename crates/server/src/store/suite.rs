//! What every store must do, as one suite. `open` opens the same, at first empty, store again
//! and again, as a server that restarts does.

use std::collections::BTreeMap;

use outlive_api::{keys::Role, launch::IsolationTier};
use outlive_core::{
    id::{Generation, SandboxId, SnapshotId},
    sandbox::{Desired, Hold, Observed, ReleaseWhy, Sandbox, Stored},
    time::Timestamp,
};

use super::{
    Inserted, KeyRecord, Owner, SandboxFilter, SandboxRecord, SnapshotInserted, SnapshotRecord,
    SnapshotState, Store,
};
use crate::sandboxes::config::SandboxConfig;

pub(super) async fn run<S, F>(open: impl Fn() -> F)
where
    S: Store,
    F: Future<Output = S>,
{
    sandboxes_are_what_was_written(&open).await;
    the_quota_is_one_step_with_the_row(&open().await).await;
    pages_are_ordered_filtered_and_counted(&open().await).await;
    keys_are_found_listed_and_revoked(&open).await;
    snapshots_are_what_was_written(&open).await;
    what_expires_is_found_by_its_time(&open().await).await;
    a_snapshot_s_name_is_its_owner_s_own(&open().await).await;
}

pub(super) fn record(id: u64, owner: &str, created: i64) -> SandboxRecord {
    let at = Timestamp::from_unix_nanos(created);
    SandboxRecord {
        id: SandboxId::from_bits(id),
        owner: Owner::parse(owner).unwrap(),
        template: "default".to_owned(),
        config: SandboxConfig {
            env_vars: BTreeMap::from([("A".to_owned(), "b\n\"'".to_owned())]),
            ttl: Some(5),
            ..SandboxConfig::default()
        },
        state: Sandbox::remembered(Stored {
            desired: Desired::Running,
            observed: Observed::Starting,
            why: None,
            generation: Generation::FIRST,
            claimed_at: at,
            expires_at: Some(Timestamp::from_unix_nanos(created + 5)),
            hard_expires_at: None,
            holds: Vec::new(),
            restoring: None,
        }),
        slot: u16::try_from(id).unwrap(),
        isolation: None,
        created_at: at,
        updated_at: at,
    }
}

async fn sandboxes_are_what_was_written<S: Store, F: Future<Output = S>>(open: impl Fn() -> F) {
    let mut one = record(1, "sandbox-writer", 1_700_000_000_123_456_789);
    let store = open().await;
    assert_eq!(store.insert_sandbox(&one, 10).await.unwrap(), Inserted::Yes);
    let same_id = record(1, "other", 1);
    let mut same_slot = record(2, "other", 1);
    same_slot.slot = one.slot;
    for taken in [same_id, same_slot] {
        assert_eq!(
            store.insert_sandbox(&taken, 10).await.unwrap(),
            Inserted::Collision
        );
    }
    drop(store);

    let store = open().await;
    assert_eq!(store.all_sandboxes().await.unwrap(), vec![one.clone()]);
    one.state.desired = Desired::Released;
    one.state.observed = Observed::Released;
    one.state.why = Some(ReleaseWhy::Ttl);
    one.state.generation = Generation(7);
    one.state.expires_at = None;
    one.state.hard_expires_at = Some(Timestamp::from_unix_nanos(9));
    one.state.holds = vec![Hold {
        id: "hold-1".to_owned(),
        owner: "a \"job\"".to_owned(),
        since: Timestamp::from_unix_nanos(3),
        expires_at: Timestamp::from_unix_nanos(4),
    }];
    one.state.restoring = Some(SnapshotId::from_bits(8));
    one.isolation = Some(IsolationTier::TwoUid);
    one.config.auto_resume = false;
    store.update_sandbox(&one).await.unwrap();
    drop(store);

    let store = open().await;
    assert_eq!(store.all_sandboxes().await.unwrap(), vec![one.clone()]);
    one.state.observed = Observed::Failed;
    store.note_sandbox(&one).await.unwrap();
    drop(store);

    let store = open().await;
    assert_eq!(store.all_sandboxes().await.unwrap(), vec![one.clone()]);
    store.sync_sandboxes().await.unwrap();
    store.remove_sandbox(&one.id).await.unwrap();
    // A late update must not bring it back.
    store.update_sandbox(&one).await.unwrap();
    assert_eq!(store.all_sandboxes().await.unwrap(), vec![]);
    store.check().await.unwrap();
}

async fn the_quota_is_one_step_with_the_row<S: Store>(store: &S) {
    let records: Vec<_> = (0..8).map(|n| record(100 + n, "greedy", 1)).collect();
    let tries = records.iter().map(|r| store.insert_sandbox(r, 3));
    let taken = futures_util::future::join_all(tries)
        .await
        .into_iter()
        .filter(|got| matches!(got, Ok(Inserted::Yes)))
        .count();
    assert_eq!(taken, 3);
    // Somebody else's quota is their own.
    let other = record(200, "modest", 1);
    assert_eq!(
        store.insert_sandbox(&other, 3).await.unwrap(),
        Inserted::Yes
    );
}

async fn pages_are_ordered_filtered_and_counted<S: Store>(store: &S) {
    let owner = Owner::parse("pager").unwrap();
    for n in 0..5_u64 {
        let mut one = record(300 + n, "pager", 50 - i64::try_from(n).unwrap());
        if n % 2 == 0 {
            one.state.observed = Observed::Released;
        }
        if n == 1 {
            one.template = "other".to_owned();
        }
        store.insert_sandbox(&one, 100).await.unwrap();
    }
    let ids = |page: &super::SandboxPage| -> Vec<i64> {
        page.records
            .iter()
            .map(|r| r.created_at.unix_nanos())
            .collect()
    };
    let all = SandboxFilter::default();
    let page = store.page_sandboxes(&owner, &all, 2, 1).await.unwrap();
    assert_eq!((ids(&page), page.total), (vec![47, 48], 5));
    let page = store.page_sandboxes(&owner, &all, 200, 5).await.unwrap();
    assert_eq!((ids(&page), page.total), (vec![], 5));

    let released = SandboxFilter {
        observed: vec![Observed::Released, Observed::Failed],
        ..SandboxFilter::default()
    };
    let page = store
        .page_sandboxes(&owner, &released, 200, 0)
        .await
        .unwrap();
    assert_eq!((ids(&page), page.total), (vec![46, 48, 50], 3));

    let mut other = SandboxFilter {
        template: Some("other".to_owned()),
        ..SandboxFilter::default()
    };
    let page = store.page_sandboxes(&owner, &other, 200, 0).await.unwrap();
    assert_eq!((ids(&page), page.total), (vec![49], 1));
    other.hidden = page.records.into_iter().map(|record| record.id).collect();
    let page = store.page_sandboxes(&owner, &other, 200, 0).await.unwrap();
    assert_eq!((ids(&page), page.total), (vec![], 0));
}

async fn keys_are_found_listed_and_revoked<S: Store, F: Future<Output = S>>(open: impl Fn() -> F) {
    let key = KeyRecord {
        id: "key-1".to_owned(),
        hash: [7; 32],
        owner: Owner::parse("acme").unwrap(),
        role: Role::ReadOnly,
        name: "ci".to_owned(),
        created_at: Timestamp::from_unix_nanos(3),
        expires_at: Some(Timestamp::from_unix_nanos(4)),
        revoked_at: None,
    };
    let store = open().await;
    store.insert_key(&key).await.unwrap();
    store.insert_key(&key).await.unwrap_err();
    assert_eq!(store.key_by_hash(&[8; 32]).await.unwrap(), None);
    assert_eq!(
        store.key_by_hash(&[7; 32]).await.unwrap(),
        Some(key.clone())
    );

    let at = Timestamp::from_unix_nanos(5);
    assert_eq!(store.revoke_key("key-2", at).await.unwrap(), None);
    assert_eq!(store.revoke_key("key-1", at).await.unwrap(), Some([7; 32]));
    drop(store);

    let store = open().await;
    let later = Timestamp::from_unix_nanos(6);
    assert_eq!(
        store.revoke_key("key-1", later).await.unwrap(),
        Some([7; 32])
    );
    let keys = store.all_keys().await.unwrap();
    assert_eq!(keys[0].revoked_at, Some(at), "the first revocation counts");
}

fn snapshot(id: u64, owner: &str, name: Option<&str>) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId::from_bits(id),
        owner: Owner::parse(owner).unwrap(),
        name: name.map(str::to_owned),
        description: None,
        sandbox: SandboxId::from_bits(id % 2),
        template: "default".to_owned(),
        image: None,
        slot: 9,
        state: SnapshotState::Making,
        files: 0,
        bytes: 0,
        created_at: Timestamp::from_unix_nanos(i64::try_from(id).unwrap()),
        expires_at: None,
    }
}

async fn snapshots_are_what_was_written<S: Store, F: Future<Output = S>>(open: impl Fn() -> F) {
    let mut one = snapshot(1 << 32, "keeper", Some("one"));
    one.description = Some("before \"it\" all".to_owned());
    one.expires_at = Some(Timestamp::from_unix_nanos(7));
    let store = open().await;
    let inserted = store.insert_snapshot(&one, 10).await.unwrap();
    assert_eq!(inserted, SnapshotInserted::Yes);
    // One that is being made is nobody's yet.
    let owner = one.owner.clone();
    assert_eq!(store.snapshots_of(&owner, None).await.unwrap(), vec![]);
    one.state = SnapshotState::Ready;
    (one.files, one.bytes) = (3, 4);
    store.update_snapshot(&one).await.unwrap();
    drop(store);

    let store = open().await;
    assert_eq!(store.all_snapshots().await.unwrap(), vec![one.clone()]);
    assert_eq!(store.snapshot(&one.id).await.unwrap(), Some(one.clone()));
    for (sandbox, found) in [(&one.sandbox, 1), (&SandboxId::from_bits(77), 0)] {
        let listed = store.snapshots_of(&owner, Some(sandbox)).await.unwrap();
        assert_eq!(listed.len(), found);
    }
    store.remove_snapshot(&one.id).await.unwrap();
    store.remove_snapshot(&one.id).await.unwrap();
    assert_eq!(store.snapshot(&one.id).await.unwrap(), None);
}

async fn what_expires_is_found_by_its_time<S: Store>(store: &S) {
    for (id, expires_at) in [(11, None), (12, Some(70)), (13, Some(60)), (14, Some(80))] {
        let mut one = snapshot(id << 32, "passing", None);
        one.expires_at = expires_at.map(Timestamp::from_unix_nanos);
        store.insert_snapshot(&one, 10).await.unwrap();
    }
    for (now, expired, next) in [
        (59, vec![], Some(60)),
        (60, vec![13], Some(70)),
        (75, vec![12, 13], Some(80)),
        (80, vec![12, 13, 14], None),
    ] {
        let now = Timestamp::from_unix_nanos(now);
        let found = store.expired_snapshots(now).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|one| one.id).collect();
        let ids = expired
            .into_iter()
            .map(|id: u64| SnapshotId::from_bits(id << 32));
        assert_eq!(found, ids.collect::<Vec<_>>(), "{now:?}");
        let next = next.map(Timestamp::from_unix_nanos);
        assert_eq!(store.next_expiry(now).await.unwrap(), next, "{now:?}");
    }
}

async fn a_snapshot_s_name_is_its_owner_s_own<S: Store>(store: &S) {
    let mut put = Vec::new();
    for record in [
        snapshot(1 << 32, "acme", Some("base")),
        snapshot(1 << 32, "acme", None),
        snapshot(2 << 32, "acme", Some("base")),
        snapshot(3 << 32, "other", Some("base")),
        snapshot(4 << 32, "acme", None),
        snapshot(5 << 32, "acme", None),
        snapshot(6 << 32, "acme", None),
    ] {
        put.push(store.insert_snapshot(&record, 3).await.unwrap());
    }
    let expected = [
        SnapshotInserted::Yes,
        SnapshotInserted::Collision,
        SnapshotInserted::NameTaken,
        SnapshotInserted::Yes,
        SnapshotInserted::Yes,
        SnapshotInserted::Yes,
        SnapshotInserted::OverQuota,
    ];
    assert_eq!(put, expected);
}
