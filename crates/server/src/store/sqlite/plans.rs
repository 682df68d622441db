//! How SQLite finds rows: what is asked often never reads all of a table.

use outlive_core::sandbox::Observed;
use sqlx::Row as _;

use super::{super::snapshots, *};

/// The steps of a query, in SQLite's words.
async fn plan(store: &SqliteStore, query: &str) -> String {
    let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {query}"));
    let steps = sqlx::query(explain).fetch_all(&store.pool).await.unwrap();
    let steps = steps.iter().map(|step| step.get::<String, _>("detail"));
    steps.collect::<Vec<_>>().join("; ")
}

/// Ten thousand sandboxes were counted, row by row with all that is in them, for each page of
/// their list; all snapshots were read whenever one was taken.
#[tokio::test]
async fn what_is_asked_often_is_found_by_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&dir.path().join("outlive.db"))
        .await
        .unwrap();
    let owner = Owner::parse("acme").unwrap();
    let all = SandboxFilter::default();
    let some = SandboxFilter {
        observed: vec![Observed::Running, Observed::Frozen],
        template: Some("default".to_owned()),
        hidden: vec![SandboxId::from_bits(1)],
    };
    let of = |query: QueryBuilder<Sqlite>| query.sql().as_str().to_owned();
    let by_owner = "SEARCH sandboxes USING COVERING INDEX sandboxes_by_owner (owner=?)";
    let paged = "SEARCH sandboxes USING INDEX sandboxes_by_owner (owner=?)";
    let expired = format!("SELECT * FROM snapshots WHERE true{}?", snapshots::EXPIRED);
    for (query, expected) in [
        (of(count_of(&owner, &all)), by_owner),
        (of(count_of(&owner, &some)), by_owner),
        // In the order of the index: none is sorted, and none before the page is read.
        (of(page_of(&owner, &all, 200, 9000)), paged),
        (of(page_of(&owner, &some, 200, 9000)), paged),
        (
            expired,
            "SEARCH snapshots USING INDEX snapshots_by_expiry (expires_at<?)",
        ),
        (
            snapshots::NEXT_EXPIRY.to_owned(),
            "SEARCH snapshots USING COVERING INDEX snapshots_by_expiry (expires_at>?)",
        ),
    ] {
        assert_eq!(plan(&store, &query).await, expected, "{query}");
    }
}
