//! The sandbox calls: what they show, and what they refuse.

use super::*;

#[tokio::test]
async fn an_id_that_is_no_text_is_an_unknown_address() {
    let house = House::open(1000).await;
    let admin = house.key("acme", Role::Admin).await;
    for (method, path) in [
        (Method::GET, "/api/v1/sandboxes/%FF"),
        (Method::DELETE, "/v1/keys/%FF"),
        (Method::GET, "/api/v1/sandboxes/%FF/sessions"),
    ] {
        let answer = house.ask(method, path, &admin, NO_BODY).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.code(), "not_found", "{path}");
    }
}

#[tokio::test]
async fn every_client_finds_its_fields_and_its_status() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let id = house.create(&key).await;
    let sandbox = format!("{SANDBOXES}/{id}");
    let shown = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    for field in [
        "id",
        "template_id",
        "team_id",
        "status",
        "paused",
        "auto_resume",
        "pod_name",
        "runtime_id",
        "runtime_generation",
        "claimed_at",
        "created_at",
        "updated_at",
        "expires_at",
        "hard_expires_at",
    ] {
        assert!(!shown.data()[field].is_null(), "{field}");
    }
    assert_eq!(shown.data()["expires_at"], "0001-01-01T00:00:00Z");
    let status = house
        .ask(Method::GET, &format!("{sandbox}/status"), &key, NO_BODY)
        .await;
    assert_eq!(status.data()["user_id"], "acme");

    // Pause, from the client that sends a body; resume raises the generation by one.
    let path = format!("{sandbox}/pause");
    let paused = house
        .ask(Method::POST, &path, &key, json!({ "memory": false }))
        .await;
    assert_eq!(paused.data()["paused"], true);
    let shown = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    assert_eq!(
        (&shown.data()["status"], &shown.data()["paused"]),
        (&json!("paused"), &json!(true))
    );
    let path = format!("{sandbox}/resume");
    let resumed = house.ask(Method::POST, &path, &key, NO_BODY).await;
    assert_eq!(resumed.data()["resumed"], true);
    let shown = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    assert_eq!(shown.data()["runtime_generation"], 2);

    // One client takes only 202, another only 200.
    let other = house.create(&key).await;
    let path = format!("{SANDBOXES}/{other}");
    let gone = house.ask_as(Method::DELETE, &path, &key, NO_BODY, "python-httpx/0.28.1");
    assert_eq!(gone.await.status, StatusCode::ACCEPTED);
    let gone = house.ask_as(
        Method::DELETE,
        &sandbox,
        &key,
        NO_BODY,
        "Go-http-client/2.0",
    );
    assert_eq!(gone.await.status, StatusCode::OK);
    let gone = house.ask(Method::GET, &sandbox, &key, NO_BODY).await;
    assert_eq!(
        (gone.status, gone.code()),
        (StatusCode::NOT_FOUND, "not_found")
    );
}

#[tokio::test]
async fn lists_are_paged_and_filtered() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(house.create(&key).await);
    }
    let path = format!("{SANDBOXES}/{}/pause", ids[1]);
    house.ask(Method::POST, &path, &key, NO_BODY).await;
    let list = |query: &str| {
        let path = format!("{SANDBOXES}?{query}");
        let (house, key) = (&house, &key);
        async move {
            let answer = house.ask(Method::GET, &path, key, NO_BODY).await;
            let ids: Vec<_> = answer.data()["sandboxes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["id"].as_str().unwrap().to_owned())
                .collect();
            (ids, answer.data()["has_more"].as_bool().unwrap())
        }
    };
    assert_eq!(list("limit=2").await, (ids[..2].to_vec(), true));
    assert_eq!(list("limit=2&offset=2").await, (ids[2..].to_vec(), false));
    assert_eq!(list("status=paused").await, (vec![ids[1].clone()], false));
    assert_eq!(
        list("paused=false&limit=1").await,
        (vec![ids[0].clone()], true)
    );
    assert_eq!(list("status=paused&paused=false").await, (vec![], false));
    assert_eq!(list("template_id=none").await, (vec![], false));
    for bad in [
        "limit=0",
        "limit=201",
        "limit=x",
        "offset=-1",
        "status=odd",
        "paused=maybe",
    ] {
        let path = format!("{SANDBOXES}?{bad}");
        let answer = house.ask(Method::GET, &path, &key, NO_BODY).await;
        assert_eq!(
            (answer.status, answer.code()),
            (StatusCode::BAD_REQUEST, "bad_request"),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let house = House::open(1000).await;
    let key = house.key("acme", Role::Member).await;
    let config = |config: Value| json!({ "template": "default", "config": config });
    for (body, code) in [
        (json!({}), "bad_request"),
        (json!({ "template": " " }), "bad_request"),
        (json!({ "template": 7 }), "bad_request"),
        (json!({ "template": "other" }), "not_found"),
        (
            json!({ "template": "default", "snapshot_id": "s" }),
            "snapshot_not_found",
        ),
        (config(json!({ "ttl": -1 })), "bad_request"),
        (config(json!({ "ttl": "1" })), "bad_request"),
        (config(json!({ "hard_ttl": i64::MAX })), "bad_request"),
        (config(json!({ "env_vars": { "A=B": "" } })), "bad_request"),
        (config(json!({ "env_vars": { "": "" } })), "bad_request"),
        // No program of the sandbox could be started with it.
        (
            config(json!({ "env_vars": { "A": "b".repeat(128 << 10) } })),
            "bad_request",
        ),
        (
            config(json!({ "resources": { "memory": "lots" } })),
            "bad_request",
        ),
        (config(json!({ "resources": { "pids": 0 } })), "bad_request"),
        (
            config(json!({ "network": { "mode": "tunnel" } })),
            "bad_request",
        ),
        (config(json!({ "user": "a b" })), "bad_request"),
    ] {
        let answer = house.ask(Method::POST, SANDBOXES, &key, body.clone()).await;
        assert_eq!(answer.code(), code, "{body}");
    }
    let id = house.create(&key).await;
    for name in ["files", "services"] {
        let path = format!("{SANDBOXES}/{id}/{name}");
        let answer = house.ask(Method::POST, &path, &key, json!({})).await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED, "{name}");
    }
    let answer = house.ask(Method::PATCH, SANDBOXES, &key, NO_BODY).await;
    assert_eq!(answer.code(), "method_not_allowed");
    let answer = house.ask(Method::GET, "/nowhere", &key, NO_BODY).await;
    assert_eq!(answer.code(), "not_found");
    let huge = json!({ "template": "x".repeat(9 << 20) });
    let answer = house.ask(Method::POST, SANDBOXES, &key, huge).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}
